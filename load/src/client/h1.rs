//! Answers of HTTP/1.1: the head's status and length, and bodies with a length or in chunks.

use anyhow::{Context, Result, bail};

/// Where in an answer the next byte is.
pub(crate) enum Answer {
    Head(Vec<u8>),
    /// So many bytes are left.
    Sized(u64),
    /// Left of the chunk at hand; the line of the next.
    Chunk(u64),
    ChunkLine(Vec<u8>),
    /// The end of a body in chunks: lines up to an empty one.
    Trailer(Vec<u8>),
    Done,
}

impl Default for Answer {
    fn default() -> Self {
        Self::Head(Vec::new())
    }
}

/// Status of a head that has just been completed.
pub(crate) type Status = u16;

const LONGEST_HEAD: usize = 16 << 10;

impl Answer {
    pub(crate) fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Takes in bytes; gives pieces of the body to `piece` and returns the status when the head came in these.
    pub(crate) fn feed(
        &mut self,
        mut bytes: &[u8],
        mut piece: impl FnMut(&[u8]),
    ) -> Result<Option<Status>> {
        let mut status = None;
        while !bytes.is_empty() && !self.is_done() {
            match self {
                Self::Head(head) => {
                    let Some(rest) = take_until(head, &mut bytes, b"\r\n\r\n")? else {
                        break;
                    };
                    let (found, next) = read_head(&rest)?;
                    status = Some(found);
                    *self = next;
                }
                Self::Sized(left) => {
                    piece(take(&mut bytes, left));
                    if *left == 0 {
                        *self = Self::Done;
                    }
                }
                Self::Chunk(left) => {
                    // The two bytes after a chunk are counted to it, and shown to nobody.
                    let taken = take(&mut bytes, left);
                    let after = 2_u64.saturating_sub(*left).min(taken.len() as u64);
                    piece(&taken[..taken.len() - after as usize]);
                    if *left == 0 {
                        *self = Self::ChunkLine(Vec::new());
                    }
                }
                Self::ChunkLine(line) => {
                    let Some(line) = take_until(line, &mut bytes, b"\r\n")? else {
                        break;
                    };
                    let text = std::str::from_utf8(&line).context("a chunk's size is no text")?;
                    let text = text.trim_end().split(';').next().unwrap_or_default();
                    let size = u64::from_str_radix(text, 16).context("a chunk's size")?;
                    *self = match size {
                        0 => Self::Trailer(Vec::new()),
                        size => Self::Chunk(size + 2),
                    };
                }
                Self::Trailer(line) => {
                    let Some(line) = take_until(line, &mut bytes, b"\r\n")? else {
                        break;
                    };
                    *self = match line.len() {
                        2 => Self::Done,
                        _ => Self::Trailer(Vec::new()),
                    };
                }
                Self::Done => {}
            }
        }
        Ok(status)
    }
}

fn take<'a>(bytes: &mut &'a [u8], left: &mut u64) -> &'a [u8] {
    let count = (*left).min(bytes.len() as u64) as usize;
    let (taken, rest) = bytes.split_at(count);
    *bytes = rest;
    *left -= count as u64;
    taken
}

/// Moves bytes to `held` until it ends with `end`; the whole of it then.
fn take_until(held: &mut Vec<u8>, bytes: &mut &[u8], end: &[u8]) -> Result<Option<Vec<u8>>> {
    while let [first, rest @ ..] = bytes {
        held.push(*first);
        *bytes = rest;
        if held.ends_with(end) {
            return Ok(Some(std::mem::take(held)));
        }
        if held.len() > LONGEST_HEAD {
            bail!("a head or line without end");
        }
    }
    Ok(None)
}

fn read_head(head: &[u8]) -> Result<(Status, Answer)> {
    let head = std::str::from_utf8(head).context("the head is no text")?;
    let mut lines = head.lines();
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1)?.parse().ok());
    let status = status.context("an answer without status")?;
    let mut next = Answer::Sized(0);
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            next = Answer::Sized(value.trim().parse().context("content-length")?);
        } else if name.eq_ignore_ascii_case("transfer-encoding") {
            next = Answer::ChunkLine(Vec::new());
        }
    }
    if matches!(next, Answer::Sized(0)) {
        next = Answer::Done;
    }
    Ok((status, next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_found_however_they_are_cut() {
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n1;x=y\r\n!\r\n0\r\n\r\n";
        let sized = "HTTP/1.1 429 Too Many\r\ncontent-length: 6\r\n\r\nhello!";
        for (text, want) in [(chunked, 200), (sized, 429)] {
            for cut in 1..text.len() {
                let (mut answer, mut body, mut statuses) =
                    (Answer::default(), Vec::new(), Vec::new());
                for part in [&text[..cut], &text[cut..]] {
                    let add = |piece: &[u8]| body.extend_from_slice(piece);
                    statuses.extend(answer.feed(part.as_bytes(), add).unwrap());
                }
                assert!(answer.is_done(), "{text:?} cut at {cut}");
                assert_eq!((body.as_slice(), statuses), (&b"hello!"[..], vec![want]));
            }
        }
    }
}
