//! One of the HCA's queue pairs, connected to a queue pair that the scapy peer simulates.

use agent::pattern;
use agent::wire::{
    Access, CqInfo, Cqe, CreateCq, CreateMr, CreateQp, Data, DestroyCq, DestroyMr, DestroyQp, Hex, ModifyQp,
    MrInfo, Path, Peek, Poke, Poll, PostRecv, PostSend, QpInfo, QueryQp, Remote, SendOp, SendRequest,
    Transition,
};
use anyhow::{Context as _, Result, ensure};

use super::Bench;
use crate::packet_peer::{Aeth, Op, Packet, Reth};

const PEER_QPN: u32 = 0x00_0abc;
/// First PSN that the peer sends. The peer's third packet has PSN 0.
const PEER_PSN: u32 = 0xff_fffe;
/// First PSN that the HCA sends.
const OWN_PSN: u32 = 0xff_ffff;
/// Size of the HCA's memory region in bytes.
const REGION: u64 = 65536;
/// Timeout for completions that should arrive immediately.
const DUE_MS: u32 = 10_000;

/// AETH syndromes (IBTA, AETH syndrome field).
pub(super) mod syndrome {
    pub(in super::super) const NAK_SEQUENCE: u8 = 0x60;
    pub(in super::super) const NAK_INVALID_REQUEST: u8 = 0x61;
    pub(in super::super) const NAK_REMOTE_ACCESS: u8 = 0x62;
    pub(in super::super) const NAK_REMOTE_OPERATIONAL: u8 = 0x63;
    pub(in super::super) const NAK_INVALID_RD: u8 = 0x64;
    pub(in super::super) const RNR: u8 = 0x20;
    /// An ACK that carries no credit count.
    pub(in super::super) const ACK: u8 = 0x1f;
}

/// QP state codes (JingZhao interface, section 10.1).
pub(super) mod state {
    pub(in super::super) const INIT: u8 = 1;
    pub(in super::super) const RTR: u8 = 2;
    pub(in super::super) const RTS: u8 = 3;
    pub(in super::super) const ERR: u8 = 6;
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes {
    /// Path MTU in bytes.
    pub(super) mtu: u16,
    pub(super) timeout: u8,
    pub(super) retry: u8,
    /// Number of retries after RNR NAKs.
    pub(super) rnr_retry: u8,
    /// Timer code in the RNR NAKs that the HCA sends.
    pub(super) rnr_timer: u8,
}

impl Attributes {
    /// Default attributes. The timeout is 537 ms, which exceeds the delays on a busy host. RNR NAKs request a wait of
    /// 40.96 ms.
    pub(super) const DEFAULT: Self = Self { mtu: 256, timeout: 17, retry: 7, rnr_retry: 7, rnr_timer: 24 };
}

#[derive(Debug)]
pub(super) struct Link<'a> {
    bench: &'a mut Bench,
    pub(super) qp: QpInfo,
    pub(super) cq: CqInfo,
    /// The HCA's memory region. It has [`REGION`] bytes and all access rights, and is filled with [`content`].
    pub(super) mr: MrInfo,
    pub(super) mtu: usize,
}

/// Returns part of the initial content of a link's region.
pub(super) fn content(offset: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; offset + len];
    pattern::fill(7, 0, &mut bytes);
    bytes.split_off(offset)
}

/// Returns a payload for the peer's messages.
pub(super) fn message(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pattern::fill(99, 0, &mut bytes);
    bytes
}

const INIT: Transition = Transition::ToInit { pkey_index: 0, qkey: 0 };

fn rtr(attributes: &Attributes) -> Transition {
    Transition::ToRtr {
        remote_qpn: PEER_QPN,
        mtu: attributes.mtu,
        psn: PEER_PSN,
        rnr_timer: attributes.rnr_timer,
        path: Path::default(),
    }
}

impl<'a> Link<'a> {
    /// Runs a case on a new connection, then destroys the connection.
    pub(super) fn with(
        bench: &'a mut Bench,
        attributes: &Attributes,
        case: fn(&mut Link<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut link = Self::connect(bench, attributes)?;
        let outcome = case(&mut link);
        let closed = link.close();
        outcome.and(closed)
    }

    fn connect(bench: &'a mut Bench, attributes: &Attributes) -> Result<Self> {
        let agent = &mut bench.agent;
        let mr = agent.call(CreateMr { len: REGION, ..CreateMr::default() })?;
        let bytes = Hex(content(0, usize::try_from(REGION)?));
        agent.call(Poke { mr: mr.id, off: 0, bytes })?;
        let cq = agent.call(CreateCq::default())?;
        let qp = agent.call(CreateQp { send_cq: cq.id, recv_cq: cq.id, ..CreateQp::default() })?;
        let mut link = Self { bench, qp, cq, mr, mtu: attributes.mtu.into() };
        link.bring_to_rts(attributes)?;
        // Discard packets left over from the previous case.
        link.bench.peer.rest()?;
        Ok(link)
    }

    fn bring_to_rts(&mut self, attributes: &Attributes) -> Result<()> {
        for transition in [
            INIT,
            rtr(attributes),
            Transition::ToRts {
                psn: OWN_PSN,
                timeout: attributes.timeout,
                retry: attributes.retry,
                rnr_retry: attributes.rnr_retry,
            },
        ] {
            self.modify(transition)?;
        }
        Ok(())
    }

    pub(super) fn modify(&mut self, transition: Transition) -> Result<()> {
        Ok(self.bench.agent.call(ModifyQp { qp: self.qp.id, transition }).map(drop)?)
    }

    /// Moves the queue pair through RESET to INIT.
    pub(super) fn back_to_init(&mut self) -> Result<()> {
        self.modify(Transition::ToReset)?;
        self.modify(INIT)
    }

    pub(super) fn ready_to_receive(&mut self) -> Result<()> {
        self.modify(rtr(&Attributes::DEFAULT))
    }

    /// Moves the queue pair through RESET to RTS with the same initial PSNs.
    pub(super) fn reconnect(&mut self) -> Result<()> {
        self.modify(Transition::ToReset)?;
        self.bring_to_rts(&Attributes::DEFAULT)
    }

    /// Replaces the region with one that has the same content but no remote access rights.
    pub(super) fn forbid_remote_access(&mut self) -> Result<()> {
        self.destroy_region()?;
        let access = Access { local_write: true, ..Access::default() };
        self.mr = self.bench.agent.call(CreateMr { len: REGION, access, ..CreateMr::default() })?;
        self.store(0, &content(0, usize::try_from(REGION)?))
    }

    fn close(self) -> Result<()> {
        let agent = &mut self.bench.agent;
        agent.call(DestroyQp { qp: self.qp.id })?;
        agent.call(DestroyCq { cq: self.cq.id })?;
        // A case may have destroyed the region already.
        let _ = agent.call(DestroyMr { mr: self.mr.id });
        Ok(())
    }

    /// Returns the PSN of the peer's packet `n`, counting from 0.
    pub(super) fn peer_psn(n: u32) -> u32 {
        (PEER_PSN + n) & 0xff_ffff
    }

    /// Returns the PSN of the HCA's packet `n`, counting from 0.
    pub(super) fn own_psn(n: u32) -> u32 {
        (OWN_PSN + n) & 0xff_ffff
    }

    /// Returns the peer's packet `n`.
    pub(super) fn packet(&self, op: impl Into<Op>, n: u32, payload: &[u8]) -> Packet {
        let (op, payload) = (op.into(), Hex(payload.to_vec()));
        Packet { op, qpn: self.qp.qpn, psn: Self::peer_psn(n), payload, ..Packet::default() }
    }

    /// Returns the packets of a SEND, starting with the peer's packet `n`. The last packet has AckReq set.
    pub(super) fn send_message(&self, n: u32, payload: &[u8]) -> Vec<Packet> {
        let chunks: Vec<_> = payload.chunks(self.mtu).collect();
        let last = chunks.len().saturating_sub(1);
        let names = |i| match (i, i == last) {
            (0, true) => "RC_SEND_ONLY",
            (0, false) => "RC_SEND_FIRST",
            (_, false) => "RC_SEND_MIDDLE",
            (_, true) => "RC_SEND_LAST",
        };
        let packet = |(i, chunk): (usize, &&[u8])| {
            let psn = Self::peer_psn(n + u32::try_from(i).unwrap_or(u32::MAX));
            Packet { psn, ack_req: i == last, ..self.packet(names(i), n, chunk) }
        };
        chunks.iter().enumerate().map(packet).collect()
    }

    pub(super) fn read_request(&self, n: u32, reth: Reth) -> Packet {
        Packet { reth: Some(reth), ack_req: true, ..self.packet("RC_RDMA_READ_REQUEST", n, &[]) }
    }

    /// Returns the peer's acknowledgement of the HCA's packet `n`.
    pub(super) fn ack(&self, n: u32, syndrome: u8, msn: u32) -> Packet {
        let aeth = Some(Aeth { syndrome, msn });
        Packet { psn: Self::own_psn(n), aeth, ..self.packet("RC_ACKNOWLEDGE", 0, &[]) }
    }

    /// Returns a response from the peer with the PSN of the HCA's packet `n`.
    pub(super) fn response(&self, op: &str, n: u32, payload: &[u8]) -> Packet {
        let aeth = (!op.ends_with("MIDDLE")).then_some(Aeth { syndrome: syndrome::ACK, msn: 1 });
        Packet { psn: Self::own_psn(n), aeth, ..self.packet(op, 0, payload) }
    }

    /// Returns a RETH for `len` bytes of the region, starting at byte `off`.
    pub(super) fn reth(&self, off: u64, len: u32) -> Reth {
        let Remote { va, rkey } = self.mr.remote(off);
        Reth { va, rkey, len }
    }

    pub(super) fn send(&mut self, packet: &Packet) -> Result<()> {
        self.bench.peer.send(packet)
    }

    pub(super) fn send_all(&mut self, packets: &[Packet]) -> Result<()> {
        packets.iter().try_for_each(|packet| self.send(packet))
    }

    /// Returns the next packet, which must be addressed to the peer's queue pair.
    pub(super) fn next(&mut self) -> Result<Packet> {
        let packet = self.bench.peer.receive()?;
        ensure!(
            packet.qpn == PEER_QPN && packet.mig_req && packet.pkey == 0xffff,
            "wrong addresses: {packet:?}"
        );
        Ok(packet)
    }

    /// Expects a packet with opcode `op` and the PSN of the HCA's packet `n`.
    pub(super) fn expect(&mut self, op: &str, n: u32) -> Result<Packet> {
        let packet = self.next()?;
        let expected = Self::own_psn(n);
        ensure!(
            packet.is(op) && packet.psn == expected,
            "expected {op} with PSN {expected:#x}, received {packet:?}"
        );
        Ok(packet)
    }

    /// Expects an acknowledgement with the given syndrome for the peer's packet `n`. The credit count of an ACK is
    /// ignored.
    pub(super) fn expect_acknowledge(&mut self, n: u32, syndrome: u8, msn: u32) -> Result<()> {
        let packet = self.next()?;
        let aeth = packet.aeth.context("no AETH")?;
        let is_ack = syndrome == syndrome::ACK;
        let same = if is_ack { aeth.syndrome & 0xe0 == 0 } else { aeth.syndrome == syndrome };
        ensure!(
            packet.is("RC_ACKNOWLEDGE") && packet.psn == Self::peer_psn(n) && same && aeth.msn == msn,
            "expected an acknowledgement of {:#x} with syndrome {syndrome:#x} and MSN {msn}, received {packet:?}",
            Self::peer_psn(n),
        );
        Ok(())
    }

    /// Returns one of hcad's counters, given its path in `hcactl counters`.
    pub(super) fn counter(&mut self, path: &str) -> Result<u64> {
        let Bench { control, runtime, .. } = &*self.bench;
        runtime.block_on(control.counter(path))
    }

    /// Checks that the HCA drops `packets` without responding and counts each of them in the counter `path`.
    pub(super) fn expect_drops(&mut self, path: &str, packets: &[Packet]) -> Result<()> {
        let before = self.counter(path)?;
        self.send_all(packets)?;
        self.expect_silence()?;
        self.expect_no_completion()?;
        let dropped = self.counter(path)? - before;
        ensure!(dropped == packets.len() as u64, "{path} counts {dropped} of {} packets", packets.len());
        Ok(())
    }

    /// Checks that the HCA does not send anything else.
    pub(super) fn expect_silence(&mut self) -> Result<()> {
        let packets = self.bench.peer.rest()?;
        ensure!(packets.is_empty(), "expected no packet: {packets:?}");
        Ok(())
    }

    /// Returns all packets that arrive until the HCA stops sending.
    pub(super) fn rest(&mut self) -> Result<Vec<Packet>> {
        self.bench.peer.rest()
    }

    /// Posts a receive request for bytes `off..off + len` of the region.
    pub(super) fn post_receive(&mut self, off: u64, len: u32) -> Result<()> {
        let requests = vec![vec![self.mr.sge(off, len)]];
        Ok(self.bench.agent.call(PostRecv { qp: self.qp.id, requests }).map(drop)?)
    }

    pub(super) fn post(&mut self, requests: Vec<SendRequest>) -> Result<()> {
        Ok(self.bench.agent.call(PostSend { qp: self.qp.id, requests, ..PostSend::default() }).map(drop)?)
    }

    /// Returns a work request for bytes `off..off + len` of the region. The remote address is 0x1000, and the remote
    /// key is 0x77.
    pub(super) fn request(&self, op: SendOp, off: u64, len: u32) -> SendRequest {
        let remote = (op != SendOp::Send).then_some(Remote { va: 0x1000, rkey: 0x77 });
        SendRequest { op, data: Data::Sges(vec![self.mr.sge(off, len)]), remote, ..SendRequest::default() }
    }

    /// Returns the next completion, or an error if none arrives in time.
    pub(super) fn completion(&mut self) -> Result<Cqe> {
        let poll = Poll { cq: self.cq.id, count: 1, timeout_ms: DUE_MS };
        let cqes = self.bench.agent.call(poll)?.cqes;
        cqes.into_iter().next().context("no completion")
    }

    pub(super) fn expect_success(&mut self) -> Result<Cqe> {
        let cqe = self.completion()?;
        ensure!(cqe.syndrome.is_none(), "expected success: {cqe:?}");
        Ok(cqe)
    }

    /// Expects a completion with the given syndrome. The queue pair must then be in ERR.
    pub(super) fn expect_error(&mut self, syndrome: u8) -> Result<()> {
        let cqe = self.completion()?;
        ensure!(cqe.syndrome == Some(syndrome), "expected syndrome {syndrome:#x}: {cqe:?}");
        self.expect_state(state::ERR)
    }

    pub(super) fn expect_no_completion(&mut self) -> Result<()> {
        let cqes = self.bench.agent.call(Poll { cq: self.cq.id, count: 1, timeout_ms: 0 })?.cqes;
        ensure!(cqes.is_empty(), "completed: {cqes:?}");
        Ok(())
    }

    pub(super) fn expect_state(&mut self, expected: u8) -> Result<()> {
        let state = self.bench.agent.call(QueryQp { qp: self.qp.id })?.state;
        ensure!(state == expected, "the QP is in state {state}, expected {expected}");
        Ok(())
    }

    /// Returns `len` bytes of the region, starting at `off`.
    pub(super) fn memory(&mut self, off: u64, len: usize) -> Result<Vec<u8>> {
        let len = u32::try_from(len)?;
        Ok(self.bench.agent.call(Peek { mr: self.mr.id, off, len })?.0)
    }

    pub(super) fn store(&mut self, off: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.bench.agent.call(Poke { mr: self.mr.id, off, bytes: Hex(bytes.to_vec()) }).map(drop)?)
    }

    pub(super) fn expect_memory(&mut self, off: u64, expected: &[u8]) -> Result<()> {
        let memory = self.memory(off, expected.len())?;
        let difference = memory.iter().zip(expected).position(|(a, b)| a != b);
        ensure!(difference.is_none(), "memory differs starting at byte {difference:?}");
        Ok(())
    }

    /// Destroys the region, which invalidates its keys.
    pub(super) fn destroy_region(&mut self) -> Result<()> {
        Ok(self.bench.agent.call(DestroyMr { mr: self.mr.id }).map(drop)?)
    }

    /// Checks that the HCA receives a SEND of three packets, starting with the peer's packet `n`.
    pub(super) fn expect_receives(&mut self, n: u32, msn: u32) -> Result<()> {
        let payload = message(3 * self.mtu);
        self.post_receive(4096, 4096)?;
        let packets = self.send_message(n, &payload);
        self.send_all(&packets)?;
        self.expect_acknowledge(n + 2, syndrome::ACK, msn)?;
        let cqe = self.expect_success()?;
        ensure!(cqe.byte_count as usize == payload.len(), "{} bytes received", cqe.byte_count);
        self.expect_memory(4096, &payload)
    }
}
