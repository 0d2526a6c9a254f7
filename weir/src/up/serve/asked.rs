//! Requests of people that come in on the admin port, answered by what the next look decides.

use tokio::sync::oneshot;
use weir_rollout::decide::{Note, Request};

use super::Serving;
use crate::up::rollouts::Rollout;

/// A person's request of a rollout, and who waits for what becomes of it.
pub struct Asked {
    /// The model.
    pub model: String,
    /// What is asked.
    pub request: Request,
    /// Told what was decided, a line each, or why nothing was.
    pub answer: oneshot::Sender<Result<Vec<String>, String>>,
}

impl Serving {
    pub(super) fn take_up(&mut self, asked: Asked) {
        if self.rollouts.ask(&asked.model, asked.request.clone()) {
            self.unanswered.push(asked);
        } else {
            let message = format!("there is no model {:?}", asked.model);
            // Whoever asked may have left.
            asked.answer.send(Err(message)).ok();
        }
    }

    pub(super) fn answer(&mut self) {
        for asked in std::mem::take(&mut self.unanswered) {
            let notes = self.notes.iter();
            let of_model = || notes.clone().filter(|(model, _)| *model == asked.model);
            let is_refusal = |note: &Note| {
                note.reason == "RequestRefused" && note.message.contains(&asked.request.id)
            };
            let head = self.rollouts.of(&asked.model).and_then(Rollout::head);
            let is_handled =
                head.is_some_and(|head| head.handled_requests.contains(&asked.request.id));
            let answer = if let Some((_, refusal)) = of_model().find(|(_, note)| is_refusal(note)) {
                Err(refusal.message.clone())
            } else if is_handled {
                Ok(of_model().map(|(model, note)| line(model, note)).collect())
            } else {
                Err("it was not taken up: too many requests wait; try again".to_owned())
            };
            asked.answer.send(answer).ok();
        }
    }
}

fn line(model: &str, note: &Note) -> String {
    format!(
        "{model} version {}: {}: {}",
        note.version, note.reason, note.message
    )
}
