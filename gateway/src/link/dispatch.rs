//! What was expected of a run when it was sent to a worker; kept until the worker starts it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_admission::Prefix;
use weir_protocol::worker::Submit;

use super::LinkHandle;

/// A run that a worker has not started yet. Its prompt counts as outstanding there until this is dropped.
pub(crate) struct Dispatch {
    link: Arc<LinkHandle>,
    outstanding: u64,
    /// Beginnings of its prompt, where there was a choice of workers.
    pub(crate) prefixes: Vec<Prefix>,
    /// Prompt tokens that the worker was thought to have.
    pub(crate) affinity_tokens: u32,
    /// Expected time to its first token.
    pub(crate) predicted_ms: u64,
}

impl Dispatch {
    pub(crate) fn new(
        link: &Arc<LinkHandle>,
        submit: &Submit,
        prefixes: Vec<Prefix>,
        (affinity_tokens, predicted_us): (u32, u64),
    ) -> Self {
        let outstanding = submit.prompt.len() as u64 - u64::from(affinity_tokens);
        link.outstanding.fetch_add(outstanding, Ordering::AcqRel);
        Self {
            link: Arc::clone(link),
            outstanding,
            prefixes,
            affinity_tokens,
            predicted_ms: predicted_us.div_ceil(1000),
        }
    }
}

impl Drop for Dispatch {
    fn drop(&mut self) {
        self.link
            .outstanding
            .fetch_sub(self.outstanding, Ordering::AcqRel);
    }
}

/// Prompt tokens of one step of hashing: prefix caches share whole blocks, which are no larger.
const GRAIN: usize = 32;
/// Beginnings that are remembered of one prompt; each is at least a quarter longer than the one before.
const MOST: usize = 32;

/// Beginnings of a prompt that may be in a worker's prefix cache, shortest first. Keyed by version and trust scope, and by a key of
/// this process, so that nobody can aim at another's; a run without a scope shares with nobody.
pub(crate) fn prefixes(key: &[u8; 32], submit: &Submit) -> Vec<Prefix> {
    let grains = submit.prompt.len() / GRAIN;
    if submit.trust_scope.is_empty() || grains == 0 {
        return Vec::new();
    }
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&submit.trust_scope);
    hasher.update(submit.version_digest.as_bytes());
    let mut found = Vec::with_capacity(MOST);
    let (mut done, mut next) = (0, 1);
    while next <= grains && found.len() < MOST {
        let part = &submit.prompt[done * GRAIN..next * GRAIN];
        let bytes: Vec<u8> = part.iter().flat_map(|token| token.to_le_bytes()).collect();
        hasher.update(&bytes);
        let hash = hasher.finalize();
        let (first, _) = hash
            .as_bytes()
            .split_first_chunk()
            .expect("a hash has 32 bytes");
        found.push(Prefix {
            hash: u64::from_le_bytes(*first),
            tokens: (next * GRAIN) as u32,
        });
        done = next;
        next += (next / 4).max(1);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn submit(scope: &'static [u8], digest: &str, prompt: std::ops::Range<u32>) -> Submit {
        Submit {
            trust_scope: bytes::Bytes::from_static(scope),
            version_digest: digest.to_owned(),
            prompt: prompt.collect(),
            ..Submit::default()
        }
    }

    #[test]
    fn equal_beginnings_are_equal_only_within_scope_and_version() {
        let of = |submit: &Submit| prefixes(&[1; 32], submit);
        let one = of(&submit(b"acme", "v1", 0..200));
        assert_eq!(
            one.iter().map(|p| p.tokens).collect::<Vec<_>>(),
            [32, 64, 96, 128, 160, 192]
        );
        let longer = of(&submit(b"acme", "v1", 0..1_000));
        assert_eq!(longer[..4], one[..4]);
        let common = |other: &Submit| {
            let other = of(other);
            one.iter().zip(&other).filter(|(a, b)| a == b).count()
        };
        assert_eq!(common(&submit(b"globex", "v1", 0..200)), 0, "another scope");
        assert_eq!(common(&submit(b"acme", "v2", 0..200)), 0, "another version");
        assert_eq!(common(&submit(b"acme", "v1", 1..201)), 0, "other tokens");
        assert!(
            of(&submit(b"", "v1", 0..200)).is_empty(),
            "private to the run"
        );
        assert!(of(&submit(b"acme", "v1", 0..31)).is_empty(), "too short");
        assert!(prefixes(&[2; 32], &submit(b"acme", "v1", 0..200))[0] != one[0]);
        let long = of(&submit(b"acme", "v1", 0..131_072));
        assert!(
            long.len() <= MOST && long.last().unwrap().tokens > 20_000,
            "{long:?}"
        );
    }
}
