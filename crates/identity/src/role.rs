//! What a process is within its install.

use rustls::pki_types::ServerName;

/// What a process is within its install; its certificate says so by a DNS name that no resolver knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Serves clients, and asks workers.
    Gateway,
    /// Runs a model.
    Worker,
    /// Decides what gateways route.
    Operator,
}

impl Role {
    /// The name in its certificate. `internal` is kept free for such names, so no public authority can give one.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway.weir.internal",
            Self::Worker => "worker.weir.internal",
            Self::Operator => "operator.weir.internal",
        }
    }

    pub(crate) fn server_name(self) -> ServerName<'static> {
        ServerName::try_from(self.name()).expect("the names above are DNS names")
    }
}
