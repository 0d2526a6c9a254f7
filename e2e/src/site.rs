//! A directory of manifests and models, made for one test.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    RandomModel, Weir, repository, weir_command, write_random_adapter, write_random_model,
};

/// A tenant with one key, named after itself: `NAME-dev-key`.
#[derive(Clone, Debug)]
pub struct Tenant {
    /// Its name.
    pub name: &'static str,
    /// Merged over the spec of its `TenantQuota`.
    pub spec: Value,
}

impl Tenant {
    /// A tenant whom nothing limits but the model.
    pub fn unlimited(name: &'static str) -> Self {
        Self {
            name,
            spec: json!({}),
        }
    }

    /// Its API key.
    pub fn key(&self) -> String {
        format!("{}-dev-key", self.name)
    }
}

/// Manifests in `manifests/`, models in `models/`, state in `data/`.
pub struct Site {
    dir: TempDir,
}

impl Site {
    /// A site with one signed random model (`random`, version 1), one pool and these tenants.
    ///
    /// # Errors
    /// Files cannot be written, or `weir` does not sign.
    pub fn random(shape: RandomModel, tenants: &[Tenant]) -> Result<Self> {
        let site = Self {
            dir: tempfile::tempdir()?,
        };
        fs::create_dir_all(site.manifests())?;
        site.keygen()?;
        site.write("pool.yaml", &json!({
            "apiVersion": "weir.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": "small"},
            "spec": {
                "accelerator": {"type": "cpu"}, "replicas": {"min": 1, "max": 1}, "sharing": "Dedicated",
                "engine": {"maxBatchTokens": 512, "maxRunning": 32, "kvMemory": "64Mi", "blockTokens": 16},
                "queue": {"maxDepth": 256, "maxWait": "60s"},
            },
        }))?;
        for tenant in tenants {
            site.write_tenant(tenant)?;
        }
        site.add_model("random", 1, shape, "Production")?;
        Ok(site)
    }

    /// A site that serves a model directory where it is (its signature is written into it), in one pool with this `spec.engine`.
    ///
    /// # Errors
    /// Files cannot be written, or `weir` does not sign.
    pub fn serving(model: &str, dir: &Path, engine: &Value, tenants: &[Tenant]) -> Result<Self> {
        let site = Self {
            dir: tempfile::tempdir()?,
        };
        fs::create_dir_all(site.manifests())?;
        site.keygen()?;
        site.write("pool.yaml", &json!({
            "apiVersion": "weir.dev/v1alpha1", "kind": "GpuPool", "metadata": {"name": "small"},
            "spec": {
                "accelerator": {"type": "cpu"}, "replicas": {"min": 1, "max": 1}, "sharing": "Dedicated", "engine": engine,
                "queue": {"maxDepth": 256, "maxWait": "10m"},
            },
        }))?;
        for tenant in tenants {
            let mut tenant = tenant.clone();
            tenant.spec["models"] = json!([{"name": model}]);
            site.write_tenant(&tenant)?;
        }
        let dir = dir.canonicalize()?;
        let manifest = site.sign(model, 1, &dir)?;
        site.declare((model, 1), &manifest, &json!({}))?;
        Ok(site)
    }

    /// Where the YAML files are.
    pub fn manifests(&self) -> PathBuf {
        self.dir.path().join("manifests")
    }

    /// Where `weir up` keeps its state.
    pub fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    /// Where a version's files are.
    pub fn model_dir(&self, model: &str, version: u32) -> PathBuf {
        self.dir.path().join(format!("models/{model}-v{version}"))
    }

    /// The test's own folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Starts `weir up` on it.
    ///
    /// # Errors
    /// As for [`Weir::start`].
    pub fn up(&self) -> Result<Weir> {
        Weir::start(&self.manifests(), &self.data())
    }

    /// Writes one object as a manifest file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, file: &str, object: &Value) -> Result<()> {
        fs::write(self.manifests().join(file), serde_yaml::to_string(object)?)?;
        Ok(())
    }

    /// Writes a tenant's quota and the Secret with its key's hash.
    ///
    /// # Errors
    /// The file cannot be written, or `weir key` fails.
    pub fn write_tenant(&self, tenant: &Tenant) -> Result<()> {
        let name = tenant.name;
        let printed = run(weir_command().args(["key", "--json", "--key", &tenant.key()]))?;
        let hash = serde_json::from_str::<Value>(&printed)?["hash"]
            .as_str()
            .context("hash")?
            .to_owned();
        let mut spec = json!({
            "tenant": name,
            "keys": [{"name": "dev", "secretRef": {"name": format!("{name}-keys"), "key": "dev"}}],
            "priority": "interactive",
            "models": [{"name": "random"}],
            "trustScope": name,
        });
        for (field, value) in tenant.spec.as_object().context("spec is an object")? {
            spec[field] = value.clone();
        }
        self.write(&format!("tenant-{name}.yaml"), &json!({
            "apiVersion": "weir.dev/v1alpha1", "kind": "TenantQuota", "metadata": {"name": name}, "spec": spec,
        }))?;
        self.write(
            &format!("secret-{name}.yaml"),
            &json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-keys")},
                "stringData": {"dev": hash},
            }),
        )
    }

    /// Writes, signs and declares a random model version.
    ///
    /// # Errors
    /// Files cannot be written, or `weir sign` fails.
    pub fn add_model(
        &self,
        model: &str,
        version: u32,
        shape: RandomModel,
        stage: &str,
    ) -> Result<()> {
        self.add_changed_model(model, version, shape, stage, |_| Ok(()))
    }

    /// As [`Site::add_model`], but `change` gets at the files between signing and declaring.
    ///
    /// # Errors
    /// As [`Site::add_model`], and what `change` reports.
    pub fn add_changed_model(
        &self,
        model: &str,
        version: u32,
        shape: RandomModel,
        stage: &str,
        change: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let dir = self.random_files(model, version, shape)?;
        let manifest = self.sign(model, version, &dir)?;
        change(&dir)?;
        self.declare((model, version), &manifest, &json!({"stage": stage}))
    }

    /// As [`Site::add_model`], but `prepare` gets at the files before they are signed, and `spec` is merged over the object's.
    ///
    /// # Errors
    /// As [`Site::add_model`], and what `prepare` reports.
    pub fn add_prepared_model(
        &self,
        (model, version): (&str, u32),
        spec: &Value,
        prepare: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let dir = self.random_files(model, version, RandomModel::default())?;
        prepare(&dir)?;
        let manifest = self.sign(model, version, &dir)?;
        self.declare((model, version), &manifest, spec)
    }

    /// Writes, signs and declares a random adapter of a version of this site, of the shape that both have. `change` gets at the files
    /// between signing and declaring; `spec` is merged over the object's.
    ///
    /// # Errors
    /// Files cannot be written, or `weir sign` fails.
    pub fn add_adapter(
        &self,
        (model, version): (&str, u32),
        base: (&str, u32),
        (seed, spec): (u64, &Value),
        change: impl FnOnce(&Path) -> Result<()>,
    ) -> Result<()> {
        let dir = self.model_dir(model, version);
        write_random_adapter(&dir, RandomModel::default(), seed)?;
        let base = self.model_dir(base.0, base.1);
        let more = ["--adapter-of".as_ref(), base.as_os_str()];
        let manifest = self.sign_with((model, version), &dir, &more)?;
        change(&dir)?;
        self.declare((model, version), &manifest, spec)
    }

    fn random_files(&self, model: &str, version: u32, shape: RandomModel) -> Result<PathBuf> {
        let dir = self.model_dir(model, version);
        let tokenizer_of = repository().join("examples/models/tiny-chat-v1");
        write_random_model(&dir, &tokenizer_of, shape)?;
        Ok(dir)
    }

    fn declare(&self, (model, version): (&str, u32), manifest: &Value, more: &Value) -> Result<()> {
        let mut spec = json!({
            "model": model, "version": version, "manifest": manifest, "signature": {"file": "model.sig"},
            "stage": "Production", "pool": "small", "qualityTier": "standard",
            "price": {"promptMicrosPerToken": 1, "cachedMicrosPerToken": 0, "outputMicrosPerToken": 4},
        });
        for (field, value) in more.as_object().context("spec is an object")? {
            // The rest of the manifest is what was signed.
            let place = match field.as_str() {
                "sameBehaviourAs" => &mut spec["manifest"],
                _ => &mut spec,
            };
            place[field] = value.clone();
        }
        self.write(&format!("model-{model}-v{version}.yaml"), &json!({
            "apiVersion": "weir.dev/v1alpha1", "kind": "ModelVersion", "metadata": {"name": format!("{model}-v{version}")},
            "spec": spec,
        }))
    }

    /// Signs the files in `dir`; the `spec.manifest` that names them.
    fn sign(&self, model: &str, version: u32, dir: &Path) -> Result<Value> {
        self.sign_with((model, version), dir, &[])
    }

    fn sign_with(
        &self,
        (model, version): (&str, u32),
        dir: &Path,
        more: &[&OsStr],
    ) -> Result<Value> {
        let number = version.to_string();
        let mut command = weir_command();
        command.args([
            "sign",
            "--json",
            "--model",
            model,
            "--version",
            &number,
            "--key",
        ]);
        command.arg(self.dir.path().join("signer.key"));
        let printed = run(command.args(more).arg(dir))?;
        let claim = serde_json::from_str::<Value>(&printed)?["claim"].clone();
        let mut manifest = claim
            .as_object()
            .cloned()
            .with_context(|| format!("no claim in {printed}"))?;
        // Model and version are fields of the object itself.
        manifest.retain(|field, _| field != "model" && field != "version");
        manifest.insert(
            "artifact".to_owned(),
            json!({"uri": format!("file:{}", dir.display())}),
        );
        if dir.join("references.jsonl").exists() {
            manifest.insert("references".to_owned(), json!("references.jsonl"));
        }
        Ok(Value::Object(manifest))
    }

    fn keygen(&self) -> Result<()> {
        let base = self.dir.path().join("signer");
        run(weir_command().args(["keygen", "--out"]).arg(&base))?;
        let public = fs::read_to_string(self.dir.path().join("signer.pub"))?;
        let policy = json!({"keys": [{"id": "test", "publicKey": public, "models": ["*"]}]});
        self.write(
            "trust.yaml",
            &json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "weir-trust"},
                "data": {"policy.yaml": serde_yaml::to_string(&policy)?},
            }),
        )
    }
}

fn run(command: &mut std::process::Command) -> Result<String> {
    let output = command.output()?;
    ensure!(
        output.status.success(),
        "{command:?} failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}
