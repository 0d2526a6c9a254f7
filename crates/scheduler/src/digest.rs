//! Names of prefixes: keyed BLAKE3 chains whose root fixes everything a block of KV depends on besides its tokens.

/// Names a prefix that ends at a block's edge.
pub(crate) type Digest = [u8; 32];

/// Makes digests under the process's key, so that nobody outside the process can construct one.
pub(crate) struct Keyer {
    key: [u8; 32],
    identity: Digest,
}

impl Keyer {
    pub(crate) fn new(key: [u8; 32], identity: Digest) -> Self {
        Self { key, identity }
    }

    /// The root of every prefix of an authenticated trust scope, computed with an adapter or without.
    pub(crate) fn shared_root(&self, scope: &[u8; 32], adapter: Option<&[u8; 32]>) -> Digest {
        self.root((b"scope", scope), adapter)
    }

    /// The root of one request's prefixes, shared by its choices and nobody else.
    pub(crate) fn private_root(&self, group: u64, adapter: Option<&[u8; 32]>) -> Digest {
        self.root((b"group", &group.to_le_bytes()), adapter)
    }

    /// The prefix one block longer than `parent`.
    pub(crate) fn extend(&self, parent: &Digest, tokens: &[u32]) -> Digest {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(parent);
        hasher.update(&(tokens.len() as u64).to_le_bytes());
        let mut bytes = [0_u8; 64];
        for some in tokens.chunks(16) {
            for (place, token) in bytes.chunks_exact_mut(4).zip(some) {
                place.copy_from_slice(&token.to_le_bytes());
            }
            hasher.update(&bytes[..some.len() * 4]);
        }
        *hasher.finalize().as_bytes()
    }

    fn root(&self, owner: (&[u8], &[u8]), adapter: Option<&[u8; 32]>) -> Digest {
        let identity: (&[u8], &[u8]) = (b"identity", &self.identity);
        let fields = match adapter {
            Some(adapter) => tagged(&[identity, (b"adapter", adapter), owner]),
            None => tagged(&[identity, owner]),
        };
        *blake3::keyed_hash(&self.key, &fields).as_bytes()
    }
}

/// Digest of everything that decides what a block's numbers are, apart from the tokens: model digest, KV data type and scales,
/// position encoding, adapter content. Each field has a name, and both are length-prefixed, so no two lists of fields look alike.
pub fn cache_identity(fields: &[(&str, &[u8])]) -> [u8; 32] {
    let fields: Vec<(&[u8], &[u8])> = fields
        .iter()
        .map(|(name, value)| (name.as_bytes(), *value))
        .collect();
    *blake3::hash(&tagged(&fields)).as_bytes()
}

fn tagged(fields: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in fields.iter().flat_map(|(tag, value)| [tag, value]) {
        bytes.extend_from_slice(&(part.len() as u64).to_le_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_concatenate_alike_have_different_identities() {
        let lists: [&[(&str, &[u8])]; 5] = [
            &[("adapter", b"ab"), ("salt", b"c")],
            &[("adapter", b"a"), ("salt", b"bc")],
            &[("adapter", b"absaltc")],
            &[("salt", b"ab"), ("adapter", b"c")],
            &[("adaptera", b"b"), ("salt", b"c")],
        ];
        let mut digests: Vec<_> = lists.iter().map(|fields| cache_identity(fields)).collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), lists.len());
    }

    #[test]
    fn roots_differ_by_key_identity_kind_value_and_adapter() {
        let mut eight = [0_u8; 32];
        eight[..8].copy_from_slice(&7_u64.to_le_bytes());
        let mut roots = vec![
            Keyer::new([1; 32], [1; 32]).shared_root(&eight, None),
            Keyer::new([2; 32], [1; 32]).shared_root(&eight, None),
            Keyer::new([1; 32], [2; 32]).shared_root(&eight, None),
            Keyer::new([1; 32], [1; 32]).private_root(7, None),
            Keyer::new([1; 32], [1; 32]).private_root(8, None),
            Keyer::new([1; 32], [1; 32]).shared_root(&eight, Some(&[1; 32])),
            Keyer::new([1; 32], [1; 32]).shared_root(&eight, Some(&[2; 32])),
            Keyer::new([1; 32], [1; 32]).private_root(7, Some(&[1; 32])),
        ];
        roots.sort_unstable();
        roots.dedup();
        assert_eq!(roots.len(), 8);
    }

    #[test]
    fn chain_depends_on_parent_every_token_and_their_number() {
        let keyer = Keyer::new([1; 32], [1; 32]);
        let base: Vec<u32> = (0..20).collect();
        let mut all = vec![keyer.extend(&[0; 32], &base), keyer.extend(&[1; 32], &base)];
        for place in 0..base.len() {
            let mut other = base.clone();
            other[place] += 1;
            all.push(keyer.extend(&[0; 32], &other));
            all.push(keyer.extend(&[0; 32], &base[..place]));
        }
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
