//! Control requests that list or change a device's impairments.

use card::fabric::impair::{ImpairmentRow, Rule, TooManyRulesError};
use card::frontend::Frontend;
use card::hca::Hca;
use tokio::sync::oneshot;

/// A request to list or change a device's impairments, with a channel for the reply. The device's thread executes it.
#[derive(Debug)]
pub enum ImpairCall {
    /// Lists the impairments and their counters.
    List(oneshot::Sender<Vec<ImpairmentRow>>),
    /// Adds an impairment and returns its ID.
    Add(Box<Rule>, oneshot::Sender<Result<u32, TooManyRulesError>>),
    /// Removes one or all impairments. Returns false if the impairment does not exist.
    Clear(Option<u32>, oneshot::Sender<bool>),
}

impl ImpairCall {
    /// Returns whether the caller has stopped waiting.
    pub fn is_abandoned(&self) -> bool {
        match self {
            Self::List(answer) => answer.is_closed(),
            Self::Add(_, answer) => answer.is_closed(),
            Self::Clear(_, answer) => answer.is_closed(),
        }
    }

    /// Executes the request and sends the reply. Errors from `send` are ignored, because the caller may have
    /// disconnected.
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
