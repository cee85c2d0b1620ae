//! An endpoint on a JingZhao HCA, driven by the agent in a guest or in this process.

use std::net::IpAddr;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent::serve::Agent;
use agent::wire::{
    Call, CqInfo, Cqe, CreateCq, CreateMr, CreateQp, Data, Datagram, DestroyCq, DestroyQp, DeviceSelector,
    Fill, ModifyQp, MrInfo, OpenHca, Path, Peek, Poll, PostRecv, PostSend, QpInfo, Remote, SendRequest,
    Service, Transition, Verify,
};
use anyhow::{Context, Result, ensure};

use super::super::pair::Node;
use super::{Completion, Endpoint, Link, Message, REGION, gid, number};

/// Timeout for messages of several megabytes in emulated guests.
const POLL_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout in an emulated guest for a step that does not wait for an event.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

pub(in super::super) trait Driver {
    /// Executes a step with a time limit.
    async fn step<C: Call>(&mut self, limit: Duration, step: C) -> Result<C::Answer>;
}

/// An agent in this process. With no guest, it also acts as the VMM.
#[derive(Debug, Default)]
pub(in super::super) struct InProcess(Arc<Mutex<Agent>>);

#[derive(Debug)]
pub(in super::super) struct Jingzhao<D> {
    ip: IpAddr,
    /// Destination of packets that do not specify one.
    default_peer: IpAddr,
    /// The guest with its daemon, or the agent in this process.
    pub(in super::super) driver: D,
    mr: MrInfo,
    queues: Option<(QpInfo, CqInfo)>,
    /// Destination of UD messages.
    link: Option<Link>,
}

impl Driver for Node {
    async fn step<C: Call>(&mut self, limit: Duration, step: C) -> Result<C::Answer> {
        self.vm.call_within(limit, step).await
    }
}

impl Driver for InProcess {
    async fn step<C: Call>(&mut self, _: Duration, step: C) -> Result<C::Answer> {
        let agent = self.0.clone();
        // Ignore the limit, since steps that wait have their own limits.
        let run = move || agent.lock().unwrap_or_else(PoisonError::into_inner).call(step);
        Ok(tokio::task::spawn_blocking(run).await.context("the agent panicked")??)
    }
}

impl Jingzhao<InProcess> {
    /// Initialises the HCA that a daemon serves at `socket`.
    pub(in super::super) async fn attach(
        socket: &FilePath,
        ip: IpAddr,
        default_peer: IpAddr,
    ) -> Result<Self> {
        let mut driver = InProcess::default();
        let device = DeviceSelector::Socket(socket.display().to_string());
        driver.step(STEP_TIMEOUT, OpenHca { device, ..OpenHca::default() }).await?;
        Self::new(driver, ip, default_peer).await
    }
}

impl<D: Driver> Jingzhao<D> {
    /// Creates an endpoint on an HCA that is already open.
    pub(in super::super) async fn new(mut driver: D, ip: IpAddr, default_peer: IpAddr) -> Result<Self> {
        // Give the region only the alignment that atomics require.
        let region = CreateMr { len: REGION, page_offset: 8, ..CreateMr::default() };
        let mr = driver.step(STEP_TIMEOUT, region).await?;
        Ok(Self { ip, default_peer, driver, mr, queues: None, link: None })
    }

    async fn call<C: Call>(&mut self, step: C) -> Result<C::Answer> {
        self.driver.step(STEP_TIMEOUT, step).await
    }

    fn queues(&self) -> Result<(QpInfo, CqInfo)> {
        self.queues.context("no QP was created")
    }

    async fn to(&mut self, transition: Transition) -> Result<()> {
        let qp = self.queues()?.0.id;
        self.call(ModifyQp { qp, transition }).await.map(drop)
    }
}

/// Returns the path to a peer in one of the forms that the JingZhao interface defines (section 10.7). The path MTU
/// selects the form, so that tests with different MTUs cover all forms.
fn path(link: &Link, default_peer: IpAddr) -> Path {
    let number = number(link.peer_ip);
    let [high, low] = number.to_be_bytes();
    let by_gid = Path { dgid: Some(gid(link.peer_ip)), ..Path::default() };
    let by_ip = match link.peer_ip {
        IpAddr::V4(ip) => Path { dip: Some(ip), ..Path::default() },
        IpAddr::V6(_) => by_gid,
    };
    match link.mtu {
        256 => by_ip,
        512 => Path { dmac: Some([2, 0, 0, 0, high, low]), ..by_ip },
        1024 => Path { dlid: Some(number), ..Path::default() },
        2048 => by_gid,
        _ if link.peer_ip == default_peer => Path::default(),
        _ => by_ip,
    }
}

/// Returns the path for datagrams to a peer. Datagram WQEs have no space for a GID, so an IPv6 peer is addressed by its
/// LID.
fn datagram_path(ip: IpAddr) -> Path {
    match ip {
        IpAddr::V4(ip) => Path { dip: Some(ip), ..Path::default() },
        IpAddr::V6(_) => Path { dlid: Some(number(ip)), ..Path::default() },
    }
}

impl<D: Driver> Endpoint for Jingzhao<D> {
    fn ip(&self) -> IpAddr {
        self.ip
    }

    fn remote(&self, off: u64) -> Remote {
        self.mr.remote(off)
    }

    async fn create(&mut self, service: Service) -> Result<u32> {
        if let Some((qp, cq)) = self.queues.take() {
            self.call(DestroyQp { qp: qp.id }).await?;
            self.call(DestroyCq { cq: cq.id }).await?;
        }
        let cq = self.call(CreateCq::default()).await?;
        let shape = CreateQp { send_cq: cq.id, recv_cq: cq.id, service, ..CreateQp::default() };
        let qp = self.call(shape).await?;
        self.queues = Some((qp, cq));
        Ok(qp.qpn)
    }

    async fn connect(&mut self, link: &Link) -> Result<()> {
        self.link = Some(*link);
        self.to(Transition::ToInit { pkey_index: 0, qkey: link.qkey }).await?;
        let rtr = Transition::ToRtr {
            remote_qpn: link.peer_qpn,
            mtu: link.mtu,
            psn: link.peer_psn,
            rnr_timer: super::RNR_TIMER,
            path: path(link, self.default_peer),
        };
        self.to(rtr).await?;
        let rts = Transition::ToRts {
            psn: link.psn,
            timeout: super::ACK_TIMEOUT,
            retry: super::RETRIES,
            rnr_retry: super::RETRIES,
        };
        self.to(rts).await
    }

    async fn fill(&mut self, off: u64, len: u64, seed: u64) -> Result<()> {
        self.call(Fill { mr: self.mr.id, off, len, seed, position: 0 }).await.map(drop)
    }

    async fn verify(&mut self, off: u64, len: u64, seed: u64, position: u64) -> Result<()> {
        let verified = self.call(Verify { mr: self.mr.id, off, len, seed, position }).await?;
        super::expect_same("hcad", off, len, verified)
    }

    async fn peek(&mut self, off: u64, len: u32) -> Result<Vec<u8>> {
        Ok(self.call(Peek { mr: self.mr.id, off, len }).await?.0)
    }

    async fn post_recv(&mut self, places: &[(u64, u32)]) -> Result<()> {
        let requests = places.iter().map(|&(off, len)| vec![self.mr.sge(off, len)]).collect();
        self.call(PostRecv { qp: self.queues()?.0.id, requests }).await.map(drop)
    }

    async fn post_send(&mut self, messages: &[Message]) -> Result<()> {
        let link = self.link.context("the QP is not connected")?;
        let request = |message: &Message| SendRequest {
            op: message.op,
            data: Data::Sges(vec![self.mr.sge(message.off, message.len)]),
            remote: message.remote,
            imm: message.imm,
            datagram: message.datagram.then(|| Datagram {
                qpn: link.peer_qpn,
                qkey: link.qkey,
                path: datagram_path(link.peer_ip),
            }),
            ..SendRequest::default()
        };
        let requests = messages.iter().map(request).collect();
        let step = PostSend { qp: self.queues()?.0.id, requests, ..PostSend::default() };
        self.call(step).await.map(drop)
    }

    async fn poll(&mut self, count: u32) -> Result<Vec<Completion>> {
        let timeout_ms = u32::try_from(POLL_TIMEOUT.as_millis())?;
        let step = Poll { cq: self.queues()?.1.id, count, timeout_ms };
        let found = self.driver.step(POLL_TIMEOUT * 2, step).await?.cqes;
        ensure!(found.len() == count as usize, "hcad reported {} of {count} completions", found.len());
        let bad = found.iter().find(|cqe| cqe.syndrome.is_some());
        ensure!(bad.is_none(), "hcad completed requests with {bad:?}");
        // A receive CQE contains the last packet's transport opcode (JingZhao interface, J-39). The values below are
        // SEND LAST, SEND ONLY, WRITE LAST and WRITE ONLY, all with immediate data.
        let has_imm = |cqe: &Cqe| !cqe.is_send && [0x03, 0x05, 0x09, 0x0b].contains(&(cqe.opcode & 0x1f));
        let completion = |cqe: &Cqe| Completion {
            received: !cqe.is_send,
            bytes: cqe.byte_count,
            imm: has_imm(cqe).then_some(cqe.imm),
        };
        Ok(found.iter().map(completion).collect())
    }
}
