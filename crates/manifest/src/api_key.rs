//! API keys of tenants: how they are made, and the only form in which they are stored.
//!
//! A stored hash is `weir1$<salt>$<HMAC-SHA256(salt, key)>` with the digest in hex. Keys are random, so no slow hash is needed. Made keys
//! look like `wk_<public id>_<secret>` and have their public id as salt, which finds their hash without trying others; keys that people
//! chose get a random salt.

use std::collections::HashMap;
use std::fmt;
use std::str::FromStr;

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::Sha256;
use subtle::ConstantTimeEq as _;
use zeroize::Zeroizing;

/// 32 characters without `i`, `l`, `o` and `u`, which are misread: 5 bits each.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 80 bits: two of a million keys are alike with a chance of 10^-12.
const PUBLIC_ID_CHARS: usize = 16;
/// 255 bits.
const SECRET_CHARS: usize = 51;
/// How salts of keys that people chose begin; no public id does.
const CHOSEN: &str = "chosen-";
/// Longest salt that is read.
const MAX_SALT_CHARS: usize = 64;

/// The stored form of a key.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKeyHash {
    salt: String,
    mac: [u8; 32],
}

/// A text that is not a stored hash. The text is not repeated: it may be the key itself, put where its hash belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the text is not a key hash of the form weir1$<salt>$<64 hex digits>; make one with `weir key`"
)]
pub struct ParseApiKeyHashError;

/// The system gave no random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the system gives no random numbers")]
pub struct RandomError;

/// Makes a key: `wk_<public id>_<secret>`.
///
/// # Errors
/// When the system gives no random numbers.
pub fn generate_api_key() -> Result<Zeroizing<String>, RandomError> {
    let public_id = random_text(PUBLIC_ID_CHARS)?;
    let secret = random_text(SECRET_CHARS)?;
    Ok(Zeroizing::new(format!("wk_{}_{}", *public_id, *secret)))
}

/// The public id of a made key; none for a key that a person chose.
pub fn public_id(key: &str) -> Option<&str> {
    let (id, secret) = key.strip_prefix("wk_")?.split_once('_')?;
    let is_made = |text: &str, chars: usize| {
        text.len() == chars && text.bytes().all(|b| ALPHABET.contains(&b))
    };
    (is_made(id, PUBLIC_ID_CHARS) && is_made(secret, SECRET_CHARS)).then_some(id)
}

impl ApiKeyHash {
    /// The hash to store for `key`.
    ///
    /// # Errors
    /// When a salt is needed and the system gives no random numbers.
    pub fn of(key: &str) -> Result<Self, RandomError> {
        let salt = match public_id(key) {
            Some(id) => id.to_owned(),
            None => format!("{CHOSEN}{}", *random_text(PUBLIC_ID_CHARS)?),
        };
        Ok(Self {
            mac: mac(&salt, key),
            salt,
        })
    }

    /// Is `key` the key? Takes the same time wherever the two differ.
    pub fn matches(&self, key: &str) -> bool {
        #[cfg(test)]
        tests::COMPARED.set(tests::COMPARED.get() + 1);
        mac(&self.salt, key).ct_eq(&self.mac).into()
    }

    /// The salt, which is the public id of a made key.
    pub fn salt(&self) -> &str {
        &self.salt
    }
}

fn mac(salt: &str, key: &str) -> [u8; 32] {
    let mut mac =
        Hmac::<Sha256>::new_from_slice(salt.as_bytes()).expect("HMAC takes keys of any length");
    mac.update(key.as_bytes());
    mac.finalize().into_bytes().into()
}

fn random_text(chars: usize) -> Result<Zeroizing<String>, RandomError> {
    let mut bytes = Zeroizing::new(vec![0_u8; chars]);
    getrandom::fill(&mut bytes).map_err(|_| RandomError)?;
    // 256 is a multiple of 32, so every character is equally likely.
    Ok(Zeroizing::new(
        bytes
            .iter()
            .map(|b| char::from(ALPHABET[usize::from(b % 32)]))
            .collect(),
    ))
}

impl FromStr for ApiKeyHash {
    type Err = ParseApiKeyHashError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // Files and Secrets made with `echo` end in a newline.
        let (salt, digest) = text
            .trim()
            .strip_prefix("weir1$")
            .and_then(|t| t.split_once('$'))
            .ok_or(ParseApiKeyHashError)?;
        let is_salt = (1..=MAX_SALT_CHARS).contains(&salt.len())
            && salt.bytes().all(|b| b.is_ascii_graphic() && b != b'$');
        let mut mac = [0; 32];
        hex::decode_to_slice(digest, &mut mac).map_err(|_| ParseApiKeyHashError)?;
        if is_salt {
            Ok(Self {
                salt: salt.to_owned(),
                mac,
            })
        } else {
            Err(ParseApiKeyHashError)
        }
    }
}

impl fmt::Display for ApiKeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weir1${}${}", self.salt, hex::encode(self.mac))
    }
}

impl fmt::Debug for ApiKeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ApiKeyHash({})", self.salt)
    }
}

impl Serialize for ApiKeyHash {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ApiKeyHash {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

/// Hashes of many keys with what each stands for. Made keys are found by their public id; the others are tried one by one, all of them, so
/// that the time taken does not tell which one matched.
#[derive(Clone, Debug)]
pub struct ApiKeyIndex<T> {
    by_salt: HashMap<String, Vec<(ApiKeyHash, T)>>,
    chosen: Vec<(ApiKeyHash, T)>,
}

/// Most hashes that a chosen key is tried against.
const MOST_TRIED: usize = 256;

/// What the key stands for among these, in the same time wherever it stands.
fn matching<'h, 'a, T: 'a>(
    hashes: impl Iterator<Item = (&'h ApiKeyHash, Option<&'a T>)>,
    key: &str,
) -> Option<&'a T> {
    let mut found = None;
    for (hash, value) in hashes {
        if hash.matches(key) {
            found = value;
        }
    }
    found
}

/// Hashes that all stand for something.
fn known<T>(hashes: &(ApiKeyHash, T)) -> (&ApiKeyHash, Option<&T>) {
    (&hashes.0, Some(&hashes.1))
}

impl<T> Default for ApiKeyIndex<T> {
    fn default() -> Self {
        Self {
            by_salt: HashMap::new(),
            chosen: Vec::new(),
        }
    }
}

impl<T> ApiKeyIndex<T> {
    /// Adds a hash.
    pub fn insert(&mut self, hash: ApiKeyHash, value: T) {
        if hash.salt.starts_with(CHOSEN) {
            return self.chosen.push((hash, value));
        }
        self.by_salt
            .entry(hash.salt.clone())
            .or_default()
            .push((hash, value));
    }

    /// How many hashes it has.
    pub fn len(&self) -> usize {
        self.by_salt.values().map(Vec::len).sum::<usize>() + self.chosen.len()
    }

    /// Has it none?
    pub fn is_empty(&self) -> bool {
        self.by_salt.is_empty() && self.chosen.is_empty()
    }

    /// What `key` stands for. Constant in the number of keys for made keys; keys that people chose are tried one by one (about a
    /// microsecond each), but no further than among 256 hashes: more of them would let guesses keep a gateway busy.
    pub fn find(&self, key: &str) -> Option<&T> {
        if let Some(id) = public_id(key) {
            // One way for ids that are known and unknown: an unknown one is compared with a hash that nothing has.
            let of_id = self.by_salt.get(id).map(Vec::as_slice);
            let hashes = of_id.unwrap_or_default().iter();
            let nobodys = ApiKeyHash {
                salt: id.to_owned(),
                mac: [0; 32],
            };
            let decoy = of_id.is_none().then_some((&nobodys, None));
            let pairs = hashes.map(|(hash, value)| (hash, Some(value)));
            return matching(pairs.chain(decoy), key);
        }
        let mut chosen = None;
        if !self.chosen.is_empty() {
            chosen = matching(self.chosen.iter().take(MOST_TRIED).map(known), key);
        }
        // Hashes of chosen keys from before they had salts of their own form look like those of made keys.
        if chosen.is_none() && self.len() <= MOST_TRIED {
            return matching(self.by_salt.values().flatten().map(known), key);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    thread_local! {
        /// Hashes that keys were compared with.
        pub(super) static COMPARED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
    }

    #[test]
    fn a_wrong_key_is_compared_once_whether_its_public_id_is_known_or_not() {
        let mut index = ApiKeyIndex::default();
        let known = generate_api_key().unwrap();
        index.insert(ApiKeyHash::of(&known).unwrap(), ());
        for _ in 0..20 {
            let other = generate_api_key().unwrap();
            index.insert(ApiKeyHash::of(&other).unwrap(), ());
        }
        let (head, _) = known.rsplit_once('_').unwrap();
        let forged = format!("{head}_{}", "0".repeat(SECRET_CHARS));
        let stranger = generate_api_key().unwrap();
        for wrong in [forged.as_str(), stranger.as_str()] {
            COMPARED.set(0);
            assert_eq!(index.find(wrong), None);
            assert_eq!(COMPARED.get(), 1, "{wrong}");
        }
        // Nothing has the hash that an unknown id is compared with, not even by chance of an empty text.
        assert!(
            !ApiKeyHash {
                salt: "x".to_owned(),
                mac: [0; 32]
            }
            .matches("")
        );
    }

    #[test]
    fn the_hash_is_hmac_sha_256_with_the_salt_as_key() {
        // RFC 4231, test case 2.
        let hash: ApiKeyHash =
            "weir1$Jefe$5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
                .parse()
                .unwrap();
        assert!(hash.matches("what do ya want for nothing?"));
        assert!(!hash.matches("what do ya want for nothing"));
    }

    #[test]
    fn made_keys_have_their_public_id_as_salt() {
        let key = generate_api_key().unwrap();
        let other = generate_api_key().unwrap();
        assert_ne!(*key, *other);
        let hash = ApiKeyHash::of(&key).unwrap();
        assert_eq!(public_id(&key), Some(hash.salt()));
        assert!(key.starts_with(&format!("wk_{}_", hash.salt())));
        assert!(hash.matches(&key) && !hash.matches(&other));
        assert!(!format!("{hash:?} {hash}").contains(key.rsplit('_').next().unwrap()));
    }

    #[test]
    fn a_chosen_key_gets_another_salt_each_time() {
        let (one, two) = (
            ApiKeyHash::of("acme-dev-key").unwrap(),
            ApiKeyHash::of("acme-dev-key").unwrap(),
        );
        assert_ne!(one.to_string(), two.to_string());
        assert!(one.matches("acme-dev-key") && two.matches("acme-dev-key"));
    }

    #[test]
    fn what_is_not_a_hash_is_refused_without_being_repeated() {
        let good = ApiKeyHash::of("k").unwrap().to_string();
        for bad in [
            "",
            "acme-dev-key",
            "weir1$",
            "weir1$$00",
            &good.replace("weir1", "weir2"),
            &good[..good.len() - 1],
            &format!("{good}0"),
        ] {
            let error = bad.parse::<ApiKeyHash>().unwrap_err();
            assert!(bad.len() < 8 || !error.to_string().contains(bad), "{bad}");
        }
        assert_eq!(
            format!("{good}\n")
                .parse::<ApiKeyHash>()
                .unwrap()
                .to_string(),
            good
        );
    }

    #[test]
    fn an_index_finds_made_and_chosen_keys_and_nothing_else() {
        let mut index = ApiKeyIndex::default();
        let made: Vec<_> = (0..20).map(|_| generate_api_key().unwrap()).collect();
        for (number, key) in made.iter().enumerate() {
            index.insert(ApiKeyHash::of(key).unwrap(), number);
        }
        index.insert(ApiKeyHash::of("acme-dev-key").unwrap(), 100);
        index.insert(ApiKeyHash::of("globex-dev-key").unwrap(), 101);
        assert_eq!(index.len(), 22);
        for (number, key) in made.iter().enumerate() {
            assert_eq!(index.find(key), Some(&number));
        }
        assert_eq!(index.find("acme-dev-key"), Some(&100));
        assert_eq!(index.find("globex-dev-key"), Some(&101));
        assert_eq!(index.find("acme-dev-kez"), None);
        let (head, _) = made[0].rsplit_once('_').unwrap();
        assert_eq!(
            index.find(&format!("{head}_{}", "0".repeat(SECRET_CHARS))),
            None
        );
    }

    proptest! {
        #[test]
        fn only_the_key_itself_matches(key in ".{0,40}", other in ".{0,40}") {
            let hash = ApiKeyHash::of(&key).unwrap();
            prop_assert!(hash.matches(&key));
            prop_assert_eq!(hash.matches(&other), key == other);
            prop_assert_eq!(&hash.to_string().parse::<ApiKeyHash>().unwrap(), &hash);
        }
    }
}
