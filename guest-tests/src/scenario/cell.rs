//! One cell of a test matrix. It transfers a message of a given size between two endpoints, using a given operation,
//! and checks every byte.

use std::net::IpAddr;

use agent::pattern;
use agent::wire::{Remote, SendOp, Service};
use anyhow::{Context, Result, ensure};

use super::endpoint::{Completion, Endpoint, GRH, Message};

#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) service: Service,
    pub(super) operation: Operation,
    pub(super) len: u32,
    /// Seed for the data. It differs between the cells of a run, which reveals stale data from an earlier cell.
    pub(super) seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Send,
    SendImm,
    Write,
    WriteImm,
    Read,
    /// An atomic compare-and-swap whose compare value matches.
    Swap,
    /// An atomic compare-and-swap whose compare value does not match.
    NoSwap,
    FetchAdd,
}

/// Unaligned offsets of messages in the requester's and responder's memory.
const REQUESTER_OFF: u64 = 3 * 4096 + 1501;
const RESPONDER_OFF: u64 = 2 * 4096 + 777;
/// Size of an atomic operand.
const ATOMIC: u32 = 8;
/// Aligned offset of the operand in the responder's memory.
const ATOMIC_OFF: u64 = 4096;
/// Number of guard bytes before and after a message. Guard bytes must stay unchanged.
const GUARD: u64 = 64;
const GUARD_SEED: u64 = 0x6775_6172_6400;
/// Immediate data without zero bytes.
const IMM: [u8; 4] = [0x81, 0x42, 0xc3, 0xe1];

impl Operation {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Send => "SEND",
            Self::SendImm => "SEND_IMM",
            Self::Write => "WRITE",
            Self::WriteImm => "WRITE_IMM",
            Self::Read => "READ",
            Self::Swap => "CMP_SWAP equal",
            Self::NoSwap => "CMP_SWAP other",
            Self::FetchAdd => "FETCH_ADD",
        }
    }

    pub(super) const fn is_atomic(self) -> bool {
        matches!(self, Self::Swap | Self::NoSwap | Self::FetchAdd)
    }

    const fn takes_receive(self) -> bool {
        matches!(self, Self::Send | Self::SendImm | Self::WriteImm)
    }

    const fn has_imm(self) -> bool {
        matches!(self, Self::SendImm | Self::WriteImm)
    }
}

impl Cell {
    /// Transfers the message and checks memory and completions at both ends.
    pub(super) async fn run<A: Endpoint, B: Endpoint>(
        &self,
        requester: &mut A,
        responder: &mut B,
    ) -> Result<()> {
        match self.operation {
            operation if operation.is_atomic() => self.atomic(requester, responder).await,
            Operation::Read => {
                responder.fill(RESPONDER_OFF, self.len.into(), self.seed).await?;
                guard(requester, REQUESTER_OFF, self.len.into()).await?;
                self.request(requester, responder).await?;
                self.arrived(requester, REQUESTER_OFF, self.len.into()).await?;
                responder.verify(RESPONDER_OFF, self.len.into(), self.seed, 0).await
            }
            _ => {
                let (grh, len) = (self.grh(), u64::from(self.len));
                requester.fill(REQUESTER_OFF, len, self.seed).await?;
                guard(responder, RESPONDER_OFF, grh + len).await?;
                self.request(requester, responder).await?;
                if grh > 0 {
                    if responder.writes_ip_header() {
                        let area = responder.peek(RESPONDER_OFF, u32::try_from(grh)?).await?;
                        check_grh(&area, requester, responder)?;
                    } else {
                        responder.verify(RESPONDER_OFF, grh, GUARD_SEED, GUARD).await?;
                    }
                    responder.verify(RESPONDER_OFF - GUARD, GUARD, GUARD_SEED, 0).await?;
                    responder.verify(RESPONDER_OFF + grh, len, self.seed, 0).await?;
                    responder.verify(RESPONDER_OFF + grh + len, GUARD, GUARD_SEED, GUARD + grh + len).await?;
                } else {
                    self.arrived(responder, RESPONDER_OFF, len).await?;
                }
                requester.verify(REQUESTER_OFF, len, self.seed, 0).await
            }
        }
    }

    /// Posts all requests and checks that exactly the expected completions arrive.
    async fn request<A: Endpoint, B: Endpoint>(&self, requester: &mut A, responder: &mut B) -> Result<()> {
        let mut messages = vec![self.message(responder)];
        let mut receives = Vec::new();
        let mut expected = Vec::new();
        if self.operation.takes_receive() {
            let grh = u32::try_from(self.grh())?;
            // A WRITE with immediate consumes a receive request but does not use its buffer.
            let place = if self.operation == Operation::WriteImm { 0 } else { self.len + grh };
            receives.push((RESPONDER_OFF, place));
            let imm = self.operation.has_imm().then_some(IMM);
            expected.push(Completion { received: true, bytes: self.len + grh, imm });
        } else if self.service == Service::Uc {
            // On UC, the arrival of a WRITE can be observed only through a later message.
            messages.push(Message { op: SendOp::Send, len: 0, remote: None, ..messages[0] });
            receives.push((RESPONDER_OFF, 0));
            expected.push(Completion { received: true, bytes: 0, imm: None });
        }
        if !receives.is_empty() {
            responder.post_recv(&receives).await?;
        }
        requester.post_send(&messages).await?;
        let sent = requester.poll(u32::try_from(messages.len())?).await.context("requester")?;
        ensure!(
            sent.iter().all(|completion| !completion.received),
            "the requester reports unexpected receives: {sent:?}"
        );
        let received = responder.poll(u32::try_from(expected.len())?).await.context("responder")?;
        ensure!(received == expected, "the responder reports {received:?}, expected {expected:?}");
        Ok(())
    }

    fn message(&self, responder: &impl Endpoint) -> Message {
        let value = |index: u64| pattern::word(self.seed + index, 0);
        let op = match self.operation {
            Operation::Send => SendOp::Send,
            Operation::SendImm => SendOp::SendImm,
            Operation::Write => SendOp::Write,
            Operation::WriteImm => SendOp::WriteImm,
            Operation::Read => SendOp::Read,
            Operation::Swap => SendOp::CmpSwap { compare: value(0), swap: value(1) },
            Operation::NoSwap => SendOp::CmpSwap { compare: value(0) ^ 1 << 63, swap: value(1) },
            Operation::FetchAdd => SendOp::FetchAdd { add: value(1).wrapping_sub(value(0)) },
        };
        let (off, len) =
            if self.operation.is_atomic() { (ATOMIC_OFF, ATOMIC) } else { (RESPONDER_OFF, self.len) };
        let needs_remote = !matches!(self.operation, Operation::Send | Operation::SendImm);
        let remote = needs_remote.then(|| match responder.remote(off) {
            // Any key is valid for an empty request (IBTA C9-88). Use key 0, since soft-RoCE stores key 0 for an empty
            // READ and ignores a retransmission with a different key.
            Remote { va, .. } if len == 0 => Remote { va, rkey: 0 },
            remote => remote,
        });
        Message { op, off: REQUESTER_OFF, len, remote, imm: IMM, datagram: self.service == Service::Ud }
    }

    /// Executes an atomic operation and checks it. The operand initially contains the pattern of this cell's seed, and
    /// an operation that changes it must leave the pattern of the next seed.
    async fn atomic<A: Endpoint, B: Endpoint>(&self, requester: &mut A, responder: &mut B) -> Result<()> {
        let len = u64::from(ATOMIC);
        guard(responder, ATOMIC_OFF, len).await?;
        responder.fill(ATOMIC_OFF, len, self.seed).await?;
        guard(requester, REQUESTER_OFF, len).await?;
        self.request(requester, responder).await?;
        self.arrived(requester, REQUESTER_OFF, len).await?;
        let after = self.seed + u64::from(self.operation != Operation::NoSwap);
        Cell { seed: after, ..*self }.arrived(responder, ATOMIC_OFF, len).await
    }

    /// Checks that a guarded buffer contains the message and that the bytes around it are unchanged.
    async fn arrived(&self, at: &mut impl Endpoint, off: u64, len: u64) -> Result<()> {
        at.verify(off - GUARD, GUARD, GUARD_SEED, 0)
            .await
            .context("comparing the bytes before the message")?;
        at.verify(off, len, self.seed, 0).await.context("comparing the message")?;
        at.verify(off + len, GUARD, GUARD_SEED, GUARD + len)
            .await
            .context("comparing the bytes after the message")
    }

    fn grh(&self) -> u64 {
        if self.service == Service::Ud { GRH } else { 0 }
    }
}

/// Prepares a guarded buffer to receive a message.
async fn guard(at: &mut impl Endpoint, off: u64, len: u64) -> Result<()> {
    at.fill(off - GUARD, len + 2 * GUARD, GUARD_SEED).await
}

/// Checks the 40-byte GRH area. An IPv6 header fills the area; an IPv4 header is in the last 20 bytes (IBTA annex A17,
/// section A17.4.5.1).
fn check_grh(area: &[u8], requester: &impl Endpoint, responder: &impl Endpoint) -> Result<()> {
    const UDP: u8 = 17;
    ensure!(area.len() == 40, "the GRH area has {} bytes, expected 40", area.len());
    let is_right = match (requester.ip(), responder.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            area[20] == 0x45
                && area[29] == UDP
                && area[32..36] == from.octets()
                && area[36..40] == to.octets()
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            area[0] >> 4 == 6 && area[6] == UDP && area[8..24] == from.octets() && area[24..40] == to.octets()
        }
        _ => false,
    };
    ensure!(is_right, "the GRH area contains {area:02x?}");
    Ok(())
}
