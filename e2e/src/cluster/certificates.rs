//! Certificates of a cluster: one authority, and what it issued.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// A certificate authority whose certificate lies in a folder as `ca.crt`.
pub struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// Files of a certificate and its key.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate, PEM.
    pub certificate: PathBuf,
    /// Its key, PEM.
    pub key: PathBuf,
}

impl Authority {
    /// A new authority in `folder`.
    ///
    /// # Errors
    /// Files cannot be written.
    pub fn new(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let key = KeyPair::generate()?;
        let mut parameters = CertificateParams::default();
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        parameters
            .distinguished_name
            .push(DnType::CommonName, "weir test cluster");
        std::fs::write(folder.join("ca.crt"), parameters.self_signed(&key)?.pem())?;
        std::fs::write(folder.join("ca.key"), key.serialize_pem())?;
        Ok(Self {
            folder: folder.to_owned(),
            issuer: Issuer::new(parameters, key),
        })
    }

    /// The authority's certificate.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join("ca.crt")
    }

    /// The authority's key.
    pub fn key(&self) -> PathBuf {
        self.folder.join("ca.key")
    }

    /// Issues a certificate for `user` in `group`, which may also serve under `names` (host names and addresses).
    ///
    /// # Errors
    /// A name is none, or files cannot be written.
    pub fn issue(
        &self,
        file: &str,
        user: &str,
        group: Option<&str>,
        names: &[&str],
    ) -> Result<Issued> {
        let key = KeyPair::generate()?;
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut parameters = CertificateParams::new(names)
            .with_context(|| format!("names of certificate \"{file}\""))?;
        parameters.distinguished_name.push(DnType::CommonName, user);
        if let Some(group) = group {
            parameters
                .distinguished_name
                .push(DnType::OrganizationName, group);
        }
        parameters.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ClientAuth,
            ExtendedKeyUsagePurpose::ServerAuth,
        ];
        let issued = Issued {
            certificate: self.folder.join(format!("{file}.crt")),
            key: self.folder.join(format!("{file}.key")),
        };
        let certificate = parameters.signed_by(&key, &self.issuer)?;
        std::fs::write(&issued.certificate, certificate.pem())?;
        std::fs::write(&issued.key, key.serialize_pem())?;
        Ok(issued)
    }

    /// A pair of keys for signing the tokens of service accounts: `sa.pub` and `sa.key`.
    ///
    /// # Errors
    /// Files cannot be written.
    pub fn service_account_keys(&self) -> Result<Issued> {
        let key = KeyPair::generate()?;
        let pair = Issued {
            certificate: self.folder.join("sa.pub"),
            key: self.folder.join("sa.key"),
        };
        std::fs::write(&pair.certificate, key.public_key_pem())?;
        std::fs::write(&pair.key, key.serialize_pem())?;
        Ok(pair)
    }

    /// Writes a kubeconfig for the API server at `server`, with files named rather than copied.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig(&self, path: &Path, server: &str, user: &Issued) -> Result<()> {
        let config = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "weir",
            "clusters": [{"name": "weir", "cluster": {
                "server": server, "certificate-authority": self.certificate(),
            }}],
            "users": [{"name": "weir", "user": {
                "client-certificate": user.certificate, "client-key": user.key,
            }}],
            "contexts": [{"name": "weir", "context": {"cluster": "weir", "user": "weir"}}],
        });
        std::fs::write(path, serde_yaml::to_string(&config)?)?;
        Ok(())
    }
}
