//! Reads of chains and rows, each from one consistent state.

use std::ops::ControlFlow;

use weir_ledger::{Chain, Day, Hash, Head, Link};
use weir_run::{Run, RunId};

use crate::ChainDay;
use crate::kv::View;
use crate::record::{self, BadRecord, chain, key, unseal};
use crate::writer::state::{ReadError, at, live_run};

/// Visits at most `limit` pairs of a range.
fn take<T>(
    view: &dyn View,
    (from, to): (Vec<u8>, Vec<u8>),
    limit: usize,
    decode: impl Fn(&[u8], &[u8]) -> Result<T, BadRecord>,
) -> Result<Result<Vec<T>, BadRecord>, ReadError> {
    let mut all = vec![];
    let mut bad = None;
    if limit == 0 || from >= to {
        return Ok(Ok(all));
    }
    view.scan(&from, &to, &mut |key, value| {
        match decode(key, value) {
            Ok(one) => all.push(one),
            Err(error) => bad = Some(error),
        }
        if all.len() >= limit || bad.is_some() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    })?;
    Ok(bad.map_or(Ok(all), Err))
}

/// See [`crate::Store::chain`].
///
/// # Errors
/// It could not be read, or makes no sense.
pub fn links(
    view: &dyn View,
    of: &Chain,
    after: u64,
    limit: usize,
) -> Result<Vec<Link>, ReadError> {
    let range = (key::link(of, after.saturating_add(1)), key::links_end(of));
    let links = take(view, range, limit, |key, value| {
        let number = key::link_number(key).ok_or(BadRecord::Value("number"))?;
        chain::decode_link(number, unseal(key, value)?)
    })?;
    links.map_err(at("a link of", of.name()))
}

/// See [`crate::Store::chain_head`].
///
/// # Errors
/// It could not be read, or makes no sense.
pub fn head(view: &dyn View, of: &Chain) -> Result<Head, ReadError> {
    let key = key::head(of);
    decode_head(of, &key, view.get(&key)?.as_deref())
}

pub(crate) fn decode_head(
    of: &Chain,
    key: &[u8],
    sealed: Option<&[u8]>,
) -> Result<Head, ReadError> {
    let payload = sealed.map(|sealed| unseal(key, sealed)).transpose();
    payload
        .and_then(|payload| payload.map_or_else(|| Ok(Head::empty(of)), chain::decode_head))
        .map_err(at("the head of", of.name()))
}

/// See [`crate::Store::chain_day`].
///
/// # Errors
/// It could not be read, or makes no sense.
pub fn day(view: &dyn View, of: &Chain, day: Day) -> Result<Option<ChainDay>, ReadError> {
    let begin = |key: &[u8], value: &[u8]| chain::decode_day(unseal(key, value)?);
    let key = key::chain_day(of, day);
    let Some(sealed) = view.get(&key)? else {
        return Ok(None);
    };
    let bad = |error| at("a day of", of.name())(error);
    let (first, previous_root) = begin(&key, &sealed).map_err(bad)?;
    let next = take(view, key::chain_days_after(of, day), 1, begin)?.map_err(bad)?;
    let (last, root, open): (u64, Hash, bool) = if let Some((next, root)) = next.first() {
        (next.saturating_sub(1), *root, false)
    } else {
        let head = head(view, of)?;
        (head.number, head.hash, true)
    };
    Ok(Some(ChainDay {
        day,
        first,
        last,
        previous_root,
        root,
        open,
    }))
}

/// See [`crate::Store::runs`].
///
/// # Errors
/// It could not be read, or makes no sense.
pub fn runs(
    view: &dyn View,
    tenant: &str,
    after: Option<RunId>,
    limit: usize,
) -> Result<Vec<Run>, ReadError> {
    let rows = take(view, key::runs_after(tenant, after), limit, |key, value| {
        let id = key::trailing_run(key).ok_or(BadRecord::Value("run id"))?;
        record::run::decode(tenant, id, unseal(key, value)?)
    })?;
    let rows = rows.map_err(at("a row of", tenant))?;
    // A row of a live run lags behind its events.
    let newest = |row: Run| {
        if row.status.is_terminal() {
            return Ok(row);
        }
        live_run(view, tenant, row.id)
    };
    rows.into_iter().map(newest).collect()
}
