//! Who may be asking, as far as the name says by which this machine was asked.

use std::net::IpAddr;

use http::header::HOST;
use http::request::Parts;

const WHY: &str = "the console answers to an address, to localhost and to names within a cluster, so that no web page can have its own \
    name point here; open it by this machine's address, or through kubectl port-forward\n";

/// Whether the request came by an address or by a name that nobody on the web can have.
pub(super) fn check(parts: &Parts) -> Result<(), &'static str> {
    let by_host = || parts.headers.get(HOST).and_then(|host| host.to_str().ok());
    let authority = parts.uri.authority().map(http::uri::Authority::as_str);
    let host = authority.or_else(by_host).unwrap_or_default();
    if is_local(name_of(host)) {
        Ok(())
    } else {
        Err(WHY)
    }
}

/// Without the port, and without the brackets of an IPv6 address.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split(']').next().unwrap_or_default();
    }
    host.split(':').next().unwrap_or_default()
}

fn is_local(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let is_of_cluster = [".svc", ".cluster.local", ".localhost", ".internal"]
        .iter()
        .any(|end| name.ends_with(end));
    let is_short = !name.is_empty() && !name.contains('.');
    name.parse::<IpAddr>().is_ok() || is_short || is_of_cluster
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_nobody_on_the_web_can_have_are_answered() {
        for (host, want) in [
            ("127.0.0.1:9090", true),
            ("[::1]:9090", true),
            ("localhost:9090", true),
            ("localhost", true),
            ("weir-gateway:9090", true),
            ("weir-gateway.weir.svc:9090", true),
            ("weir-gateway.weir.svc.cluster.local.:9090", true),
            ("evil.example:9090", false),
            ("127.0.0.1.evil.example", false),
            ("evil.example.", false),
            ("svc.evil.example", false),
            ("", false),
        ] {
            assert_eq!(is_local(name_of(host)), want, "{host}");
        }
    }
}
