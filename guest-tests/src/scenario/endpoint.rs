//! RDMA endpoints on one fabric. They implement the same trait regardless of their drivers, which lets scenarios
//! connect any two of them.

pub(super) mod jingzhao;
pub(super) mod stock;

use std::net::IpAddr;

use agent::wire::Verified;
use agent::wire::{Remote, SendOp, Service};
use anyhow::{Result, ensure};

/// Length of the GRH area that precedes a received datagram.
pub(super) const GRH: u64 = 40;
/// Size of an endpoint's region. It has room for a test matrix's longest message and the guard bytes.
pub(super) const REGION: u64 = (8 << 20) + (1 << 16);

/// ACK timeout code for 67 ms, which is close to rxe's timer resolution.
const ACK_TIMEOUT: u8 = 14;
/// Retry limit for timeouts and for RNR NAKs. For RNR NAKs, 7 means unlimited.
const RETRIES: u8 = 7;
/// RNR timer code for 1.28 ms.
const RNR_TIMER: u8 = 14;

/// Parameters of the connection between two endpoints, as seen from one of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    pub(super) peer_qpn: u32,
    pub(super) peer_ip: IpAddr,
    /// Path MTU in bytes.
    pub(super) mtu: u16,
    /// PSN of the first packet that this endpoint sends.
    pub(super) psn: u32,
    /// PSN of the first packet that this endpoint expects.
    pub(super) peer_psn: u32,
    pub(super) qkey: u32,
}

/// A work request for the send queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Message {
    pub(super) op: SendOp,
    /// Offset in the local region.
    pub(super) off: u64,
    pub(super) len: u32,
    /// Address in the peer's region, for all operations except SEND.
    pub(super) remote: Option<Remote>,
    /// Immediate data in network byte order.
    pub(super) imm: [u8; 4],
    /// Whether the message carries its own destination, as a datagram does.
    pub(super) datagram: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Completion {
    /// Whether the completion belongs to a receive.
    pub(super) received: bool,
    /// Number of bytes received, including the GRH area.
    pub(super) bytes: u32,
    pub(super) imm: Option<[u8; 4]>,
}

/// An RDMA endpoint with one region of [`REGION`] bytes and one queue pair at a time.
pub(super) trait Endpoint {
    /// Returns the endpoint's address on the fabric. Packets use its IP version.
    fn ip(&self) -> IpAddr;

    /// Returns whether the device writes a datagram's IP header into the GRH area, as RoCE devices do. InfiniBand
    /// devices fill the area only if a GRH arrived.
    fn writes_ip_header(&self) -> bool {
        true
    }

    /// Returns the remote address of an offset in the endpoint's region, for use by the peer.
    fn remote(&self, off: u64) -> Remote;

    /// Replaces the queue pair with a new one in RESET and returns its number.
    async fn create(&mut self, service: Service) -> Result<u32>;

    /// Moves the queue pair to RTS.
    async fn connect(&mut self, link: &Link) -> Result<()>;

    /// Fills part of the region with the pattern generated from `seed`.
    async fn fill(&mut self, off: u64, len: u64, seed: u64) -> Result<()>;

    /// Fails unless part of the region contains the pattern generated from `seed`, starting with byte `position` of the
    /// pattern.
    async fn verify(&mut self, off: u64, len: u64, seed: u64, position: u64) -> Result<()>;

    /// Reads a few bytes from the region.
    async fn peek(&mut self, off: u64, len: u32) -> Result<Vec<u8>>;

    /// Posts receives with the given offsets and lengths.
    async fn post_recv(&mut self, places: &[(u64, u32)]) -> Result<()>;

    /// Posts requests in order.
    async fn post_send(&mut self, messages: &[Message]) -> Result<()>;

    /// Returns exactly `count` completions, all of which must be successful.
    async fn poll(&mut self, count: u32) -> Result<Vec<Completion>>;
}

/// Creates a queue pair on each of two endpoints and connects them. In one direction, PSNs wrap during the first
/// messages.
pub(super) async fn connect<A: Endpoint, B: Endpoint>(
    a: &mut A,
    b: &mut B,
    service: Service,
    mtu: u16,
) -> Result<[u32; 2]> {
    let (a_qpn, b_qpn) = tokio::try_join!(a.create(service), b.create(service))?;
    let (a_psn, b_psn) = (0xff_fff8, 0x12_3456 + u32::from(mtu));
    let qkey = 0x1234_5678;
    let to_b = Link { peer_qpn: b_qpn, peer_ip: b.ip(), mtu, psn: a_psn, peer_psn: b_psn, qkey };
    let to_a = Link { peer_qpn: a_qpn, peer_ip: a.ip(), mtu, psn: b_psn, peer_psn: a_psn, qkey };
    tokio::try_join!(a.connect(&to_b), b.connect(&to_a))?;
    Ok([a_qpn, b_qpn])
}

/// Returns the last two bytes of an address as a number.
fn number(ip: IpAddr) -> u16 {
    let [high, low] = match ip {
        IpAddr::V4(ip) => [ip.octets()[2], ip.octets()[3]],
        IpAddr::V6(ip) => [ip.octets()[14], ip.octets()[15]],
    };
    u16::from_be_bytes([high, low])
}

/// Returns the GID derived from an address.
fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

pub(super) fn expect_same(name: &str, off: u64, len: u64, verified: Verified) -> Result<()> {
    let first = verified.first_difference;
    ensure!(
        first.is_none(),
        "the {len} bytes at offset {off:#x} in the region of {name} differ at byte {}",
        first.unwrap_or_default()
    );
    Ok(())
}
