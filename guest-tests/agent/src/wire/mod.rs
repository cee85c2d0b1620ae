//! Messages between the host harness and the agent in a guest.
//!
//! One JSON object a line, both ways, over the virtio-serial port named [`PORT_NAME`]. The host sends a [`Request`],
//! the agent runs its step and answers with one [`Response`] of the same id, one request at a time. Every step is a
//! struct that implements [`Call`], which ties it to the type of its answer:
//!
//! ```
//! use agent::wire::{Call, Ping, Request, Response};
//!
//! let request = Request::new(1, Ping {});
//! assert_eq!(request.to_line(), "{\"id\":1,\"step\":{\"ping\":{}}}\n");
//! let response: Response = serde_json::from_str("{\"id\":1,\"result\":{\"Ok\":{\"uptime_ms\":12}}}").unwrap();
//! assert_eq!(response.into_answer::<Ping>().unwrap().uptime_ms, 12);
//! ```

mod events;
pub mod exec;
mod file;
mod guest;
mod hca;
mod hex;
mod latency;
mod program;
mod qp;
mod traffic;
mod verbs;

pub use events::{
    ArmEq, CreateEq, DestroyEq, DisableInterrupts, EnableInterrupts, EqId, EqInfo, Eqe, Events, Interrupts,
    MapEq, Mask, MaskInterrupts, PendingBits, PendingInterrupts, PollEq, WaitInterrupt,
};
pub use file::{AwaitText, FillFile, PeekFile, VerifyFile};
pub use guest::{
    BarInfo, BindVfio, Bound, DeviceInfo, DeviceSelector, Dmesg, DmesgLines, Done, EnterRoot, GuestInfo,
    Info, LoadModules, LoadedModules, Ping, Pong, Shell, Shutdown, ShutdownKind,
};
pub use hca::{
    CloseHca, CommandResult, CommandResults, ContextBytes, ContextTable, HcaInfo, HcrBase, IcmOptions,
    InParam, MmioRead, MmioValue, MmioWidth, MmioWrite, OpenHca, OutParam, RawCommand, RawCommands,
    ReadContext, Region, ResetHca,
};
pub use hex::Hex;
pub use latency::{PingPong, RoundTrips};
pub use program::{Ask, ExitStatus, Kill, ProgramEnd, ProgramId, Run, Said, Spawn, Spawned, Wait};
pub use qp::{
    Changes, CreateQp, DestroyQp, ModifyQp, Path, QpAttributes, QpId, QpInfo, QueryQp, RecvStyle, Service,
    Transition,
};
pub use traffic::{Flow, FlowReport, ReceiveFlow, Scatter, SendFlow, Traffic, TrafficReport};
pub use verbs::{
    Access, ArmCq, Completions, CqArm, CqId, CqInfo, Cqe, CreateCq, CreateMr, Data, Datagram, DestroyCq,
    DestroyMr, Digest, DigestValue, Fill, MrId, MrInfo, Peek, Poke, Poll, PostRecv, PostSend, Posted, Remote,
    Ring, SendOp, SendRequest, Sge, Verified, Verify,
};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Name of the virtio-serial port the agent listens on.
pub const PORT_NAME: &str = "org.hcad.agent";

/// A step and the type of what it answers.
pub trait Call: Into<Step> + Send + 'static {
    /// What the step answers when it succeeds.
    type Answer: Serialize + DeserializeOwned + Send + 'static;
}

/// One step to run, host to agent.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// Chosen by the host; the response repeats it.
    pub id: u64,
    /// What to do.
    pub step: Step,
}

impl Request {
    /// A request to run `step`.
    pub fn new(id: u64, step: impl Call) -> Self {
        Self { id, step: step.into() }
    }

    /// The line to send, with its line end.
    pub fn to_line(&self) -> String {
        to_line(self)
    }
}

/// The result of one step, agent to host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Response {
    /// Id of the request; 0 when the request was not understood.
    pub id: u64,
    /// The answer of the step's [`Call`] as JSON, or why there is none.
    pub result: Result<serde_json::Value, Failure>,
}

impl Response {
    /// The answer as the type that belongs to the step asked for.
    ///
    /// # Errors
    /// The step's failure, or [`FailureKind::Protocol`] when the answer is of another type.
    pub fn into_answer<C: Call>(self) -> Result<C::Answer, Failure> {
        let value = self.result?;
        serde_json::from_value(value).map_err(|error| {
            Failure::new(FailureKind::Protocol, format!("reply of an unexpected type: {error}"))
        })
    }

    /// The line to send, with its line end.
    pub fn to_line(&self) -> String {
        to_line(self)
    }
}

/// Why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What to match on.
    #[serde(flatten)]
    pub kind: FailureKind,
    /// What to print: the error and its causes.
    pub message: String,
}

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// The HCR status when the device refused a command.
    pub fn command_status(&self) -> Option<u8> {
        match self.kind {
            FailureKind::Command { status, .. } => Some(status),
            _ => None,
        }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Kinds of failure a scenario may want to tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FailureKind {
    /// The device answered a command with a status other than OK.
    Command {
        /// HCR opcode.
        op: u16,
        /// HCR status code.
        status: u8,
    },
    /// What was waited for did not happen in the time allowed.
    Timeout,
    /// A work request completed with an error nobody asked for.
    Completion {
        /// Syndrome of the error CQE.
        syndrome: u8,
    },
    /// Memory does not hold what it should.
    Mismatch,
    /// The step names something that does not exist or cannot be done.
    BadStep,
    /// The request or the answer was not understood.
    Protocol,
    /// Anything else, such as an error of the guest's kernel.
    Other,
}

fn to_line(message: &impl Serialize) -> String {
    let mut line =
        serde_json::to_string(message).expect("messages have string keys and no failing serializer");
    line.push('\n');
    line
}

macro_rules! steps {
    ($($name:ident => $answer:ty,)*) => {
        /// Every step there is.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[expect(missing_docs, reason = "each variant is the struct of the same name, documented there")]
        pub enum Step {
            $($name($name),)*
        }
        $(
            impl From<$name> for Step {
                fn from(step: $name) -> Self {
                    Self::$name(step)
                }
            }
            impl Call for $name {
                type Answer = $answer;
            }
        )*
    };
}

steps! {
    Ping => Pong,
    Info => GuestInfo,
    Dmesg => DmesgLines,
    LoadModules => LoadedModules,
    EnterRoot => Done,
    Run => ProgramEnd,
    Spawn => Spawned,
    Ask => Said,
    Wait => ProgramEnd,
    Kill => Done,
    FillFile => Done,
    VerifyFile => Verified,
    PeekFile => Hex,
    AwaitText => Done,
    Shell => Done,
    Shutdown => Done,
    BindVfio => Bound,
    OpenHca => HcaInfo,
    CloseHca => Done,
    ResetHca => HcaInfo,
    RawCommand => CommandResult,
    RawCommands => CommandResults,
    MmioRead => MmioValue,
    MmioWrite => Done,
    ReadContext => ContextBytes,
    CreateMr => MrInfo,
    DestroyMr => Done,
    Fill => Done,
    Verify => Verified,
    Digest => DigestValue,
    Peek => Hex,
    Poke => Done,
    CreateCq => CqInfo,
    DestroyCq => Done,
    ArmCq => Done,
    CreateEq => EqInfo,
    DestroyEq => Done,
    MapEq => Done,
    ArmEq => Done,
    PollEq => Events,
    EnableInterrupts => Done,
    DisableInterrupts => Done,
    WaitInterrupt => Interrupts,
    MaskInterrupts => Done,
    PendingInterrupts => PendingBits,
    CreateQp => QpInfo,
    DestroyQp => Done,
    ModifyQp => Done,
    QueryQp => QpAttributes,
    PostSend => Posted,
    PostRecv => Posted,
    Poll => Completions,
    Traffic => TrafficReport,
    PingPong => RoundTrips,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_command_carries_status() {
        let line = r#"{"id":5,"result":{"Err":{"kind":"command","op":13,"status":3,"message":"refused"}}}"#;
        let response: Response = serde_json::from_str(line).unwrap();
        assert_eq!(response.to_line().trim_end(), line);
        let failure = response.into_answer::<Ping>().unwrap_err();
        assert_eq!(failure.command_status(), Some(3));
    }

    #[test]
    fn steps_omit_default_fields() {
        let line =
            r#"{"id":1,"step":{"post_send":{"qp":2,"requests":[{"op":"write","remote":{"rkey":7}}]}}}"#;
        let request: Request = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}"));
        let Step::PostSend(step) = request.step else { panic!("{request:?}") };
        assert_eq!((step.qp, step.ring), (QpId(2), Ring::Once));
        let expected = SendRequest {
            op: SendOp::Write,
            remote: Some(Remote { va: 0, rkey: 7 }),
            ..SendRequest::default()
        };
        assert_eq!(step.requests, [expected]);
    }

    #[test]
    fn answer_of_different_step_is_rejected() {
        let response = Response { id: 1, result: Ok(serde_json::json!({"lines": []})) };
        assert_eq!(response.into_answer::<Ping>().unwrap_err().kind, FailureKind::Protocol);
    }
}
