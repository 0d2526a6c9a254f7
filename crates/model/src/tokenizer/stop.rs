//! Stop strings in a stream of text.

/// Where a stop string was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StopMatch {
    /// Which of the stop strings, by its place in the list.
    pub index: usize,
}

/// Lets text through up to the first stop string. Text that may be the beginning of one is held back until it is decided, so
/// nothing of a stop string is ever passed on. The first one to be complete counts; of several that end together, the longest.
/// How the text is cut into pushes makes no difference.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<Stop>,
    held: String,
    matched: Option<StopMatch>,
}

/// One stop string and the automaton of Knuth, Morris and Pratt over its bytes.
#[derive(Clone, Debug)]
struct Stop {
    bytes: Vec<u8>,
    /// For each length of a matched prefix, the longest shorter prefix that also ends there.
    fallback: Vec<usize>,
    /// Bytes matched so far.
    state: usize,
}

impl StopMatcher {
    /// Empty strings are ignored.
    pub fn new<'a>(stops: impl IntoIterator<Item = &'a str>) -> Self {
        Self {
            stops: stops.into_iter().map(Stop::new).collect(),
            held: String::new(),
            matched: None,
        }
    }

    /// Takes more text and appends what is safe to pass on. After a match everything is dropped.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<StopMatch> {
        if self.matched.is_some() {
            return self.matched;
        }
        if self.stops.is_empty() {
            out.push_str(text);
            return None;
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (at, &byte) in text.as_bytes().iter().enumerate() {
            let end = before + at + 1;
            let mut best: Option<(usize, usize)> = None;
            for (index, stop) in self.stops.iter_mut().enumerate() {
                if stop.advance(byte) && best.is_none_or(|(_, length)| length < stop.bytes.len()) {
                    best = Some((index, stop.bytes.len()));
                }
            }
            if let Some((index, length)) = best {
                out.push_str(&self.held[..end - length]);
                self.held.clear();
                self.matched = Some(StopMatch { index });
                return self.matched;
            }
        }
        let open = self.stops.iter().map(|stop| stop.state).max().unwrap_or(0);
        let safe = self.held.len() - open;
        out.push_str(&self.held[..safe]);
        self.held.drain(..safe);
        None
    }

    /// The text has ended: what was held back was not a stop string after all.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.held);
        self.held.clear();
    }

    /// The match, once there is one.
    pub fn matched(&self) -> Option<StopMatch> {
        self.matched
    }

    /// Bytes held back.
    pub fn held_bytes(&self) -> usize {
        self.held.len()
    }
}

impl Stop {
    fn new(text: &str) -> Self {
        let bytes = text.as_bytes().to_vec();
        let mut fallback = vec![0; bytes.len() + 1];
        let mut length = 0;
        for at in 1..bytes.len() {
            while length > 0 && bytes[at] != bytes[length] {
                length = fallback[length];
            }
            length += usize::from(bytes[at] == bytes[length]);
            fallback[at + 1] = length;
        }
        Self {
            bytes,
            fallback,
            state: 0,
        }
    }

    /// Whether the string is complete with this byte.
    fn advance(&mut self, byte: u8) -> bool {
        if self.bytes.is_empty() {
            return false;
        }
        while self.state > 0 && self.bytes[self.state] != byte {
            self.state = self.fallback[self.state];
        }
        self.state += usize::from(self.bytes[self.state] == byte);
        self.state == self.bytes.len()
    }
}
