//! The patterns that come with the gateway.

use std::fmt::Write as _;

use super::spec::Builtin;

/// Bytes that a match goes on over once its pattern has been seen: suppressed as they come, however many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// The match ends with its pattern.
    None,
    /// As long as bytes are of what keys and tokens are made of.
    Secret,
    /// To the end of a PEM block.
    Pem,
}

/// What a candidate must fulfil beyond its pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Proof {
    /// Nothing.
    None,
    /// The check digit of card numbers.
    Luhn,
}

#[derive(Clone, Debug)]
pub(super) struct Pattern {
    pub(super) regex: String,
    pub(super) tail: Tail,
    pub(super) proof: Proof,
}

/// The line that ends a PEM block.
pub(super) const PEM_END: &str = "-----END (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----";

/// What keys and tokens are made of. One class for all, so that a match that is resumed needs no more than its marker.
pub(super) const fn is_secret(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | b'/' | b'=')
}

/// Patterns are kept as short as what proves a match: what comes after it is a tail, so that little is ever held back.
pub(super) fn builtin(which: Builtin) -> Vec<Pattern> {
    let table: &[(&str, Tail)] = match which {
        Builtin::CloudKeys => &[
            (
                r"(?-u:\b)(?:AKIA|ASIA|ABIA|ACCA)[A-Z2-7]{16}(?-u:\b)",
                Tail::None,
            ),
            (
                r#"(?:aws_secret_access_key|AWS_SECRET_ACCESS_KEY|[sS]ecretAccessKey)["']?[ \t]{0,4}[:=][ \t]{0,4}["']?[A-Za-z0-9/+]{40}"#,
                Tail::Secret,
            ),
            (r"(?-u:\b)AIza[0-9A-Za-z_-]{35}", Tail::Secret),
            (r"(?-u:\b)ya29\.[0-9A-Za-z_-]{20}", Tail::Secret),
            (r"AccountKey=[A-Za-z0-9+/]{40}", Tail::Secret),
        ],
        Builtin::PrivateKeys => &[(
            r"-----BEGIN (?:[A-Z0-9]{1,12} ){0,3}PRIVATE KEY(?: BLOCK)?-----",
            Tail::Pem,
        )],
        Builtin::Tokens => &[
            (r"(?-u:\b)gh[pousr]_[A-Za-z0-9]{36}", Tail::Secret),
            (r"(?-u:\b)github_pat_[A-Za-z0-9_]{22}", Tail::Secret),
            (r"(?-u:\b)glpat-[A-Za-z0-9_-]{20}", Tail::Secret),
            (r"(?-u:\b)xox[abeoprs]-[A-Za-z0-9-]{10}", Tail::Secret),
            (r"(?-u:\b)[sr]k_(?:live|test)_[A-Za-z0-9]{16}", Tail::Secret),
            (
                r"(?-u:\b)sk-(?:proj-|svcacct-|ant-)?[A-Za-z0-9_-]{20}",
                Tail::Secret,
            ),
            (r"(?-u:\b)hf_[A-Za-z0-9]{30}", Tail::Secret),
            (r"(?-u:\b)npm_[A-Za-z0-9]{36}", Tail::Secret),
            (r"(?-u:\b)wk_[0-9a-z]{16}_[0-9a-z]{20}", Tail::Secret),
            (
                r"(?-u:\b)eyJ[A-Za-z0-9_-]{8,180}\.eyJ[A-Za-z0-9_-]{8}",
                Tail::Secret,
            ),
        ],
        Builtin::CardNumbers => {
            let forms = [
                r"(?-u:\b)[2-6][0-9]{12,18}(?-u:\b)",
                r"(?-u:\b)[2-6][0-9]{3}(?: [0-9]{4}){3}(?: [0-9]{1,3})?(?-u:\b)",
                r"(?-u:\b)[2-6][0-9]{3}(?:-[0-9]{4}){3}(?:-[0-9]{1,3})?(?-u:\b)",
                r"(?-u:\b)3[0-9]{3}[ -][0-9]{6}[ -][0-9]{4,5}(?-u:\b)",
            ];
            return forms.iter().map(|form| proven(form)).collect();
        }
    };
    let plain = |(regex, tail): &(&str, Tail)| Pattern {
        regex: (*regex).to_owned(),
        tail: *tail,
        proof: Proof::None,
    };
    table.iter().map(plain).collect()
}

fn proven(regex: &str) -> Pattern {
    Pattern {
        regex: regex.to_owned(),
        tail: Tail::None,
        proof: Proof::Luhn,
    }
}

/// A phrase as a whole word, in any case of ASCII letters.
pub(super) fn phrase(text: &str) -> Pattern {
    let mut regex = String::new();
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    if edge(text.chars().next()) {
        regex.push_str(r"(?-u:\b)");
    }
    for c in text.chars() {
        if c.is_ascii_alphabetic() {
            regex.extend(['[', c.to_ascii_lowercase(), c.to_ascii_uppercase(), ']']);
        } else if c.is_ascii() && !c.is_ascii_alphanumeric() {
            write!(regex, "\\x{:02x}", c as u32).expect("a String takes all");
        } else {
            regex.push(c);
        }
    }
    if edge(text.chars().last()) {
        regex.push_str(r"(?-u:\b)");
    }
    Pattern {
        regex,
        tail: Tail::None,
        proof: Proof::None,
    }
}

impl Proof {
    pub(super) fn holds(self, bytes: &[u8]) -> bool {
        match self {
            Self::None => true,
            Self::Luhn => luhn(bytes),
        }
    }
}

/// ISO/IEC 7812-1, annex B. What is not a digit is skipped.
fn luhn(bytes: &[u8]) -> bool {
    let digits = bytes.iter().rev().filter(|byte| byte.is_ascii_digit());
    let mut sum = 0_u32;
    let mut count = 0;
    for (place, byte) in digits.enumerate() {
        let digit = u32::from(byte - b'0');
        sum += match (place % 2, digit * 2) {
            (0, _) => digit,
            (_, double) if double > 9 => double - 9,
            (_, double) => double,
        };
        count += 1;
    }
    count >= 13 && sum.is_multiple_of(10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn card_numbers_are_told_from_other_numbers_by_their_check_digit() {
        // Test numbers that card schemes publish.
        for good in [
            "4111111111111111",
            "5555 5555 5555 4444",
            "3782-822463-10005",
        ] {
            assert!(luhn(good.as_bytes()), "{good}");
        }
        for bad in ["4111111111111112", "1234 5678 9012 3456", "0", "18"] {
            assert!(!luhn(bad.as_bytes()), "{bad}");
        }
    }
}
