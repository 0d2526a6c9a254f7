//! As much of HTTP/2 as a client needs that opens requests and reads what comes: no priorities, no compression of headers, windows so large
//! that the server never waits for them.

use anyhow::{Context, Result, bail};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const LARGEST_WINDOW: u32 = 0x7fff_ffff;
const FIRST_WINDOW: u32 = 65_535;
/// What the server has sent after which the connection's window is opened again.
const REOPEN_AFTER: u64 = 1 << 30;
const FRAME_HEAD: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// What came from the server.
#[derive(Clone, Copy)]
pub(crate) enum Came<'a> {
    /// Head of an answer: whether its status is 200.
    Head(bool),
    Body(u32, &'a [u8]),
    /// The stream ended, as it should or not.
    End(u32),
    GoAway,
}

/// One connection's reading side.
#[derive(Default)]
pub(crate) struct Reader {
    rest: Vec<u8>,
    received: u64,
}

/// What a client says first.
pub(crate) fn greet(out: &mut Vec<u8>) {
    out.extend_from_slice(PREFACE);
    let mut settings = Vec::new();
    // No table for compressed headers, no pushes, and the largest window for each stream.
    for (name, value) in [(1_u16, 0_u32), (2, 0), (4, LARGEST_WINDOW)] {
        settings.extend_from_slice(&name.to_be_bytes());
        settings.extend_from_slice(&value.to_be_bytes());
    }
    frame(out, SETTINGS, 0, 0, &settings);
    window(out, LARGEST_WINDOW - FIRST_WINDOW);
}

fn window(out: &mut Vec<u8>, more: u32) {
    frame(out, WINDOW_UPDATE, 0, 0, &more.to_be_bytes());
}

fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

/// The headers of a POST, each in full.
pub(crate) fn block(host: &str, path: &str, headers: &[(&str, String)]) -> Vec<u8> {
    // `:method: POST` and `:scheme: http` are in the static table; `:path` and `:authority` are named there.
    let mut block = vec![0x83, 0x86, 0x04];
    text(&mut block, path);
    block.push(0x01);
    text(&mut block, host);
    for (name, value) in headers {
        block.push(0);
        text(&mut block, name);
        text(&mut block, value);
    }
    block
}

fn text(block: &mut Vec<u8>, text: &str) {
    let mut length = text.len();
    if length < 127 {
        block.push(length as u8);
    } else {
        block.push(127);
        length -= 127;
        while length >= 128 {
            block.push((length % 128) as u8 | 128);
            length /= 128;
        }
        block.push(length as u8);
    }
    block.extend_from_slice(text.as_bytes());
}

/// Asks on a new stream.
pub(crate) fn request(out: &mut Vec<u8>, stream: u32, block: &[u8], body: &[u8]) {
    frame(out, HEADERS, END_HEADERS, stream, block);
    frame(out, DATA, END_STREAM, stream, body);
}

impl Reader {
    /// Takes in bytes; answers what must be answered to `out`.
    pub(crate) fn feed(
        &mut self,
        bytes: &[u8],
        out: &mut Vec<u8>,
        mut came: impl FnMut(Came<'_>),
    ) -> Result<()> {
        self.received += bytes.len() as u64;
        if self.received >= REOPEN_AFTER {
            window(out, REOPEN_AFTER as u32);
            self.received -= REOPEN_AFTER;
        }
        if self.rest.is_empty() {
            let taken = frames(bytes, out, &mut came)?;
            self.rest.extend_from_slice(&bytes[taken..]);
            return Ok(());
        }
        self.rest.extend_from_slice(bytes);
        let taken = frames(&self.rest, out, &mut came)?;
        self.rest.drain(..taken);
        Ok(())
    }
}

/// Takes whole frames off the front; how many bytes they were.
fn frames(bytes: &[u8], out: &mut Vec<u8>, came: &mut impl FnMut(Came<'_>)) -> Result<usize> {
    let mut taken = 0;
    while let Some(head) = bytes.get(taken..taken + FRAME_HEAD) {
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let Some(payload) = bytes.get(taken + FRAME_HEAD..taken + FRAME_HEAD + length) else {
            break;
        };
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        one(head[3], head[4], stream, payload, out, came)?;
        taken += FRAME_HEAD + length;
    }
    Ok(taken)
}

fn one(
    kind: u8,
    flags: u8,
    stream: u32,
    payload: &[u8],
    out: &mut Vec<u8>,
    came: &mut impl FnMut(Came<'_>),
) -> Result<()> {
    match kind {
        DATA => {
            if flags & 0x8 != 0 {
                bail!("padded data");
            }
            if !payload.is_empty() {
                came(Came::Body(stream, payload));
            }
        }
        HEADERS => {
            // A change of the table's size may stand first; then an answer begins with its status.
            let field = payload.iter().find(|byte| **byte & 0xe0 != 0x20);
            let field = *field.context("an empty head")?;
            if flags & END_HEADERS == 0 {
                bail!("a head in several frames");
            }
            came(Came::Head(field == 0x88));
        }
        RST_STREAM => came(Came::End(stream)),
        SETTINGS if flags & ACK == 0 => frame(out, SETTINGS, ACK, 0, &[]),
        PING if flags & ACK == 0 => frame(out, PING, ACK, 0, payload),
        GOAWAY => came(Came::GoAway),
        _ => {}
    }
    if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
        came(Came::End(stream));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_they_are_cut() {
        let mut bytes = Vec::new();
        frame(&mut bytes, SETTINGS, 0, 0, &[]);
        frame(&mut bytes, HEADERS, END_HEADERS, 1, &[0x20, 0x88, 0x40]);
        frame(&mut bytes, DATA, 0, 1, b"hello");
        frame(&mut bytes, DATA, END_STREAM, 1, b"!");
        frame(&mut bytes, PING, 0, 0, &[1; 8]);
        for cut in 0..bytes.len() {
            let (mut reader, mut out, mut seen) = (Reader::default(), Vec::new(), String::new());
            for part in [&bytes[..cut], &bytes[cut..]] {
                let add = |came: Came<'_>| match came {
                    Came::Head(true) => seen.push('<'),
                    Came::Body(1, body) => seen.push_str(std::str::from_utf8(body).unwrap()),
                    Came::End(1) => seen.push('>'),
                    _ => seen.push('?'),
                };
                reader.feed(part, &mut out, add).unwrap();
            }
            assert_eq!(seen, "<hello!>", "{cut}");
            // Settings and the ping were answered.
            assert_eq!(out.len(), 2 * FRAME_HEAD + 8);
        }
    }

    #[test]
    fn long_values_have_a_long_length() {
        let mut block = Vec::new();
        text(&mut block, &"x".repeat(300));
        assert_eq!(block[..3], [127, 173, 1]);
    }
}
