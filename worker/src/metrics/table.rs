//! The figures of several engines, name by name.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Figures by name: the format wants those of all engines under one heading.
#[derive(Default)]
pub(super) struct Table(Vec<Figure>);

struct Figure {
    name: &'static str,
    help: &'static str,
    rows: Vec<(Vec<(&'static str, String)>, Value)>,
}

/// A figure.
#[derive(Clone, Copy)]
pub(super) enum Value {
    /// A gauge of fractions.
    Share(f64),
    /// A gauge of whole numbers.
    Gauge(u64),
    /// What only grows.
    Counter(u64),
}

impl Table {
    /// One more figure.
    pub(super) fn put(
        &mut self,
        (name, help): (&'static str, &'static str),
        labels: &[(&'static str, &str)],
        value: Value,
    ) {
        let labels = labels
            .iter()
            .map(|(key, value)| (*key, (*value).to_owned()));
        let row = (labels.collect(), value);
        match self.0.iter_mut().find(|figure| figure.name == name) {
            Some(figure) => figure.rows.push(row),
            None => self.0.push(Figure {
                name,
                help,
                rows: vec![row],
            }),
        }
    }

    /// Writes all.
    pub(super) fn encode(self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        for Figure { name, help, rows } in self.0 {
            let kind = match rows[0].1 {
                Value::Counter(_) => ConstCounter::new(0_u64).metric_type(),
                Value::Share(_) | Value::Gauge(_) => ConstGauge::new(0_i64).metric_type(),
            };
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, value) in rows {
                let row = family.encode_family(&labels)?;
                match value {
                    Value::Share(value) => ConstGauge::new(value).encode(row)?,
                    Value::Gauge(value) => {
                        ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(row)?;
                    }
                    Value::Counter(value) => ConstCounter::new(value).encode(row)?,
                }
            }
        }
        Ok(())
    }
}
