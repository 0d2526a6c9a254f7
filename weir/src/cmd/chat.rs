//! `weir chat`: a terminal chat against a gateway.

use std::io::{IsTerminal, Write};

use anyhow::{Context, Result, bail};
use clap::Parser;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::client::{self, Events};

/// Chat with a model in the terminal.
///
/// Reads a question a line; `/reset` forgets the conversation, `/quit` or Ctrl-D ends it, Ctrl-C cuts an answer short.
#[derive(Debug, Parser)]
pub struct Args {
    #[command(flatten)]
    access: client::Access,
    /// Model to talk to; the first one the key may use when absent.
    #[arg(long)]
    model: Option<String>,
    /// A system message to begin with.
    #[arg(long)]
    system: Option<String>,
    /// 0 is greedy.
    #[arg(long, default_value_t = 0.0)]
    temperature: f32,
    /// Longest answer in tokens.
    #[arg(long, default_value_t = 256)]
    max_tokens: u32,
    /// Ask this, print the answer and end.
    prompt: Vec<String>,
}

/// One conversation.
struct Chat {
    args: Args,
    model: String,
    messages: Vec<Value>,
}

/// Runs the command.
///
/// # Errors
/// The gateway cannot be reached or refuses.
pub fn run(args: Args) -> Result<()> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(talk(args))
}

async fn talk(mut args: Args) -> Result<()> {
    let model = match args.model.take() {
        Some(model) => model,
        None => first_model(&args).await?,
    };
    let prompt = std::mem::take(&mut args.prompt).join(" ");
    let mut chat = Chat {
        args,
        model,
        messages: Vec::new(),
    };
    chat.reset();
    if !prompt.is_empty() {
        return chat.ask(&prompt).await;
    }
    let is_terminal = std::io::stdin().is_terminal();
    if is_terminal {
        println!(
            "{} at {}. /reset forgets, /quit ends.",
            chat.model, chat.args.access.url
        );
    }
    let mut lines = typed_lines();
    loop {
        if is_terminal {
            print!("> ");
            std::io::stdout().flush()?;
        }
        let Some(line) = lines.recv().await else {
            return Ok(());
        };
        match line.trim() {
            "" => {}
            "/quit" | "/exit" => return Ok(()),
            "/reset" => chat.reset(),
            // One failed question does not end the conversation.
            question => {
                if let Err(error) = chat.ask(question).await {
                    eprintln!("{error:#}");
                    chat.messages.pop();
                }
            }
        }
    }
}

async fn first_model(args: &Args) -> Result<String> {
    let list = args.access.server().get("/v1/models").await?;
    let model = list["data"][0]["id"]
        .as_str()
        .context("the key may use no model that is served; see spec.models of its TenantQuota, and `weir get`")?;
    Ok(model.to_owned())
}

/// Lines from standard input. A thread of its own reads them: a read from a terminal cannot be cancelled.
fn typed_lines() -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if sender.blocking_send(line).is_err() {
                return;
            }
        }
    });
    lines
}

impl Chat {
    fn reset(&mut self) {
        self.messages.clear();
        if let Some(system) = &self.args.system {
            self.messages
                .push(json!({"role": "system", "content": system}));
        }
    }

    async fn ask(&mut self, question: &str) -> Result<()> {
        self.messages
            .push(json!({"role": "user", "content": question}));
        let body = json!({
            "model": self.model, "messages": self.messages, "stream": true,
            "temperature": self.args.temperature, "max_tokens": self.args.max_tokens,
        });
        let server = self.args.access.server();
        let answer = server
            .send("POST", "/v1/chat/completions", Some(&body))
            .await?;
        if !answer.status().is_success() {
            client::json(answer).await?;
            bail!("the gateway answered without a stream; is --url right?");
        }
        let text = tokio::select! {
            text = print_answer(Events::new(answer)) => text?,
            _ = tokio::signal::ctrl_c() => {
                println!(" [cut]");
                String::new()
            }
        };
        self.messages
            .push(json!({"role": "assistant", "content": text}));
        Ok(())
    }
}

async fn print_answer(mut events: Events) -> Result<String> {
    let mut text = String::new();
    while let Some(data) = events.next_data().await? {
        if data == "[DONE]" {
            break;
        }
        let chunk: Value = serde_json::from_str(&data).with_context(|| {
            format!(
                "the gateway sent what is no chunk of an answer; is --url right? It said: {data}"
            )
        })?;
        if let Some(error) = client::error_text(&chunk) {
            bail!("{error}");
        }
        if let Some(piece) = chunk["choices"][0]["delta"]["content"].as_str() {
            print!("{piece}");
            std::io::stdout().flush()?;
            text.push_str(piece);
        }
    }
    println!();
    Ok(text)
}
