//! Growth of chains, audit lines and documents, repair of an account, deletion of content.

use weir_budget::{Account, AccountDifference};
use weir_ledger::{AuditLine, Chain, Change, Head};
use weir_run::RunId;

use super::op::Request;
use super::ops::OpError;
use super::state::{Group, ReadError, at};
use crate::chains::decode_head;
use crate::objects::check_writes;
use crate::record::ledger::Entry;
use crate::record::{self, BadRecord, key, unseal};
use crate::{Note, Noted, Purge, Purged, RUN_SPACE, Repair, Repaired, Written};

/// Longest line of the audit log.
const MAX_LINE_BYTES: usize = 1 << 20;
/// No window is longer, so no older entry of the ledger counts.
const LONGEST_WINDOW_MS: u64 = 367 * 86_400_000;

impl Group<'_> {
    /// Adds a line to a chain and answers with its number.
    pub(crate) fn extend(
        &mut self,
        chain: &Chain,
        now_ms: u64,
        body: Vec<u8>,
    ) -> Result<u64, ReadError> {
        let mut head = self.head(chain)?;
        let day_before = (head.number > 0).then_some(head.day);
        let link = head.extend(now_ms, body);
        if day_before != Some(link.day) {
            let first = record::chain::encode_day(&link);
            self.changes.put(key::chain_day(chain, link.day), first);
        }
        let payload = record::chain::encode_link(&link);
        self.changes.put(key::link(chain, link.number), payload);
        let payload = record::chain::encode_head(&head);
        self.changes.put(key::head(chain), payload);
        Ok(link.number)
    }

    /// The end of a chain as this group left it. Where gateways share the store, the commit rests on it: so two cannot add the same number.
    fn head(&self, chain: &Chain) -> Result<Head, ReadError> {
        let key = key::head(chain);
        decode_head(chain, &key, self.get(&key)?.as_deref())
    }

    fn note(&mut self, note: &Note) -> Result<Noted, OpError> {
        if let Written::Conflict(place) = self.write_objects(&note.writes)? {
            return Ok(Noted::Conflict(place));
        }
        for line in &note.lines {
            self.extend(&Chain::Audit, note.now_ms, line.clone())?;
        }
        Ok(Noted::Written(self.head(&Chain::Audit)?.number))
    }

    fn repair(&mut self, repair: &Repair) -> Result<Repaired, OpError> {
        let tenant = &repair.tenant;
        self.know_account(tenant)?;
        let old = self.state.accounts.get(tenant).cloned().unwrap_or_default();
        let mut rebuild = old.rebuild(repair.now_ms);
        for (key, value) in self.merged(key::open_of(tenant))? {
            let reservation = unseal(&key, &value)
                .and_then(record::run::decode_reservation)
                .map_err(at("a reservation of", tenant))?;
            rebuild.reserved(&reservation);
        }
        let oldest = repair.now_ms.saturating_sub(LONGEST_WINDOW_MS);
        let range = (key::ledger_from(tenant, oldest), key::ledger_end(tenant));
        for (key, value) in self.merged(range)? {
            let entry = unseal(&key, &value)
                .and_then(Entry::decode)
                .map_err(at("the ledger of", tenant))?;
            let accepted_at_ms = key::ledger_moment(&key)
                .ok_or_else(|| ReadError::from_record("a ledger entry", BadRecord::Value("key")))?;
            rebuild.billed(&entry.billed(accepted_at_ms));
        }
        let new = rebuild.finish();
        let changes = changes(&old, &new);
        let applied = repair.apply && !changes.is_empty();
        if applied {
            let actor = repair.actor.clone();
            let object = format!("TenantQuota {tenant}");
            let line = AuditLine::new(repair.now_ms, actor, "budgetRepaired", &object)
                .changes(changes.clone());
            self.extend(&Chain::Audit, repair.now_ms, line.encode())?;
            self.state.accounts.insert(tenant.clone(), new);
            self.changes.accounts.insert(tenant.clone());
        }
        Ok(Repaired { changes, applied })
    }

    fn purge(&mut self, purge: &Purge) -> Result<Purged, OpError> {
        let mut purged = Purged::default();
        let mut looked_at = 0;
        let mut ids: Vec<RunId> = Vec::new();
        let (from, to) = key::runs_after(&purge.tenant, purge.after);
        self.view
            .scan(&from, &to, &mut |key, _| {
                looked_at += 1;
                ids.extend(key::trailing_run(key));
                if looked_at >= purge.limit {
                    purged.next = ids.last().copied();
                    return std::ops::ControlFlow::Break(());
                }
                std::ops::ControlFlow::Continue(())
            })
            .map_err(ReadError::from)?;
        for id in ids {
            let Some(mut run) = self.run(&purge.tenant, id)? else {
                continue;
            };
            if run.created_at_ms >= purge.before_ms {
                continue;
            }
            if !run.status.is_terminal() {
                purged.live += 1;
                continue;
            }
            let attached = key::object(RUN_SPACE, &run.tenant, &id.to_string());
            self.changes.remove(attached);
            self.drop_events(id)?;
            if run.metadata.is_empty() && run.events_expire_at_ms <= purge.now_ms {
                // It had none left, or was purged before.
                continue;
            }
            run.metadata.clear();
            run.events_expire_at_ms = run.events_expire_at_ms.min(purge.now_ms);
            self.changes.put_run(&run);
            purged.runs += 1;
        }
        Ok(purged)
    }
}

/// The fields in which the account is wrong, in the words of the audit log.
pub(crate) fn changes(old: &Account, new: &Account) -> Vec<Change> {
    let field = |difference: &AccountDifference| {
        let key = difference.key.as_ref();
        let of = key.map_or(String::new(), |name| format!("keys.{name}."));
        let window = difference
            .window
            .map_or(String::new(), |(period_s, start_ms)| {
                format!("windows.{period_s}s.{}.", weir_ledger::rfc3339(start_ms))
            });
        format!("{of}{window}{}", difference.field)
    };
    let differences = old.differences(new);
    let change = |difference: &AccountDifference| Change {
        field: field(difference),
        old: difference.here.into(),
        new: difference.there.into(),
    };
    differences.iter().map(change).collect()
}

impl Request for Note {
    type Answer = Noted;

    fn perform(&self, group: &mut Group<'_>) -> Result<Noted, OpError> {
        group.note(self)
    }

    fn bytes(&self) -> usize {
        self.writes.bytes() + self.lines.iter().map(Vec::len).sum::<usize>()
    }
}

impl Request for Repair {
    type Answer = Repaired;

    fn perform(&self, group: &mut Group<'_>) -> Result<Repaired, OpError> {
        group.repair(self)
    }
}

impl Request for Purge {
    type Answer = Purged;

    fn perform(&self, group: &mut Group<'_>) -> Result<Purged, OpError> {
        group.purge(self)
    }
}

/// What a note must fulfil whatever the store holds.
///
/// # Errors
/// What it does not.
pub fn check_note(note: &Note) -> Result<(), String> {
    check_writes(&note.writes)?;
    check_lines(&note.lines)
}

/// What lines of the audit log must fulfil whatever the store holds.
fn check_lines(lines: &[Vec<u8>]) -> Result<(), String> {
    let is_bad = |line: &&Vec<u8>| line.len() > MAX_LINE_BYTES || line.contains(&b'\n');
    match lines.iter().find(is_bad) {
        None => Ok(()),
        Some(_) => Err("a line of the audit log is more than one line, or too long".to_owned()),
    }
}
