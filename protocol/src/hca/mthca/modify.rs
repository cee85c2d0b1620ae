//! Context changes made by QP commands.
//!
//! Every command carries a complete context, but fields that the driver's caller did not set are zero. A command
//! therefore copies a fixed set of fields, and other fields only if their mask bits are set.
//!
//! # Spec
//! mthca interface, section 6.5.

use bitflags::bitflags;

use super::qpc::{self, QpKind, Qpc};
use crate::Psn;
use crate::describe::{Describe, Field, Visitor, show_flags};
use crate::hca::qp::{QpState, ServiceType, Transition};
use crate::hca::status::CmdError;

bitflags! {
    /// QP attributes that a command copies in addition to its fixed set of fields.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct QpAttributes: u32 {
        /// Alternate path for path migration.
        const ALTERNATE_PATH = 1 << 0;
        /// Whether peers can execute RDMA READ.
        const REMOTE_READ = 1 << 1;
        /// Whether peers can execute atomic operations.
        const REMOTE_ATOMIC = 1 << 2;
        /// Whether peers can execute RDMA WRITE.
        const REMOTE_WRITE = 1 << 3;
        /// Index into the port's P_Key table.
        const PKEY_INDEX = 1 << 4;
        /// Q_Key of a UD QP.
        const QKEY = 1 << 5;
        /// Minimum RNR NAK timer.
        const RNR_TIMER = 1 << 6;
        /// Address and static rate of the primary path.
        const PRIMARY_PATH = 1 << 7;
        /// Maximum number of outstanding READs and atomics when the QP is the requester.
        const REQUESTER_DEPTH = 1 << 8;
        /// Maximum number of outstanding READs and atomics when the QP is the responder.
        const RESPONDER_DEPTH = 1 << 9;
        /// Path migration state of the QP.
        const MIGRATION = 1 << 10;
        /// Physical port of the primary path.
        const PORT = 1 << 11;
        /// Maximum number of retries after timeouts.
        const RETRY_COUNT = 1 << 12;
        /// RNR retry count of the alternate path.
        const ALTERNATE_RNR_RETRY = 1 << 13;
        /// Local ACK timeout code.
        const ACK_TIMEOUT = 1 << 14;
        /// Maximum number of retries after RNR NAKs.
        const RNR_RETRY = 1 << 15;
        /// Scheduling queue of the send queue.
        const SCHED_QUEUE = 1 << 16;
        const _ = !0;
    }
}

/// Inbox of a QP command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModifyQp {
    /// Attributes to copy from the context.
    pub named: QpAttributes,
    /// New values of the attributes.
    pub qpc: Qpc,
}

/// Log2 of the largest number of slots in a work queue. Comparing 16-bit counters would be ambiguous for larger queues.
const MAX_LOG_SLOTS: u8 = 15;

impl Field for QpAttributes {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        show_flags(self, name, to);
    }
}

impl Describe for ModifyQp {
    fn describe(&self, to: &mut dyn Visitor) {
        self.named.show("named", to);
        self.qpc.describe(to);
    }
}

/// Largest path MTU code that QUERY_DEV_LIM reports: 4, for 2048 bytes (section 12, T46).
const MAX_MTU: u8 = 4;

impl ModifyQp {
    /// Length of the inbox in bytes: a mask, an unused word and the context.
    pub const LEN: usize = 8 + qpc::LEN;

    /// Length in bytes of the outbox of QUERY_QP and ERR2RST_QP. The outbox begins with the same fields as the inbox.
    pub const OUTBOX_LEN: usize = 0x200;

    /// Parses the inbox from its bytes.
    pub fn parse(inbox: &[u8; Self::LEN]) -> Self {
        let (mask, rest) = inbox.split_first_chunk().unwrap_or((&[0; 4], &[]));
        let image = rest.last_chunk().unwrap_or(&[0; qpc::LEN]);
        Self { named: QpAttributes::from_bits_retain(u32::from_be_bytes(*mask)), qpc: Qpc::parse(image) }
    }

    /// Returns the outbox that reports the context `qpc`.
    pub fn outbox(qpc: &Qpc) -> [u8; Self::OUTBOX_LEN] {
        let mut outbox = [0; Self::OUTBOX_LEN];
        outbox[8..Self::LEN].copy_from_slice(&qpc.emit());
        outbox
    }
}

impl Qpc {
    /// Returns the context after a command. For a command without an inbox, `new` is ignored.
    ///
    /// # Errors
    /// BAD_QP_STATE if the command is not allowed in the current state; BAD_PARAM for an unsupported value.
    pub fn modify(&self, transition: Transition, new: &ModifyQp) -> Result<Self, CmdError> {
        let kind = match transition {
            Transition::Rst2Init => new.qpc.kind(),
            _ => self.kind(),
        };
        let service = kind.map_or(ServiceType::Rc, QpKind::service);
        transition.check(self.state(), service)?;
        let mut next = *self;
        match transition {
            Transition::ToRst => return Ok(Self::default()),
            // Section 6.5: these commands ignore the inbox.
            Transition::ToErr | Transition::Rts2Sqd => {}
            Transition::Rst2Init => {
                if kind.is_none() {
                    return Err(CmdError::param("service type", new.qpc.kind.into()));
                }
                next = new.qpc.initial()?;
                next.copy_named(new);
            }
            Transition::Init2Rtr => {
                next.mtu = new.qpc.mtu;
                next.log_max_msg = new.qpc.log_max_msg;
                next.remote_qpn = new.qpc.remote_qpn;
                next.recv_psn = new.qpc.recv_psn;
                next.copy_named(new);
                next.check_connection(service)?;
            }
            Transition::Rtr2Rts => {
                next.next_send_psn = new.qpc.next_send_psn;
                next.last_acked_psn = new.qpc.next_send_psn;
                next.copy_named(new);
            }
            _ => next.copy_named(new),
        }
        next.state = transition.target().code();
        Ok(next)
    }

    /// Returns a context with only the fields that RST2INIT always copies.
    fn initial(&self) -> Result<Self, CmdError> {
        for queue in [self.rq, self.sq] {
            if queue.log_slots > MAX_LOG_SLOTS {
                return Err(CmdError::param(
                    "log2 of the number of work queue slots",
                    queue.log_slots.into(),
                ));
            }
        }
        let mut next = Self {
            kind: self.kind,
            // Copy the migration state even if its mask bit is clear. In that case, the driver sends "migrated", the
            // initial state of a QP.
            migration: self.migration,
            rq: self.rq,
            sq: self.sq,
            page: self.page,
            local_qpn: self.local_qpn,
            pd: self.pd,
            wqe_lkey: self.wqe_lkey,
            send_cqn: self.send_cqn,
            sq_base: self.sq_base,
            sq_record: self.sq_record,
            recv_cqn: self.recv_cqn,
            rq_base: self.rq_base,
            rq_record: self.rq_record,
            srqn: self.srqn,
            ..Self::default()
        };
        next.requester.set_signal_all(self.requester.signal_all());
        next.requester.set_writes(self.requester.writes());
        next.requester.set_ack_frequency(self.requester.ack_frequency());
        next.requester.set_flight_limit(self.requester.flight_limit());
        next.responder.set_srq(self.responder.srq());
        next.responder.set_signal_all(self.responder.signal_all());
        // Always copy the port, since the driver does not set its mask bit for QP0 and QP1.
        next.primary.port = self.primary.port;
        Ok(next)
    }

    fn copy_named(&mut self, new: &ModifyQp) {
        let ModifyQp { named, qpc: from } = new;
        let is = |bit| named.contains(bit);
        if is(QpAttributes::ALTERNATE_PATH) {
            self.alternate = from.alternate;
        }
        if is(QpAttributes::REMOTE_READ) {
            self.responder.set_reads(from.responder.reads());
        }
        if is(QpAttributes::REMOTE_ATOMIC) {
            self.responder.set_atomics(from.responder.atomics());
        }
        if is(QpAttributes::REMOTE_WRITE) {
            self.responder.set_writes(from.responder.writes());
        }
        if is(QpAttributes::PKEY_INDEX) {
            self.primary.pkey_index = from.primary.pkey_index;
        }
        if is(QpAttributes::QKEY) {
            self.qkey = from.qkey;
        }
        if is(QpAttributes::RNR_TIMER) {
            self.min_rnr_timer = from.min_rnr_timer;
        }
        if is(QpAttributes::PRIMARY_PATH) {
            self.primary.address = from.primary.address;
            self.primary.static_rate = from.primary.static_rate;
        }
        if is(QpAttributes::REQUESTER_DEPTH) {
            self.requester.set_log_depth(from.requester.log_depth());
            self.requester.set_reads(from.requester.reads());
            self.requester.set_atomics(from.requester.atomics());
        }
        if is(QpAttributes::RESPONDER_DEPTH) {
            self.responder.set_log_depth(from.responder.log_depth());
        }
        if is(QpAttributes::MIGRATION) {
            self.migration = from.migration;
        }
        if is(QpAttributes::PORT) {
            self.primary.port = from.primary.port;
        }
        if is(QpAttributes::RETRY_COUNT) {
            self.requester.set_retry_count(from.requester.retry_count());
        }
        if is(QpAttributes::ALTERNATE_RNR_RETRY) {
            self.alternate.rnr_retry = from.alternate.rnr_retry;
        }
        if is(QpAttributes::ACK_TIMEOUT) {
            self.primary.ack_timeout = from.primary.ack_timeout;
        }
        if is(QpAttributes::RNR_RETRY) {
            self.primary.rnr_retry = from.primary.rnr_retry;
        }
        if is(QpAttributes::SCHED_QUEUE) {
            self.sched_queue = from.sched_queue;
        }
    }

    fn check_connection(&self, service: ServiceType) -> Result<(), CmdError> {
        if service != ServiceType::Ud && !(1..=MAX_MTU).contains(&self.mtu) {
            return Err(CmdError::param("path MTU code", self.mtu.into()));
        }
        Ok(())
    }

    /// Returns the maximum number of outstanding READs and atomics when the QP is the requester.
    pub const fn requester_depth(&self) -> u8 {
        if self.requester.reads() || self.requester.atomics() { 1 << self.requester.log_depth() } else { 0 }
    }

    /// Returns the maximum number of outstanding READs and atomics when the QP is the responder.
    pub const fn responder_depth(&self) -> u8 {
        1 << self.responder.log_depth()
    }

    /// Updates the state and the PSNs, which change while the QP runs.
    pub const fn update_live_state(&mut self, state: QpState, next_send: Psn, unacked: Psn, expected: Psn) {
        self.state = state.code();
        self.next_send_psn = next_send;
        self.last_acked_psn = unacked;
        self.recv_psn = expected;
    }
}

#[cfg(test)]
mod tests {
    use super::super::path::{Address, Path};
    use super::super::qpc::Geometry;
    use super::*;
    use crate::hca::status::CmdStatus;
    use crate::ids::{Cqn, Lid, Lkey, Pdn, Qkey, Qpn, Srqn};

    /// Returns a context in which nearly every field is nonzero, so that tests can detect which fields are copied.
    fn full() -> Qpc {
        let address = Address { dlid: Lid::new(2), service_level: 1, ..Address::default() };
        let path = Path { port: 1, pkey_index: 3, rnr_retry: 6, ack_timeout: 14, static_rate: 2, address };
        let mut qpc = Qpc {
            state: 0,
            kind: 0,
            migration: 3,
            mtu: 4,
            log_max_msg: 31,
            rq: Geometry { log_slots: 4, log_slot: 6 },
            sq: Geometry { log_slots: 5, log_slot: 7 },
            sched_queue: 2,
            page: 7,
            local_qpn: Qpn::new(0x14),
            remote_qpn: Qpn::new(0x15),
            primary: path,
            alternate: path,
            pd: Pdn::new(5),
            wqe_lkey: Lkey::new(0x1800),
            next_send_psn: Psn::new(100),
            send_cqn: Cqn::new(0x11),
            sq_base: 0x400,
            sq_record: 1,
            last_acked_psn: Psn::new(99),
            ssn: 7,
            min_rnr_timer: 12,
            recv_psn: Psn::new(200),
            recv_cqn: Cqn::new(0x12),
            rq_base: 0,
            rq_record: 0x7ffe,
            qkey: Qkey::new(0x1111),
            srqn: Srqn::new(0x17),
            rmsn: 9,
            rq_counter: 10,
            sq_counter: 11,
            ..Qpc::default()
        };
        qpc.requester = qpc.requester.with_signal_all(true).with_reads(true).with_atomics(true);
        qpc.requester = qpc.requester.with_log_depth(4).with_retry_count(7);
        qpc.responder = qpc.responder.with_srq(true).with_reads(true).with_writes(true).with_atomics(true);
        qpc.responder = qpc.responder.with_log_depth(2);
        qpc
    }

    fn command(named: QpAttributes) -> ModifyQp {
        ModifyQp { named, qpc: full() }
    }

    fn after(qpc: &Qpc, transition: Transition, named: QpAttributes) -> Qpc {
        qpc.modify(transition, &command(named)).unwrap()
    }

    fn init() -> Qpc {
        after(&Qpc::default(), Transition::Rst2Init, QpAttributes::empty())
    }

    #[test]
    fn rst2init_with_empty_mask_copies_only_required_fields() {
        let qpc = init();
        assert_eq!((qpc.state, qpc.kind, qpc.page, qpc.pd), (1, 0, 7, Pdn::new(5)));
        assert_eq!(qpc.migration, 3, "a new QP is in the Migrated state (IBTA volume 1, section 17.2.8)");
        assert_eq!((qpc.rq, qpc.sq, qpc.sq_base), (full().rq, full().sq, 0x400));
        assert_eq!((qpc.wqe_lkey, qpc.sq_record, qpc.rq_record), (Lkey::new(0x1800), 1, 0x7ffe));
        assert_eq!((qpc.send_cqn, qpc.recv_cqn, qpc.srqn), (Cqn::new(0x11), Cqn::new(0x12), Srqn::new(0x17)));
        assert!(qpc.requester.signal_all() && qpc.responder.srq());
        assert_eq!(qpc.primary, Path { port: 1, ..Path::default() });
        assert_eq!((qpc.mtu, qpc.remote_qpn, qpc.recv_psn), (0, Qpn::new(0), Psn::new(0)));
        assert_eq!((qpc.ssn, qpc.rmsn, qpc.rq_counter, qpc.sq_counter), (0, 0, 0, 0));
        assert!(!qpc.responder.reads() && !qpc.responder.writes() && !qpc.responder.atomics());
        assert_eq!((qpc.qkey, qpc.requester_depth(), qpc.responder_depth()), (Qkey::new(0), 0, 1));
    }

    #[test]
    fn each_mask_bit_copies_one_attribute() {
        type Get = fn(&Qpc) -> u32;
        let fields: [(QpAttributes, Get, u32); 15] = [
            (QpAttributes::ALTERNATE_PATH, |qpc| qpc.alternate.address.dlid.get().into(), 2),
            (QpAttributes::REMOTE_READ, |qpc| qpc.responder.reads().into(), 1),
            (QpAttributes::REMOTE_ATOMIC, |qpc| qpc.responder.atomics().into(), 1),
            (QpAttributes::REMOTE_WRITE, |qpc| qpc.responder.writes().into(), 1),
            (QpAttributes::PKEY_INDEX, |qpc| qpc.primary.pkey_index.into(), 3),
            (QpAttributes::QKEY, |qpc| qpc.qkey.get(), 0x1111),
            (QpAttributes::RNR_TIMER, |qpc| qpc.min_rnr_timer.into(), 12),
            (QpAttributes::PRIMARY_PATH, |qpc| qpc.primary.address.dlid.get().into(), 2),
            (QpAttributes::REQUESTER_DEPTH, |qpc| qpc.requester_depth().into(), 16),
            (QpAttributes::RESPONDER_DEPTH, |qpc| (qpc.responder_depth() - 1).into(), 3),
            (QpAttributes::MIGRATION, |qpc| qpc.migration.into(), 3),
            (QpAttributes::RETRY_COUNT, |qpc| qpc.requester.retry_count().into(), 7),
            (QpAttributes::ACK_TIMEOUT, |qpc| qpc.primary.ack_timeout.into(), 14),
            (QpAttributes::RNR_RETRY, |qpc| qpc.primary.rnr_retry.into(), 6),
            (QpAttributes::SCHED_QUEUE, |qpc| qpc.sched_queue.into(), 2),
        ];
        for (bit, _, _) in fields {
            let armed = Qpc { migration: 0, ..init() };
            let qpc = after(&armed, Transition::Init2Init, bit);
            for (other, get, value) in fields {
                assert_eq!(get(&qpc), if other == bit { value } else { 0 }, "{bit:?} changes {other:?}");
            }
        }
    }

    #[test]
    fn psns_and_mtu_do_not_depend_on_mask() {
        let rtr = after(&init(), Transition::Init2Rtr, QpAttributes::empty());
        assert_eq!((rtr.mtu, rtr.log_max_msg, rtr.remote_qpn), (4, 31, Qpn::new(0x15)));
        assert_eq!((rtr.recv_psn, rtr.next_send_psn), (Psn::new(200), Psn::new(0)));
        let rts = after(&rtr, Transition::Rtr2Rts, QpAttributes::RNR_TIMER);
        assert_eq!((rts.next_send_psn, rts.last_acked_psn), (Psn::new(100), Psn::new(100)));
        let live = Qpc { next_send_psn: Psn::new(500), recv_psn: Psn::new(600), ..rts };
        let again = after(&live, Transition::Rts2Rts, QpAttributes::RNR_TIMER | QpAttributes::PRIMARY_PATH);
        assert_eq!((again.next_send_psn, again.recv_psn), (Psn::new(500), Psn::new(600)));
    }

    #[test]
    fn transitions_to_sqd_err_and_reset_ignore_inbox() {
        let rts = after(
            &after(&init(), Transition::Init2Rtr, QpAttributes::empty()),
            Transition::Rtr2Rts,
            QpAttributes::empty(),
        );
        let err = after(&rts, Transition::ToErr, QpAttributes::all());
        assert_eq!(err, Qpc { state: 6, ..rts });
        assert_eq!(after(&rts, Transition::Rts2Sqd, QpAttributes::all()), Qpc { state: 5, ..rts });
        assert_eq!(after(&err, Transition::ToRst, QpAttributes::all()), Qpc::default());
    }

    #[test]
    fn transition_from_wrong_state_is_rejected() {
        let status = |qpc: &Qpc, transition| {
            qpc.modify(transition, &command(QpAttributes::empty())).map_err(|error| error.status)
        };
        assert_eq!(status(&Qpc::default(), Transition::Init2Rtr), Err(CmdStatus::BadQpState));
        assert_eq!(status(&init(), Transition::Rst2Init), Err(CmdStatus::BadQpState));
        assert_eq!(status(&init(), Transition::Rtr2Rts), Err(CmdStatus::BadQpState));
    }

    #[test]
    fn rejects_unsupported_values() {
        let refused = |change: fn(&mut Qpc), from: &Qpc, transition| {
            let mut command = command(QpAttributes::empty());
            change(&mut command.qpc);
            from.modify(transition, &command).unwrap_err().status
        };
        let reset = Qpc::default();
        assert_eq!(refused(|qpc| qpc.kind = 2, &reset, Transition::Rst2Init), CmdStatus::BadParam);
        assert_eq!(refused(|qpc| qpc.sq.log_slots = 16, &reset, Transition::Rst2Init), CmdStatus::BadParam);
        assert_eq!(refused(|qpc| qpc.mtu = 0, &init(), Transition::Init2Rtr), CmdStatus::BadParam);
        assert_eq!(refused(|qpc| qpc.mtu = 5, &init(), Transition::Init2Rtr), CmdStatus::BadParam);
    }

    #[test]
    fn context_comes_after_mask_in_inbox_and_outbox() {
        let mut inbox = [0; ModifyQp::LEN];
        inbox[3] = 0x20;
        inbox[8..].copy_from_slice(&full().emit());
        assert_eq!(ModifyQp::parse(&inbox), command(QpAttributes::QKEY));
        let outbox = ModifyQp::outbox(&full());
        assert_eq!((&outbox[..8], &outbox[8..0x108]), (&[0; 8][..], &full().emit()[..]));
        assert!(outbox[0x108..].iter().all(|byte| *byte == 0));
    }
}
