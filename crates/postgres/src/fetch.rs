//! Reading what is wanted: one statement, and so one state of the database.

use std::collections::HashMap;

use sqlx::postgres::PgRow;
use sqlx::{PgExecutor, Row};
use weir_run::RunId;

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

/// Reads all of `wants` into `memory`.
pub(crate) async fn fetch(
    executor: impl PgExecutor<'_>,
    wants: &Wants,
    memory: &mut Memory,
) -> Result<(), sqlx::Error> {
    let (mut tables, mut logs) = (Vec::new(), Vec::new());
    for (from, to, most) in &wants.ranges {
        match log_range((from, to, *most)) {
            Some(log) => logs.push(log),
            None => tables.push((from, to, *most)),
        }
    }
    let (mut table_ends, mut log_ends) = (Vec::new(), Vec::new());
    for (from, to) in &wants.ends {
        match log_range((from, to, 1)) {
            Some(log) => log_ends.push(log),
            None => table_ends.push((from, to)),
        }
    }
    let bytes = |run: RunId| run.to_bytes().to_vec();
    let rows = sqlx::query(READ)
        .bind(wants.records.iter().cloned().collect::<Vec<_>>())
        .bind(
            wants
                .lasts
                .iter()
                .map(|run| bytes(*run))
                .collect::<Vec<_>>(),
        )
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
        .fetch_all(executor)
        .await?;
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
    let mut filling: HashMap<Range, Vec<(Vec<u8>, Vec<u8>)>> = HashMap::new();
    let mut ends: HashMap<Range, Option<(Vec<u8>, Vec<u8>)>> = HashMap::new();
    for row in rows {
        let Fetched {
            kind,
            slot,
            key,
            number,
            value,
        } = Fetched::from(&row)?;
        let chunk = |key: &[u8]| chunk_run(&[&[weir_store::engine::key::CHUNK], key].concat());
        match kind {
            1 => {
                let record = Record {
                    version: number,
                    value: Some(value),
                };
                memory.records.insert(key, record);
            }
            2 => {
                if let Some(run) = chunk(&key) {
                    let last = Last {
                        first: number,
                        value: Some(value),
                    };
                    memory.lasts.insert(run, last);
                }
            }
            3 => {
                let (from, to, _) = tables[slot];
                let known = Record {
                    version: number,
                    value: Some(value.clone()),
                };
                memory.records.insert(key.clone(), known);
                filling
                    .entry((from.clone(), to.clone()))
                    .or_default()
                    .push((key, value));
            }
            4 => {
                let log = &logs[slot];
                filling
                    .entry(log.range.clone())
                    .or_default()
                    .push((chunk_key(log.run, number), value));
            }
            5 => {
                let (from, to) = table_ends[slot];
                ends.insert((from.clone(), to.clone()), Some((key, value)));
            }
            _ => {
                let log = &log_ends[slot];
                ends.insert(log.range.clone(), Some((chunk_key(log.run, number), value)));
            }
        }
    }
    for (from, to, most) in &wants.ranges {
        let range = (from.clone(), to.clone());
        let rows = filling.remove(&range).unwrap_or_default();
        let complete = (rows.len() as i64) < *most;
        memory.ranges.insert(range, Rows { rows, complete });
    }
    for range in &wants.ends {
        memory
            .ends
            .insert(range.clone(), ends.remove(range).unwrap_or_default());
    }
    Ok(())
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
