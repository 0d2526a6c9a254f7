//! `multipart/form-data` (RFC 7578) as it comes, piece by piece, in bounded memory.

use bytes::{Buf, Bytes, BytesMut};

/// Longest block of headers of a part.
const MAX_HEADER_BYTES: usize = 8 << 10;

/// What was found next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A part begins.
    Part {
        /// Its field.
        name: String,
        /// The file's own name.
        filename: Option<String>,
    },
    /// More of the part's content.
    Data(Bytes),
    /// The last part has ended.
    End,
}

/// A body that is no form. The text says what is wrong with it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the form is broken: {0}")]
pub(super) struct BrokenForm(pub(super) &'static str);

enum State {
    /// Before the first boundary, and inside a part: content goes on until the next boundary.
    Content {
        shown: bool,
    },
    /// Right after a boundary.
    Boundary,
    Headers,
    Done,
}

/// Takes a form apart.
pub(super) struct Multipart {
    delimiter: Vec<u8>,
    buffer: BytesMut,
    state: State,
}

impl Multipart {
    /// For the boundary of a `Content-Type`.
    pub(super) fn new(boundary: &str) -> Self {
        Self {
            delimiter: format!("\r\n--{boundary}").into_bytes(),
            // The first boundary has no line before it.
            buffer: BytesMut::from(&b"\r\n"[..]),
            state: State::Content { shown: false },
        }
    }

    /// The boundary that a `Content-Type` names.
    pub(super) fn boundary(content_type: &str) -> Option<&str> {
        let (kind, parameters) = content_type.split_once(';')?;
        if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
            return None;
        }
        let boundary = parameter(parameters, "boundary")?;
        (1..=70).contains(&boundary.len()).then_some(boundary)
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next piece; `None` when more bytes are needed.
    pub(super) fn next(&mut self) -> Result<Option<Piece>, BrokenForm> {
        loop {
            match self.state {
                State::Done => return Ok(Some(Piece::End)),
                State::Content { shown } => match self.content() {
                    Some(data) if shown && !data.is_empty() => return Ok(Some(Piece::Data(data))),
                    Some(_) => {}
                    None => return Ok(None),
                },
                State::Boundary => {
                    if self.buffer.len() < 2 {
                        return Ok(None);
                    }
                    self.state = match &self.buffer[..2] {
                        b"--" => State::Done,
                        b"\r\n" => State::Headers,
                        _ => return Err(BrokenForm("a boundary does not end its line")),
                    };
                    if matches!(self.state, State::Headers) {
                        self.buffer.advance(2);
                    }
                }
                State::Headers => {
                    let Some(end) = find(&self.buffer, b"\r\n\r\n") else {
                        return if self.buffer.len() > MAX_HEADER_BYTES {
                            Err(BrokenForm("the headers of a part are too long"))
                        } else {
                            Ok(None)
                        };
                    };
                    let headers = self.buffer.split_to(end);
                    self.buffer.advance(4);
                    self.state = State::Content { shown: true };
                    return part(&headers).map(Some);
                }
            }
        }
    }

    /// Content up to the next boundary, or what cannot be part of one; `None` when there is none of it yet.
    fn content(&mut self) -> Option<Bytes> {
        if let Some(end) = find(&self.buffer, &self.delimiter) {
            let data = self.buffer.split_to(end).freeze();
            self.buffer.advance(self.delimiter.len());
            self.state = State::Boundary;
            return Some(data);
        }
        let sure = self.buffer.len().saturating_sub(self.delimiter.len());
        (sure > 0).then(|| self.buffer.split_to(sure).freeze())
    }
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

fn part(headers: &[u8]) -> Result<Piece, BrokenForm> {
    let headers = std::str::from_utf8(headers)
        .map_err(|_| BrokenForm("the headers of a part are not UTF-8"))?;
    let disposition = headers
        .split("\r\n")
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"))
        .ok_or(BrokenForm("a part has no Content-Disposition"))?
        .1;
    let (_, parameters) = disposition
        .split_once(';')
        .ok_or(BrokenForm("a part has no name"))?;
    Ok(Piece::Part {
        name: parameter(parameters, "name")
            .ok_or(BrokenForm("a part has no name"))?
            .to_owned(),
        filename: parameter(parameters, "filename").map(str::to_owned),
    })
}

/// A parameter of a header, quoted or not.
fn parameter<'a>(text: &'a str, wanted: &str) -> Option<&'a str> {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches([' ', '\t', ';']);
        let (name, after) = rest.split_once('=')?;
        let (value, after) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_at(after.find(';').unwrap_or(after.len())),
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value.trim());
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn form(content: &[u8]) -> Vec<u8> {
        let mut form = b"--xyz\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--xyz\r\n\
            content-type: text/plain\r\ncontent-disposition: form-data; name=\"file\"; filename=\"a;b.jsonl\"\r\n\r\n"
            .to_vec();
        form.extend_from_slice(content);
        form.extend_from_slice(b"\r\n--xyz--\r\n");
        form
    }

    type Part = (String, Option<String>, Vec<u8>);

    /// Parts with their content, pushed in pieces of these sizes.
    fn parse(form: &[u8], sizes: &[usize]) -> Result<Vec<Part>, BrokenForm> {
        let mut parser = Multipart::new("xyz");
        let mut parts = Vec::new();
        let (mut rest, mut sizes) = (form, sizes.iter().cycle());
        loop {
            match parser.next()? {
                Some(Piece::Part { name, filename }) => parts.push((name, filename, Vec::new())),
                Some(Piece::Data(data)) => parts.last_mut().unwrap().2.extend_from_slice(&data),
                Some(Piece::End) => return Ok(parts),
                None if rest.is_empty() => return Err(BrokenForm("it ends early")),
                None => {
                    let (now, later) = rest.split_at((*sizes.next().unwrap()).clamp(1, rest.len()));
                    parser.push(now);
                    rest = later;
                }
            }
        }
    }

    proptest! {
        #[test]
        fn a_form_reads_the_same_however_it_is_cut(
            content in prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..200),
                "[\r\n\\-xyz]{0,60}".prop_map(String::into_bytes),
            ],
            sizes in proptest::collection::vec(1_usize..40, 1..8),
        ) {
            prop_assume!(find(&content, b"--xyz").is_none());
            let parts = parse(&form(&content), &sizes).unwrap();
            prop_assert_eq!(parts, vec![
                ("purpose".to_owned(), None, b"batch".to_vec()),
                ("file".to_owned(), Some("a;b.jsonl".to_owned()), content),
            ]);
        }
    }

    #[test]
    fn a_boundary_is_read_from_the_content_type() {
        for (given, want) in [
            ("multipart/form-data; boundary=xyz", Some("xyz")),
            (
                "Multipart/Form-Data; charset=utf-8; boundary=\"x y\"",
                Some("x y"),
            ),
            ("multipart/form-data", None),
            ("application/json; boundary=xyz", None),
            ("multipart/form-data; boundary=", None),
        ] {
            assert_eq!(Multipart::boundary(given), want, "{given}");
        }
    }

    #[test]
    fn what_is_no_form_is_refused() {
        let endless = format!("--xyz\r\nx: {}", "y".repeat(MAX_HEADER_BYTES + 1));
        for broken in ["--xyz??", "--xyz\r\nx: y\r\n\r\nz", &endless] {
            assert!(parse(broken.as_bytes(), &[7]).is_err(), "{broken:.40}");
        }
    }
}
