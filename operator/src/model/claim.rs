//! What an object claims of its artifact, for the signature's verifier.

use weir_api::ValidModelVersion;
use weir_manifest::{Digest, VersionClaim};

/// What an object says of its artifact, in the words of the signature's verifier.
///
/// # Errors
/// A path that no artifact can have.
pub fn claim(version: &ValidModelVersion) -> Result<VersionClaim, String> {
    let manifest = &version.manifest;
    let mut files = Vec::with_capacity(manifest.files.len());
    for file in &manifest.files {
        let path = file.path.parse();
        let path = path.map_err(|error| format!("{}: {error}", file.path))?;
        files.push(weir_manifest::FileEntry {
            path,
            sha256: Digest::from_bytes(file.sha256),
            size: file.size,
        });
    }
    Ok(VersionClaim {
        model: version.model.clone(),
        version: version.version,
        files,
        architecture: manifest.architecture.clone(),
        precision: manifest.precision.as_str().to_owned(),
        context_tokens: manifest.context_tokens,
        request_schema: manifest.request_schema,
        adapter_of: manifest
            .adapter_of
            .as_deref()
            .and_then(|digest| digest.parse().ok()),
    })
}

/// The digest that the object claims: its signed manifest's.
pub fn claimed_digest(version: &ValidModelVersion) -> String {
    let mut files = version.manifest.files.iter();
    let manifest = files.find(|file| file.path == weir_manifest::MANIFEST_FILE);
    manifest.map_or_else(String::new, |file| {
        Digest::from_bytes(file.sha256).to_string()
    })
}
