//! Credentials of registries, as container tools keep them: `config.json` of docker, `auth.json` of podman, or a mounted pull secret.

use std::collections::BTreeMap;
use std::path::PathBuf;

use base64::Engine as _;
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;

#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Debug, Default, Deserialize)]
struct Entry {
    auth: Option<String>,
    username: Option<String>,
    password: Option<String>,
    registrytoken: Option<String>,
}

/// The files that may have them, the first that is there counts.
fn files() -> Vec<PathBuf> {
    let folder = |name: &str, rest: &str| {
        std::env::var_os(name).map(|folder| PathBuf::from(folder).join(rest))
    };
    [
        // A pull secret is mounted under its own name.
        folder("DOCKER_CONFIG", "config.json"),
        folder("DOCKER_CONFIG", ".dockerconfigjson"),
        std::env::var_os("REGISTRY_AUTH_FILE").map(PathBuf::from),
        folder("XDG_RUNTIME_DIR", "containers/auth.json"),
        folder("HOME", ".docker/config.json"),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// What to say to a registry, from what was `given` or from the files of this machine.
///
/// # Errors
/// The file that is there cannot be read or understood; never with its content.
pub(crate) fn credentials(
    given: Option<&[u8]>,
    registry: &str,
    repository: &str,
) -> Result<RegistryAuth, String> {
    if let Some(text) = given {
        return parse(text, registry, repository)
            .map_err(|fault| format!("the Secret's credentials of registries: it {fault}"));
    }
    for path in files() {
        match std::fs::read(&path) {
            Ok(text) => {
                return parse(&text, registry, repository)
                    .map_err(|fault| format!("{} {fault}", path.display()));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{} cannot be read: {error}", path.display())),
        }
    }
    Ok(RegistryAuth::Anonymous)
}

fn parse(text: &[u8], registry: &str, repository: &str) -> Result<RegistryAuth, &'static str> {
    let config: Config = serde_json::from_slice(text).map_err(|_| "is not a docker config.json")?;
    let name = |key: &str| {
        let key = key.split_once("://").map_or(key, |(_, rest)| rest);
        key.trim_end_matches("/v1/")
            .trim_end_matches("/v2/")
            .trim_end_matches('/')
            .to_owned()
    };
    // The longest path that fits counts, as podman does it.
    let whole = format!("{registry}/{repository}");
    let fits = |key: &str| {
        whole == key
            || whole
                .strip_prefix(key)
                .is_some_and(|rest| rest.starts_with('/'))
    };
    let found = config
        .auths
        .iter()
        .filter(|(key, _)| fits(&name(key)))
        .max_by_key(|(key, _)| name(key).len());
    let Some((_, entry)) = found else {
        return Ok(RegistryAuth::Anonymous);
    };
    if let Some(token) = &entry.registrytoken {
        return Ok(RegistryAuth::Bearer(token.clone()));
    }
    if let (Some(user), Some(password)) = (&entry.username, &entry.password) {
        return Ok(RegistryAuth::Basic(user.clone(), password.clone()));
    }
    let Some(auth) = entry.auth.as_deref().filter(|auth| !auth.is_empty()) else {
        return Err(
            "keeps this registry's credentials in a helper program, which is not run: write them into a file of their own and name its folder in DOCKER_CONFIG",
        );
    };
    let malformed = "has an \"auth\" that is not base64 of USER:PASSWORD";
    let decoded = base64::engine::general_purpose::STANDARD
        .decode(auth.trim())
        .map_err(|_| malformed)?;
    let decoded = String::from_utf8(decoded).map_err(|_| malformed)?;
    let (user, password) = decoded.split_once(':').ok_or(malformed)?;
    Ok(RegistryAuth::Basic(user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_entry_that_fits_best_is_used_and_its_fault_never_shows_it() {
        let text = br#"{"auths": {
            "https://registry.example/v1/": {"auth": "YTpi"},
            "registry.example/team": {"username": "u", "password": "p"},
            "token.example": {"registrytoken": "t"},
            "helper.example": {},
            "broken.example": {"auth": "c2VjcmV0"}
        }, "credsStore": "desktop"}"#;
        let basic = |user: &str, password: &str| {
            Ok(RegistryAuth::Basic(user.to_owned(), password.to_owned()))
        };
        let of = |registry, repository| parse(text, registry, repository);
        assert_eq!(of("registry.example", "other/x"), basic("a", "b"));
        assert_eq!(of("registry.example", "team/x"), basic("u", "p"));
        assert_eq!(of("registry.example", "teams/x"), basic("a", "b"));
        assert_eq!(
            of("token.example", "x"),
            Ok(RegistryAuth::Bearer("t".to_owned()))
        );
        assert_eq!(of("elsewhere.example", "x"), Ok(RegistryAuth::Anonymous));
        assert!(of("helper.example", "x").unwrap_err().contains("helper"));
        assert!(!of("broken.example", "x").unwrap_err().contains("secret"));
        assert!(parse(b"[", "x", "y").is_err());
    }
}
