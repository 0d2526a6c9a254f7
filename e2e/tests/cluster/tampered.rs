//! Versions whose bytes were changed after somebody who is trusted had signed them: whoever reads the bytes refuses them.

use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use base64::Engine as _;
use serde_json::{Value, json};
use weir_e2e::{RandomModel, Site as Files, Tenant};

use crate::ground::{PROMPTS, Site};
use crate::install::NAMESPACE;
use crate::stage::condition;

/// Where the operator reads the files itself.
const SEEN: &str = "seen";
/// Where only workers do: its claim is not mounted into the operator.
const UNSEEN: &str = "unseen";

/// Another byte in the middle of the weights, and the same length.
fn flip(folder: &Path) -> anyhow::Result<()> {
    let path = folder.join("model.safetensors");
    let mut file = std::fs::File::options().read(true).write(true).open(path)?;
    let middle = SeekFrom::Start(file.metadata()?.len() / 2);
    let mut byte = [0];
    file.seek(middle)?;
    file.read_exact(&mut byte)?;
    file.seek(middle)?;
    file.write_all(&[byte[0] ^ 1])?;
    Ok(())
}

fn read(path: &Path) -> Value {
    serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Two versions, each the first of a model of its own: the operator makes nothing of the one, and workers of the other end before they serve.
/// What serves goes on.
pub(crate) fn are_refused(site: &Site) {
    // Pods read from it until they are gone.
    let _files = apply(site);
    watch(site);
}

/// Signs, changes and applies them, and makes their signer one of those that are trusted.
fn apply(site: &Site) -> Files {
    let shape = RandomModel::default();
    let files = Files::random(shape, &[Tenant::unlimited("other")]).unwrap();
    for model in [SEEN, UNSEEN] {
        files
            .add_changed_model(model, 1, shape, "Production", flip)
            .unwrap();
    }
    let models = files.model_dir(SEEN, 1);
    let models = models.parent().unwrap();
    site.node.claim(NAMESPACE, "others", models).unwrap();
    copy(
        &files.model_dir(SEEN, 1),
        &site.models.path().join("seen-v1"),
    );
    trust(&files, site);
    declare(&files, site, SEEN, "pvc://models/seen-v1");
    declare(&files, site, UNSEEN, "pvc://others/unseen-v1");
    files
}

fn trust(files: &Files, site: &Site) {
    let theirs = read(&files.manifests().join("trust.yaml"));
    let theirs = theirs["data"]["policy.yaml"].as_str().unwrap();
    let theirs: Value = serde_yaml::from_str(theirs).unwrap();
    let map = ["configmap/weir-trust", "-n", NAMESPACE];
    let found = site.node.kubectl().get(&map).unwrap();
    let policy = found["data"]["policy.yaml"].as_str().unwrap();
    let mut policy: Value = serde_yaml::from_str(policy).unwrap();
    let keys = policy["keys"].as_array_mut().unwrap();
    keys.push(theirs["keys"][0].clone());
    let map = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "weir-trust", "namespace": NAMESPACE},
        "data": {"policy.yaml": policy.to_string()},
    });
    site.node.kubectl().apply("people", &map).unwrap();
}

fn declare(files: &Files, site: &Site, model: &str, uri: &str) {
    let mut pool = read(&files.manifests().join("pool.yaml"));
    pool["metadata"] = json!({"name": model, "namespace": NAMESPACE});
    site.node.kubectl().apply("people", &pool).unwrap();
    let file = format!("model-{model}-v1.yaml");
    let mut version = read(&files.manifests().join(file));
    version["metadata"]["namespace"] = json!(NAMESPACE);
    version["spec"]["pool"] = json!(model);
    version["spec"]["manifest"]["artifact"]["uri"] = json!(uri);
    let signature = std::fs::read(files.model_dir(model, 1).join("model.sig")).unwrap();
    let bundle = base64::engine::general_purpose::STANDARD.encode(signature);
    version["spec"]["signature"] = json!({"bundle": bundle});
    site.node.kubectl().apply("people", &version).unwrap();
}

fn watch(site: &Site) {
    let verified = |model: &str| {
        let object = format!("mv/{model}-v1");
        let object = site.node.kubectl().get(&[&object, "-n", NAMESPACE]);
        condition(&object.unwrap_or_default(), "Verified")
    };
    let tampered = ("False".to_owned(), "FileTampered".to_owned());
    site.wait("the operator to find the changed byte", 120, || {
        verified(SEEN) == Some(tampered.clone())
    });
    assert_eq!(made(site, SEEN), Vec::<String>::new());
    site.wait("a worker to find the changed byte, twice", 180, || {
        pods(site, UNSEEN).iter().any(|pod| {
            let container = &pod["status"]["containerStatuses"][0];
            container["restartCount"].as_u64().unwrap_or(0) >= 2
        })
    });
    let pods = pods(site, UNSEEN);
    let ready = |pod: &&Value| condition(pod, "Ready").is_some_and(|(status, _)| status == "True");
    assert!(!pods.iter().any(|pod| ready(&pod)), "{pods:?}");
    let name = pods[0]["metadata"]["name"].as_str().unwrap();
    site.wait("the worker to name the changed file", 60, || {
        // A container's log goes with it when the one after the next starts.
        let logs = ["logs", "--tail=2", "-n", NAMESPACE, name];
        let said = site.node.kubectl().run(&logs).unwrap_or_default();
        said.contains("model.safetensors")
    });
    assert_eq!(site.chat(PROMPTS[0]).unwrap(), "42");
    for model in [SEEN, UNSEEN] {
        let (version, pool) = (format!("mv/{model}-v1"), format!("gpupool/{model}"));
        let delete = ["delete", &version, &pool, "-n", NAMESPACE];
        site.node.kubectl().run(&delete).unwrap();
    }
    site.wait("nothing of them to be left", 120, || {
        made(site, UNSEEN).is_empty()
    });
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

fn pods(site: &Site, model: &str) -> Vec<Value> {
    let of = format!("weir.dev/model={model}");
    let pods = ["pods", "-n", NAMESPACE, "-l", &of];
    let mut list = site.node.kubectl().get(&pods).unwrap();
    serde_json::from_value(list["items"].take()).unwrap()
}

/// What the operator made of a model.
fn made(site: &Site, model: &str) -> Vec<String> {
    let of = format!("weir.dev/model={model}");
    let get = [
        "get",
        "deployments,pods,services",
        "-n",
        NAMESPACE,
        "-l",
        &of,
        "-o",
        "name",
    ];
    let names = site.node.kubectl().run(&get).unwrap();
    names.lines().map(str::to_owned).collect()
}
