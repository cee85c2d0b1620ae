//! Traffic between stock guests. At each end, a program (`guest/stock_traffic.py`) sends and checks messages
//! independently and is polled for its progress.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::line_program::LineProgram;
use crate::vm::Vm;

const PROGRAM: &str = include_str!("../../../guest/stock_traffic.py");
/// Timeout for loading a Python interpreter and the verbs modules.
const START: Duration = Duration::from_secs(120);
/// Timeout for any other request to the program.
const STEP: Duration = Duration::from_secs(60);

/// Values of rdma-core's `ibv_wc_status`.
mod status {
    pub(super) const WR_FLUSH_ERR: u32 = 5;
    pub(super) const RETRY_EXC_ERR: u32 = 12;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Talker {
    program: LineProgram,
    lid: u16,
}

/// QP number, memory address and R_Key, as sent to the peer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Place {
    qpn: u32,
    addr: u64,
    rkey: u32,
}

/// Progress of one end of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Report {
    /// Number of send requests that have succeeded.
    pub(super) sent: u64,
    /// Number of messages received with correct content.
    pub(super) received: u64,
    /// Number of RDMA READs with correct data.
    pub(super) reads: u64,
    /// Unsuccessful completions in order, each with the kind of request and the status.
    errors: Vec<(Request, u32)>,
    /// Number of requests without a completion.
    outstanding: u64,
    /// Description of a message with wrong content.
    wrong: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Request {
    /// A SEND, WRITE or READ request.
    Request,
    Receive,
}

impl Talker {
    /// Starts the program, which uses the device `mthca0`. `side` is 0 or 1.
    pub(super) async fn start(vm: &mut Vm, seed: u64, side: usize) -> Result<Self> {
        let program = LineProgram::start(vm, PROGRAM).await?;
        let arguments = json!({ "device": "mthca0", "seed": seed, "side": side });
        let lid = program.ask(START, vm, "open", arguments).await?;
        Ok(Self { program, lid })
    }

    /// Creates a queue pair for connection `connection`.
    pub(super) async fn prepare(&self, vm: &mut Vm, connection: u32) -> Result<Place> {
        self.program.ask(STEP, vm, "prepare", json!({ "connection": connection })).await
    }

    /// Connects the queue pair so that it can receive from the peer.
    pub(super) async fn connect(&self, vm: &mut Vm, peer: &Self, place: Place) -> Result<()> {
        let arguments = json!({ "lid": peer.lid, "peer": place, "timeout": super::ACK_TIMEOUT });
        self.program.ask(STEP, vm, "connect", arguments).await
    }

    /// Starts sending to the peer, which must be ready to receive.
    pub(super) async fn go(&self, vm: &mut Vm) -> Result<()> {
        self.program.ask(STEP, vm, "go", json!({})).await
    }

    pub(super) async fn report(&self, vm: &mut Vm) -> Result<Report> {
        self.program.ask(STEP, vm, "report", json!({})).await
    }

    /// Kills the program in the middle of its traffic.
    pub(super) async fn kill(self, vm: &mut Vm) -> Result<()> {
        self.program.kill(vm).await.context("cannot kill the traffic program")
    }
}

impl Report {
    /// Checks that all messages were correct and that no error occurred.
    pub(super) fn is_undisturbed(&self) -> Result<()> {
        ensure!(
            self.wrong.is_none() && self.errors.is_empty(),
            "an undisturbed connection had an error: {self:?}"
        );
        Ok(())
    }

    /// Returns whether this end has detected the loss of its peer and all of its requests have completed. The oldest
    /// request must have failed with retries exhausted, and all others must have been flushed (IBTA volume 1, sections
    /// 9.9.2.1.1 and 10.8.3.2.4).
    pub(super) fn has_detected_peer_loss(&self) -> Result<bool> {
        ensure!(self.wrong.is_none(), "{self:?}");
        let Some((first, others)) = self.errors.split_first() else { return Ok(false) };
        let is_right = *first == (Request::Request, status::RETRY_EXC_ERR)
            && others.iter().all(|(_, status)| *status == status::WR_FLUSH_ERR);
        ensure!(is_right, "requests to a killed peer completed with a wrong status: {self:?}");
        Ok(self.outstanding == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(errors: &[(Request, u32)], outstanding: u64) -> Report {
        Report { errors: errors.to_vec(), outstanding, ..Report::default() }
    }

    #[test]
    fn undisturbed_end_does_not_report_error() {
        report(&[], 12).is_undisturbed().unwrap();
        report(&[(Request::Receive, status::WR_FLUSH_ERR)], 0).is_undisturbed().unwrap_err();
        let wrong = Report { wrong: Some("content".into()), ..Report::default() };
        wrong.is_undisturbed().unwrap_err();
        wrong.has_detected_peer_loss().unwrap_err();
    }

    #[test]
    fn peer_loss_flushes_all_but_first_request() {
        let lost = (Request::Request, status::RETRY_EXC_ERR);
        let flushed = (Request::Request, status::WR_FLUSH_ERR);
        let receive = (Request::Receive, status::WR_FLUSH_ERR);
        assert!(!report(&[], 3).has_detected_peer_loss().unwrap());
        assert!(!report(&[lost, receive], 1).has_detected_peer_loss().unwrap());
        assert!(report(&[lost, flushed, receive], 0).has_detected_peer_loss().unwrap());
        report(&[flushed, lost], 0).has_detected_peer_loss().unwrap_err();
        report(&[lost, lost], 0).has_detected_peer_loss().unwrap_err();
        report(&[(Request::Receive, status::RETRY_EXC_ERR)], 0).has_detected_peer_loss().unwrap_err();
    }
}
