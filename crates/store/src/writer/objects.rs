//! Writes of objects: all of a batch, or nothing.

use super::ops::OpError;
use super::state::{Group, at};
use crate::record::{key, object, unseal};
use crate::{Expect, ObjectWrite, Written};

impl Group<'_> {
    pub(crate) fn write_objects(&mut self, writes: &[ObjectWrite]) -> Result<Written, OpError> {
        let mut versions = Vec::with_capacity(writes.len());
        for (place, write) in writes.iter().enumerate() {
            let key = key::object(write.space, &write.owner, &write.name);
            let found = match self.get(&key)? {
                None => None,
                Some(value) => {
                    let payload = unseal(&key, &value).and_then(object::decode);
                    Some(payload.map_err(at("the object", &write.name))?.0)
                }
            };
            let as_expected = match write.expect {
                Expect::Any => true,
                Expect::Absent => found.is_none(),
                Expect::Version(version) => found == Some(version),
            };
            if !as_expected {
                return Ok(Written::Conflict(place));
            }
            versions.push((key, found.unwrap_or(0) + 1));
        }
        for (write, (key, version)) in writes.iter().zip(versions) {
            match &write.data {
                Some(data) => self.changes.put(key, object::encode(version, data)),
                None => self.changes.remove(key),
            }
        }
        Ok(Written::Done)
    }
}
