//! A hash chain from its export: every hash computed again.

use std::fmt;

use anyhow::{Context, Result, bail};
use weir_ledger::{Chain, Head, Line, Page, Verifier, parse_line};

/// What was proven.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Verified {
    chain: String,
    records: u64,
    /// The hash before the first record, where that is not the chain's beginning.
    after: Option<String>,
    root: String,
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} records of {} are whole", self.records, self.chain)?;
        if let Some(after) = &self.after {
            write!(
                f,
                "\nthey follow {after}: compare it with the root of the day before"
            )?;
        }
        write!(f, "\nroot {}", self.root)
    }
}

/// Verifies an export of one chain: links in order, pages in between.
///
/// # Errors
/// The first line that is not what it should be, by its number.
pub(crate) fn verify(text: &str) -> Result<Verified> {
    let lines = text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty());
    let lines = lines.map(|(at, line)| {
        let at = at + 1;
        let parsed = parse_line(line).with_context(|| format!("line {at} of the export"))?;
        anyhow::Ok((at, parsed))
    });
    let lines: Vec<(usize, Line)> = lines.collect::<Result<_>>()?;
    let page = |line: &Line| match line {
        Line::Page(page) => Some(page.clone()),
        Line::Link(_) => None,
    };
    let pages: Vec<Page> = lines.iter().filter_map(|(_, line)| page(line)).collect();
    let last = pages
        .last()
        .context("the export has no line {\"page\":…}: it was cut off, export it again")?;
    let chain = chain(&last.chain)?;
    let mut verifier: Option<Verifier> = None;
    let (mut records, mut after) = (0, None);
    for (at, line) in &lines {
        let Line::Link(link) = line else { continue };
        let verifier = verifier.get_or_insert_with(|| {
            if link.number == 1 {
                return Verifier::new(&chain);
            }
            after = Some(link.previous.to_string());
            Verifier::from(Head {
                number: link.number - 1,
                day: link.day,
                hash: link.previous,
            })
        });
        verifier
            .follow(link)
            .with_context(|| format!("{} is broken at line {at}", last.chain))?;
        records += 1;
    }
    let root = verifier.map_or_else(
        || last.previous_root.clone(),
        |verifier| verifier.head().hash.to_string(),
    );
    // A page that is not the last one ends before the root.
    if last.next.is_none() && records > 0 && root != last.root {
        bail!(
            "{} ends with {root}, its page says {}: records are missing at the end",
            last.chain,
            last.root
        );
    }
    Ok(Verified {
        chain: last.chain.clone(),
        records,
        after,
        root,
    })
}

fn chain(name: &str) -> Result<Chain> {
    match (name, name.strip_prefix("ledger/")) {
        ("audit", _) => Ok(Chain::Audit),
        (_, Some(tenant)) => Ok(Chain::Ledger(tenant.to_owned())),
        _ => bail!("the export is of {name:?}, which is no chain of Weir"),
    }
}

#[cfg(test)]
mod tests {
    use weir_ledger::encode_link;

    use super::*;

    fn export(count: u64) -> Vec<String> {
        let chain = Chain::Ledger("acme".to_owned());
        let mut head = Head::empty(&chain);
        let mut lines: Vec<String> = (0..count)
            .map(|n| {
                let link = head.extend(n, format!("{{\"n\":{n}}}").into_bytes());
                String::from_utf8(encode_link(&link)).unwrap()
            })
            .collect();
        let page = Page {
            chain: chain.name(),
            day: None,
            previous_root: chain.genesis().to_string(),
            root: head.hash.to_string(),
            records: count,
            open: true,
            next: None,
        };
        lines.push(serde_json::json!({ "page": page }).to_string());
        lines
    }

    #[test]
    fn a_whole_export_is_proven_and_one_that_begins_later_says_after_what() {
        let lines = export(5);
        let verified = verify(&lines.join("\n")).unwrap();
        assert_eq!((verified.records, verified.after), (5, None));
        let verified = verify(&lines[2..].join("\n")).unwrap();
        assert_eq!(verified.records, 3);
        assert!(verified.after.is_some());
        assert_eq!(verify(&export(0).join("\n")).unwrap().records, 0);
    }

    #[test]
    fn what_was_changed_cut_off_or_left_out_is_named() {
        let lines = export(5);
        let text = |lines: &[String]| format!("{:#}", verify(&lines.join("\n")).unwrap_err());
        let mut changed = lines.clone();
        changed[2] = changed[2].replace("\"n\":2", "\"n\":7");
        assert!(
            text(&changed).contains("line 3: record 3"),
            "{}",
            text(&changed)
        );
        let mut missing = lines.clone();
        missing.remove(1);
        assert!(
            text(&missing).contains("expected record 2, found 3"),
            "{}",
            text(&missing)
        );
        let mut short = lines.clone();
        short.remove(4);
        assert!(
            text(&short).contains("missing at the end"),
            "{}",
            text(&short)
        );
        assert!(
            text(&lines[..5]).contains("cut off"),
            "{}",
            text(&lines[..5])
        );
    }
}
