//! `weir key`: an API key for a tenant, and the hash that is stored in its place.

use anyhow::Result;
use clap::Parser;
use serde_json::json;
use weir_manifest::{ApiKeyHash, generate_api_key};

/// Make an API key, or take one, and print it with the hash to store.
///
/// The key goes to the client and is kept nowhere else; the hash goes into the Secret that the tenant's quota names.
#[derive(Debug, Parser)]
pub struct Args {
    /// Take this key instead of making one; for development only, since others may guess it.
    #[arg(long, value_name = "VALUE")]
    key: Option<String>,
    /// Print JSON: `{"key","hash"}`.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// The system gives no random numbers.
pub fn run(args: Args) -> Result<()> {
    let Args { key, json } = args;
    let (key, hash) = make(key)?;
    if json {
        println!("{}", json!({"key": key, "hash": hash}));
    } else {
        println!("key   {key}");
        println!("hash  {hash}");
    }
    Ok(())
}

fn make(key: Option<String>) -> Result<(String, ApiKeyHash)> {
    let key = match key {
        Some(key) => key,
        None => generate_api_key()?.to_string(),
    };
    let hash = ApiKeyHash::of(&key)?;
    Ok((key, hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_printed_fits_the_key_printed() {
        for given in [None, Some("acme-dev-key".to_owned()), Some("x".to_owned())] {
            let (key, hash) = make(given.clone()).unwrap();
            assert!(hash.matches(&key));
            assert!(given.is_none_or(|given| given == key));
        }
    }
}
