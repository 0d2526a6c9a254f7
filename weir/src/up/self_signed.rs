//! A certificate that `weir up` makes itself: for one machine, where nobody else vouches for it.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DnType, KeyPair};
use weir_gateway::TlsFiles;

/// How long it is good for, and how long before its end a start makes a new one.
const DAYS: i64 = 365;
const RENEW_BEFORE_DAYS: i64 = 30;
/// Clocks of clients may be behind.
const BACKDATED_DAYS: i64 = 1;

/// The certificate in this folder for a listener; made where there is none, or one that ends soon or has other names.
///
/// # Errors
/// It cannot be made, or the folder cannot be written to.
pub fn files(folder: &Path, listen: SocketAddr) -> Result<TlsFiles> {
    let files = TlsFiles {
        cert: folder.join("self-signed.crt"),
        key: folder.join("self-signed.key"),
    };
    let stamp = folder.join("self-signed.json");
    let (names, now) = (names(listen), Timestamp::now().as_second());
    let made: Option<(Vec<String>, i64)> = std::fs::read(&stamp)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok());
    let is_good =
        made.is_some_and(|(of, until)| of == names && now < until - RENEW_BEFORE_DAYS * 86_400);
    if is_good && files.cert.is_file() && files.key.is_file() {
        return Ok(files);
    }
    let (cert, key) = make(&names).context("cannot make a certificate")?;
    std::fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    write(&files.key, 0o600, &key)?;
    write(&files.cert, 0o644, &cert)?;
    let until = now + DAYS * 86_400;
    write(
        &stamp,
        0o644,
        &serde_json::json!([names, until]).to_string(),
    )?;
    Ok(files)
}

/// What clients on this machine, and others that know its name, call it.
fn names(listen: SocketAddr) -> Vec<String> {
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
    if !listen.ip().is_unspecified() {
        names.push(listen.ip().to_string());
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    names.extend((!host.trim().is_empty()).then(|| host.trim().to_owned()));
    names.sort();
    names.dedup();
    names
}

fn make(names: &[String]) -> Result<(String, String)> {
    let mut params = CertificateParams::new(names.to_vec())?;
    params
        .distinguished_name
        .push(DnType::CommonName, "weir up");
    let day = |offset: i64| {
        let at = Timestamp::now() + SignedDuration::from_hours(24 * offset);
        let date = at.to_zoned(jiff::tz::TimeZone::UTC).date();
        let part = |value: i8| u8::try_from(value).unwrap_or(1);
        rcgen::date_time_ymd(i32::from(date.year()), part(date.month()), part(date.day()))
    };
    params.not_before = day(-BACKDATED_DAYS);
    params.not_after = day(DAYS);
    let key = KeyPair::generate()?;
    let cert = params.self_signed(&key)?;
    Ok((cert.pem(), key.serialize_pem()))
}

fn write(path: &Path, mode: u32, text: &str) -> Result<()> {
    let failed = || format!("cannot write {}", path.display());
    // A new file under a new name: another start sees the old one or the new one, whole.
    let next = path.with_extension("new");
    std::fs::remove_file(&next).ok();
    let mut options = std::fs::OpenOptions::new();
    let file = options.write(true).create_new(true).mode(mode).open(&next);
    let mut file = file.with_context(failed)?;
    file.write_all(text.as_bytes()).with_context(failed)?;
    file.sync_all().with_context(failed)?;
    std::fs::rename(&next, path).with_context(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_certificate_is_made_once_for_the_same_names_and_its_key_is_its_owners() {
        let folder = tempfile::tempdir().unwrap();
        let here: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let made = files(folder.path(), here).unwrap();
        let first = std::fs::read(&made.cert).unwrap();
        files(folder.path(), here).unwrap();
        assert_eq!(std::fs::read(&made.cert).unwrap(), first);
        let permissions = std::fs::metadata(&made.key).unwrap().permissions();
        assert_eq!(permissions.mode() & 0o777, 0o600);
        files(folder.path(), "127.0.0.9:0".parse().unwrap()).unwrap();
        assert_ne!(std::fs::read(&made.cert).unwrap(), first, "another name");
        weir_gateway::Tls::open(made).unwrap();
    }
}
