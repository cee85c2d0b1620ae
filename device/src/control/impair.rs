//! Impairments of a device, asked for through the control socket.

use tokio::sync::oneshot;

use crate::fabric::impair::{ImpairmentRow, Rule, TooManyRules};
use crate::frontend::Frontend;
use crate::hca::Hca;

/// What a device's thread is asked about its impairments, with the way back.
#[derive(Debug)]
pub enum ImpairCall {
    /// Which there are and what they did.
    List(oneshot::Sender<Vec<ImpairmentRow>>),
    /// One more; gives its number.
    Add(Box<Rule>, oneshot::Sender<Result<u32, TooManyRules>>),
    /// One less, or none; false if there is no such one.
    Clear(Option<u32>, oneshot::Sender<bool>),
}

impl ImpairCall {
    /// Whether nobody waits for the answer any more.
    pub fn is_abandoned(&self) -> bool {
        match self {
            Self::List(answer) => answer.is_closed(),
            Self::Add(_, answer) => answer.is_closed(),
            Self::Clear(_, answer) => answer.is_closed(),
        }
    }

    /// Answers. An asker that is gone wants no answer.
    pub fn answer<F: Frontend>(self, hca: &mut Hca<F>) {
        match self {
            Self::List(answer) => {
                let _ = answer.send(hca.impairments().rows());
            }
            Self::Add(rule, answer) => {
                let _ = answer.send(hca.impair(*rule));
            }
            Self::Clear(id, answer) => {
                let _ = answer.send(hca.clear_impairments(id));
            }
        }
    }
}
