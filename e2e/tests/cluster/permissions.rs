//! What each account of `deploy/rbac.yaml` may do: every verb on every resource that the API server has is asked for, and only what
//! stands here is allowed.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use weir_e2e::cluster::Kubectl;
use weir_e2e::repository;

use crate::plane::{Shared, namespace, shared};

const VERBS: &[&str] = &[
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
    "escalate",
    "bind",
    "impersonate",
];
/// Parts of resources with rights of their own, and resources that no list names.
const MORE: &[&str] = &[
    "pods/exec",
    "pods/log",
    "pods/portforward",
    "pods/eviction",
    "pods/status",
    "deployments.apps/scale",
    "deployments.apps/status",
    "serviceaccounts/token",
    "secrets/status",
    "modelversions.weir.dev/status",
    "gpupools.weir.dev/status",
    "gpupools.weir.dev/scale",
    "tenantquotas.weir.dev/status",
    "users",
    "groups",
];
const READ: &[&str] = &["get", "list", "watch"];
const CHILD: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];
const RECORD: &[&str] = &["get", "list", "watch", "create", "delete"];
const LEASE: &[&str] = &["get", "list", "watch", "create", "update", "delete"];

/// Written here once more by hand: a right that slips into the file is found.
/// Resources and the verbs that an account has on them.
type Grants = &'static [(&'static str, &'static [&'static str])];

const OPERATOR: Grants = &[
    ("modelversions.weir.dev", READ),
    ("gpupools.weir.dev", READ),
    ("tenantquotas.weir.dev", READ),
    ("modelversions.weir.dev/status", &["get", "patch"]),
    ("gpupools.weir.dev/status", &["get", "patch"]),
    ("tenantquotas.weir.dev/status", &["get", "patch"]),
    ("deployments.apps", CHILD),
    ("configmaps", CHILD),
    ("services", CHILD),
    ("poddisruptionbudgets.policy", CHILD),
    ("networkpolicies.networking.k8s.io", CHILD),
    ("controllerrevisions.apps", RECORD),
    ("leases.coordination.k8s.io", LEASE),
    ("pods", READ),
    ("secrets", &["get"]),
    ("events.events.k8s.io", &["create", "patch"]),
];
const GATEWAY: Grants = &[
    ("gpupools.weir.dev", READ),
    ("tenantquotas.weir.dev", READ),
    ("controllerrevisions.apps", READ),
    ("configmaps", READ),
    ("pods", READ),
    ("secrets", &["get"]),
];
/// What everybody may ask who has a name: about themselves.
const EVERYBODY: &[&str] = &[
    "selfsubjectaccessreviews.authorization.k8s.io",
    "selfsubjectrulesreviews.authorization.k8s.io",
    "selfsubjectreviews.authentication.k8s.io",
];

/// A right, as `verb resource`.
type Rights = BTreeSet<String>;

fn resources(kubectl: &Kubectl) -> Vec<String> {
    let listed = kubectl.run(&["api-resources", "-o", "name"]).unwrap();
    let more = MORE.iter().map(|name| (*name).to_owned());
    listed.lines().map(str::to_owned).chain(more).collect()
}

fn review(account: &str, space: &str, verb: &str, resource: &str) -> Value {
    let (whole, part) = resource.split_once('/').unwrap_or((resource, ""));
    let (name, group) = whole.split_once('.').unwrap_or((whole, ""));
    json!({
        "apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": format!("system:serviceaccount:rights:{account}"),
            "groups": ["system:serviceaccounts", "system:serviceaccounts:rights", "system:authenticated"],
            "resourceAttributes": {
                "namespace": space, "verb": verb, "group": group, "resource": name, "subresource": part,
            },
        },
    })
}

/// What an account may do in a namespace, of everything there is.
fn allowed(plane: &Shared, account: &str, space: &str, resources: &[String]) -> Rights {
    let questions: Vec<(&str, &String)> = resources
        .iter()
        .flat_map(|resource| VERBS.iter().map(move |verb| (*verb, resource)))
        .collect();
    let items: Vec<Value> = questions
        .iter()
        .map(|(verb, resource)| review(account, space, verb, resource))
        .collect();
    let answers = answers(plane.kubectl(), &items);
    questions
        .iter()
        .zip(answers)
        .filter(|(_, is_allowed)| *is_allowed)
        .map(|((verb, resource), _)| format!("{verb} {resource}"))
        .collect()
}

/// What is allowed of what these reviews ask for.
fn answers(kubectl: &Kubectl, reviews: &[Value]) -> Vec<bool> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": reviews}).to_string();
    let said = kubectl
        .say(&["create", "-o", "json", "-f", "-"], Some(&list))
        .unwrap();
    assert!(said.ok, "{}", said.err);
    let answers: Vec<Value> = serde_json::Deserializer::from_str(&said.out)
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let answers = match answers.as_slice() {
        [list] if list["kind"] == "List" => list["items"].as_array().unwrap().clone(),
        _ => answers,
    };
    assert_eq!(answers.len(), reviews.len());
    let allowed = answers
        .iter()
        .map(|answer| answer["status"]["allowed"] == true);
    allowed.collect()
}

/// Rights on these Secrets by name: beyond what their holders may with every Secret.
fn certificates_are_written_by_the_operator_only(kubectl: &Kubectl) {
    let accounts = ["weir-operator", "weir-gateway", "weir-worker"];
    let secrets = IDENTITIES.iter().chain(&["weir-store"]);
    let mut asked = vec![];
    for secret in secrets {
        for (account, verb) in accounts
            .iter()
            .flat_map(|account| VERBS.iter().map(move |verb| (*account, *verb)))
        {
            let mut review = review(account, "rights", verb, "secrets");
            review["spec"]["resourceAttributes"]["name"] = json!(secret);
            let wanted = match (account, verb) {
                ("weir-operator", "patch") => IDENTITIES.contains(secret),
                ("weir-operator" | "weir-gateway", "get") => true,
                _ => false,
            };
            asked.push((format!("{account}: {verb} {secret}"), review, wanted));
        }
    }
    let reviews: Vec<Value> = asked.iter().map(|(_, review, _)| review.clone()).collect();
    for ((question, _, wanted), found) in asked.iter().zip(answers(kubectl, &reviews)) {
        assert_eq!(found, *wanted, "{question}");
    }
}

/// The Secrets that the operator keeps certificates in.
const IDENTITIES: [&str; 3] = [
    "weir-authority",
    "weir-gateway-identity",
    "weir-worker-identity",
];

fn expected(rights: &[(&str, &[&str])]) -> Rights {
    let own = rights
        .iter()
        .flat_map(|(resource, verbs)| verbs.iter().map(move |verb| format!("{verb} {resource}")));
    let common = EVERYBODY.iter().map(|name| format!("create {name}"));
    own.chain(common).collect()
}

#[test]
fn no_account_may_do_more_than_it_must() {
    let Some(plane) = shared("no_account_may_do_more_than_it_must") else {
        return;
    };
    let kubectl = plane.kubectl();
    for name in ["rights", "elsewhere"] {
        namespace(kubectl, name);
    }
    let file = repository().join("deploy/rbac.yaml").display().to_string();
    kubectl
        .run(&["apply", "--server-side", "-n", "rights", "-f", &file])
        .unwrap();
    certificates_are_written_by_the_operator_only(kubectl);
    let resources = resources(kubectl);
    assert!(resources.len() > 60, "{resources:?}");
    let accounts: [(&str, Grants); 3] = [
        ("weir-operator", OPERATOR),
        ("weir-gateway", GATEWAY),
        ("weir-worker", &[]),
    ];
    let resources = &resources;
    std::thread::scope(|scope| {
        for (account, rights) in accounts {
            scope.spawn(move || {
                let found = allowed(plane, account, "rights", resources);
                let wanted = expected(rights);
                let more: Vec<&String> = found.difference(&wanted).collect();
                let less: Vec<&String> = wanted.difference(&found).collect();
                assert!(
                    more.is_empty() && less.is_empty(),
                    "{account}: may {more:?} too, and may not {less:?}"
                );
                // In another namespace it is nobody.
                let elsewhere = allowed(plane, account, "elsewhere", resources);
                assert_eq!(elsewhere, expected(&[]), "{account}");
            });
        }
    });
}
