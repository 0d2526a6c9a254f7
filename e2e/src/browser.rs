//! A headless Chromium of a test's own, driven by its own protocol over a pipe: no driver, no port.

use std::io::{BufRead, BufReader, PipeWriter, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How a test says that it cannot run.
pub const MISSING: &str = "skipped: chromium is not installed (cargo xtask test installs it)";

/// How long an answer may take on a busy machine.
const ANSWER_WITHIN: Duration = Duration::from_mins(1);

/// Whether there is one.
pub fn is_installed() -> bool {
    let found = Command::new("chromium").arg("--version").output();
    found.is_ok_and(|output| output.status.success())
}

/// One page in a browser; ended when dropped.
pub struct Page {
    child: Child,
    to: PipeWriter,
    from: Receiver<Value>,
    session: String,
    last: u64,
    /// Addresses that the page asked for.
    pub asked: Vec<String>,
    /// What the page or the browser complained of.
    pub complaints: Vec<String>,
    _folder: TempDir,
}

impl Page {
    /// Opens a browser with an empty page.
    ///
    /// # Errors
    /// It does not come up.
    pub fn open() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let (its_input, to) = std::io::pipe()?;
        let (from, its_output) = std::io::pipe()?;
        // It takes commands on descriptor 3 and answers on 4: the shell puts its own input and output there.
        let script = format!(
            "exec chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
             --disable-background-networking --disable-component-update --hide-scrollbars --remote-debugging-pipe \
             --user-data-dir={} about:blank 3<&0 4>&1 </dev/null >/dev/null",
            folder.path().display()
        );
        let child = Command::new("sh")
            .args(["-c", &script])
            .stdin(its_input)
            .stdout(its_output)
            .stderr(Stdio::null())
            .spawn()
            .context("starting chromium")?;
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(from).split(0).map_while(Result::ok) {
                let value = serde_json::from_slice(&message).unwrap_or_default();
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        let mut page = Self {
            child,
            to,
            from: messages,
            session: String::new(),
            last: 0,
            asked: Vec::new(),
            complaints: Vec::new(),
            _folder: folder,
        };
        let target = page.call("Target.createTarget", &json!({"url": "about:blank"}))?;
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = page.call("Target.attachToTarget", &attach)?;
        let session = attached["sessionId"].as_str().context("no session")?;
        session.clone_into(&mut page.session);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), &json!({}))?;
        }
        Ok(page)
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// The browser refuses it, or is gone.
    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value> {
        self.last += 1;
        let id = self.last;
        let mut message = json!({"id": id, "method": method, "params": params});
        if !self.session.is_empty() {
            message["sessionId"] = json!(self.session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes)?;
        let deadline = Instant::now() + ANSWER_WITHIN;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let message = self
                .from
                .recv_timeout(left)
                .with_context(|| format!("chromium does not answer {method}"))?;
            if message["id"] == id {
                ensure!(message["error"].is_null(), "{method}: {}", message["error"]);
                return Ok(message["result"].clone());
            }
            self.note(&message);
        }
    }

    fn note(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str() {
            Some("Network.requestWillBeSent") => {
                let url = params["request"]["url"].as_str().unwrap_or_default();
                self.asked.push(url.to_owned());
            }
            Some("Runtime.exceptionThrown") => {
                self.complaints.push(params["exceptionDetails"].to_string());
            }
            Some("Log.entryAdded") if params["entry"]["level"] == "error" => {
                self.complaints.push(params["entry"].to_string());
            }
            Some("Runtime.consoleAPICalled") if params["type"] == "error" => {
                self.complaints.push(params["args"].to_string());
            }
            _ => {}
        }
    }

    /// How large the window is, and whether it is dark.
    ///
    /// # Errors
    /// The browser is gone.
    pub fn look(&mut self, (width, height): (u32, u32), is_dark: bool) -> Result<()> {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", &size)?;
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", &features)?;
        Ok(())
    }

    /// Opens an address.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn go(&mut self, url: &str) -> Result<()> {
        let opened = self.call("Page.navigate", &json!({"url": url}))?;
        ensure!(
            opened["errorText"].is_null(),
            "{url}: {}",
            opened["errorText"]
        );
        Ok(())
    }

    /// What an expression of the page comes to.
    ///
    /// # Errors
    /// It throws.
    pub fn eval(&mut self, expression: &str) -> Result<Value> {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", &asked)?;
        if !answer["exceptionDetails"].is_null() {
            bail!("{expression}: {}", answer["exceptionDetails"]);
        }
        Ok(answer["result"]["value"].clone())
    }

    /// Waits until an expression is true.
    ///
    /// # Errors
    /// It never is; the error has the page's text.
    pub fn wait(&mut self, expression: &str, seconds: u64) -> Result<()> {
        let deadline = Instant::now() + Duration::from_secs(seconds);
        while self.eval(&format!("Boolean({expression})"))? != true {
            if Instant::now() > deadline {
                let text = self.eval("document.body.innerText.slice(0, 1500)")?;
                bail!(
                    "waited {seconds} s in vain for {expression}; the page says {text}; complaints: {:?}",
                    self.complaints
                );
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    /// Writes what the page looks like, from top to bottom.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn shoot(&mut self, path: &Path) -> Result<()> {
        let asked = json!({"format": "png", "captureBeyondViewport": true});
        let shot = self.call("Page.captureScreenshot", &asked)?;
        let data = shot["data"].as_str().context("no picture")?;
        let bytes = base64::engine::general_purpose::STANDARD.decode(data)?;
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, bytes)?;
        Ok(())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
