//! What tells the series of one engine from those of another.

use crate::doors::{Door, Doors};

/// What the figures of an engine are told apart by.
#[derive(Clone, Debug)]
pub(crate) struct Labels {
    pub(crate) model: String,
    pub(crate) version: String,
    /// The engine's number in the process, as vLLM counts them.
    pub(crate) engine: String,
}

impl Labels {
    /// Of an engine that is about to start beside those behind `doors`. Two builds of one version number are told apart by the digest of
    /// the one that comes second: no two engines may count in one series.
    pub(crate) fn beside(
        doors: &Doors,
        (model, version, digest): (&str, u32, &str),
        engine: u32,
    ) -> Self {
        let mut labels = Self {
            model: model.to_owned(),
            version: version.to_string(),
            engine: engine.to_string(),
        };
        let is_taken = |door: &Door| {
            let other = &door.about.labels;
            (&other.model, &other.version) == (&labels.model, &labels.version)
        };
        if doors.all().iter().any(is_taken) {
            let digest = digest.trim_start_matches("sha256:");
            let digest = digest.get(..12).unwrap_or(digest);
            labels.version = format!("{version}@{digest}");
        }
        labels
    }
}

#[cfg(test)]
mod tests {
    use weir_model::backend::DeviceName;

    use super::*;
    use crate::engine::snapshot::Snapshot;
    use crate::metrics::About;

    #[test]
    fn two_builds_of_a_version_number_have_series_of_their_own() {
        let doors = Doors::default();
        let about = |digest: &str, engine| About {
            labels: Labels::beside(&doors, ("tiny", 2, digest), engine),
            block_tokens: 16,
            device: DeviceName {
                kind: "cpu",
                name: "avx2".to_owned(),
            },
        };
        for (digest, version) in [
            ("sha256:0123456789abcdef", "2"),
            ("sha256:89abcdef01234567", "2@89abcdef0123"),
        ] {
            let about = about(digest, 0);
            assert_eq!(about.labels.version, version);
            doors.open(
                digest.to_owned(),
                Door::to_nobody(Snapshot::default(), about),
            );
        }
        doors.close("sha256:0123456789abcdef");
        assert_eq!(about("sha256:fedc", 0).labels.version, "2");
    }
}
