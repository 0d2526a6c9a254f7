//! What each write does to a group. Everything that can fail comes before the first change.

use std::sync::Arc;

use weir_budget::{Consumed, Reservation, SettleError};
use weir_ledger::{Chain, UsageRecord};
use weir_run::{Decision, Epoch, Extension, NotExtended, Run, RunId, Terminal};

use super::breaks;
use super::state::{Group, Live, ReadError, at, missing};
use crate::fault::broken;
use crate::record::{self, BadRecord, chunk, key, ledger, unseal};
use crate::{Admission, Admit, Append, Appended, MAX_OBJECT_BYTES, OpenRun, RUN_SPACE};

/// Why a write was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// Something could not be read: the whole group fails.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The caller is wrong, the store is not.
    #[error("{0}")]
    Contract(String),
}

impl Group<'_> {
    pub(crate) fn admit(&mut self, admission: &Admission) -> Result<Admit, OpError> {
        let Admission {
            run,
            work,
            ask,
            limits,
            accepted,
            attachment,
            now_ms,
        } = admission;
        if let Some(known) = self.known(run)? {
            return Ok(known);
        }
        self.know_account(&run.tenant)?;
        let replaced = match run.replaces {
            None => None,
            Some(old) => match self.replaceable(&run.tenant, old)? {
                Ok(old) => Some(old),
                Err(why) => return Ok(Admit::BadReplaces(why)),
            },
        };
        if self.state.live.contains_key(&run.id) || self.any_run(run.id)?.is_some() {
            return Err(OpError::Contract(format!("run {} exists", run.id)));
        }
        let account = self.state.accounts.entry(run.tenant.clone()).or_default();
        let reservation = match account.reserve(&breaks::limits(limits), ask, *now_ms) {
            Ok(reservation) => reservation,
            Err(refusal) => return Ok(Admit::Refused(refusal)),
        };
        if let Some(mut old) = replaced {
            old.replaced_by = Some(run.id);
            self.changes.put_run(&old);
        }
        self.changes.events.insert(run.id, vec![accepted.clone()]);
        self.changes.put_work(run.id, work);
        if let Some(data) = attachment {
            let key = key::object(RUN_SPACE, &run.tenant, &run.id.to_string());
            self.changes.put(key, record::object::encode(1, data));
        }
        self.insert(run.clone(), reservation);
        Ok(Admit::Admitted)
    }

    /// The run that has the request key already.
    fn known(&mut self, run: &Run) -> Result<Option<Admit>, OpError> {
        let Some(request_key) = run.request_key.as_ref().filter(|_| !broken("key-twice")) else {
            return Ok(None);
        };
        let key = key::request_key(&run.tenant, request_key);
        let Some(value) = self.get(&key)? else {
            return Ok(None);
        };
        let id = decode_id(&key, &value)?;
        self.know_run(id)?;
        let known = self
            .run(&run.tenant, id)?
            .ok_or_else(|| missing("the row of", id))?;
        Ok(Some(if known.payload_hash == run.payload_hash {
            Admit::Replayed(Box::new(known))
        } else {
            Admit::Conflict(id)
        }))
    }

    /// The run, if another may replace it, else why not.
    fn replaceable(&mut self, tenant: &str, old: RunId) -> Result<Result<Run, String>, OpError> {
        self.know_run(old)?;
        let Some(run) = self.run(tenant, old)? else {
            return Ok(Err(format!("run {old} is unknown")));
        };
        Ok(match run.replaced_by {
            Some(other) => Err(format!("run {old} is replaced by {other} already")),
            None if !run.status.is_terminal() => Err(format!(
                "run {old} is {}: only a run that has ended can be replaced",
                run.status.as_str()
            )),
            None => Ok(run),
        })
    }

    fn insert(&mut self, run: Run, reservation: Reservation) {
        let changes = &mut self.changes;
        changes.put(key::owner(run.id), run.tenant.clone().into_bytes());
        changes.put(
            key::open(&run.tenant, run.id),
            record::run::encode_reservation(&reservation),
        );
        if let Some(owner) = self.owner {
            changes.put(key::belongs(run.id), owner.as_bytes().to_vec());
        }
        if let Some(request_key) = &run.request_key {
            let id = run.id.to_bytes().to_vec();
            changes.put(key::request_key(&run.tenant, request_key), id);
        }
        changes.accounts.insert(run.tenant.clone());
        changes.rows.insert(run.id);
        changes.touched.insert(run.id);
        let row = Arc::new(run.clone());
        let live = Live {
            run,
            reservation,
            row,
        };
        self.state.live.insert(live.run.id, live);
    }

    pub(crate) fn append(&mut self, append: &Append) -> Result<Appended, OpError> {
        let id = append.run;
        self.know_run(id)?;
        if append.terminal.is_some()
            && let Some(live) = self.state.live.get(&id)
        {
            let tenant = live.run.tenant.clone();
            self.know_account(&tenant)?;
        }
        let Some(live) = self.state.live.get_mut(&id) else {
            return Ok(match self.any_run(id)? {
                None => Appended::Unknown,
                Some(run) => Appended::Terminal(run.status),
            });
        };
        let new = Extension {
            epoch: breaks::epoch(append.epoch, live.run.epoch),
            output_tokens: append.output_tokens,
            output_index: append.output_index,
            started: append.started.as_ref(),
            terminal: append.terminal.as_ref(),
            verdicts: &append.verdicts,
            now_ms: append.now_ms,
        };
        let kinds = append
            .events
            .iter()
            .map(|event| (event.sequence, event.kind));
        match live.run.extend(&new, kinds) {
            Ok(()) => {}
            Err(NotExtended::Fenced(epoch)) => return Ok(Appended::Fenced(epoch)),
            Err(NotExtended::Terminal(status)) => return Ok(Appended::Terminal(status)),
            Err(NotExtended::Illegal(illegal)) => return Ok(Appended::Refused(illegal)),
        }
        let status = live.run.status;
        self.changes
            .events
            .entry(id)
            .or_default()
            .extend(append.events.iter().cloned());
        self.changes.touched.insert(id);
        if append.started.is_some() || !append.verdicts.is_empty() {
            self.changes.rows.insert(id);
        }
        if let Some(terminal) = &append.terminal {
            self.end(id, terminal)?;
        }
        Ok(Appended::Done(status))
    }

    /// Settles a run that has just ended and lets go of what only live runs need.
    fn end(&mut self, id: RunId, terminal: &Terminal) -> Result<(), OpError> {
        let Live {
            run, reservation, ..
        } = self
            .state
            .live
            .remove(&id)
            .ok_or_else(|| missing("the live run", id))?;
        let settled_at_ms = run.finished_at_ms.unwrap_or(reservation.accepted_at_ms);
        let record = UsageRecord::of(&run).encode();
        let chain = Chain::Ledger(run.tenant.clone());
        let number = self.extend(&chain, settled_at_ms, record)?;
        let entry = ledger::Entry {
            model: run.model.clone(),
            version: run.model_version,
            status: terminal.status,
            usage: breaks::usage(terminal.usage),
            periods_s: reservation.periods_s.clone(),
            key: reservation.key.clone(),
            link: Some(number),
        };
        let consumed = Consumed {
            tokens: entry.tokens(),
            micros: entry.usage.cost_micros,
        };
        let accepted_at_ms = reservation.accepted_at_ms;
        let account = self.state.accounts.entry(run.tenant.clone()).or_default();
        account
            .settle(reservation, consumed)
            .map_err(|error| unsettled(id, &error))?;
        let changes = &mut self.changes;
        changes.accounts.insert(run.tenant.clone());
        changes.put_chunk(&run);
        changes.put_run(&run);
        changes.rows.remove(&id);
        changes.put(key::ledger(&run.tenant, accepted_at_ms, id), entry.encode());
        if broken("settle-twice") {
            changes.put(
                key::ledger(&run.tenant, accepted_at_ms + 1, id),
                entry.encode(),
            );
        }
        if !broken("keep-reservation") {
            changes.remove(key::open(&run.tenant, id));
        }
        changes.remove(key::work(id));
        if self.owner.is_some() {
            changes.remove(key::belongs(id));
            changes.remove(key::cancelling(id));
        }
        super::retention::schedule_events(changes, &run);
        Ok(())
    }

    /// The run as it is afterwards; `None` when this tenant has no such run.
    pub(crate) fn cancel(&mut self, tenant: &str, id: RunId) -> Result<Option<Run>, OpError> {
        self.know_run(id)?;
        let Some(live) = self.state.live.get_mut(&id) else {
            return Ok(self.run(tenant, id)?);
        };
        if live.run.tenant != tenant {
            return Ok(None);
        }
        if live.run.cancel() {
            self.changes.rows.insert(id);
            self.changes.touched.insert(id);
            if self.owner.is_some() {
                self.changes.put(key::cancelling(id), vec![]);
            }
        }
        Ok(Some(live.run.clone()))
    }

    pub(crate) fn take_over(&mut self, id: RunId) -> Result<Option<Epoch>, OpError> {
        self.know_run(id)?;
        let Some(live) = self.state.live.get_mut(&id) else {
            return Ok(None);
        };
        let Some(epoch) = live.run.take_over() else {
            return Ok(None);
        };
        self.changes.rows.insert(id);
        self.changes.touched.insert(id);
        if let Some(owner) = self.owner {
            let owner = owner.as_bytes().to_vec();
            self.changes.put(key::belongs(id), owner);
        }
        Ok(Some(epoch))
    }

    /// Takes a live run over from the gateway that has it; `None` when that one has it no more.
    pub(crate) fn adopt(&mut self, id: RunId, from: &str) -> Result<Option<OpenRun>, OpError> {
        let key = key::belongs(id);
        let Some(value) = self.get(&key)? else {
            return Ok(None);
        };
        let owner = unseal(&key, &value).map_err(at("the owner of", id))?;
        if owner != from.as_bytes() {
            return Ok(None);
        }
        let work_key = key::work(id);
        let work = self.get(&work_key)?;
        let Some(_) = self.take_over(id)? else {
            return Ok(None);
        };
        let (Some(live), Some(work)) = (self.state.live.get(&id), work) else {
            return Ok(None);
        };
        let work = unseal(&work_key, &work)
            .and_then(record::run::decode_work)
            .map_err(at("the work order of", id))?;
        Ok(Some(OpenRun {
            run: live.run.clone(),
            work,
        }))
    }

    /// A run that has ended keeps the decision it ended with.
    pub(crate) fn route(&mut self, id: RunId, decision: &Decision) -> Result<(), OpError> {
        self.know_run(id)?;
        if let Some(live) = self.state.live.get_mut(&id)
            && live.run.decision != *decision
        {
            live.run.decision = decision.clone();
            self.changes.rows.insert(id);
            self.changes.touched.insert(id);
        }
        Ok(())
    }
}

/// `Run::extend` has held the usage against the reservation, so an account that cannot settle it is damaged.
fn unsettled(id: RunId, error: &SettleError) -> ReadError {
    tracing::error!(run = %id, %error, "the account does not hold the run's reservation");
    at("the reservation of", id)(BadRecord::Value("reservation"))
}

pub(crate) fn decode_id(key: &[u8], value: &[u8]) -> Result<RunId, ReadError> {
    let payload = unseal(key, value).map_err(at("a request key", ""))?;
    let id = <[u8; 16]>::try_from(payload)
        .map_err(|_| at("a request key", "")(BadRecord::Value("run id")))?;
    Ok(RunId::from_bytes(id))
}

/// What an admission must fulfil whatever the store holds.
///
/// # Errors
/// The rule it breaks.
pub fn check_admission(admission: &Admission) -> Result<(), String> {
    let Admission {
        run, ask, accepted, ..
    } = admission;
    let attached = admission.attachment.as_ref().map_or(0, bytes::Bytes::len);
    let key_bytes = run.request_key.as_ref().map_or(0, String::len);
    let rules = [
        (
            run.status == weir_run::RunStatus::Accepted,
            "its status is not accepted",
        ),
        (run.last_sequence.0 == 1, "its last sequence is not 1"),
        (
            accepted.sequence.0 == 1 && accepted.kind == "accepted",
            "its first event is not event 1 of kind accepted",
        ),
        (
            run.started_at_ms.is_none() && run.output_tokens == 0,
            "it has progress",
        ),
        (
            run.reserved_tokens == ask.tokens(),
            "its reserved tokens are not those it asks for",
        ),
        (
            run.prompt_tokens == ask.prompt_tokens,
            "its prompt is not the one it asks for",
        ),
        (
            run.reserved_micros == ask.micros,
            "its reserved cost is not the one it asks for",
        ),
        (run.pool == ask.pool, "its pool is not the one it asks for"),
        (
            run.tenant.len() <= key::MAX_TENANT_BYTES,
            "its tenant's name is too long",
        ),
        (
            key_bytes <= key::MAX_REQUEST_KEY_BYTES,
            "its request key is longer than 1024 bytes",
        ),
        (attached <= MAX_OBJECT_BYTES, "its attachment is too large"),
    ];
    match rules.iter().find(|(holds, _)| !holds) {
        None => Ok(()),
        Some((_, rule)) => Err(format!("run {}: {rule}", run.id)),
    }
}

/// Kinds that cannot be stored are refused before they are queued.
///
/// # Errors
/// The event that has one.
pub fn check_kinds(appends: &[Append]) -> Result<(), String> {
    let unknown = appends
        .iter()
        .flat_map(|append| append.events.iter().map(move |event| (append.run, event)))
        .find(|(_, event)| !chunk::knows(event.kind));
    match unknown {
        None => Ok(()),
        Some((run, event)) => Err(format!(
            "run {run}: event {} has the unknown kind {:?}",
            event.sequence.0, event.kind
        )),
    }
}
