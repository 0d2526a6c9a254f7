//! Damage on purpose, for tests of what finds and repairs it.

use std::path::Path;

use weir_budget::Account;

use crate::kv::{self, Batch};
use crate::record::{key, seal};
use crate::{Engine, StoreError};

/// Puts an account in place of a tenant's, past every rule, in a folder that nobody has open.
///
/// # Errors
/// The files cannot be written.
pub fn overwrite_account(
    folder: &Path,
    engine: Engine,
    tenant: &str,
    account: &Account,
) -> Result<(), StoreError> {
    let failed = |cause: String| StoreError::Write {
        path: folder.display().to_string(),
        cause,
    };
    let kv = kv::open(folder, engine, crate::Durability::Disk)
        .map_err(|error| failed(error.to_string()))?;
    let text = serde_json::to_vec(account).map_err(|error| failed(error.to_string()))?;
    let key = key::account(tenant);
    let sealed = seal(&key, text);
    let batch = Batch::from([(key, Some(sealed))]);
    kv.commit(&batch).map_err(|error| failed(error.to_string()))
}
