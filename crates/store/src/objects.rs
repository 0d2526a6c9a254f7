//! Objects: documents and pieces of files that the gateway keeps for tenants beside their runs.
//!
//! An object is named by a space (which part of the gateway it belongs to), an owner (a tenant, or empty for what is no tenant's) and a
//! name. Its version counts its writes from 1, so that a writer can say which state it has seen.

use std::ops::ControlFlow;

use bytes::Bytes;

use crate::kv::View;
use crate::record::{self, key, unseal};
use crate::writer::state::{ReadError, at};

/// The space of [`crate::Admission::attachment`]: owner is the tenant, name the run's id.
pub const RUN_SPACE: &str = "run";
/// Largest object: a piece of a file must not keep the events of a step waiting.
pub const MAX_OBJECT_BYTES: usize = 1 << 20;
/// Longest name.
pub(crate) const MAX_NAME_BYTES: usize = 512;

/// An object as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    /// Its name within space and owner.
    pub name: String,
    /// How often it was written since it was made.
    pub version: u64,
    /// What it holds.
    pub data: Bytes,
}

/// What a write demands of the object as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Nothing.
    Any,
    /// That there is none.
    Absent,
    /// That nobody has written since.
    Version(u64),
}

/// A write of one object.
#[derive(Clone, Debug)]
pub struct ObjectWrite {
    /// Which part of the gateway it belongs to.
    pub space: &'static str,
    /// The tenant, or empty.
    pub owner: String,
    /// Its name; names sort by their bytes.
    pub name: String,
    /// What it must be like before.
    pub expect: Expect,
    /// What it holds afterwards, at most [`MAX_OBJECT_BYTES`]; none removes it.
    pub data: Option<Bytes>,
}

/// What became of a batch of writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// All of it is durable.
    Done,
    /// Nothing was written: the object of the write at this place is not as expected.
    Conflict(usize),
}

/// Which objects to list.
#[derive(Clone, Debug)]
pub struct ObjectRange {
    /// The space.
    pub space: &'static str,
    /// The tenant, or empty.
    pub owner: String,
    /// Only names above this one; empty is below all.
    pub after: String,
    /// Only names below this one.
    pub before: Option<String>,
    /// From the last name to the first.
    pub descending: bool,
    /// Most objects.
    pub limit: usize,
}

/// What a write must fulfil whatever the store holds.
///
/// # Errors
/// The rule it breaks.
pub fn check_writes(writes: &[ObjectWrite]) -> Result<(), String> {
    for write in writes {
        let data = write.data.as_ref().map_or(0, Bytes::len);
        let place = format!("object {}/{}/{}", write.space, write.owner, write.name);
        if write.name.len() > MAX_NAME_BYTES || write.owner.len() > key::MAX_TENANT_BYTES {
            return Err(format!("{place}: its name is too long"));
        }
        if write.name.is_empty() {
            return Err(format!("{place}: it has no name"));
        }
        if data > MAX_OBJECT_BYTES {
            return Err(format!(
                "{place}: {data} bytes are more than {MAX_OBJECT_BYTES}"
            ));
        }
    }
    Ok(())
}

/// See [`crate::Store::object`].
///
/// # Errors
/// It could not be read, or makes no sense.
pub fn one(
    view: &dyn View,
    space: &str,
    owner: &str,
    name: &str,
) -> Result<Option<Object>, ReadError> {
    let key = key::object(space, owner, name);
    let value = view.get(&key)?;
    value.map(|value| decode(&key, &value)).transpose()
}

/// See [`crate::Store::objects`].
///
/// # Errors
/// They could not be read, or make no sense.
pub fn many(view: &dyn View, range: &ObjectRange) -> Result<Vec<Object>, ReadError> {
    let (mut from, mut to) = key::objects_of(range.space, &range.owner);
    if !range.after.is_empty() {
        // Right after the key itself.
        from = key::object(range.space, &range.owner, &range.after);
        from.push(0);
    }
    if let Some(before) = &range.before {
        to = key::object(range.space, &range.owner, before);
    }
    if from >= to {
        return Ok(Vec::new());
    }
    if range.descending {
        backwards(view, &from, to, range.limit)
    } else {
        forwards(view, &from, &to, range.limit)
    }
}

fn forwards(
    view: &dyn View,
    from: &[u8],
    to: &[u8],
    limit: usize,
) -> Result<Vec<Object>, ReadError> {
    let mut found: Vec<Result<Object, ReadError>> = Vec::new();
    if limit == 0 {
        return Ok(Vec::new());
    }
    view.scan(from, to, &mut |key, value| {
        found.push(decode(key, value));
        if found.len() < limit {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(())
        }
    })?;
    found.into_iter().collect()
}

fn backwards(
    view: &dyn View,
    from: &[u8],
    mut to: Vec<u8>,
    limit: usize,
) -> Result<Vec<Object>, ReadError> {
    let mut found = Vec::new();
    while found.len() < limit
        && let Some((key, value)) = view.last(from, &to)?
    {
        found.push(decode(&key, &value)?);
        to = key;
    }
    Ok(found)
}

fn decode(key: &[u8], value: &[u8]) -> Result<Object, ReadError> {
    let name = key::object_name(key).unwrap_or_default();
    let (version, data) = unseal(key, value)
        .and_then(record::object::decode)
        .map_err(at("the object", name))?;
    Ok(Object {
        name: name.to_owned(),
        version,
        data: Bytes::copy_from_slice(data),
    })
}
