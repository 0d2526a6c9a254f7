//! One gateway: what it said last, and what is under way to it. Pure: times are arguments.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_rollout::report::GatewayReport;
use weir_rollout::routing::TableOrder;

/// A gateway that has been silent for so long does not answer, for now.
const SILENT: Duration = Duration::from_secs(2);

/// A gateway that has failed to answer for so long is worth a word to people: one that starts takes less.
const WORTH_A_WORD: Duration = Duration::from_secs(10);

/// A gateway as last heard.
#[derive(Clone, Debug)]
pub struct Heard {
    /// Its pod.
    pub name: String,
    /// Where it is asked, `host:port`.
    pub address: String,
    /// Whether it answered when it was asked last, or may still.
    pub is_reachable: bool,
    /// What it said last, and when.
    pub report: Option<(Arc<GatewayReport>, Instant)>,
    /// When its last two answers were asked for: what the last one says anew happened after the one before.
    pub asked: [Option<Instant>; 2],
    /// How many answers it gave.
    pub answers: u64,
    /// In which of them it had another table of a model for the first time.
    pub turned: BTreeMap<String, u64>,
}

/// A gateway, and what is under way to it.
pub(super) struct Line {
    pub(super) heard: Heard,
    /// Since when it has owed an answer.
    pending: Option<Instant>,
    /// Whether it is to be asked again as soon as it has answered.
    pub(super) is_due: bool,
    /// Tables that are being handed over, by model.
    offers: BTreeMap<String, Offer>,
    silence: Silence,
}

/// How long a gateway has failed to answer.
#[derive(Debug, Default, PartialEq, Eq)]
enum Silence {
    /// It answered when it was asked last.
    #[default]
    None,
    /// Since then.
    Since(Instant),
    /// For so long that people were told.
    Told,
}

impl Silence {
    /// Another failure; whether people are to be told now.
    fn goes_on(&mut self, now: Instant) -> bool {
        match *self {
            Self::None => *self = Self::Since(now),
            Self::Since(since) if now.saturating_duration_since(since) >= WORTH_A_WORD => {
                *self = Self::Told;
                return true;
            }
            Self::Since(_) | Self::Told => {}
        }
        false
    }

    /// An answer; whether people were told that there was none.
    fn ends(&mut self) -> bool {
        std::mem::take(self) == Self::Told
    }
}

/// A table on its way.
struct Offer {
    order: TableOrder,
    /// Whether it was not refused yet: what the gateway says meanwhile would be old at once.
    is_fresh: bool,
}

impl Line {
    pub(super) fn new(name: &str, address: &str) -> Self {
        Self {
            heard: Heard {
                name: name.to_owned(),
                address: address.to_owned(),
                is_reachable: false,
                report: None,
                asked: [None; 2],
                answers: 0,
                turned: BTreeMap::new(),
            },
            pending: None,
            is_due: false,
            offers: BTreeMap::new(),
            silence: Silence::None,
        }
    }

    pub(super) fn as_heard(&self, now: Instant) -> Heard {
        let silent = |since: Instant| now.saturating_duration_since(since) >= SILENT;
        let mut heard = self.heard.clone();
        heard.is_reachable &= !self.pending.is_some_and(silent);
        heard
    }

    /// Whether it is to be asked now.
    pub(super) fn begins(&mut self, now: Instant) -> bool {
        let is_given = self.offers.values().any(|offer| offer.is_fresh);
        let begins = self.pending.is_none() && !is_given;
        if begins {
            (self.pending, self.is_due) = (Some(now), false);
        }
        begins
    }

    /// Whether a table is to be handed over now: not where it or a newer one is on its way.
    pub(super) fn offers(&mut self, model: &str, order: TableOrder) -> bool {
        let under_way = self.offers.get(model);
        if under_way.is_some_and(|offer| offer.order >= order) {
            return false;
        }
        let is_fresh = true;
        self.offers
            .insert(model.to_owned(), Offer { order, is_fresh });
        true
    }

    /// A table was not taken; whether it is to be offered again.
    pub(super) fn refuses(&mut self, model: &str, order: TableOrder) -> bool {
        let offer = self.offers.get_mut(model);
        let offer = offer.filter(|offer| offer.order == order);
        offer.map(|offer| offer.is_fresh = false).is_some()
    }

    /// No table of this order is on its way any more; what came of it is to be asked.
    pub(super) fn is_offered(&mut self, model: &str, order: TableOrder) {
        self.offers
            .retain(|of, offer| of != model || offer.order != order);
        self.is_due = true;
    }

    /// Takes in an answer; the models of which it says something else than before.
    pub(super) fn hears(
        &mut self,
        answer: Result<GatewayReport, String>,
        now: Instant,
    ) -> Vec<String> {
        let asked_at = self.pending.take();
        let heard = &mut self.heard;
        heard.is_reachable = answer.is_ok();
        match answer {
            Ok(report) => {
                if self.silence.ends() {
                    tracing::info!(gateway = heard.name, "the gateway answers again");
                }
                let before = heard.report.as_ref().map(|(report, _)| Arc::clone(report));
                let changed = differing(before.as_deref(), &report);
                heard.answers += 1;
                for model in report.models.keys() {
                    let known = before.as_ref().and_then(|before| order_of(before, model));
                    if order_of(&report, model) != known {
                        heard.turned.insert(model.clone(), heard.answers);
                    }
                }
                heard
                    .turned
                    .retain(|model, _| report.models.contains_key(model));
                heard.report = Some((Arc::new(report), now));
                heard.asked = [heard.asked[1], asked_at];
                changed
            }
            Err(error) => {
                if self.silence.goes_on(now) {
                    tracing::warn!(
                        gateway = heard.name,
                        address = heard.address,
                        error,
                        "a gateway does not answer: its measurements are missing, and no decision reaches it; see its pod and its log, and whether a NetworkPolicy lets the operator in"
                    );
                } else {
                    tracing::debug!(gateway = heard.name, error, "a gateway does not answer");
                }
                Vec::new()
            }
        }
    }
}

/// The order of the table that a gateway has of a model.
fn order_of(report: &GatewayReport, model: &str) -> Option<TableOrder> {
    Some(report.models.get(model)?.table.as_ref()?.order)
}

/// Models of which a gateway says something else than before.
fn differing(before: Option<&GatewayReport>, now: &GatewayReport) -> Vec<String> {
    let serving = |report: &GatewayReport| -> Vec<(String, bool, Vec<String>)> {
        let of = |(name, worker): (&String, &weir_rollout::report::WorkerReport)| {
            (
                name.clone(),
                worker.connected && !worker.draining,
                worker.digests.clone(),
            )
        };
        report.workers.iter().map(of).collect()
    };
    let Some(before) = before else {
        return now.models.keys().cloned().collect();
    };
    let all = serving(before) != serving(now);
    let is_other = |model: &&String| all || order_of(before, model) != order_of(now, model);
    now.models.keys().filter(is_other).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_whenever_it_comes_and_nobody_is_asked_twice_at_once() {
        let (mut line, start) = (Line::new("g-0", "127.0.0.1:9090"), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert!(line.begins(at(0)));
        line.hears(Ok(GatewayReport::default()), at(10));
        assert!(line.as_heard(at(10)).is_reachable);
        assert!(line.begins(at(500)));
        assert!(!line.begins(at(1_000)), "it owes an answer");
        assert!(line.as_heard(at(2_000)).is_reachable, "slow is not away");
        assert!(!line.as_heard(at(2_500)).is_reachable);
        line.hears(Ok(GatewayReport::default()), at(4_000));
        let heard = line.as_heard(at(4_000));
        assert!(heard.is_reachable);
        assert_eq!(heard.asked, [Some(at(0)), Some(at(500))]);
        assert!(line.begins(at(5_000)));
        line.hears(Err("refused".to_owned()), at(5_001));
        let heard = line.as_heard(at(5_001));
        assert!(!heard.is_reachable && heard.report.is_some());
        assert_eq!(heard.answers, 2);
    }

    #[test]
    fn people_are_told_once_of_a_long_silence_and_of_its_end() {
        let (mut silence, start) = (Silence::None, Instant::now());
        let mut fails = |ms| silence.goes_on(start + Duration::from_millis(ms));
        let told = [0, 5_000, 9_999, 10_000, 20_000].map(&mut fails);
        assert_eq!(told, [false, false, false, true, false]);
        assert!(silence.ends());
        assert!(!silence.ends(), "once");
        assert!(!silence.goes_on(start + Duration::from_secs(30)));
        assert!(!silence.ends(), "a short one is nobody's business");
    }

    #[test]
    fn who_is_being_given_a_table_is_asked_after_it_and_a_table_goes_out_once() {
        let (mut line, now) = (Line::new("g-0", "127.0.0.1:9090"), Instant::now());
        let order = |generation| TableOrder::new(1, generation);
        assert!(line.offers("m", order(2)));
        assert!(!line.offers("m", order(2)), "it is on its way");
        assert!(!line.offers("m", order(1)), "a newer one is");
        assert!(!line.begins(now), "what it said would be old at once");
        assert!(line.refuses("m", order(2)));
        assert!(line.begins(now), "who cannot take it is heard all the same");
        line.hears(Ok(GatewayReport::default()), now);
        assert!(line.offers("m", order(3)));
        assert!(!line.refuses("m", order(2)), "a newer one is on its way");
        line.is_offered("m", order(2));
        assert!(!line.begins(now));
        line.is_offered("m", order(3));
        assert!(line.is_due);
        assert!(line.begins(now));
        assert!(!line.is_due);
    }
}
