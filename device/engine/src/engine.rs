//! The engine: QPs by number, who is next to transmit, whose deadline is next.

use protocol::ids::{MacAddr, Qpn};
use protocol::roce::{Packet, Shell};

use crate::{Event, Host, Instant, Modify, QpAttrs, QpSnapshot};

/// What an engine is told at its creation.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Low bits of a QP number that index the table; higher bits are kept but not looked at. At most 24.
    pub qp_index_bits: u8,
    /// Packets a QP may have unacknowledged.
    pub window_packets: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { qp_index_bits: 16, window_packets: 128 }
    }
}

/// One frame handed out by [`Engine::poll_transmit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Bytes appended to the caller's buffer.
    pub len: usize,
    /// Ethernet destination, as in the frame.
    pub dst_mac: MacAddr,
    /// Local QP.
    pub qpn: Qpn,
    /// Work request the packet belongs to, if it is a request.
    pub wr_id: Option<u64>,
}

/// Why a QP could not be created or modified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpError {
    /// No such QP.
    Unknown,
    /// The table already has a QP at this index.
    Exists,
}

/// Transport state machines of one HCA.
pub struct Engine {
    config: Config,
}

impl Engine {
    /// An engine without QPs.
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Forgets all QPs, queued events and deadlines, silently, and takes a new configuration (INIT_HCA, reset).
    pub fn reset(&mut self, config: Config) {
        *self = Self::new(config);
    }

    /// Creates a QP in RESET state.
    ///
    /// # Errors
    /// [`QpError::Exists`].
    pub fn create_qp(&mut self, qpn: Qpn, attrs: QpAttrs) -> Result<(), QpError> {
        let _ = (qpn, attrs, self.config);
        Ok(())
    }

    /// Removes a QP: no completions, no events, timers dropped.
    pub fn destroy_qp(&mut self, qpn: Qpn) {
        let _ = qpn;
    }

    /// Moves a QP to a state and replaces its attributes. To ERR: both queues are flushed. To RESET: everything is
    /// forgotten without completions.
    ///
    /// # Errors
    /// [`QpError::Unknown`].
    pub fn modify_qp(
        &mut self,
        now: Instant,
        qpn: Qpn,
        modify: &Modify,
        host: &mut impl Host,
    ) -> Result<(), QpError> {
        let _ = (now, qpn, modify, host);
        Ok(())
    }

    /// Live values of a QP.
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpSnapshot> {
        let _ = qpn;
        None
    }

    /// The send queue of `qpn` may have new requests. Outside RTS they wait, are flushed or are ignored, as the
    /// state demands.
    pub fn ring(&mut self, now: Instant, qpn: Qpn, host: &mut impl Host) {
        let _ = (now, qpn, host);
    }

    /// A packet arrived whose ICRC is right.
    pub fn handle_packet(&mut self, now: Instant, shell: &Shell, packet: &Packet<'_>, host: &mut impl Host) {
        let _ = (now, shell, packet, host);
    }

    /// The instant of [`Engine::poll_timeout`] may have come. Harmless when early.
    pub fn handle_timeout(&mut self, now: Instant, host: &mut impl Host) {
        let _ = (now, host);
    }

    /// Appends the next frame to `out`, complete from Ethernet header to ICRC. QPs take turns. `None`: nothing to
    /// send until the next input. May itself produce events (a gather that fails, a datagram that is done).
    pub fn poll_transmit(
        &mut self,
        now: Instant,
        host: &mut impl Host,
        out: &mut Vec<u8>,
    ) -> Option<Transmit> {
        let _ = (now, host, out);
        None
    }

    /// The next event, in the order things happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// The next QP whose state or PSNs changed since it was last returned here.
    pub fn poll_dirty(&mut self) -> Option<Qpn> {
        None
    }

    /// When [`Engine::handle_timeout`] is wanted next.
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
