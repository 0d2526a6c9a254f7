//! Where files begin in an uncompressed tar archive that is elsewhere: it is read header by header, and only headers are read. A file of
//! such an archive is then a range of it, fetched and continued like any other. Pure.

use std::collections::BTreeMap;

use weir_manifest::FilePath;

/// Archives are made of blocks.
pub(crate) const BLOCK: u64 = 512;
/// More headers than any artifact has files.
const MOST: u32 = 20_000;
/// Longest text of an extension: names are far shorter.
const LONGEST: u64 = 64 << 10;

/// A file's place in the archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// Reads an archive's headers.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    files: BTreeMap<FilePath, Extent>,
    at: u64,
    /// An extension whose text is wanted next.
    text: Option<(u8, u64)>,
    /// What extensions said of the next file.
    name: Option<String>,
    size: Option<u64>,
    headers: u32,
    is_done: bool,
}

impl Reader {
    /// The next piece to be read: offset and length. None when every file is known.
    pub(crate) fn wants(&self) -> Option<(u64, u64)> {
        match self.text {
            _ if self.is_done => None,
            Some((_, size)) => Some((self.at, size)),
            None => Some((self.at, BLOCK)),
        }
    }

    /// Takes what was read there.
    ///
    /// # Errors
    /// It is no archive.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<(), &'static str> {
        if let Some((kind, size)) = self.text.take() {
            self.at += size.next_multiple_of(BLOCK);
            return self.extension(kind, bytes);
        }
        let Some(block) = bytes.first_chunk::<512>() else {
            return Err("the archive ends within a header");
        };
        if block.iter().all(|byte| *byte == 0) {
            self.is_done = true;
            return Ok(());
        }
        self.headers += 1;
        if self.headers > MOST {
            return Err("the archive has too many entries");
        }
        let header = tar::Header::from_byte_slice(block);
        let sum: u32 = block
            .iter()
            .enumerate()
            .map(|(index, byte)| {
                if (148..156).contains(&index) {
                    32
                } else {
                    u32::from(*byte)
                }
            })
            .sum();
        if header.cksum().ok() != Some(sum) {
            return Err("the layer is not an uncompressed tar archive");
        }
        let size = header
            .entry_size()
            .map_err(|_| "an entry of the archive has no size")?;
        self.at += BLOCK;
        let kind = header.entry_type().as_byte();
        if matches!(kind, b'x' | b'L' | b'g') {
            if size > LONGEST {
                return Err("an entry of the archive has a name that is too long");
            }
            self.text = Some((kind, size));
            return Ok(());
        }
        let size = self.size.take().unwrap_or(size);
        let path = String::from_utf8_lossy(&header.path_bytes()).into_owned();
        let path = self.name.take().unwrap_or(path);
        if header.entry_type().is_file()
            && let Ok(path) = path.trim_start_matches("./").parse()
        {
            self.files.insert(
                path,
                Extent {
                    offset: self.at,
                    size,
                },
            );
        }
        self.at = self
            .at
            .checked_add(size.next_multiple_of(BLOCK))
            .ok_or("an entry of the archive has an impossible size")?;
        Ok(())
    }

    fn extension(&mut self, kind: u8, text: &[u8]) -> Result<(), &'static str> {
        if kind == b'L' {
            let name = text.split(|byte| *byte == 0).next().unwrap_or_default();
            self.name = Some(String::from_utf8_lossy(name).into_owned());
            return Ok(());
        }
        for entry in tar::PaxExtensions::new(text) {
            let entry = entry.map_err(|_| "an extension of the archive cannot be read")?;
            match (kind, entry.key(), entry.value()) {
                (b'x', Ok("path"), Ok(path)) => self.name = Some(path.to_owned()),
                (b'x', Ok("size"), Ok(size)) => self.size = size.parse().ok(),
                _ => {}
            }
        }
        Ok(())
    }

    /// The files found.
    pub(crate) fn files(self) -> BTreeMap<FilePath, Extent> {
        self.files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(archive: &[u8]) -> Result<BTreeMap<FilePath, Extent>, &'static str> {
        let mut reader = Reader::default();
        while let Some((offset, len)) = reader.wants() {
            let from = usize::try_from(offset).unwrap();
            let to = from + usize::try_from(len).unwrap();
            reader.take(archive.get(from..to).unwrap_or_default())?;
        }
        Ok(reader.files())
    }

    #[test]
    fn every_file_of_an_archive_is_found_where_it_lies() {
        let long = format!("{}/{}.json", "d".repeat(90), "f".repeat(90));
        let files = [
            ("./config.json", vec![1; 700]),
            (long.as_str(), vec![2; 512]),
            ("empty", vec![]),
            ("sub/x", vec![3; 5]),
        ];
        let mut builder = tar::Builder::new(Vec::new());
        for (path, content) in &files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            builder
                .append_data(&mut header, path, content.as_slice())
                .unwrap();
        }
        let archive = builder.into_inner().unwrap();
        let found = read(&archive).unwrap();
        assert_eq!(found.len(), files.len());
        for (path, content) in &files {
            let extent = found[&path.trim_start_matches("./").parse::<FilePath>().unwrap()];
            let from = usize::try_from(extent.offset).unwrap();
            assert_eq!(
                &archive[from..from + content.len()],
                content.as_slice(),
                "{path}"
            );
            assert_eq!(extent.size, content.len() as u64);
        }
    }

    #[test]
    fn what_is_no_archive_is_refused() {
        assert!(read(&[7; 2048]).is_err());
        assert!(read(&[0x1f, 0x8b]).is_err());
        assert!(read(&[]).is_err());
    }
}
