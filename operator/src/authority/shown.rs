//! How long certificates live, for alerts: what is renewed in time has a third of its life left at least.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use weir_identity::Role;
use weir_telemetry::{Label, Metrics};

use super::held::{Entries, Held, text};
use super::issue;

/// The lives, by whose they are.
#[derive(Clone)]
pub(crate) struct Shown {
    begin: Family<Label, Gauge>,
    end: Family<Label, Gauge>,
}

impl Shown {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        Self {
            begin: metrics.gauges(
                "weir_operator_certificate_begin_seconds",
                "From when a certificate that this operator issues is valid, in seconds since 1970",
            ),
            end: metrics.gauges("weir_operator_certificate_end_seconds", "Until when it is"),
        }
    }

    /// What the entries of a role hold.
    pub(super) fn show(&self, role: Role, entries: &Entries) {
        let name = match role {
            Role::Gateway => "gateway",
            Role::Worker => "worker",
            Role::Operator => "operator",
        };
        self.set(name, text(entries, "tls.crt").as_deref());
    }

    pub(super) fn authority(&self, held: &Held) {
        let pair = held.current.as_ref();
        self.set("authority", pair.map(|pair| pair.certificate.as_str()));
    }

    fn set(&self, role: &'static str, certificate: Option<&str>) {
        let Some(about) = certificate.and_then(issue::about) else {
            return;
        };
        let label = vec![("role", role.to_owned())];
        for (gauges, at_s) in [
            (&self.begin, about.life.begin_s),
            (&self.end, about.life.end_s),
        ] {
            let at_s = i64::try_from(at_s).unwrap_or(i64::MAX);
            gauges.get_or_create(&label).set(at_s);
        }
    }
}
