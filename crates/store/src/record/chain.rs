//! Links of a chain, its head, and where its days begin.

use weir_ledger::{Day, Hash, Head, Link};

use super::run::version;
use super::{BadRecord, Decoder, Encoder};

/// All of a link but its number, which ends its key.
pub(crate) fn encode_link(link: &Link) -> Vec<u8> {
    let mut to = Encoder::with_capacity(link.body.len() + 72);
    to.byte(1);
    to.number(u64::from(link.day.0));
    to.raw(&link.previous.0);
    to.raw(&link.hash.0);
    to.bytes(&link.body);
    to.into_bytes()
}

pub(crate) fn decode_link(number: u64, payload: &[u8]) -> Result<Link, BadRecord> {
    let mut from = Decoder::new(payload);
    version(&mut from)?;
    let link = Link {
        number,
        day: Day(from.small("day")?),
        previous: Hash(from.raw::<32>("previous hash")?),
        hash: Hash(from.raw::<32>("hash")?),
        body: from.bytes("line")?.to_vec(),
    };
    from.finish()?;
    Ok(link)
}

pub(crate) fn encode_head(head: &Head) -> Vec<u8> {
    let mut to = Encoder::with_capacity(48);
    to.byte(1);
    to.number(head.number);
    to.number(u64::from(head.day.0));
    to.raw(&head.hash.0);
    to.into_bytes()
}

pub(crate) fn decode_head(payload: &[u8]) -> Result<Head, BadRecord> {
    let mut from = Decoder::new(payload);
    version(&mut from)?;
    let head = Head {
        number: from.number("number")?,
        day: Day(from.small("day")?),
        hash: Hash(from.raw::<32>("hash")?),
    };
    from.finish()?;
    Ok(head)
}

/// Where a day begins: its first link.
pub(crate) fn encode_day(first: &Link) -> Vec<u8> {
    let mut to = Encoder::with_capacity(44);
    to.byte(1);
    to.number(first.number);
    to.raw(&first.previous.0);
    to.into_bytes()
}

/// First number and the hash before it.
pub(crate) fn decode_day(payload: &[u8]) -> Result<(u64, Hash), BadRecord> {
    let mut from = Decoder::new(payload);
    version(&mut from)?;
    let day = (
        from.number("first number")?,
        Hash(from.raw::<32>("previous hash")?),
    );
    from.finish()?;
    Ok(day)
}
