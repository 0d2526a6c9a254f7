//! Metrics in Prometheus' text format, as somebody who reads them sees them.

use std::collections::{BTreeMap, BTreeSet};

/// A metric as scraped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scraped {
    /// `counter`, `gauge`, `histogram`, …
    pub kind: String,
    /// Its help.
    pub help: String,
    /// Names of its labels, `le` apart.
    pub labels: BTreeSet<String>,
}

/// Every metric of a text, by name.
pub fn scraped(text: &str) -> BTreeMap<String, Scraped> {
    let mut found: BTreeMap<String, Scraped> = BTreeMap::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            if let Some((name, help)) = rest.split_once(' ') {
                let metric = found.entry(name.to_owned()).or_default();
                help.trim_end_matches('.').clone_into(&mut metric.help);
            }
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            if let Some((name, kind)) = rest.split_once(' ') {
                let metric = found.entry(name.to_owned()).or_default();
                kind.clone_into(&mut metric.kind);
            }
        } else if let Some((name, labels)) = line.split_once('{') {
            let family = family(name, &found);
            let labels = labels.split('}').next().unwrap_or_default();
            let names = labels.split("\",").filter_map(|pair| pair.split_once('='));
            let names = names.map(|(name, _)| name.to_owned());
            let metric = found.entry(family).or_default();
            metric.labels.extend(names.filter(|name| name != "le"));
        }
    }
    found
}

/// The metric that a series belongs to: histograms have several.
fn family(series: &str, known: &BTreeMap<String, Scraped>) -> String {
    for end in ["_bucket", "_sum", "_count"] {
        if let Some(name) = series.strip_suffix(end)
            && known
                .get(name)
                .is_some_and(|metric| metric.kind == "histogram")
        {
            return name.to_owned();
        }
    }
    series.to_owned()
}

/// Names of metrics in a query: whatever looks like one of ours, or of those whose names we use.
pub fn metrics_of_query(query: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    query
        .split(|c| !is_part(c))
        .filter(|word| {
            ["weir_", "vllm:", "gen_ai_", "process_"]
                .iter()
                .any(|begin| word.starts_with(begin))
        })
        .map(|word| {
            let histogram = word.strip_suffix("_bucket");
            histogram.unwrap_or(word).to_owned()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_the_labels_of_all_their_series() {
        let text = "# HELP a_seconds Time of a.\n# TYPE a_seconds histogram\na_seconds_bucket{le=\"1.0\",model=\"x,y\"} 1\n\
            a_seconds_sum{model=\"x\"} 1\n# HELP b B\n# TYPE b gauge\nb 3\n";
        let found = scraped(text);
        assert_eq!(found.len(), 2);
        assert_eq!(found["a_seconds"].kind, "histogram");
        assert_eq!(found["a_seconds"].help, "Time of a");
        assert_eq!(
            found["a_seconds"].labels,
            BTreeSet::from(["model".to_owned()])
        );
    }

    #[test]
    fn metrics_are_found_in_queries() {
        let query = "sum by (model) (rate(weir_a_total{x=~\"y\"}[5m])) / vllm:b_bucket";
        let want = ["vllm:b", "weir_a_total"].map(str::to_owned);
        assert_eq!(metrics_of_query(query), BTreeSet::from(want));
    }
}
