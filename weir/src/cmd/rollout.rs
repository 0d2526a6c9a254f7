//! `weir rollout`: how traffic moves between a model's versions, and what people may ask of it.

mod show;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use serde_json::json;

use crate::source::{Source, Where};

/// See and steer how traffic moves between a model's versions.
#[derive(Debug, Parser)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    place: Where,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show where each version is, what the guardrails say, and what it waits for.
    Status(Status),
    /// Show how attempts ended, and which versions may not be tried again.
    History(Show),
    /// Go one step forward without waiting for its bake, its sample or its proof; not over a breach.
    Promote(Promote),
    /// End the attempt: all new runs return to the stable version, and this one is rejected.
    Abort(Ask),
    /// Return to the version that served before, and reject the present one.
    Undo(Ask),
    /// Try a rejected or held version again, with fresh evidence.
    Retry(Ask),
    /// Let step and weight not rise; guardrails stay on.
    Pause(Ask),
    /// End the pause.
    Resume(Ask),
}

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Everything, for programs.
    Json,
}

#[derive(Debug, ClapArgs)]
struct Show {
    /// The model; all of them when absent.
    model: Option<String>,
    /// Form of the output.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

#[derive(Debug, ClapArgs)]
struct Status {
    #[command(flatten)]
    show: Show,
    /// Show it again whenever it changes.
    #[arg(short, long)]
    watch: bool,
}

#[derive(Debug, ClapArgs)]
struct Ask {
    /// The model.
    model: String,
    /// The version; the one of the attempt, or else the one that serves, when absent.
    #[arg(long)]
    version: Option<u32>,
}

#[derive(Debug, ClapArgs)]
struct Promote {
    #[command(flatten)]
    ask: Ask,
    /// To 100 percent at once.
    #[arg(long)]
    full: bool,
}

/// How often a watch looks.
const WATCH_EVERY: Duration = Duration::from_millis(500);

/// Runs the command.
///
/// # Errors
/// `weir up` cannot be reached, the model does not exist, or the request was refused.
pub fn run(args: &Args) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let admin = Seen(args.place.open().await?);
        match &args.command {
            Command::Status(status) => admin.status(status).await,
            Command::History(show) => admin.history(show).await,
            Command::Promote(promote) => {
                let action = if promote.full {
                    "promoteFull"
                } else {
                    "promote"
                };
                admin.ask(&promote.ask, action).await
            }
            Command::Abort(ask) => admin.ask(ask, "abort").await,
            Command::Undo(ask) => admin.ask(ask, "undo").await,
            Command::Retry(ask) => admin.ask(ask, "retry").await,
            Command::Pause(ask) => admin.ask(ask, "pause").await,
            Command::Resume(ask) => admin.ask(ask, "resume").await,
        }
    })
}

struct Seen(Source);

impl Seen {
    async fn status(&self, status: &Status) -> Result<()> {
        let mut last = String::new();
        loop {
            let objects = self.0.objects().await?;
            let versions = show::versions(&objects, status.show.model.as_deref());
            if versions.is_empty() {
                bail!("{}", unknown(status.show.model.as_deref()));
            }
            let text = match status.show.output {
                Some(Output::Json) => format!("{:#}\n", json!(versions)),
                None => show::status(&versions),
            };
            if text != last {
                print!("{}{text}", if last.is_empty() { "" } else { "\n" });
                last = text;
            }
            if !status.watch {
                return Ok(());
            }
            tokio::time::sleep(WATCH_EVERY).await;
        }
    }

    async fn history(&self, show: &Show) -> Result<()> {
        let records = self.0.records().await?;
        let of_all = records
            .as_object()
            .context("the answer is no map of rollouts; is --admin the admin port of `weir up`?")?;
        let wanted = of_all
            .iter()
            .filter(|(model, _)| show.model.as_ref().is_none_or(|wanted| wanted == *model));
        let wanted: Vec<_> = wanted.collect();
        if wanted.is_empty() {
            bail!("{}", unknown(show.model.as_deref()));
        }
        for (model, record) in wanted {
            match show.output {
                Some(Output::Json) => println!("{:#}", json!({"model": model, "record": record})),
                None => print!("{}", show::history(model, record)),
            }
        }
        Ok(())
    }

    /// Asks for what the newest record says is going on, so that a request never hits something that came after it.
    async fn ask(&self, ask: &Ask, action: &str) -> Result<()> {
        let records = self.0.records().await?;
        let record = records
            .get(&ask.model)
            .with_context(|| unknown(Some(&ask.model)))?;
        let attempt = &record["attempt"];
        let about = if attempt.is_null() {
            &record["stable"]
        } else {
            &attempt["target"]
        };
        let version = ask
            .version
            .map_or_else(|| about["version"].clone(), |version| json!(version));
        let is_of_attempt = !attempt.is_null() && attempt["target"]["version"] == version;
        let mut request = json!({
            "model": ask.model,
            "id": format!("cli-{}", jiff::Timestamp::now().as_nanosecond()),
            "action": action,
            "version": version,
        });
        if is_of_attempt {
            request["attempt"] = attempt["id"].clone();
            if attempt["step"].as_u64().is_some_and(|step| step > 0)
                && action.starts_with("promote")
            {
                request["step"] = attempt["step"].clone();
            }
        }
        for line in self.0.ask(&request).await? {
            println!("{line}");
        }
        Ok(())
    }
}

fn unknown(model: Option<&str>) -> String {
    match model {
        Some(model) => {
            format!("no rollout of model {model:?} is known; `weir get mv` lists what there is")
        }
        None => "no model is known; `weir get mv` lists what there is".to_owned(),
    }
}
