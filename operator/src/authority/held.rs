//! What the Secrets hold, and what they should hold: from the one to the other without asking anybody.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use weir_identity::{Credentials, Role};

use super::issue::{self, Pair};
use super::life::{Lives, Spread, Standing, Step};

/// An exchange is delayed at most this often: a Secret that cannot be written is tried again every few seconds.
const DELAY_S: u64 = 60;

/// Entries of a Secret.
pub(crate) type Entries = BTreeMap<String, ByteString>;

/// The authority as it is stored: the one that issues, the one that will, and the one that did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) current: Option<Pair>,
    next: Option<Pair>,
    old: Option<String>,
    changed_s: u64,
}

impl Held {
    pub(crate) fn read(entries: &Entries) -> Self {
        Self {
            current: pair(entries, "ca"),
            next: pair(entries, "next"),
            old: text(entries, "old.crt"),
            changed_s: text(entries, "changed")
                .and_then(|text| text.parse().ok())
                .unwrap_or_default(),
        }
    }

    /// Every entry, also those that are not there any more: as empty ones.
    pub(crate) fn entries(&self) -> BTreeMap<&'static str, String> {
        let of = |pair: &Option<Pair>| {
            let pair = pair.clone();
            pair.map_or_else(Default::default, |pair| (pair.certificate, pair.key))
        };
        let ((ca, ca_key), (next, next_key)) = (of(&self.current), of(&self.next));
        BTreeMap::from([
            ("ca.crt", ca),
            ("ca.key", ca_key),
            ("next.crt", next),
            ("next.key", next_key),
            ("old.crt", self.old.clone().unwrap_or_default()),
            ("changed", self.changed_s.to_string()),
        ])
    }

    /// Takes the step that is due; which it was.
    pub(crate) fn advance(
        &mut self,
        namespace: &str,
        lives: Lives,
        spread: Spread,
        now_s: u64,
    ) -> Result<Step, rcgen::Error> {
        let current = self.current.as_ref();
        let standing = Standing {
            current: current
                .and_then(|pair| issue::about(&pair.certificate))
                .map(|about| about.life),
            has_next: self.next.is_some(),
            has_old: self.old.is_some(),
            changed_s: self.changed_s,
            spread,
        };
        let step = standing.step(lives, now_s);
        match step {
            Step::Rest => return Ok(step),
            Step::Begin => {
                *self = Self {
                    current: Some(issue::authority(namespace, lives.authority(), now_s)?),
                    ..Self::default()
                };
            }
            Step::Announce => {
                self.next = Some(issue::authority(namespace, lives.authority(), now_s)?);
            }
            Step::Exchange => {
                let before = std::mem::replace(&mut self.current, self.next.take());
                self.old = before.map(|pair| pair.certificate);
            }
            Step::Forget => self.old = None,
        }
        self.changed_s = now_s;
        Ok(step)
    }

    /// Lets the next step of an exchange count from now, where one is under way; whether that says anything new.
    pub(super) fn delays(&mut self, now_s: u64) -> bool {
        let is_under_way = self.next.is_some() || self.old.is_some();
        let is_news = is_under_way && now_s >= self.changed_s + DELAY_S;
        if is_news {
            self.changed_s = now_s;
        }
        is_news
    }

    /// All that are trusted now.
    pub(crate) fn bundle(&self) -> String {
        let current = self.current.iter().map(|pair| pair.certificate.as_str());
        let next = self.next.iter().map(|pair| pair.certificate.as_str());
        current.chain(next).chain(self.old.as_deref()).collect()
    }

    /// What a workload's Secret should hold, where that is not what it holds.
    pub(crate) fn renewed(
        &self,
        role: Role,
        entries: &Entries,
        lives: Lives,
        now_s: u64,
    ) -> Result<Option<BTreeMap<&'static str, String>>, String> {
        let current = self.current.as_ref().ok_or("there is no authority")?;
        if self.is_complete(role, entries, now_s) {
            return Ok(None);
        }
        let bundle = self.bundle();
        let pair = match self.usable(role, entries, now_s) {
            Some(pair) => pair,
            None => issue::certificate(current, role, lives.certificate, now_s)?,
        };
        Ok(Some(BTreeMap::from([
            ("tls.crt", pair.certificate),
            ("tls.key", pair.key),
            ("ca.crt", bundle),
        ])))
    }

    /// Whether a workload's Secret holds what it should.
    pub(super) fn is_complete(&self, role: Role, entries: &Entries, now_s: u64) -> bool {
        let is_trusting = text(entries, "ca.crt") == Some(self.bundle());
        is_trusting && self.usable(role, entries, now_s).is_some()
    }

    /// The certificate and key that a workload can go on with.
    fn usable(&self, role: Role, entries: &Entries, now_s: u64) -> Option<Pair> {
        let is_usable =
            |pair: &Pair| !self.is_due(pair, role, now_s) && is_whole(pair, &self.bundle());
        pair(entries, "tls").filter(is_usable)
    }

    /// Whether a certificate is old, of another authority than the one that issues, or of another role.
    fn is_due(&self, pair: &Pair, role: Role, now_s: u64) -> bool {
        let by = self.current.as_ref();
        let by = by.and_then(|by| issue::about(&by.certificate));
        match (issue::about(&pair.certificate), by) {
            (Some(about), Some(by)) => {
                about.issuer != by.subject
                    || about.subject != format!("CN={}", role.name())
                    || about.life.is_due(now_s)
            }
            _ => true,
        }
    }
}

/// Whether a process can use it: a key may be there, and be damaged or another's.
fn is_whole(pair: &Pair, bundle: &str) -> bool {
    let [certificate, key, bundle] = [&pair.certificate, &pair.key, bundle].map(str::as_bytes);
    Credentials::from_pem(certificate, key, bundle).is_ok()
}

/// As a Secret has them.
pub(super) fn stored(entries: &BTreeMap<&'static str, String>) -> Entries {
    let stored = entries
        .iter()
        .map(|(name, text)| ((*name).to_owned(), ByteString(text.clone().into_bytes())));
    stored.collect()
}

fn pair(entries: &Entries, name: &str) -> Option<Pair> {
    Some(Pair {
        certificate: text(entries, &format!("{name}.crt"))?,
        key: text(entries, &format!("{name}.key"))?,
    })
}

pub(super) fn text(entries: &Entries, name: &str) -> Option<String> {
    let text = String::from_utf8(entries.get(name)?.0.clone()).ok()?;
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const LIVES: Lives = Lives {
        certificate: Duration::from_hours(1),
    };
    const MINUTE: u64 = 60;
    const BEGIN: u64 = 1_800_000_000;

    /// Three lives of an authority, looked at every minute, with everything stored and read back in between.
    #[test]
    fn at_every_minute_of_an_exchange_each_workload_trusts_the_other_ones_certificate() {
        let mut authority = Entries::new();
        let (mut gateway, mut worker) = (Entries::new(), Entries::new());
        let mut steps = vec![];
        for minute in 0..3 * 12 * 60 {
            let now_s = BEGIN + minute * MINUTE;
            let mut held = Held::read(&authority);
            let step = held.advance("ns", LIVES, Spread::Begun, now_s).unwrap();
            if step != Step::Rest {
                steps.push(step);
                authority = stored(&held.entries());
            }
            assert_eq!(Held::read(&authority), held, "what is stored is read back");
            // Workers learn of it ten minutes after gateways: later than a kubelet is.
            for (role, at, late) in [
                (Role::Gateway, &mut gateway, 0),
                (Role::Worker, &mut worker, 9),
            ] {
                if minute % 10 == late
                    && let Some(renewed) = held.renewed(role, at, LIVES, now_s).unwrap()
                {
                    *at = stored(&renewed);
                }
            }
            if minute < 9 {
                continue;
            }
            for (mine, other) in [(&gateway, &worker), (&worker, &gateway)] {
                let part = |entries: &Entries, name: &str| text(entries, name).unwrap();
                let about = issue::about(&part(mine, "tls.crt")).unwrap();
                assert!(!about.life.is_over(now_s), "minute {minute}");
                let trusted = part(other, "ca.crt");
                let trusts = trusted.split_inclusive("-----END CERTIFICATE-----\n");
                let mut trusts = trusts.filter_map(issue::about);
                assert!(
                    trusts.any(|by| by.subject == about.issuer && !by.life.is_over(now_s)),
                    "minute {minute}: {about:?} is not trusted"
                );
                let whole = Credentials::from_pem(
                    part(mine, "tls.crt").as_bytes(),
                    part(mine, "tls.key").as_bytes(),
                    part(mine, "ca.crt").as_bytes(),
                );
                whole.unwrap();
            }
        }
        let round = [Step::Announce, Step::Exchange, Step::Forget];
        assert_eq!(steps[0], Step::Begin);
        assert!(steps.len() > 9, "{steps:?}");
        for (place, step) in steps[1..].iter().enumerate() {
            assert_eq!(*step, round[place % 3], "{steps:?}");
        }
    }

    #[test]
    fn an_exchange_counts_its_time_from_what_was_written_last() {
        let mut held = Held::default();
        assert!(!held.delays(BEGIN + 9_000), "there is none");
        held.advance("ns", LIVES, Spread::Begun, BEGIN).unwrap();
        let due = BEGIN + LIVES.authority().as_secs() / 3 * 2;
        let step =
            |held: &mut Held, spread, now_s| held.advance("ns", LIVES, spread, now_s).unwrap();
        assert_eq!(step(&mut held, Spread::Begun, due), Step::Announce);
        let late = due + 100 * MINUTE;
        assert_eq!(step(&mut held, Spread::Incomplete, late), Step::Rest);
        assert!(held.delays(late) && !held.delays(late + 2));
        assert_eq!(step(&mut held, Spread::Begun, late + 2), Step::Rest);
        let spread_s = LIVES.spread().as_secs();
        assert_eq!(
            step(&mut held, Spread::Begun, late + spread_s),
            Step::Exchange
        );
    }

    #[test]
    fn a_certificate_is_renewed_when_it_is_due_damaged_or_of_another_and_left_alone_otherwise() {
        let mut held = Held::default();
        held.advance("ns", LIVES, Spread::Incomplete, BEGIN)
            .unwrap();
        let renewed =
            |entries: &Entries, now_s| held.renewed(Role::Gateway, entries, LIVES, now_s).unwrap();
        let first = stored(&renewed(&Entries::new(), BEGIN).unwrap());
        assert_eq!(renewed(&first, BEGIN + 20 * MINUTE), None);
        let later = renewed(&first, BEGIN + 41 * MINUTE).unwrap();
        assert_ne!(stored(&later)["tls.key"], first["tls.key"]);
        let of_another = held.renewed(Role::Worker, &first, LIVES, BEGIN).unwrap();
        assert!(of_another.is_some(), "a gateway's is none for a worker");
        for entry in ["tls.crt", "tls.key"] {
            let mut damaged = first.clone();
            damaged.remove(entry);
            assert!(renewed(&damaged, BEGIN).is_some(), "{entry}");
            damaged.insert(entry.to_owned(), ByteString(b"nothing".to_vec()));
            assert!(renewed(&damaged, BEGIN).is_some(), "{entry}");
            damaged.insert(entry.to_owned(), stored(&later)[entry].clone());
            assert!(
                renewed(&damaged, BEGIN).is_some(),
                "{entry} of another pair"
            );
        }
        let mut untrusting = first.clone();
        untrusting.insert("ca.crt".to_owned(), ByteString(b"other".to_vec()));
        let mended = stored(&renewed(&untrusting, BEGIN).unwrap());
        assert_eq!(mended, first, "only what is wrong is changed");
    }
}
