//! How a MODIFY_QP command changes a context.
//!
//! The public driver sends the whole image with every command, with the PSNs the QP began with; a client that goes
//! by the mask sends what changes and zeros elsewhere. One rule serves both: a static field is taken when it is not
//! zero, a live field (PSN, service) only by the commands that set it.
//!
//! # Spec
//! JingZhao interface, sections 3.12, 10.3 (J-28) and 10.6.

use std::time::Duration;

use super::cmd::CmdError;
use super::qpc::{QpState, Qpc, ServiceType};
use super::transition::{Attributes, Transition};

/// A QP's context as the device holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StoredQpc {
    /// The image. Its owner keeps `state` and the live PSNs current before it applies a command.
    pub image: Qpc,
    /// Software named the RNR retry count, so that 0 means 0.
    rnr_retry_given: bool,
    /// Software named the ACK timeout, so that 0 means none.
    ack_timeout_given: bool,
}

/// log2 of the bytes of a WQE slot that are accepted.
const SLOT: std::ops::RangeInclusive<u8> = 5..=12;

impl StoredQpc {
    /// The context after a command, this one untouched. Bytes a command does not use are not looked at: pass
    /// anything for a command without inbox. The new state is in the image; to RESET forgets all else.
    ///
    /// # Errors
    /// BAD_QPEE_STATE if the QP is not in a state the command starts from, BAD_PARAM for a value the device does not
    /// support.
    pub fn modify(&self, transition: Transition, mailbox: &Qpc) -> Result<Self, CmdError> {
        let service = match transition {
            Transition::Rst2Init => mailbox.service(),
            _ => self.image.service(),
        };
        let unsupported = CmdError::param("service type", mailbox.service.into());
        // A QP in RESET may have no valid service, and needs none to be moved to ERR or RESET.
        let checked = service.unwrap_or(ServiceType::Rc);
        transition.check(self.image.state(), checked)?;
        let mut next = *self;
        match transition {
            Transition::ToRst => return Ok(Self::default()),
            Transition::ToErr | Transition::Rts2Sqd => {}
            Transition::Rst2Init => {
                check_port(mailbox)?;
                service.ok_or(unsupported)?;
                next = Self { image: *mailbox, ..Self::default() };
                next.image.opt_param_mask = 0;
                next.image.unacked_psn = mailbox.next_send_psn;
            }
            _ => {
                check_port(mailbox)?;
                next.merge(transition, mailbox);
            }
        }
        next.image.state = transition.target().code();
        if !matches!(transition, Transition::ToErr) {
            next.check(transition.target(), checked)?;
        }
        Ok(next)
    }

    /// Takes from `mailbox` what a command other than RST2INIT takes.
    fn merge(&mut self, transition: Transition, mailbox: &Qpc) {
        let Self { image, .. } = self;
        macro_rules! take_if_given {
            ($($field:ident),* $(,)?) => {
                $(if mailbox.$field != Qpc::default().$field {
                    image.$field = mailbox.$field;
                })*
            };
        }
        take_if_given!(
            reserved_04,
            flags_27_24,
            flags_15_0,
            mtu,
            log_max_msg,
            log_rq_slot,
            log_sq_slot,
            sched_queue,
            usr_page,
            local_qpn,
            remote_qpn,
            port,
            pkey_index,
            rnr_retry,
            my_lmc,
            rlid,
            ack_timeout,
            mgid_index,
            static_rate,
            hop_limit,
            service_level,
            traffic_class,
            flow_label,
            remote_gid,
            dlid,
            slid,
            smac_high,
            dmac_high,
            source_ip,
            dest_ip,
            alternate_path,
            pd,
            wqe_base,
            wqe_lkey,
            params1,
            send_cqn,
            sq_lkey,
            sq_len,
            ssn,
            min_rnr_timer,
            ra_buff_index,
            recv_cqn,
            rq_lkey,
            rq_len,
            qkey,
            rmsn,
            wqe_counters,
        );
        if matches!(transition, Transition::Init2Init | Transition::Init2Rtr) {
            image.recv_psn = mailbox.recv_psn;
        }
        if matches!(transition, Transition::Init2Init | Transition::Init2Rtr | Transition::Rtr2Rts) {
            image.next_send_psn = mailbox.next_send_psn;
            image.unacked_psn = mailbox.next_send_psn;
        }
        if matches!(transition, Transition::Rtr2Rts | Transition::Sqd2Sqd) {
            // Each attribute has a bit of the document and one of the older numbering the public driver knows.
            const RNR_RETRY: Attributes = Attributes::RNR_RETRY.union(Attributes::MIN_RNR_TIMER);
            const ACK_TIMEOUT: Attributes = Attributes::TIMEOUT.union(Attributes::ALT_PATH);
            let given = Attributes::from_bits_retain(mailbox.opt_param_mask);
            if given.intersects(RNR_RETRY) {
                self.image.rnr_retry = mailbox.rnr_retry;
                self.rnr_retry_given = true;
            }
            if given.intersects(ACK_TIMEOUT) {
                self.image.ack_timeout = mailbox.ack_timeout;
                self.ack_timeout_given = true;
            }
        }
    }

    /// Whether the device can work with the context in state `target`.
    fn check(&self, target: QpState, service: ServiceType) -> Result<(), CmdError> {
        let receives = !matches!(target, QpState::Reset | QpState::Init);
        let sends = receives && target != QpState::Rtr;
        if receives && service != ServiceType::Ud && !(1..=5).contains(&self.image.mtu) {
            return Err(CmdError::param("path MTU code", self.image.mtu.into()));
        }
        if receives {
            check_queue(self.image.rq_len, self.image.log_rq_slot, "receive queue length")?;
        }
        if sends {
            check_queue(self.image.sq_len, self.image.log_sq_slot, "send queue length")?;
        }
        Ok(())
    }

    /// RNR retry count in force, 0 to 7; 7 is for ever, and the default of software that never gives one.
    pub const fn rnr_retry(&self) -> u8 {
        if self.image.rnr_retry == 0 && !self.rnr_retry_given { 7 } else { self.image.rnr_retry_code() }
    }

    /// ACK timeout in force, 4.096 us * 2^code; `None` waits for ever. Code 14 (67.1 ms) is the default of software
    /// that never gives one.
    pub const fn ack_timeout(&self) -> Option<Duration> {
        let given = self.image.ack_timeout != 0 || self.ack_timeout_given;
        match if given { self.image.ack_timeout_code() } else { 14 } {
            0 => None,
            code => Some(Duration::from_nanos(4096 << code)),
        }
    }

    /// Retry count in force, 1 to 7; 7 unless given.
    pub const fn retry_count(&self) -> u8 {
        match self.image.retry_count() {
            0 => 7,
            given => given,
        }
    }

    /// RNR timer code to send, 0 to 31.
    pub const fn min_rnr_timer(&self) -> u8 {
        self.image.min_rnr_timer & 0x1f
    }

    /// The QUERY_QP image. A QP in RESET is all zero.
    pub fn query(&self) -> Qpc {
        match self.image.state() {
            Some(QpState::Reset) => Qpc::default(),
            _ => Qpc { opt_param_mask: 0, ..self.image },
        }
    }
}

fn check_port(mailbox: &Qpc) -> Result<(), CmdError> {
    match mailbox.port {
        0 | 1 => Ok(()),
        other => Err(CmdError::param("port", other.into())),
    }
}

/// A queue of length 0 is not there, and the size of its slots does not matter.
fn check_queue(len: u32, log_slot: u8, what: &'static str) -> Result<(), CmdError> {
    if len == 0 {
        return Ok(());
    }
    if !SLOT.contains(&log_slot) {
        return Err(CmdError::param("log2 of the WQE slot size", log_slot.into()));
    }
    if len.trailing_zeros() < u32::from(log_slot) {
        return Err(CmdError::param(what, len.into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Psn;
    use crate::hca::jingzhao::qpc::LEN;
    use crate::hca::status::CmdStatus;
    use crate::ids::{Lkey, Qkey, Qpn};
    use proptest::prelude::*;

    /// What the public driver sends with every command of one RC QP.
    fn image() -> Qpc {
        Qpc {
            mtu: 3,
            log_max_msg: 31,
            log_rq_slot: 7,
            log_sq_slot: 7,
            usr_page: 1,
            remote_qpn: Qpn::new(9),
            port: 1,
            sq_lkey: Lkey::new(0x21),
            sq_len: 0x4000,
            rq_lkey: Lkey::new(0x22),
            rq_len: 0x4000,
            next_send_psn: Psn::new(0x100),
            unacked_psn: Psn::new(0x100),
            recv_psn: Psn::new(0x200),
            ..Qpc::default()
        }
    }

    fn rts() -> StoredQpc {
        [Transition::Rst2Init, Transition::Init2Rtr, Transition::Rtr2Rts]
            .into_iter()
            .fold(StoredQpc::default(), |qpc, transition| qpc.modify(transition, &image()).unwrap())
    }

    fn refused(qpc: &StoredQpc, transition: Transition, mailbox: &Qpc) -> CmdStatus {
        qpc.modify(transition, mailbox).unwrap_err().status.basic()
    }

    #[test]
    fn a_whole_image_resent_in_rts_does_not_rewind_live_psns() {
        let mut qpc = rts();
        qpc.image.next_send_psn = Psn::new(0x1234);
        qpc.image.unacked_psn = Psn::new(0x1200);
        qpc.image.recv_psn = Psn::new(0x5678);
        let after = qpc.modify(Transition::Rts2Rts, &image()).unwrap();
        assert_eq!(after, qpc);
        let drained = after.modify(Transition::Rts2Sqd, &image()).unwrap();
        let back = drained.modify(Transition::Sqd2Rts, &image()).unwrap();
        assert_eq!(back, qpc);
    }

    #[test]
    fn a_zero_field_leaves_the_static_value_and_a_given_one_replaces_it() {
        let changes = Qpc { qkey: Qkey::new(7), mtu: 5, ..Qpc::default() };
        let after = rts().modify(Transition::Rts2Rts, &changes).unwrap();
        assert_eq!((after.image.qkey, after.image.mtu, after.image.log_max_msg), (Qkey::new(7), 5, 31));
        assert_eq!(after.image.remote_qpn, Qpn::new(9));
    }

    #[test]
    fn each_psn_is_set_by_its_commands_and_zero_is_a_value() {
        let init = StoredQpc::default().modify(Transition::Rst2Init, &image()).unwrap();
        assert_eq!(init.image.recv_psn, Psn::new(0x200));
        let zero = Qpc { next_send_psn: Psn::new(0), recv_psn: Psn::new(0), ..image() };
        let rtr = init.modify(Transition::Init2Rtr, &zero).unwrap();
        assert_eq!((rtr.image.recv_psn, rtr.image.next_send_psn), (Psn::new(0), Psn::new(0)));
        let other = Qpc { next_send_psn: Psn::new(0x77), recv_psn: Psn::new(0x88), ..image() };
        let rts = rtr.modify(Transition::Rtr2Rts, &other).unwrap();
        assert_eq!((rts.image.next_send_psn, rts.image.unacked_psn), (Psn::new(0x77), Psn::new(0x77)));
        assert_eq!(rts.image.recv_psn, Psn::new(0));
    }

    #[test]
    fn oldest_unacknowledged_psn_follows_the_next_whatever_the_mailbox_says() {
        let odd = Qpc { unacked_psn: Psn::new(0xabc), ..image() };
        let init = StoredQpc::default().modify(Transition::Rst2Init, &odd).unwrap();
        assert_eq!(init.image.unacked_psn, Psn::new(0x100));
    }

    #[test]
    fn service_is_fixed_when_the_qp_leaves_reset() {
        let ud = Qpc { service: 3, mtu: 0, ..image() };
        let init = StoredQpc::default().modify(Transition::Rst2Init, &ud).unwrap();
        let rtr = init.modify(Transition::Init2Rtr, &Qpc { service: 1, mtu: 0, ..image() }).unwrap();
        assert_eq!(rtr.image.service(), Some(ServiceType::Ud));
        for bad in [2, 4, 0xff] {
            let mailbox = Qpc { service: bad, ..image() };
            assert_eq!(refused(&StoredQpc::default(), Transition::Rst2Init, &mailbox), CmdStatus::BadParam);
        }
    }

    #[test]
    fn state_in_the_mailbox_does_not_matter() {
        let zeroed = Qpc::default();
        let err = rts().modify(Transition::ToErr, &zeroed).unwrap();
        assert_eq!(err.image.state(), Some(QpState::Err));
        assert_eq!(err.modify(Transition::ToRst, &zeroed), Ok(StoredQpc::default()));
    }

    #[test]
    fn wrong_state_is_refused_and_named_in_the_extended_status() {
        let error = rts().modify(Transition::Init2Rtr, &image()).unwrap_err();
        assert_eq!(error.status, CmdStatus::BadQpState);
        assert_eq!(error.status.basic(), CmdStatus::BadParam);
    }

    #[test]
    fn a_draining_qp_counts_as_sqd() {
        let mut qpc = rts().modify(Transition::Rts2Sqd, &image()).unwrap();
        qpc.image.state = QpState::Draining.code();
        assert_eq!(qpc.modify(Transition::Sqd2Rts, &image()).unwrap().image.state(), Some(QpState::Rts));
    }

    #[test]
    fn bad_port_mtu_and_queue_geometry_are_refused() {
        let init = StoredQpc::default().modify(Transition::Rst2Init, &image()).unwrap();
        for bad in [Qpc { port: 2, ..image() }, Qpc { mtu: 6, ..image() }] {
            assert_eq!(refused(&init, Transition::Init2Rtr, &bad), CmdStatus::BadParam);
        }
        for bad in [
            Qpc { rq_len: 0x4040, ..image() },
            Qpc { log_rq_slot: 4, ..image() },
            Qpc { log_rq_slot: 13, ..image() },
            Qpc { log_rq_slot: 255, ..image() },
        ] {
            assert_eq!(refused(&init, Transition::Init2Rtr, &bad), CmdStatus::BadParam, "{bad:?}");
        }
        let rtr = init.modify(Transition::Init2Rtr, &image()).unwrap();
        let bad = Qpc { sq_len: 0x4001, ..image() };
        assert_eq!(refused(&rtr, Transition::Rtr2Rts, &bad), CmdStatus::BadParam);
    }

    #[test]
    fn zero_mtu_is_refused_for_connected_services_only() {
        let init = |service| {
            let mailbox = Qpc { mtu: 0, service, ..image() };
            StoredQpc::default().modify(Transition::Rst2Init, &mailbox).unwrap()
        };
        let zero_mtu = Qpc { mtu: 0, ..image() };
        assert_eq!(refused(&init(0), Transition::Init2Rtr, &zero_mtu), CmdStatus::BadParam);
        assert_eq!(refused(&init(1), Transition::Init2Rtr, &zero_mtu), CmdStatus::BadParam);
        assert!(init(3).modify(Transition::Init2Rtr, &zero_mtu).is_ok());
    }

    #[test]
    fn a_queue_of_no_length_needs_no_slot_size() {
        let send_only = Qpc { rq_len: 0, log_rq_slot: 0, ..image() };
        let init = StoredQpc::default().modify(Transition::Rst2Init, &send_only).unwrap();
        assert!(init.modify(Transition::Init2Rtr, &send_only).is_ok());
    }

    #[test]
    fn software_that_never_gives_retries_gets_the_defaults() {
        let qpc = rts();
        assert_eq!(qpc.rnr_retry(), 7);
        assert_eq!(qpc.retry_count(), 7);
        assert_eq!(qpc.ack_timeout(), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(qpc.min_rnr_timer(), 0);
    }

    #[test]
    fn explicit_zero_means_no_retry_and_no_timeout_and_stays() {
        let mut rtr = StoredQpc::default();
        for transition in [Transition::Rst2Init, Transition::Init2Rtr] {
            rtr = rtr.modify(transition, &image()).unwrap();
        }
        for mask in [1 << 11 | 1 << 9, 1 << 15 | 1 << 14] {
            let qpc = rtr.modify(Transition::Rtr2Rts, &Qpc { opt_param_mask: mask, ..image() }).unwrap();
            assert_eq!((qpc.rnr_retry(), qpc.ack_timeout()), (0, None));
            let later = qpc.modify(Transition::Rts2Rts, &image()).unwrap();
            assert_eq!((later.rnr_retry(), later.ack_timeout()), (0, None));
            assert_eq!(later.image.opt_param_mask, 0);
        }
    }

    #[test]
    fn driver_mask_bit_11_in_rst2init_is_not_an_explicit_retry_count() {
        let mailbox = Qpc { opt_param_mask: 1 << 11, ..image() };
        let qpc = StoredQpc::default().modify(Transition::Rst2Init, &mailbox).unwrap();
        assert_eq!(qpc.rnr_retry(), 7);
    }

    #[test]
    fn notify_request_leaves_every_field_alone_on_the_way_to_sqd() {
        let mailbox = Qpc { opt_param_mask: 1 << 2, mtu: 5, qkey: Qkey::new(1), ..Qpc::default() };
        let sqd = rts().modify(Transition::Rts2Sqd, &mailbox).unwrap();
        assert_eq!(sqd.image, Qpc { state: QpState::Sqd.code(), ..rts().image });
    }

    #[test]
    fn a_qp_in_reset_is_queried_as_zeros() {
        assert_eq!(StoredQpc::default().query().emit(), [0; LEN]);
    }

    proptest! {
        #[test]
        fn any_command_with_any_mailbox_is_applied_or_refused(
            commands in prop::collection::vec((0usize..11, prop::collection::vec(any::<u8>(), LEN)), 0..12)
        ) {
            let mut qpc = StoredQpc::default();
            for (index, mailbox) in commands {
                let mailbox = Qpc::parse(&mailbox.try_into().unwrap());
                if let Ok(next) = qpc.modify(Transition::ALL[index], &mailbox) {
                    qpc = next;
                    prop_assert!(qpc.image.state().is_some());
                    prop_assert_eq!(Qpc::parse(&qpc.image.emit()), qpc.image);
                }
            }
        }
    }
}
