//! Compiled kernels on disk, so that a worker does not compile at each start.

use std::io::Write as _;
use std::path::PathBuf;

use super::compile::{CompileError, Nvrtc, Target, compile, options};
use crate::kernels::{Family, HEADERS, Variant};

/// Bytes of the digest that each file begins with.
const DIGEST: usize = 32;

/// A folder of compiled kernels, by what they were compiled from, for what and by what. Whoever can write to it decides what runs on the device.
#[derive(Clone, Debug, Default)]
pub struct KernelCache {
    folder: Option<PathBuf>,
}

impl KernelCache {
    /// Without a folder, everything is compiled.
    pub fn new(folder: Option<PathBuf>) -> Self {
        Self { folder }
    }

    /// Compiled kernels, from the folder where it has them.
    ///
    /// # Errors
    /// They do not compile. What cannot be read or written on disk costs time only.
    pub fn get(
        &self,
        nvrtc: Nvrtc,
        family: &Family,
        variant: &Variant,
        target: Target,
    ) -> Result<Vec<u8>, CompileError> {
        let version = nvrtc.version().unwrap_or_default();
        let name = key(version, family, variant, target);
        let path = self.folder.as_ref().map(|folder| folder.join(name));
        if let Some(image) = path.as_ref().and_then(|path| read(path)) {
            return Ok(image);
        }
        let compiled = compile(nvrtc, family, variant, target)?;
        if let Some(path) = &path {
            let _ = write(path, &compiled.image);
        }
        Ok(compiled.image)
    }
}

/// The name of a file: everything that the image depends on.
fn key(version: (i32, i32), family: &Family, variant: &Variant, target: Target) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut add = |text: &str| {
        hasher.update(&(text.len() as u64).to_le_bytes());
        hasher.update(text.as_bytes());
    };
    add(family.source);
    for (name, source) in HEADERS {
        add(name);
        add(source);
    }
    for option in options(family, variant, target) {
        add(&option);
    }
    add(&format!("{}.{}", version.0, version.1));
    format!(
        "{}-{}-{}",
        family.name,
        target.name(),
        hasher.finalize().to_hex()
    )
}

/// An image that is what was written.
fn read(path: &std::path::Path) -> Option<Vec<u8>> {
    let mut bytes = std::fs::read(path).ok()?;
    if bytes.len() < DIGEST {
        return None;
    }
    let image = bytes.split_off(DIGEST);
    (blake3::hash(&image).as_bytes() == bytes.as_slice()).then_some(image)
}

/// Under another name first: a reader sees all of it or nothing.
fn write(path: &std::path::Path, image: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(std::path::Path::new("."));
    std::fs::create_dir_all(folder)?;
    let unfinished = path.with_extension(format!("{}.unfinished", std::process::id()));
    let mut file = std::fs::File::create(&unfinished)?;
    file.write_all(blake3::hash(image).as_bytes())?;
    file.write_all(image)?;
    file.sync_all()?;
    std::fs::rename(&unfinished, path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{ActType, CacheType, FAMILIES};

    const VARIANT: Variant = Variant {
        act: ActType::Bf16,
        cache: CacheType::Act,
        head_dim: 128,
    };

    #[test]
    fn a_name_says_everything_an_image_depends_on() {
        let decode = FAMILIES
            .iter()
            .find(|family| family.name == "decode")
            .unwrap();
        let base = key((13, 0), decode, &VARIANT, Target::of((9, 0)));
        let wide = Variant {
            head_dim: 64,
            ..VARIANT
        };
        let others = [
            key((13, 1), decode, &VARIANT, Target::of((9, 0))),
            key((13, 0), decode, &wide, Target::of((9, 0))),
            key((13, 0), decode, &VARIANT, Target::FALLBACK),
            key((13, 0), &FAMILIES[0], &VARIANT, Target::of((9, 0))),
        ];
        assert!(others.iter().all(|other| *other != base));
    }

    #[test]
    fn what_was_changed_on_disk_is_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("image");
        write(&path, b"code").unwrap();
        assert_eq!(read(&path).as_deref(), Some(&b"code"[..]));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_eq!(read(&path), None);
    }
}
