//! A chain as lines of text, one JSON object each, that can be checked without the store.
//!
//! A link is `{"number":1,"day":"2026-11-29","previous":"…","hash":"…","record":{…}}`, with the record's bytes exactly as they were hashed.
//! A page ends with `{"page":{…}}`.

use serde::{Deserialize, Serialize};

use crate::chain::{Day, Hash, Link};
use crate::{Chain, Head};

/// Ends every page of an export.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Page {
    /// The chain's name.
    pub chain: String,
    /// The day that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day: Option<String>,
    /// The root before the day: the hash before its first record.
    pub previous_root: String,
    /// The hash of the day's last record so far; that of the chain where no day was asked for.
    pub root: String,
    /// Records of the day, or of the chain.
    pub records: u64,
    /// Whether more may still come to the day.
    pub open: bool,
    /// `after` of the next page; absent on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

impl Page {
    /// The page of a whole chain, the last one as far as it knows.
    pub fn of_chain(chain: &Chain, head: &Head) -> Self {
        Self {
            chain: chain.name(),
            day: None,
            previous_root: chain.genesis().to_string(),
            root: head.hash.to_string(),
            records: head.number,
            open: true,
            next: None,
        }
    }
}

/// One line of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A link.
    Link(Link),
    /// The end of a page.
    Page(Page),
}

/// A line of an export that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a line of an export: {0}")]
pub struct BadLine(String);

/// The line of a link, without its end.
pub fn encode_link(link: &Link) -> Vec<u8> {
    let envelope = format!(
        "{{\"number\":{},\"day\":\"{}\",\"previous\":\"{}\",\"hash\":\"{}\",\"record\":",
        link.number, link.day, link.previous, link.hash
    );
    let mut bytes = envelope.into_bytes();
    bytes.extend_from_slice(&link.body);
    bytes.push(b'}');
    bytes
}

#[derive(Deserialize)]
struct Envelope {
    number: u64,
    day: String,
    previous: String,
    hash: String,
}

#[derive(Deserialize)]
struct End {
    page: Page,
}

/// Reads one line.
///
/// # Errors
/// It is neither a link nor the end of a page.
pub fn parse_line(line: &str) -> Result<Line, BadLine> {
    const RECORD: &str = ",\"record\":";
    let bad = |why: &str| BadLine(why.to_owned());
    let line = line.trim_end();
    let Some(at) = line.find(RECORD) else {
        let end: End = serde_json::from_str(line).map_err(|error| BadLine(error.to_string()))?;
        return Ok(Line::Page(end.page));
    };
    // The record's bytes are taken as they stand: written anew they could differ from what was hashed.
    let body = line[at + RECORD.len()..]
        .strip_suffix('}')
        .ok_or_else(|| bad("it does not end with }"))?;
    let envelope: Envelope = serde_json::from_str(&format!("{}}}", &line[..at]))
        .map_err(|error| BadLine(error.to_string()))?;
    let hash = |text: &str| {
        text.parse::<Hash>()
            .map_err(|_| bad("a hash is not 64 digits"))
    };
    Ok(Line::Link(Link {
        number: envelope.number,
        day: envelope.day.parse::<Day>().map_err(BadLine)?,
        previous: hash(&envelope.previous)?,
        hash: hash(&envelope.hash)?,
        body: body.as_bytes().to_vec(),
    }))
}
