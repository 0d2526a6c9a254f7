//! The operator's port: what it asks of a gateway and hands over to it, for whoever proves to be the operator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use weir_identity::{Identity, Role};
use weir_telemetry::admin::{Action, Admin, Query};
use weir_telemetry::{BindError, bind};

/// What the operator may ask, and what it may hand over.
pub(crate) struct Asked {
    pub(crate) actions: BTreeMap<&'static str, Action>,
    pub(crate) queries: BTreeMap<&'static str, Query>,
}

impl Asked {
    /// Offers it at an address of its own to whoever proves to be the operator, for as long as the process lives; where there is none, on
    /// the admin port.
    pub(crate) async fn offer(
        self,
        control: Option<(SocketAddr, Arc<Identity>)>,
        admin: &mut Admin,
    ) -> Result<(), BindError> {
        let Some((address, identity)) = control else {
            admin.actions.extend(self.actions);
            admin.queries.extend(self.queries);
            return Ok(());
        };
        let (listener, _) = bind(address, "--control").await?;
        let served = Admin {
            actions: self.actions,
            queries: self.queries,
            ..admin.clone()
        };
        let never = CancellationToken::new();
        let mut operators = weir_identity::accept(listener, identity, Role::Operator, never);
        tokio::spawn(async move {
            while let Some(taken) = operators.recv().await {
                if let Ok(stream) = taken {
                    tokio::spawn(served.clone().serve_stream(stream));
                }
            }
        });
        Ok(())
    }
}
