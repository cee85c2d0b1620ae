//! Two vfio-user clients without guests, and the disturbances that affect them. Each client acts as both the VMM and
//! the driver of its HCA.

use std::path::PathBuf;
use std::time::Duration;

use agent::pattern;
use agent::wire::{
    CloseHca, CqInfo, CreateCq, CreateMr, CreateQp, DestroyCq, DestroyQp, DeviceSelector, Failure,
    FailureKind, Fill, Flow, ModifyQp, MrInfo, OpenHca, Path, QpInfo, ReceiveFlow, ResetHca, SendFlow,
    SendOp, Traffic, Transition,
};
use anyhow::{Context as _, Result, bail, ensure};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::plan::{Plan, Side, Step};
use super::{LaneContext, switch_capture, take_port_down};
use crate::daemon::Control;
use crate::scenario::codes::syndrome;
use crate::scenario::endpoint::jingzhao::{Driver as _, InProcess};

/// Number of messages per round in each direction. Each message has its own slot.
const COUNT: u32 = 32;
/// Maximum message length in bytes.
const LONGEST: u32 = 20_000;
const STRIDE: u64 = 20_480;
/// Offsets in the memory region: messages to send, received messages, and data that the peer reads.
const SENT: u64 = 0;
const RECEIVED: u64 = COUNT as u64 * STRIDE;
const READ: u64 = 2 * RECEIVED;
const REGION: u64 = 3 * RECEIVED;
/// Timeout for a round, including the time during which processes are stopped.
const ROUND_TIMEOUT_MS: u32 = 60_000;
const STEP: Duration = Duration::from_secs(90);
/// Number of received packets after which a flood counts as started.
const UNDER_WAY: u64 = 100;
const BEGIN_TIMEOUT: Duration = Duration::from_secs(60);
const OPERATIONS: [SendOp; 4] = [SendOp::Send, SendOp::SendImm, SendOp::WriteImm, SendOp::Read];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Disturbance {
    /// The VMM resets the function but keeps its vfio-user connection.
    Reset,
    /// The client disconnects abruptly, and a new client connects immediately.
    Leave,
    PortDown,
    SwitchCapture,
}

impl Disturbance {
    pub(super) const ALL: &[Self] = &[Self::Reset, Self::Leave, Self::PortDown, Self::SwitchCapture];
}

/// The HCA socket that a client connects to.
#[derive(Clone, Debug)]
pub(super) struct Attachment {
    pub(super) name: String,
    pub(super) socket: PathBuf,
    pub(super) control: Control,
}

#[derive(Debug)]
pub(super) struct Clients<'a> {
    ground: &'a LaneContext<'a>,
    ends: [End; 2],
    rounds: u64,
}

#[derive(Debug)]
struct End {
    seat: Attachment,
    driver: InProcess,
    mr: Option<MrInfo>,
    queues: Option<(QpInfo, CqInfo)>,
    /// Seed of the data that the peer reads.
    seed: u64,
}

impl<'a> Clients<'a> {
    pub(super) async fn start(ground: &'a LaneContext<'a>, [a, b]: [Attachment; 2]) -> Result<Self> {
        let mut clients =
            Self { ground, ends: [End::attach(a, 1).await?, End::attach(b, 2).await?], rounds: 0 };
        clients.connect().await?;
        for _ in OPERATIONS {
            clients.round().await?;
        }
        Ok(clients)
    }

    /// Executes the plan until the time is up and every kind of disturbance has occurred.
    pub(super) async fn run_plan(&mut self, mut plan: Plan<Disturbance>, until: Instant) -> Result<()> {
        while !plan.has_drawn_all() || Instant::now() < until {
            let step = plan.draw();
            let pause = step.pause;
            let undisturbed = async {
                sleep(pause).await;
                Ok(())
            };
            self.talk_during(undisturbed).await?;
            let seat = &self.ends[step.side.index()].seat;
            let what = format!("{:?} at {} for {:?}", step.kind, seat.name, step.length);
            self.ground.timeline.note("clients", &what)?;
            self.disturb(&step).await.with_context(|| what.clone())?;
            self.ground.timeline.count("clients", &format!("{:?}", step.kind))?;
        }
        Ok(())
    }

    async fn disturb(&mut self, step: &Step<Disturbance>) -> Result<()> {
        let Attachment { name, control, .. } = self.ends[step.side.index()].seat.clone();
        let ground = self.ground;
        match step.kind {
            Disturbance::PortDown => self.talk_during(take_port_down(&control, step.length)).await,
            Disturbance::SwitchCapture => {
                self.talk_during(switch_capture(ground, &name, &control, step.length)).await
            }
            Disturbance::Reset | Disturbance::Leave => {
                self.strike(step).await?;
                self.connect().await?;
                self.round().await.context("the first round after the disturbances")
            }
        }
    }

    /// Runs `beside`, and exchanges messages until `beside` has completed, but for at least one round.
    pub(super) async fn talk_during(&mut self, beside: impl Future<Output = Result<()>>) -> Result<()> {
        let (over, seen) = watch::channel(false);
        let beside = async {
            beside.await?;
            over.send_replace(true);
            Ok(())
        };
        let talk = async {
            loop {
                self.round().await?;
                if *seen.borrow() {
                    return Ok(());
                }
            }
        };
        tokio::try_join!(beside, talk).map(drop)
    }

    /// Resets or disconnects the victim while the peer floods the victim's memory with WRITEs, which do not involve the
    /// victim's driver. The victim no longer responds afterwards, and the peer's requests must fail.
    async fn strike(&mut self, step: &Step<Disturbance>) -> Result<()> {
        let [a, b] = &mut self.ends;
        let (victim, survivor) = if step.side == Side::A { (a, b) } else { (b, a) };
        let flood = Flow::Send(SendFlow {
            qp: survivor.queues()?.0.id,
            op: SendOp::Write,
            count: u32::MAX,
            len: LONGEST,
            depth: 8,
            slots: 8,
            mr: survivor.mr()?.id,
            off: SENT,
            remote: Some(victim.mr()?.remote(RECEIVED)),
            verify: false,
            ..SendFlow::default()
        });
        let before = victim.seat.control.counter("/port/roce").await?;
        let strike = async {
            let deadline = Instant::now() + BEGIN_TIMEOUT;
            while victim.seat.control.counter("/port/roce").await? < before + UNDER_WAY {
                ensure!(Instant::now() < deadline, "no flood started within {BEGIN_TIMEOUT:?}");
            }
            match step.kind {
                Disturbance::Reset => victim.driver.step(STEP, ResetHca {}).await.map(drop)?,
                _ => {
                    victim.driver.step(STEP, CloseHca { abrupt: true }).await?;
                    victim.open().await?;
                }
            }
            (victim.mr, victim.queues) = (None, None);
            anyhow::Ok(())
        };
        let flood = survivor.driver.step(STEP, Traffic { flows: vec![flood], timeout_ms: ROUND_TIMEOUT_MS });
        let (flood, struck) = tokio::join!(flood, strike);
        struck?;
        let Err(error) = flood else {
            bail!("all {} messages of a flood arrived, expected an error", u32::MAX)
        };
        let expected = FailureKind::Completion { syndrome: syndrome::RETRY_EXCEEDED };
        let is_right = error.downcast_ref::<Failure>().is_some_and(|failure| failure.kind == expected);
        ensure!(is_right, "requests to a killed peer completed with a wrong status: {error:#}");
        Ok(())
    }

    async fn connect(&mut self) -> Result<()> {
        for end in &mut self.ends {
            end.create_queues().await?;
        }
        let [qpn_a, qpn_b] = [self.ends[0].queues()?.0.qpn, self.ends[1].queues()?.0.qpn];
        for (end, peer) in self.ends.iter_mut().zip([qpn_b, qpn_a]) {
            end.connect(peer).await?;
        }
        Ok(())
    }

    /// Exchanges messages in both directions, all with the same operation and length, and checks each message.
    async fn round(&mut self) -> Result<()> {
        let number = self.rounds;
        self.rounds += 1;
        let op = OPERATIONS[usize::try_from(number % 4)?];
        let chance = pattern::word(self.ground.seed ^ number, 0);
        let len = u32::try_from(chance % u64::from(LONGEST))? + 1;
        let seed = |side: Side| chance.rotate_left(32) ^ (side.index() as u64) << 40;
        let flows = |side: Side| self.flows(side, op, len, [seed(side), seed(side.other())]);
        let [flows_a, flows_b] = [flows(Side::A)?, flows(Side::B)?];
        let [a, b] = &mut self.ends;
        let run = |flows| Traffic { flows, timeout_ms: ROUND_TIMEOUT_MS };
        let talk = tokio::try_join!(a.driver.step(STEP, run(flows_a)), b.driver.step(STEP, run(flows_b)));
        talk.map(drop).with_context(|| format!("round {number} of clients, {op:?} of {len} bytes"))
    }

    fn flows(&self, side: Side, op: SendOp, len: u32, [own, others]: [u64; 2]) -> Result<Vec<Flow>> {
        let (end, peer) = (&self.ends[side.index()], &self.ends[side.other().index()]);
        let (qp, mr) = (end.queues()?.0.id, end.mr()?.id);
        let send = SendFlow {
            qp,
            op,
            count: COUNT,
            len,
            depth: COUNT / 2,
            mr,
            off: SENT,
            stride: STRIDE,
            slots: COUNT,
            remote_stride: STRIDE,
            imm: 7,
            seed: own,
            fresh: true,
            ..SendFlow::default()
        };
        if op == SendOp::Read {
            let remote = Some(peer.mr()?.remote(READ));
            let read = SendFlow { off: RECEIVED, remote, seed: peer.seed, fresh: false, ..send };
            return Ok(vec![Flow::Send(read)]);
        }
        let remote = (op == SendOp::WriteImm).then(|| peer.mr().map(|mr| mr.remote(RECEIVED))).transpose()?;
        let receive = ReceiveFlow {
            qp,
            op,
            count: COUNT,
            len,
            depth: COUNT / 2,
            mr,
            off: RECEIVED,
            stride: STRIDE,
            slots: COUNT,
            imm: 7,
            seed: others,
            fresh: true,
            ..ReceiveFlow::default()
        };
        Ok(vec![Flow::Send(SendFlow { remote, ..send }), Flow::Receive(receive)])
    }
}

impl End {
    async fn attach(seat: Attachment, seed: u64) -> Result<Self> {
        let mut end = Self { seat, driver: InProcess::default(), mr: None, queues: None, seed: seed << 32 };
        end.open().await?;
        Ok(end)
    }

    async fn open(&mut self) -> Result<()> {
        let device = DeviceSelector::Socket(self.seat.socket.display().to_string());
        let opened = self.driver.step(STEP, OpenHca { device, ..OpenHca::default() }).await;
        opened.map(drop).with_context(|| format!("cannot attach to {}", self.seat.socket.display()))
    }

    /// Replaces the queues for a new connection. Also registers memory if the client has not registered any.
    async fn create_queues(&mut self) -> Result<()> {
        if let Some((qp, cq)) = self.queues.take() {
            self.driver.step(STEP, DestroyQp { qp: qp.id }).await?;
            self.driver.step(STEP, DestroyCq { cq: cq.id }).await?;
        }
        if self.mr.is_none() {
            let mr = self.driver.step(STEP, CreateMr { len: REGION, ..CreateMr::default() }).await?;
            for slot in 0..u64::from(COUNT) {
                let (off, seed) = (READ + slot * STRIDE, self.seed + slot);
                self.driver.step(STEP, Fill { mr: mr.id, off, len: STRIDE, seed, position: 0 }).await?;
            }
            self.mr = Some(mr);
        }
        let cq = self.driver.step(STEP, CreateCq::default()).await?;
        let shape = CreateQp { send_cq: cq.id, recv_cq: cq.id, ..CreateQp::default() };
        self.queues = Some((self.driver.step(STEP, shape).await?, cq));
        Ok(())
    }

    async fn connect(&mut self, remote_qpn: u32) -> Result<()> {
        let qp = self.queues()?.0.id;
        for transition in [
            Transition::ToInit { pkey_index: 0, qkey: 0 },
            Transition::ToRtr { remote_qpn, mtu: 2048, psn: 0xff_fff0, rnr_timer: 14, path: Path::default() },
            Transition::ToRts { psn: 0xff_fff0, timeout: super::ACK_TIMEOUT, retry: 7, rnr_retry: 7 },
        ] {
            self.driver.step(STEP, ModifyQp { qp, transition }).await?;
        }
        Ok(())
    }

    fn queues(&self) -> Result<(QpInfo, CqInfo)> {
        self.queues.context("no queue pair")
    }

    fn mr(&self) -> Result<MrInfo> {
        self.mr.context("no memory")
    }
}
