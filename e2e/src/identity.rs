//! An install's authority, and the folders by which its processes prove themselves to each other.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// As gateways are named.
pub const GATEWAY: &str = "gateway.weir.internal";
/// As workers are named.
pub const WORKER: &str = "worker.weir.internal";

/// An authority of its own.
pub struct InstallAuthority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl InstallAuthority {
    /// A new one.
    ///
    /// # Errors
    /// There is no key.
    pub fn new() -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let key = KeyPair::generate()?;
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let name = format!("install {}", NEXT.fetch_add(1, Ordering::Relaxed));
        parameters.distinguished_name.push(DnType::CommonName, name);
        Ok(Self {
            pem: parameters.self_signed(&key)?.pem(),
            issuer: Issuer::new(parameters, key),
        })
    }

    /// Writes the folder of a process that is `name` and takes others by `trusted`; its certificate is over after `lives`, or was so long
    /// ago where that is `Err`.
    ///
    /// # Errors
    /// Files cannot be written.
    pub fn write(
        &self,
        folder: &Path,
        name: &str,
        trusted: &[&Self],
        lives: Result<Duration, Duration>,
    ) -> Result<()> {
        let key = KeyPair::generate()?;
        let mut parameters = CertificateParams::new([name.to_owned()])?;
        parameters.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let now = SystemTime::now();
        let end = match lives {
            Ok(left) => now + left,
            Err(since) => now - since,
        };
        parameters.not_after = end.into();
        let certificate = parameters.signed_by(&key, &self.issuer)?.pem();
        let bundle: String = trusted.iter().map(|one| one.pem.as_str()).collect();
        std::fs::create_dir_all(folder)?;
        for (file, text) in [
            ("tls.crt", certificate),
            ("tls.key", key.serialize_pem()),
            ("ca.crt", bundle),
        ] {
            let partial = folder.join(format!("{file}.partial"));
            std::fs::write(&partial, text)?;
            std::fs::rename(&partial, folder.join(file))?;
        }
        Ok(())
    }
}
