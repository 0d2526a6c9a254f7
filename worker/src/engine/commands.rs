//! What each command changes.

use std::time::Instant;

use weir_protocol::worker::{
    Attach, Cancel, EngineLimits, Progress, Welcome, finish::Reason, rejected::Code,
};
use weir_scheduler::{NewSequence, Refused};

use super::command::{Command, OpenSession, Order, SessionId};
use super::core::Engine;
use super::output::{ChoiceText, prompt_token};
use super::request::{Refusal, Request, refuse, run_key};
use super::run::{NewRun, Run, RunNumber};

impl Engine {
    /// Carries out a command. Nothing here waits. [`Command::Stop`] is the thread's business.
    pub(crate) fn handle(&mut self, command: Command) {
        match command {
            Command::Open(open) => self.open(open),
            Command::Close(session) => self.close(session),
            Command::Submit(session, order) => self.submit(session, *order),
            Command::Attach(session, attach) => self.attach(session, &attach),
            Command::Cancel(session, cancel) => self.cancel(session, &cancel),
            Command::Progress(session, progress) => self.progress(session, &progress),
            Command::AddAdapter(adapter, reply) => {
                // Whoever asked may be gone.
                let _ = reply.send(self.add_adapter(*adapter));
            }
            Command::DropAdapter(digest) => self.drop_adapter(&digest),
            Command::Drain => self.draining = true,
            Command::Room | Command::Stop => {}
        }
    }

    /// The first frame of a session.
    fn welcome(&self, gateway: &str) -> Welcome {
        let limits = self.parts.backend.limits();
        let identity = &self.parts.identity;
        Welcome {
            worker: identity.worker.clone(),
            boot: identity.boot.clone(),
            protocol: weir_protocol::frames::PROTOCOL,
            models: self.models(),
            limits: Some(EngineLimits {
                max_running: limits.max_running,
                max_batch_tokens: limits.max_batch_tokens,
                block_tokens: limits.block_tokens,
                blocks_total: limits.blocks,
                kv_bytes: limits.kv_bytes,
            }),
            held: self.runs.of_gateway(gateway),
        }
    }

    fn open(&mut self, open: OpenSession) {
        let OpenSession {
            hello,
            outbox,
            reply,
        } = open;
        match self.sessions.open(&hello, outbox.clone()) {
            Ok((session, older)) => {
                if let Some(older) = older {
                    self.orphan_runs(older);
                }
                // At once, before anybody else has the outbox: a welcome is the first frame. A new outbox has room for it.
                outbox.offer(self.welcome(&hello.gateway).into());
                tracing::info!(
                    gateway = hello.gateway,
                    replica = hello.replica,
                    epoch = hello.session_epoch,
                    "session open"
                );
                if reply.send(Ok(session)).is_err() {
                    self.close(session);
                }
            }
            Err(refused) => {
                // Whoever asked may be gone already.
                let _ = reply.send(Err(refused));
            }
        }
    }

    fn close(&mut self, session: SessionId) {
        if self.sessions.close(session) {
            tracing::info!(session = session.0, "session closed");
        }
        self.orphan_runs(session);
    }

    /// The runs of a session that is gone go on, up to their credit.
    fn orphan_runs(&mut self, session: SessionId) {
        let now = Instant::now();
        for number in self.runs.of_session(session) {
            self.runs.change(number, |run| {
                run.owner = None;
                run.orphaned = Some(now);
                run.listed = false;
            });
            self.settle_pause(number);
        }
    }

    fn submit(&mut self, session: SessionId, order: Order) {
        let (run, epoch) = (order.submit.run.clone(), order.submit.epoch);
        if let Err(refusal) = self.try_submit(session, order) {
            self.sessions.reject(session, &run, epoch, refusal);
        }
    }

    fn try_submit(&mut self, session: SessionId, order: Order) -> Result<(), Refusal> {
        let Order { submit, grammar } = order;
        let key = run_key(&submit.run)?;
        if let Some(number) = self.runs.find(&key) {
            return self.submit_again(session, number, submit.epoch, submit.credit);
        }
        if self.draining {
            return refuse(Code::Draining, "this worker is shutting down");
        }
        let Some(gateway) = self.sessions.gateway(session) else {
            return Ok(());
        };
        let request = Request::check(submit, grammar, &self.parts.served)?;
        let number = self.runs.next_number();
        let texts = (0..request.choices)
            .map(|choice| ChoiceText::new(&self.parts.tokenizer, &request, choice))
            .collect();
        let new = NewRun {
            gateway,
            owner: session,
        };
        let mut run = Run::new(&new, &request, texts, Instant::now());
        if request.sampling.prompt_logprobs.is_some() {
            // Nothing comes before the first.
            run.score(0, || {
                prompt_token(&self.parts.tokenizer, request.prompt[0], None)
            });
        }
        self.start(number, &request)?;
        if let Some(grammar) = &request.grammar {
            for choice in 0..request.choices {
                self.places
                    .insert(number.sequence(choice), grammar.matcher());
            }
        }
        self.runs.insert(number, run);
        self.settle_pause(number);
        Ok(())
    }

    /// Queues every choice, or none.
    fn start(&mut self, number: RunNumber, request: &Request) -> Result<(), Refusal> {
        for choice in 0..request.choices {
            let sequence = NewSequence {
                id: number.sequence(choice),
                tokens: &request.prompt,
                max_output: request.rules.max_tokens,
                priority: request.priority,
                scope: request.scope,
                adapter: request.adapter.map(|adapter| adapter.content),
                // Of the prompt is spoken once, with the first choice.
                uncached: choice == 0 && request.sampling.prompt_logprobs.is_some(),
                group: number.0,
            };
            if let Err(refused) = self.parts.scheduler.submit(&sequence) {
                for earlier in 0..choice {
                    self.parts.scheduler.abort(number.sequence(earlier));
                }
                let code = match refused {
                    Refused::QueueFull { .. } => Code::QueueFull,
                    Refused::TooLong { .. } | Refused::TooLarge { .. } => Code::TooLarge,
                    Refused::EmptyPrompt | Refused::NoOutput | Refused::Duplicate { .. } => {
                        Code::Invalid
                    }
                };
                return refuse(code, refused.to_string());
            }
        }
        Ok(())
    }

    /// A run that is held is not started again.
    fn submit_again(
        &mut self,
        session: SessionId,
        number: RunNumber,
        epoch: u64,
        credit: u64,
    ) -> Result<(), Refusal> {
        let Some(run) = self.runs.get(number) else {
            return Ok(());
        };
        if run.owner == Some(session) && run.epoch == epoch {
            return Ok(());
        }
        let from_index = run.window.first_index();
        self.take_over(
            session,
            number,
            &Takeover {
                epoch,
                from_index,
                credit,
            },
        )
    }

    fn attach(&mut self, session: SessionId, attach: &Attach) {
        let taken = run_key(&attach.run).and_then(|key| match self.runs.find(&key) {
            Some(number) => {
                let Attach {
                    epoch,
                    from_index,
                    credit,
                    ..
                } = *attach;
                self.take_over(
                    session,
                    number,
                    &Takeover {
                        epoch,
                        from_index,
                        credit,
                    },
                )
            }
            None => refuse(Code::UnknownRun, "this worker does not hold the run"),
        });
        if let Err(refusal) = taken {
            self.sessions
                .reject(session, &attach.run, attach.epoch, refusal);
        }
    }

    fn take_over(
        &mut self,
        session: SessionId,
        number: RunNumber,
        to: &Takeover,
    ) -> Result<(), Refusal> {
        let (Some(run), Some(gateway)) = (self.runs.get(number), self.sessions.gateway(session))
        else {
            return Ok(());
        };
        if run.gateway != gateway {
            // The same answer as for a run that does not exist: other gateways' runs are nobody's business.
            return refuse(Code::UnknownRun, "this worker does not hold the run");
        }
        let rival = run
            .owner
            .filter(|owner| *owner != session && self.sessions.is_open(*owner));
        if to.epoch < run.epoch || (rival.is_some() && to.epoch == run.epoch) {
            return refuse(
                Code::StaleEpoch,
                format!(
                    "epoch {} of the run is not newer than {}, which this worker has seen",
                    to.epoch, run.epoch
                ),
            );
        }
        let key = run.key;
        let rewound = self.runs.change(number, |run| {
            run.window.rewind(to.from_index)?;
            (run.epoch, run.owner, run.listed) = (to.epoch, Some(session), false);
            run.orphaned = None;
            run.credit = run.credit.max(to.credit);
            Ok(())
        });
        if let Some(Err(super::window::NotKept {
            first_index,
            next_index,
        })) = rewound
        {
            return refuse(
                Code::UnknownRun,
                format!(
                    "rows {first_index} to {next_index} of the run are held, not from {} on",
                    to.from_index
                ),
            );
        }
        if let Some(rival) = rival {
            self.sessions.detach(rival, &key);
        }
        self.sessions.list_unsent(&mut self.runs, number);
        self.runs.forget_if_delivered(number);
        self.settle_pause(number);
        Ok(())
    }

    fn cancel(&mut self, session: SessionId, cancel: &Cancel) {
        let found = run_key(&cancel.run).and_then(|key| {
            let held = self
                .runs
                .find(&key)
                .and_then(|number| Some((number, self.runs.get(number)?)));
            match held {
                Some((number, run))
                    if Some(run.gateway.as_str()) == self.sessions.gateway(session) =>
                {
                    if cancel.epoch < run.epoch {
                        return refuse(
                            Code::StaleEpoch,
                            format!("the run is at epoch {}", run.epoch),
                        );
                    }
                    Ok(number)
                }
                _ => refuse(Code::UnknownRun, "this worker does not hold the run"),
            }
        });
        match found {
            Ok(number) => self.end_run(number, Reason::Cancelled, ""),
            Err(refusal) => self
                .sessions
                .reject(session, &cancel.run, cancel.epoch, refusal),
        }
    }

    fn progress(&mut self, session: SessionId, progress: &Progress) {
        for entry in &progress.runs {
            let Some(number) = run_key(&entry.run)
                .ok()
                .and_then(|key| self.runs.find(&key))
            else {
                continue;
            };
            if self
                .runs
                .get(number)
                .is_none_or(|run| run.owner != Some(session))
            {
                continue;
            }
            self.runs.change(number, |run| {
                run.window.acknowledge(entry.acknowledged);
                run.credit = run.credit.max(entry.credit);
            });
            self.sessions.list_unsent(&mut self.runs, number);
            self.settle_pause(number);
            self.runs.forget_if_delivered(number);
        }
        self.settle_memory();
    }
}

/// How a run is taken over.
struct Takeover {
    epoch: u64,
    from_index: u64,
    credit: u64,
}
