//! Messages between the host harness and the agent in a guest.
//!
//! Both directions carry one JSON object per line over the virtio-serial port [`PORT_NAME`]. The host sends a
//! [`Request`]. The agent executes the step in the request and answers with a [`Response`] that has the same ID. At
//! most one request is outstanding. Every step is a struct that implements [`Call`], which defines the type of its
//! answer:
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
mod mlx5;
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
    Info, LoadCrashKernel, LoadModules, LoadedModules, MountShare, Ping, Pong, Shell, Shutdown, ShutdownKind,
    System,
};
pub use hca::{
    CloseHca, CommandResult, CommandResults, ContextBytes, ContextTable, HcaInfo, HcrBase, IcmOptions,
    InParam, MmioRead, MmioValue, MmioWidth, MmioWrite, OpenHca, OutParam, RawCommand, RawCommands,
    ReadContext, Region, ResetHca,
};
pub use hex::Hex;
pub use latency::{PingPong, RoundTrips};
pub use mlx5::{
    CloseMlx5, ConnectMlx5Qps, CopyByWrite, CreateMlx5Qps, Mlx5Copied, Mlx5Info, Mlx5Qps, Mlx5Streamed,
    OpenMlx5, PingByWrite, ReceiveOverMlx5, SendOverMlx5, SendToSelfMlx5, StreamWrites, VerifyMlx5,
};
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

/// Name of the virtio-serial port that the agent serves.
pub const PORT_NAME: &str = "org.hcad.agent";

/// A step, together with the type of its answer.
pub trait Call: Into<Step> + Send + 'static {
    /// The answer if the step succeeds.
    type Answer: Serialize + DeserializeOwned + Send + 'static;
}

/// A request from the host to execute one step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Request {
    /// ID chosen by the host and repeated in the response.
    pub id: u64,
    pub step: Step,
}

impl Request {
    /// Creates a request to execute `step`.
    pub fn new(id: u64, step: impl Call) -> Self {
        Self { id, step: step.into() }
    }

    /// Returns the line to send, including the newline.
    pub fn to_line(&self) -> String {
        to_line(self)
    }
}

/// The agent's response with the result of one step.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Response {
    /// ID of the request, or 0 if the request was invalid.
    pub id: u64,
    /// The step's answer ([`Call::Answer`]) as JSON, or the failure.
    pub result: Result<serde_json::Value, Failure>,
}

impl Response {
    /// Returns the answer as the type that the step defines.
    ///
    /// # Errors
    /// Fails if the step failed or if the answer has the wrong type ([`FailureKind::Protocol`]).
    pub fn into_answer<C: Call>(self) -> Result<C::Answer, Failure> {
        let value = self.result?;
        serde_json::from_value(value).map_err(|error| {
            Failure::new(FailureKind::Protocol, format!("reply of an unexpected type: {error}"))
        })
    }

    /// Returns the line to send, including the newline.
    pub fn to_line(&self) -> String {
        to_line(self)
    }
}

/// Describes why a step failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The kind of failure, which scenarios match on.
    #[serde(flatten)]
    pub kind: FailureKind,
    /// The error and its causes, as text to be printed.
    pub message: String,
}

impl Failure {
    /// Creates a failure of the given kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Returns the HCR status if the device rejected a command, and `None` for all other failures.
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

/// Kinds of failures that scenarios distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FailureKind {
    /// The device completed a command with a status other than OK.
    Command { op: u16, status: u8 },
    /// An event did not occur before the timeout.
    Timeout,
    /// A work request completed with an unexpected error.
    Completion {
        /// Syndrome field of the error CQE.
        syndrome: u8,
    },
    /// Memory does not contain the expected data.
    Mismatch,
    /// The step refers to an unknown object or requests something impossible.
    BadStep,
    /// The request or the answer was invalid.
    Protocol,
    /// Any other error, such as one from the guest's kernel.
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
        /// Any of the steps that the agent can execute.
        #[derive(Clone, Debug, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
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
    LoadCrashKernel => Done,
    EnterRoot => Done,
    MountShare => Done,
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
    OpenMlx5 => Mlx5Info,
    CopyByWrite => Mlx5Copied,
    StreamWrites => Mlx5Streamed,
    PingByWrite => RoundTrips,
    CreateMlx5Qps => Mlx5Qps,
    ConnectMlx5Qps => Done,
    SendOverMlx5 => Mlx5Streamed,
    SendToSelfMlx5 => Mlx5Streamed,
    ReceiveOverMlx5 => Mlx5Streamed,
    VerifyMlx5 => Verified,
    CloseMlx5 => Done,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejected_command_error_carries_status() {
        let line = r#"{"id":5,"result":{"Err":{"kind":"command","op":13,"status":3,"message":"refused"}}}"#;
        let response: Response = serde_json::from_str(line).unwrap();
        assert_eq!(response.to_line().trim_end(), line);
        let failure = response.into_answer::<Ping>().unwrap_err();
        assert_eq!(failure.command_status(), Some(3));
    }

    #[test]
    fn omitted_step_fields_get_default_values() {
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
    fn answer_to_different_step_is_rejected() {
        let response = Response { id: 1, result: Ok(serde_json::json!({"lines": []})) };
        assert_eq!(response.into_answer::<Ping>().unwrap_err().kind, FailureKind::Protocol);
    }
}
