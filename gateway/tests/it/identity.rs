//! Callers that others vouch for: a real issuer's tokens and forged ones, and the cluster's API server.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use weir_gateway::{Settings, Snapshot};

use crate::client::Client;
use crate::service::{Call, certificate, serve};
use crate::site::{Site, snapshot, tenant};
use crate::worker::FakeWorker;

fn now_s() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.unwrap().as_secs()
}

/// A signing key and its public half.
struct Signer {
    pem: String,
    key: EncodingKey,
}

impl Signer {
    fn new() -> Self {
        let pair = rcgen::KeyPair::generate().unwrap();
        let key = EncodingKey::from_ec_pem(pair.serialize_pem().as_bytes()).unwrap();
        Self {
            pem: pair.public_key_pem(),
            key,
        }
    }

    fn jwk(&self, kid: &str) -> Value {
        let mut jwk =
            serde_json::to_value(Jwk::from_encoding_key(&self.key, Algorithm::ES256).unwrap())
                .unwrap();
        jwk["kid"] = json!(kid);
        jwk
    }

    fn sign(&self, kid: Option<&str>, claims: &Value) -> String {
        let mut header = Header::new(Algorithm::ES256);
        header.kid = kid.map(str::to_owned);
        encode(&header, claims, &self.key).unwrap()
    }
}

/// An issuer on this machine.
struct Issuer {
    address: SocketAddr,
    keys: Arc<Mutex<BTreeMap<String, Value>>>,
    fetches: Arc<AtomicUsize>,
}

impl Issuer {
    async fn new() -> Self {
        let keys = Arc::new(Mutex::new(BTreeMap::<String, Value>::new()));
        let fetches = Arc::new(AtomicUsize::new(0));
        let (shown, counted) = (Arc::clone(&keys), Arc::clone(&fetches));
        let address = serve(None, move |call: Call| {
            let host = call
                .head
                .lines()
                .find_map(|line| line.strip_prefix("host: "))
                .unwrap_or("")
                .to_owned();
            match call.path.as_str() {
                "/.well-known/openid-configuration" => {
                    let issuer = format!("http://{host}");
                    (
                        200,
                        json!({"issuer": issuer, "jwks_uri": format!("{issuer}/keys")}).to_string(),
                    )
                }
                "/keys" => {
                    counted.fetch_add(1, Ordering::SeqCst);
                    let keys: Vec<Value> = shown.lock().unwrap().values().cloned().collect();
                    (200, json!({"keys": keys}).to_string())
                }
                _ => (404, String::new()),
            }
        })
        .await;
        Self {
            address,
            keys,
            fetches,
        }
    }

    fn name(&self) -> String {
        format!("http://{}", self.address)
    }

    fn publish(&self, kid: &str, signer: &Signer) {
        self.keys
            .lock()
            .unwrap()
            .insert(kid.to_owned(), signer.jwk(kid));
    }

    fn claims(&self) -> Value {
        json!({"iss": self.name(), "aud": ["weir", "other"], "sub": "jane", "exp": now_s() + 600, "nbf": now_s() - 5,
            "realm": {"roles": ["viewer", "ml-team"]}})
    }
}

async fn site(yaml: &str) -> (Site, FakeWorker) {
    let (site, worker) = Site::new(true).await;
    site.gateway.apply(Snapshot {
        settings: Settings::from_yaml(yaml).unwrap(),
        ..snapshot(
            site.folder.path(),
            vec![tenant("acme"), tenant("globex")],
            &["w0"],
        )
    });
    (site, worker)
}

async fn trusting(issuer: &Issuer) -> (Site, FakeWorker) {
    site(&format!(
        "identity: {{issuers: [{{name: corp, issuer: '{}', audiences: [weir], tenants: [{{claim: realm.roles, value: ml-team, tenant: acme}}]}}]}}",
        issuer.name()
    ))
    .await
}

async fn status(site: &Site, token: &str) -> u16 {
    Client::new(site.address, token)
        .get("/v1/models")
        .await
        .status
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_good_token_is_its_tenant_s_and_a_rotated_key_is_fetched_once() {
    let issuer = Issuer::new().await;
    let (one, two) = (Signer::new(), Signer::new());
    issuer.publish("one", &one);
    let (site, _worker) = trusting(&issuer).await;
    let token = one.sign(Some("one"), &issuer.claims());
    let reply = Client::new(site.address, &token)
        .post("/inference", &crate::site::ask(2))
        .await;
    assert_eq!(reply.status, 202, "{}", reply.text);
    let row = site
        .client("acme")
        .get(&format!("/runs/{}", reply.run()))
        .await
        .body;
    assert_eq!(row["caller"], "oidc:corp:jane", "{row}");
    assert_eq!(status(&site, &token).await, 200);
    assert_eq!(issuer.fetches.load(Ordering::SeqCst), 1);
    // Unknown names of keys do not make it fetch again and again.
    for n in 0..50 {
        let forged = two.sign(Some(&format!("k{n}")), &issuer.claims());
        assert_eq!(status(&site, &forged).await, 401);
    }
    assert!(issuer.fetches.load(Ordering::SeqCst) <= 2);
    // No role, no tenant.
    let mut claims = issuer.claims();
    claims["realm"] = json!({"roles": ["viewer"]});
    assert_eq!(status(&site, &one.sign(Some("one"), &claims)).await, 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forged_tokens_are_refused() {
    let issuer = Issuer::new().await;
    let (good, evil) = (Signer::new(), Signer::new());
    issuer.publish("good", &good);
    let (site, _worker) = trusting(&issuer).await;
    let with = |name: &str, value: Value| {
        let mut claims = issuer.claims();
        claims[name] = value;
        good.sign(Some("good"), &claims)
    };
    let without = |name: &str| {
        let mut claims = issuer.claims();
        claims.as_object_mut().unwrap().remove(name);
        good.sign(Some("good"), &claims)
    };
    let part = |value: &str| URL_SAFE_NO_PAD.encode(value);
    let valid = good.sign(Some("good"), &issuer.claims());
    assert_eq!(
        status(&site, &valid).await,
        200,
        "the tests below prove something"
    );
    let (head, rest) = valid.split_once('.').unwrap();
    let (payload, signature) = rest.split_once('.').unwrap();
    let hmac = {
        let mut header = Header::new(Algorithm::HS256);
        header.kid = Some("good".to_owned());
        let public = EncodingKey::from_secret(good.pem.as_bytes()).unwrap();
        encode(&header, &issuer.claims(), &public).unwrap()
    };
    let twice = {
        let claims = issuer.claims().to_string();
        let doubled = format!("{{\"aud\":\"weir\",{}", &claims[1..]);
        let message = format!("{head}.{}", part(&doubled));
        let signature =
            jsonwebtoken::crypto::sign(message.as_bytes(), &good.key, Algorithm::ES256).unwrap();
        format!("{message}.{signature}")
    };
    let unsigned = |alg: &str| {
        format!(
            "{}.{payload}.",
            part(&json!({"alg": alg, "kid": "good", "typ": "JWT"}).to_string())
        )
    };
    let mut huge = issuer.claims();
    huge["pad"] = json!("x".repeat(9000));
    for (name, token) in [
        ("none", unsigned("none")),
        ("None", unsigned("None")),
        ("no signature", unsigned("ES256")),
        (
            "another signature's algorithm",
            unsigned("RS256") + signature,
        ),
        ("the public key as a secret", hmac),
        ("another's key", evil.sign(Some("good"), &issuer.claims())),
        (
            "a path as the key's name",
            evil.sign(Some("../../dev/null"), &issuer.claims()),
        ),
        (
            "an address as the key's name",
            evil.sign(Some("http://127.0.0.1:1/keys"), &issuer.claims()),
        ),
        (
            "a long name of the key",
            evil.sign(Some(&"k".repeat(2000)), &issuer.claims()),
        ),
        ("another audience", with("aud", json!("other"))),
        ("no audience", without("aud")),
        ("an empty audience", with("aud", json!([]))),
        (
            "another issuer",
            with("iss", json!("https://accounts.example.com")),
        ),
        ("no issuer", without("iss")),
        ("expired", with("exp", json!(now_s() - 120))),
        ("no end", without("exp")),
        ("an end that is text", with("exp", json!("9999999999"))),
        ("not yet", with("nbf", json!(now_s() + 300))),
        ("a claim twice", twice),
        ("too large", good.sign(Some("good"), &huge)),
        ("one more part", format!("{valid}.{signature}")),
        (
            "its claims changed",
            format!("{head}.{}.{signature}", part(&with("sub", json!("root")))),
        ),
    ] {
        let reply = Client::new(site.address, &token).get("/v1/models").await;
        assert_eq!(
            (reply.status, reply.code()),
            (401, "unauthenticated"),
            "{name}"
        );
    }
    // Every token that differs from a good one in a byte.
    for place in (0..valid.len()).step_by(7) {
        let mut bytes = valid.clone().into_bytes();
        bytes[place] = if bytes[place] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        // The last character of a part may have bits that mean nothing.
        let means_the_same = valid
            .as_bytes()
            .get(place + 1)
            .is_none_or(|next| *next == b'.');
        if !means_the_same {
            assert_eq!(status(&site, &changed).await, 401, "byte {place}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_issuer_that_does_not_answer_is_no_reason_to_let_anybody_in_or_to_blame_the_caller() {
    let issuer = Issuer::new().await;
    let signer = Signer::new();
    let gone = SocketAddr::from(([127, 0, 0, 1], 1));
    let (site, _worker) = site(&format!(
        "identity: {{issuers: [{{name: corp, issuer: '{}', jwks: 'http://{gone}/keys', audiences: [weir], tenants: []}}]}}",
        issuer.name()
    ))
    .await;
    let reply = Client::new(site.address, &signer.sign(Some("k"), &issuer.claims()))
        .get("/v1/models")
        .await;
    assert_eq!(reply.status, 503, "{}", reply.text);
    assert_eq!(status(&site, "acme-dev-key").await, 200);
}

/// An API server that knows two tokens.
async fn api_server(folder: &std::path::Path) -> (SocketAddr, Arc<AtomicUsize>) {
    let pair = certificate();
    std::fs::write(folder.join("ca.crt"), &pair.0).unwrap();
    std::fs::write(folder.join("token"), "gateway-token\n").unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let address = serve(Some(pair), move |call: Call| {
        counted.fetch_add(1, Ordering::SeqCst);
        assert_eq!(call.path, "/apis/authentication.k8s.io/v1/tokenreviews");
        if !call.head.contains("Bearer gateway-token") {
            return (401, "{}".to_owned());
        }
        let review: Value = serde_json::from_str(&call.body).unwrap();
        assert_eq!((&review["kind"], &review["spec"]["audiences"]), (&json!("TokenReview"), &json!(["weir"])));
        let token = review["spec"]["token"].as_str().unwrap();
        let user = |name: &str| json!({"username": format!("system:serviceaccount:{name}"), "groups": []});
        let payload = token.split('.').nth(1).unwrap();
        let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).unwrap()).unwrap();
        let status = match claims["kind"].as_str().unwrap() {
            "good" => json!({"authenticated": true, "user": user("jobs:runner"), "audiences": ["weir"]}),
            // A server that does not know audiences, or a token for the API server itself.
            "no audiences" => json!({"authenticated": true, "user": user("jobs:runner")}),
            "another audience" => json!({"authenticated": true, "user": user("jobs:runner"), "audiences": ["https://kubernetes.default.svc"]}),
            "another account" => json!({"authenticated": true, "user": user("other:runner"), "audiences": ["weir"]}),
            "a person" => json!({"authenticated": true, "user": {"username": "jane"}, "audiences": ["weir"]}),
            _ => json!({"authenticated": false, "error": "invalid bearer token"}),
        };
        (201, json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": status}).to_string())
    })
    .await;
    (address, calls)
}

fn account_token(kind: &str) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let claims =
        json!({"iss": "https://kubernetes.default.svc", "kind": kind, "exp": now_s() + 600});
    format!("{}.{}.c2ln", part(json!({"alg": "RS256"})), part(claims))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_account_s_token_counts_when_the_api_server_says_that_it_is_for_us() {
    let folder = tempfile::tempdir().unwrap();
    let (address, calls) = api_server(folder.path()).await;
    let at = folder.path().display();
    let yaml = format!(
        "identity: {{serviceAccounts: {{audience: weir, apiServer: 'https://localhost:{}', caFile: '{at}/ca.crt', tokenFile: '{at}/token', \
         tenants: [{{namespace: jobs, name: runner, tenant: globex}}]}}}}",
        address.port()
    );
    let (site, _worker) = site(&yaml).await;
    let good = account_token("good");
    let reply = Client::new(site.address, &good)
        .post("/inference", &crate::site::ask(2))
        .await;
    assert_eq!(reply.status, 202, "{}", reply.text);
    let row = site
        .client("globex")
        .get(&format!("/runs/{}", reply.run()))
        .await
        .body;
    assert_eq!(row["caller"], "serviceaccount:jobs:runner", "{row}");
    for _ in 0..20 {
        assert_eq!(status(&site, &good).await, 200);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1, "its answer is remembered");
    for kind in [
        "no audiences",
        "another audience",
        "another account",
        "a person",
        "bad",
    ] {
        // Made once: a second later it would be another token.
        let token = account_token(kind);
        for _ in 0..3 {
            assert_eq!(status(&site, &token).await, 401, "{kind}");
        }
    }
    assert_eq!(
        calls.load(Ordering::SeqCst),
        6,
        "refusals are remembered too"
    );
    // The gateway's own token is read anew for each review; when it is no good nobody is let in, and nobody blamed.
    std::fs::write(folder.path().join("token"), "rotated").unwrap();
    assert_eq!(status(&site, &account_token("good too")).await, 503);
}

/// Against a real API server: `WEIR_TEST_APISERVER` (its address), `WEIR_TEST_CA`, `WEIR_TEST_TOKEN` (files) and
/// `WEIR_TEST_ACCOUNT_TOKEN` (a token of account `default` in `default` for the audience `weir`).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_api_server_judges_a_real_token() {
    let of = |name: &str| std::env::var(name);
    let (Ok(server), Ok(ca), Ok(own), Ok(token)) = (
        of("WEIR_TEST_APISERVER"),
        of("WEIR_TEST_CA"),
        of("WEIR_TEST_TOKEN"),
        of("WEIR_TEST_ACCOUNT_TOKEN"),
    ) else {
        println!("skipped: WEIR_TEST_APISERVER and its companions are not set");
        return;
    };
    let (site, _worker) = site(&format!(
        "identity: {{serviceAccounts: {{audience: weir, apiServer: '{server}', caFile: '{ca}', tokenFile: '{own}', \
         tenants: [{{namespace: default, name: default, tenant: acme}}]}}}}"
    ))
    .await;
    assert_eq!(status(&site, token.trim()).await, 200);
}
