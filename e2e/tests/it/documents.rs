//! The commands in documents, run as they are written there. Those for a cluster are run on one, by the tests there.

use weir_e2e::documents::{commands, pages, unmarked};

mod scene;

use scene::Scene;

/// Commands that are not run here, each with the reason.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "curl -fsS http://127.0.0.1:9090/metrics | grep weir_webhook_deliveries",
        "shown once an alert was sent to a webhook",
    ),
    (
        "xdg-open ",
        "opens a browser; `console.rs` uses a headless one",
    ),
    ("iostat ", "belongs to a package that no test needs"),
    ("pg_isready ", "asks a server of the reader's own"),
    ("openssl s_client ", "asks a server of the reader's own"),
];

/// What is for a cluster.
fn is_for_a_cluster(command: &str) -> bool {
    let first = command.split_whitespace().next().unwrap_or_default();
    ["kubectl", "helm"].contains(&first)
        || ["weir operator", "weir gateway --cluster"]
            .iter()
            .any(|program| command.starts_with(program))
}

#[test]
fn every_block_of_commands_is_marked_as_one() {
    let found: Vec<_> = pages()
        .iter()
        .flat_map(|page| {
            let unmarked = unmarked(page).unwrap();
            unmarked
                .into_iter()
                .map(|first| format!("{page}: {first}"))
                .collect::<Vec<_>>()
        })
        .collect();
    assert!(
        found.is_empty(),
        "blocks of commands begin with ```console, and each command with \"$ \": {found:#?}"
    );
}

#[test]
fn the_commands_of_the_documents_do_what_they_say() {
    let mut ran = 0;
    let mut excused = vec![];
    // Runbooks are read while something runs; one will do for all.
    let mut runbooks = Scene::new();
    for page in pages() {
        let mut own = None;
        for command in commands(&page).unwrap() {
            if is_for_a_cluster(&command) {
                continue;
            }
            if let Some((start, _)) = ELSEWHERE
                .iter()
                .find(|(start, _)| command.starts_with(start))
            {
                excused.push(*start);
                continue;
            }
            let scene = if page.starts_with("docs/runbooks/") {
                &mut runbooks
            } else {
                own.get_or_insert_with(Scene::new)
            };
            scene.play(&page, &command);
            ran += 1;
        }
    }
    let useless = ELSEWHERE
        .iter()
        .filter(|(start, _)| !excused.contains(start));
    assert_eq!(useless.count(), 0, "of {ELSEWHERE:?}, used: {excused:?}");
    assert!(ran > 60, "{ran} commands were run");
}
