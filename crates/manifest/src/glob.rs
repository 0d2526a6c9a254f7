//! Patterns for model names and identities: `*` stands for any text, `?` for one character.

/// Does `text` match `pattern` as a whole? Linear in `pattern` times `text`; nothing is special but `*` and `?`.
pub(crate) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) =
        (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    // Where to go on after a mismatch: behind the last star, with one more character swallowed by it.
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                p += 1;
                retry = Some((p, t));
            }
            Some(&c) if c == '?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match retry {
                Some((after_star, swallowed)) => {
                    p = after_star;
                    t = swallowed + 1;
                    retry = Some((after_star, t));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

pub(crate) fn any_matches(patterns: &[String], text: &str) -> bool {
    patterns.iter().any(|pattern| matches(pattern, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_texts() {
        let cases = [
            ("*", "", true),
            ("*", "tiny-chat", true),
            ("tiny-*", "tiny-chat", true),
            ("tiny-*", "tiny", false),
            ("tiny", "tiny-chat", false),
            ("*@example.com", "ci@example.com", true),
            ("*@example.com", "ci@example.com.evil.org", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b", "xaybzb", true),
            ("*a*b", "xaybz", false),
            ("", "", true),
            ("", "a", false),
            ("[a]", "a", false),
            ("***", "é", true),
        ];
        for (pattern, text, want) in cases {
            assert_eq!(matches(pattern, text), want, "{pattern:?} on {text:?}");
        }
    }
}
