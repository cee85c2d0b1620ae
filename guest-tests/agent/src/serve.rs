//! Executes steps one at a time and sends their answers.

use std::io::{BufRead, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Sender;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use crate::error::{bad_step, into_failure};
use crate::guest::{self, Programs};
use crate::hca::Hca;
use crate::mlx5::Mlx5;
use crate::vfio::{self, Bar};
use crate::wire::{
    self, Call, CommandResults, DigestValue, DmesgLines, Done, Failure, FailureKind, Hex, MmioRead,
    MmioValue, MmioWrite, OpenHca, PendingBits, Pong, Region, Request, Response, ShutdownKind, Step,
    Verified,
};

/// Maximum number of bytes that a `Peek` or `PeekFile` step returns.
const PEEK_MAX: u32 = 65536;

/// State that the agent keeps between steps.
#[derive(Debug, Default)]
pub struct Agent {
    hca: Option<Hca>,
    mlx5: Option<Mlx5>,
    programs: Programs,
    /// The shutdown requested by a step. The agent performs it after sending the answer to that step.
    ending: Option<ShutdownKind>,
}

impl Agent {
    /// Serves requests until the input ends or a shutdown step has been answered.
    ///
    /// # Errors
    /// Fails if the input cannot be read or the output cannot be written. Invalid requests are not errors.
    pub fn serve(&mut self, mut input: impl BufRead, mut output: impl Write) -> Result<()> {
        let mut line = String::new();
        loop {
            line.clear();
            if input.read_line(&mut line).context("cannot read a request")? == 0 {
                return Ok(());
            }
            if line.trim().is_empty() {
                continue;
            }
            let response = self.answer_line(&line);
            output.write_all(response.to_line().as_bytes()).context("cannot write a response")?;
            output.flush().context("cannot write a response")?;
            if let Some(kind) = self.ending.take() {
                guest::shutdown(kind)?;
                return Ok(());
            }
        }
    }

    /// Executes one step in this process, for a host that drives a device without a guest.
    ///
    /// # Errors
    /// Returns the step's failure.
    pub fn call<C: Call>(&mut self, step: C) -> Result<C::Answer, Failure> {
        let result = self.run(step.into()).map_err(|error| into_failure(&error));
        Response { id: 0, result }.into_answer::<C>()
    }

    /// Registers a channel to notify when the next [`ReceiveOverMlx5`](wire::ReceiveOverMlx5) step has posted its first
    /// receives. If no ConnectX is open, the next [`Traffic`](wire::Traffic) step notifies the channel instead. The
    /// peer can wait for the notification before it sends.
    ///
    /// # Errors
    /// Fails if no device is open.
    pub fn announce(&mut self, posted: Sender<()>) -> Result<()> {
        match &mut self.mlx5 {
            Some(mlx5) => mlx5.announce(posted),
            None => self.hca()?.announce(posted),
        }
        Ok(())
    }

    fn answer_line(&mut self, line: &str) -> Response {
        let request: Request = match serde_json::from_str(line) {
            Ok(request) => request,
            Err(error) => {
                let failure = Failure::new(FailureKind::Protocol, format!("invalid request: {error}"));
                return Response { id: request_id(line), result: Err(failure) };
            }
        };
        // A panic is a bug in the driver or the step. Report it as an error and continue.
        let result = catch_unwind(AssertUnwindSafe(|| self.run(request.step))).unwrap_or_else(|panic| {
            let text = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|&text| text.to_owned()))
                .unwrap_or_default();
            Err(anyhow::anyhow!("the agent panicked: {text}"))
        });
        Response { id: request.id, result: result.map_err(|error| into_failure(&error)) }
    }

    fn run(&mut self, step: Step) -> Result<Value> {
        match step {
            Step::Ping(s) => {
                answer(&s, |_| Ok(Pong { uptime_ms: u64::try_from(guest::uptime()?.as_millis())? }))
            }
            Step::Info(s) => answer(&s, |_| guest::info()),
            Step::Dmesg(s) => answer(&s, |s| Ok(DmesgLines { lines: guest::messages(s.level)? })),
            Step::LoadModules(s) => answer(&s, |s| guest::load_modules(&s.paths)),
            Step::LoadCrashKernel(s) => answer(&s, |s| done(guest::load_crash_kernel(s))),
            Step::EnterRoot(s) => answer(&s, |s| done(guest::enter_root(s))),
            Step::MountShare(s) => answer(&s, |s| done(guest::mount_share(s))),
            Step::Run(s) => answer(&s, Programs::run),
            Step::Spawn(s) => answer(&s, |s| self.programs.spawn(s)),
            Step::Ask(s) => answer(&s, |s| self.programs.ask(s)),
            Step::Wait(s) => answer(&s, |s| self.programs.wait(s)),
            Step::Kill(s) => answer(&s, |s| done(self.programs.kill(s))),
            Step::FillFile(s) => answer(&s, |s| done(guest::file::fill(s))),
            Step::VerifyFile(s) => answer(&s, guest::file::verify),
            Step::PeekFile(s) => answer(&s, |s| {
                ensure!(s.len <= PEEK_MAX, bad_step(format!("maximum read size is {PEEK_MAX} bytes")));
                guest::file::peek(s)
            }),
            Step::AwaitText(s) => answer(&s, |s| done(guest::file::await_text(s))),
            Step::Shell(s) => answer(&s, |s| done(guest::shell(s.command.as_deref()))),
            Step::Shutdown(s) => answer(&s, |s| {
                (self.hca, self.mlx5) = (None, None);
                self.ending = Some(s.kind);
                Ok(Done {})
            }),
            Step::BindVfio(s) => answer(&s, |s| vfio::bind(&s.device)),
            Step::OpenHca(s) => answer(&s, |s| self.open(s)),
            Step::CloseHca(s) => answer(&s, |s| {
                let hca = self.hca.take().ok_or_else(|| bad_step("no HCA is open"))?;
                done(hca.close(*s))
            }),
            Step::ResetHca(s) => answer(&s, |_| {
                let hca = self.hca.take().ok_or_else(|| bad_step("no HCA is open"))?;
                let (hca, info) = hca.reset()?;
                self.hca = Some(hca);
                Ok(info)
            }),
            Step::RawCommand(s) => answer(&s, |s| self.hca()?.raw_command(s)),
            Step::RawCommands(s) => answer(&s, |s| {
                let hca = self.hca()?;
                let results = s.commands.iter().map(|command| hca.raw_command(command));
                Ok(CommandResults { results: results.collect::<Result<_>>()? })
            }),
            Step::MmioRead(s) => answer(&s, |s| mmio_read(self.hca()?, s)),
            Step::MmioWrite(s) => answer(&s, |s| mmio_write(self.hca()?, s)),
            Step::ReadContext(s) => answer(&s, |s| self.hca()?.read_context(s)),
            Step::CreateMr(s) => answer(&s, |s| self.hca()?.create_mr(s)),
            Step::DestroyMr(s) => answer(&s, |s| done(self.hca()?.destroy_mr(s.mr))),
            Step::Fill(s) => answer(&s, |s| {
                let hca = self.hca()?;
                let mr = hca.mr(s.mr)?;
                mr.fill(hca.arena(), mr.range(s.off, s.len)?, s.seed, s.position);
                Ok(Done {})
            }),
            Step::Verify(s) => answer(&s, |s| {
                let hca = self.hca()?;
                let mr = hca.mr(s.mr)?;
                let first = mr.first_difference(hca.arena(), mr.range(s.off, s.len)?, s.seed, s.position);
                Ok(Verified { first_difference: first.map(|at| at as u64) })
            }),
            Step::Digest(s) => answer(&s, |s| {
                let hca = self.hca()?;
                let mr = hca.mr(s.mr)?;
                Ok(DigestValue { digest: mr.digest(hca.arena(), mr.range(s.off, s.len)?) })
            }),
            Step::Peek(s) => answer(&s, |s| {
                ensure!(s.len <= PEEK_MAX, bad_step(format!("maximum read size is {PEEK_MAX} bytes")));
                let hca = self.hca()?;
                let mr = hca.mr(s.mr)?;
                let range = mr.range(s.off, s.len.into())?;
                let mut bytes = vec![0; range.len()];
                mr.read(hca.arena(), range.start, &mut bytes);
                Ok(Hex(bytes))
            }),
            Step::Poke(s) => answer(&s, |s| {
                let hca = self.hca()?;
                let mr = hca.mr(s.mr)?;
                let range = mr.range(s.off, s.bytes.len() as u64)?;
                mr.write(hca.arena(), range.start, &s.bytes);
                Ok(Done {})
            }),
            Step::CreateCq(s) => answer(&s, |s| self.hca()?.create_cq(s)),
            Step::DestroyCq(s) => answer(&s, |s| done(self.hca()?.destroy_cq(s.cq))),
            Step::ArmCq(s) => answer(&s, |s| done(self.hca()?.arm_cq(*s))),
            Step::CreateEq(s) => answer(&s, |s| self.hca()?.create_eq(s)),
            Step::DestroyEq(s) => answer(&s, |s| done(self.hca()?.destroy_eq(s.eq))),
            Step::MapEq(s) => answer(&s, |s| done(self.hca()?.map_eq(s))),
            Step::ArmEq(s) => answer(&s, |s| done(self.hca()?.arm_eq(*s))),
            Step::PollEq(s) => answer(&s, |s| self.hca()?.poll_eq(s)),
            Step::EnableInterrupts(s) => answer(&s, |s| done(self.hca()?.enable_interrupts(*s))),
            Step::DisableInterrupts(s) => answer(&s, |_| done(self.hca()?.disable_interrupts())),
            Step::WaitInterrupt(s) => answer(&s, |s| self.hca()?.wait_interrupt(*s)),
            Step::MaskInterrupts(s) => {
                answer(&s, |s| done(self.hca()?.device().mask_interrupts(s.mask, s.masked)))
            }
            Step::PendingInterrupts(s) => {
                answer(&s, |_| Ok(PendingBits { bits: self.hca()?.device().pending_interrupts()? }))
            }
            Step::CreateQp(s) => answer(&s, |s| self.hca()?.create_qp(s)),
            Step::DestroyQp(s) => answer(&s, |s| done(self.hca()?.destroy_qp(s.qp))),
            Step::ModifyQp(s) => answer(&s, |s| done(self.hca()?.modify_qp(s))),
            Step::QueryQp(s) => answer(&s, |s| self.hca()?.query_qp(s.qp)),
            Step::PostSend(s) => answer(&s, |s| self.hca()?.post_send(s)),
            Step::PostRecv(s) => answer(&s, |s| self.hca()?.post_recv(s)),
            Step::Poll(s) => answer(&s, |s| self.hca()?.poll(s)),
            Step::PingPong(s) => answer(&s, |s| self.hca()?.ping_pong(s)),
            Step::Traffic(s) => answer(&s, |s| self.hca()?.traffic(s)),
            Step::OpenMlx5(s) => answer(&s, |s| {
                ensure!(self.mlx5.is_none(), bad_step("a ConnectX is already open"));
                let (mlx5, info) = Mlx5::open(s)?;
                self.mlx5 = Some(mlx5);
                Ok(info)
            }),
            Step::CopyByWrite(s) => answer(&s, |s| self.mlx5()?.copy(s)),
            Step::StreamWrites(s) => answer(&s, |s| self.mlx5()?.stream(s)),
            Step::PingByWrite(s) => answer(&s, |s| self.mlx5()?.ping(s)),
            Step::CreateMlx5Qps(s) => answer(&s, |s| self.mlx5()?.create_qps(s)),
            Step::ConnectMlx5Qps(s) => answer(&s, |s| done(self.mlx5()?.connect_qps(s))),
            Step::SendOverMlx5(s) => answer(&s, |s| self.mlx5()?.send_over(s)),
            Step::SendToSelfMlx5(s) => answer(&s, |s| self.mlx5()?.send_to_self(s)),
            Step::ReceiveOverMlx5(s) => answer(&s, |s| self.mlx5()?.receive_over(s)),
            Step::VerifyMlx5(s) => answer(&s, |s| self.mlx5()?.verify(s)),
            Step::CloseMlx5(s) => answer(&s, |s| {
                done(self.mlx5.take().ok_or_else(|| bad_step("no ConnectX is open"))?.close(*s))
            }),
        }
    }

    fn hca(&mut self) -> Result<&mut Hca> {
        self.hca.as_mut().ok_or_else(|| bad_step("no HCA is open"))
    }

    fn mlx5(&mut self) -> Result<&mut Mlx5> {
        self.mlx5.as_mut().ok_or_else(|| bad_step("no ConnectX is open"))
    }

    fn open(&mut self, step: &OpenHca) -> Result<wire::HcaInfo> {
        ensure!(self.hca.is_none(), bad_step("an HCA is already open"));
        let (hca, info) = Hca::open(step)?;
        self.hca = Some(hca);
        Ok(info)
    }
}

/// Executes a step and serialises its answer. The types ensure that the answer matches the step.
fn answer<C: Call>(step: &C, run: impl FnOnce(&C) -> Result<C::Answer>) -> Result<Value> {
    Ok(serde_json::to_value(run(step)?)?)
}

fn done(result: Result<()>) -> Result<Done> {
    result.map(|()| Done {})
}

fn mmio_read(hca: &Hca, step: &MmioRead) -> Result<MmioValue> {
    let mut bytes = [0; 8];
    hca.device().read(bar(step.region), step.offset, &mut bytes[..step.width.bytes()])?;
    Ok(MmioValue { value: u64::from_le_bytes(bytes) })
}

fn mmio_write(hca: &Hca, step: &MmioWrite) -> Result<Done> {
    let bytes = step.value.to_le_bytes();
    done(hca.device().write(bar(step.region), step.offset, &bytes[..step.width.bytes()]))
}

const fn bar(region: Region) -> Bar {
    match region {
        Region::Bar0 => Bar::Zero,
        Region::Bar2 => Bar::Two,
        Region::Config => Bar::Config,
    }
}

/// Returns the ID of a request whose step is invalid, so that the host can match the failure to it.
fn request_id(line: &str) -> u64 {
    serde_json::from_str::<Value>(line).ok().and_then(|value| value.get("id")?.as_u64()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{CloseHca, Ping};

    fn exchange(lines: &str) -> Vec<Response> {
        let mut output = Vec::new();
        Agent::default().serve(lines.as_bytes(), &mut output).unwrap();
        String::from_utf8(output).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn answer_carries_request_id() {
        let lines = Request::new(7, Ping {}).to_line() + &Request::new(8, Ping {}).to_line();
        let answers = exchange(&lines);
        assert_eq!(answers.iter().map(|answer| answer.id).collect::<Vec<_>>(), [7, 8]);
        assert!(answers[0].result.is_ok());
    }

    #[test]
    fn invalid_step_is_answered_with_error() {
        let lines =
            "{\"id\":3,\"step\":{\"fly\":{}}}\nnonsense\n".to_owned() + &Request::new(4, Ping {}).to_line();
        let answers = exchange(&lines);
        assert_eq!(answers.iter().map(|answer| answer.id).collect::<Vec<_>>(), [3, 0, 4]);
        assert_eq!(answers[0].result.as_ref().unwrap_err().kind, FailureKind::Protocol);
        assert!(answers[2].result.is_ok());
    }

    #[test]
    fn step_without_open_hca_is_rejected() {
        let answers = exchange(&Request::new(1, CloseHca::default()).to_line());
        assert_eq!(answers[0].result.as_ref().unwrap_err().kind, FailureKind::BadStep);
    }
}
