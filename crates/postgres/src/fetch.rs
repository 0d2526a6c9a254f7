//! Reading what is wanted: one statement, and so one state of the database.

use std::collections::HashMap;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::query::Query;
use sqlx::{PgExecutor, Postgres, Row};
use weir_run::RunId;
use weir_store::engine::Pair;

use crate::memory::{Last, Memory, Record, Rows, Wants, chunk_bound, chunk_key, chunk_run};

const READ: &str = "
SELECT 1 AS kind, 0::bigint AS slot, r.key, r.version AS number, r.value FROM weir.record r WHERE r.key = ANY ($1)
UNION ALL
SELECT 2, 0, c.run, c.first, c.value FROM unnest($2::bytea[]) AS w (run)
  CROSS JOIN LATERAL (SELECT c.run, c.first, c.value FROM weir.chunk c WHERE c.run = w.run ORDER BY c.first DESC LIMIT 1) c
UNION ALL
SELECT 3, w.slot, q.key, q.version, q.value FROM unnest($3::bytea[], $4::bytea[], $5::bigint[]) WITH ORDINALITY AS w (lo, hi, most, slot)
  CROSS JOIN LATERAL (SELECT r.key, r.version, r.value FROM weir.record r WHERE r.key >= w.lo AND r.key < w.hi ORDER BY r.key LIMIT w.most) q
UNION ALL
SELECT 4, w.slot, q.run, q.first, q.value
  FROM unnest($6::bytea[], $7::bigint[], $8::bigint[], $9::bigint[]) WITH ORDINALITY AS w (run, lo, hi, most, slot)
  CROSS JOIN LATERAL (SELECT c.run, c.first, c.value FROM weir.chunk c WHERE c.run = w.run AND c.first >= w.lo AND c.first < w.hi
    AND NOT EXISTS (SELECT FROM weir.expired e WHERE e.run = w.run) ORDER BY c.first LIMIT w.most) q
UNION ALL
SELECT 5, w.slot, q.key, q.version, q.value FROM unnest($10::bytea[], $11::bytea[]) WITH ORDINALITY AS w (lo, hi, slot)
  CROSS JOIN LATERAL (SELECT r.key, r.version, r.value FROM weir.record r WHERE r.key >= w.lo AND r.key < w.hi ORDER BY r.key DESC LIMIT 1) q
UNION ALL
SELECT 6, w.slot, q.run, q.first, q.value FROM unnest($12::bytea[], $13::bigint[], $14::bigint[]) WITH ORDINALITY AS w (run, lo, hi, slot)
  CROSS JOIN LATERAL (SELECT c.run, c.first, c.value FROM weir.chunk c WHERE c.run = w.run AND c.first >= w.lo AND c.first < w.hi
    AND NOT EXISTS (SELECT FROM weir.expired e WHERE e.run = w.run) ORDER BY c.first DESC LIMIT 1) q
ORDER BY 1, 2, 3, 4";

type Range = (Vec<u8>, Vec<u8>);

/// A range within one run's log.
struct LogRange {
    range: Range,
    run: RunId,
    from: i64,
    to: i64,
    most: i64,
}

fn log_range((from, to, most): (&Vec<u8>, &Vec<u8>, i64)) -> Option<LogRange> {
    let run = chunk_run(from)?;
    Some(LogRange {
        range: (from.clone(), to.clone()),
        run,
        from: chunk_bound(from, run)?,
        to: chunk_bound(to, run)?,
        most,
    })
}

/// What is asked for, table by table.
struct Asked<'a> {
    wants: &'a Wants,
    tables: Vec<(&'a Vec<u8>, &'a Vec<u8>, i64)>,
    logs: Vec<LogRange>,
    table_ends: Vec<(&'a Vec<u8>, &'a Vec<u8>)>,
    log_ends: Vec<LogRange>,
}

/// Rows of ranges and last pairs as they come in.
#[derive(Default)]
struct Found {
    rows: HashMap<Range, Vec<Pair>>,
    ends: HashMap<Range, Pair>,
}

/// Reads all of `wants` into `memory`.
pub(crate) async fn fetch(
    executor: impl PgExecutor<'_>,
    wants: &Wants,
    memory: &mut Memory,
) -> Result<(), sqlx::Error> {
    let asked = Asked::new(wants);
    let rows = asked.query().fetch_all(executor).await?;
    // What is not among the rows is not there.
    for key in &wants.records {
        let absent = Record {
            version: 0,
            value: None,
        };
        memory.records.insert(key.clone(), absent);
    }
    for run in &wants.lasts {
        memory.lasts.insert(*run, Last::default());
    }
    let mut found = Found::default();
    for row in rows {
        asked.take(Fetched::from(&row)?, memory, &mut found);
    }
    for (from, to, most) in &wants.ranges {
        let range = (from.clone(), to.clone());
        let rows = found.rows.remove(&range).unwrap_or_default();
        let complete = i64::try_from(rows.len()).is_ok_and(|rows| rows < *most);
        memory.ranges.insert(range, Rows { rows, complete });
    }
    for range in &wants.ends {
        let end = found.ends.remove(range);
        memory.ends.insert(range.clone(), end);
    }
    Ok(())
}

impl<'a> Asked<'a> {
    fn new(wants: &'a Wants) -> Self {
        let mut asked = Self {
            wants,
            tables: vec![],
            logs: vec![],
            table_ends: vec![],
            log_ends: vec![],
        };
        for (from, to, most) in &wants.ranges {
            match log_range((from, to, *most)) {
                Some(log) => asked.logs.push(log),
                None => asked.tables.push((from, to, *most)),
            }
        }
        for (from, to) in &wants.ends {
            match log_range((from, to, 1)) {
                Some(log) => asked.log_ends.push(log),
                None => asked.table_ends.push((from, to)),
            }
        }
        asked
    }

    fn query(&self) -> Query<'static, Postgres, PgArguments> {
        let bytes = |run: RunId| run.to_bytes().to_vec();
        let Self {
            wants,
            tables,
            logs,
            table_ends,
            log_ends,
        } = self;
        sqlx::query(READ)
            .bind(wants.records.iter().cloned().collect::<Vec<_>>())
            .bind(wants.lasts.iter().copied().map(bytes).collect::<Vec<_>>())
            .bind(tables.iter().map(|t| t.0.clone()).collect::<Vec<_>>())
            .bind(tables.iter().map(|t| t.1.clone()).collect::<Vec<_>>())
            .bind(tables.iter().map(|t| t.2).collect::<Vec<_>>())
            .bind(logs.iter().map(|l| bytes(l.run)).collect::<Vec<_>>())
            .bind(logs.iter().map(|l| l.from).collect::<Vec<_>>())
            .bind(logs.iter().map(|l| l.to).collect::<Vec<_>>())
            .bind(logs.iter().map(|l| l.most).collect::<Vec<_>>())
            .bind(table_ends.iter().map(|t| t.0.clone()).collect::<Vec<_>>())
            .bind(table_ends.iter().map(|t| t.1.clone()).collect::<Vec<_>>())
            .bind(log_ends.iter().map(|l| bytes(l.run)).collect::<Vec<_>>())
            .bind(log_ends.iter().map(|l| l.from).collect::<Vec<_>>())
            .bind(log_ends.iter().map(|l| l.to).collect::<Vec<_>>())
    }

    /// Puts a row where its part of the statement says it belongs.
    fn take(&self, row: Fetched, memory: &mut Memory, found: &mut Found) {
        let Fetched {
            kind,
            slot,
            key,
            number,
            value,
        } = row;
        match kind {
            1 => {
                memory.records.insert(key, Record::there(number, value));
            }
            2 => {
                if let Ok(run) = <[u8; 16]>::try_from(key.as_slice()) {
                    let last = Last {
                        first: number,
                        value: Some(value),
                    };
                    memory.lasts.insert(RunId::from_bytes(run), last);
                }
            }
            3 => {
                let (from, to, _) = self.tables[slot];
                let record = Record::there(number, value.clone());
                memory.records.insert(key.clone(), record);
                let range = (from.clone(), to.clone());
                found.rows.entry(range).or_default().push((key, value));
            }
            4 => {
                let log = &self.logs[slot];
                let pair = (chunk_key(log.run, number), value);
                found.rows.entry(log.range.clone()).or_default().push(pair);
            }
            5 => {
                let (from, to) = self.table_ends[slot];
                found.ends.insert((from.clone(), to.clone()), (key, value));
            }
            _ => {
                let log = &self.log_ends[slot];
                let pair = (chunk_key(log.run, number), value);
                found.ends.insert(log.range.clone(), pair);
            }
        }
    }
}

struct Fetched {
    kind: i32,
    /// From 0.
    slot: usize,
    key: Vec<u8>,
    number: i64,
    value: Vec<u8>,
}

impl Fetched {
    fn from(row: &PgRow) -> Result<Self, sqlx::Error> {
        let slot: i64 = row.try_get("slot")?;
        Ok(Self {
            kind: row.try_get("kind")?,
            slot: usize::try_from(slot - 1).unwrap_or(0),
            key: row.try_get("key")?,
            number: row.try_get("number")?,
            value: row.try_get("value")?,
        })
    }
}
