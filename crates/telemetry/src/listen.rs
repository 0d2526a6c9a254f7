//! Listening addresses, whose errors say which option to change.

use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

/// An address cannot be listened on.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}; name another address with {option}")]
pub struct BindError {
    /// Where.
    pub address: SocketAddr,
    /// The command line's option for it.
    pub option: &'static str,
    /// The cause.
    #[source]
    pub source: io::Error,
}

/// Listens on `address`, which people give by `option`; port 0 takes a free one, which comes back.
///
/// # Errors
/// The address is taken or is not one of this machine.
pub async fn bind(
    address: SocketAddr,
    option: &'static str,
) -> Result<(TcpListener, SocketAddr), BindError> {
    let bound = async {
        let listener = TcpListener::bind(address).await?;
        let bound = listener.local_addr()?;
        Ok((listener, bound))
    };
    bound.await.map_err(|source| BindError {
        address,
        option,
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_address_in_use_is_told_with_the_option_to_change() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (_held, taken) = bind(any, "--listen").await.unwrap();
        let error = bind(taken, "--admin").await.unwrap_err();
        assert_eq!(error.source.kind(), io::ErrorKind::AddrInUse);
        let text = error.to_string();
        assert!(
            text.contains(&taken.to_string()) && text.contains("--admin"),
            "{text}"
        );
    }
}
