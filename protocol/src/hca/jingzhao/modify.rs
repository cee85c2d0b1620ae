//! Context changes made by MODIFY_QP commands.
//!
//! The public driver sends a whole context image with every command. The image repeats the initial PSNs, and almost no
//! bits in opt_param_mask are set. A driver that follows the specification sets a bit for each attribute that it
//! changes, and can send arbitrary values in the other fields. The following rules support both types of driver:
//!
//! - RST2INIT copies the whole image.
//! - Later transitions copy every accepted attribute whose mask bit is set, even if its value is zero.
//! - A required attribute is copied if its value is nonzero, even if its mask bit is clear.
//! - Some fields, mainly those for queues and keys, are not part of any attribute of the service type. They are copied
//!   if nonzero, but only until the part of the QP that uses them starts to run: up to RTR2RTS for send queue fields,
//!   and up to INIT2RTR for all others.
//! - PSNs are copied by the commands that initialise them: the receive PSN up to INIT2RTR, and the send PSN up to
//!   RTR2RTS.
//!
//! # Spec
//! JingZhao interface, sections 3.12, 10.2, 10.3, 10.4, 10.6 and 12 (J-28).

use std::time::Duration;

use super::cmd::CmdError;
use super::qpc::{QpState, Qpc, ServiceType};
use super::transition::{Attributes, Numbering, Transition};

/// ACK timeout for drivers that never set one. Code 14 is 67.1 ms.
const DEFAULT_ACK_TIMEOUT: u8 = 14;
/// Retry count for drivers that never set one.
const DEFAULT_RETRY_COUNT: u8 = 7;
/// RNR retry count for drivers that never set one; 7 means that retries are unlimited.
const DEFAULT_RNR_RETRY: u8 = 7;

/// QP context as stored by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct StoredQpc {
    /// Context image. The caller must update `state` and the PSNs before it applies a command.
    pub image: Qpc,
    /// Numbering that the QP's driver uses for the mask bits.
    numbering: Numbering,
}

/// Accepted range for the log2 of a WQE slot size in bytes.
const SLOT: std::ops::RangeInclusive<u8> = 5..=12;

impl StoredQpc {
    /// Returns the context that results from a command, including the new state. A transition to RESET clears all other
    /// fields. 2ERR, ERR2RST and RTS2SQD ignore `mailbox`.
    ///
    /// # Errors
    /// BAD_QPEE_STATE if the command is not allowed in the current state; BAD_PARAM for an unsupported value.
    pub fn modify(&self, transition: Transition, mailbox: &Qpc) -> Result<Self, CmdError> {
        let service = match transition {
            Transition::Rst2Init => mailbox.service(),
            _ => self.image.service(),
        };
        let unsupported = CmdError::param("service type", mailbox.service.into());
        // A QP in RESET can have an invalid service type. Assuming RC is safe because the transitions allowed in RESET
        // do not depend on the service type.
        let checked = service.unwrap_or(ServiceType::Rc);
        transition.check(self.image.state(), checked)?;
        let mut next = *self;
        match transition {
            Transition::ToRst => return Ok(Self::default()),
            // Section 10.3: these commands ignore the mailbox.
            Transition::ToErr | Transition::Rts2Sqd => {}
            Transition::Rst2Init => {
                check_port(mailbox)?;
                service.ok_or(unsupported)?;
                next = Self { image: *mailbox, numbering: Numbering::of_rst2init(mailbox.opt_param_mask) };
                next.image.opt_param_mask = 0;
                next.image.unacked_psn = mailbox.next_send_psn;
            }
            _ => {
                check_port(mailbox)?;
                next.merge(transition, checked, mailbox);
            }
        }
        next.image.state = transition.target().code();
        if !matches!(transition, Transition::ToErr) {
            next.check(transition.target(), checked)?;
        }
        Ok(next)
    }

    /// Returns the attributes selected by a command's mask.
    pub fn named(&self, mailbox: &Qpc) -> Attributes {
        self.numbering.named(mailbox.opt_param_mask)
    }

    /// Applies a command other than RST2INIT by copying from `mailbox` the fields that the command changes.
    fn merge(&mut self, transition: Transition, service: ServiceType, mailbox: &Qpc) {
        let required = transition.required(service);
        let named = self.named(mailbox) & (required | transition.optional(service));
        let in_init = matches!(transition, Transition::Init2Init | Transition::Init2Rtr);
        // Section 10.3, rule 4: up to INIT2RTR, attributes that do not apply to the service type are also copied if
        // nonzero.
        let inapplicable = if in_init { !Attributes::of(service) } else { Attributes::empty() };
        let Self { image, .. } = self;
        // Section 10.3, rules 2 and 3: attributes in the mask are copied even if zero. Required attributes outside the
        // mask are copied if nonzero.
        for attribute in Attributes::all().iter() {
            let copy_if_nonzero = (required | inapplicable).contains(attribute);
            if named.contains(attribute) || copy_if_nonzero && is_nonzero(attribute, mailbox) {
                copy(attribute, image, mailbox);
            }
        }
        merge_setup_fields(transition, image, mailbox);
        // Section 10.3, rule 5: PSNs are copied as they are, even if zero.
        if in_init {
            image.recv_psn = mailbox.recv_psn;
        }
        if in_init || transition == Transition::Rtr2Rts {
            image.next_send_psn = mailbox.next_send_psn;
            image.unacked_psn = mailbox.next_send_psn;
        }
        if transition == Transition::Rtr2Rts && service == ServiceType::Rc {
            self.default_retries(named);
        }
    }

    /// Sets defaults for the retry parameters that are still unset after RTR2RTS. The defaults use the encoding of the
    /// public driver, the only driver that leaves the parameters unset.
    fn default_retries(&mut self, named: Attributes) {
        let Self { image, .. } = self;
        let unset = |attribute, value: u8| value == 0 && !named.contains(attribute);
        if unset(Attributes::RNR_RETRY, image.rnr_retry) {
            image.rnr_retry = DEFAULT_RNR_RETRY << 5;
        }
        if unset(Attributes::TIMEOUT, image.ack_timeout) {
            image.ack_timeout = DEFAULT_ACK_TIMEOUT << 3;
        }
        if unset(Attributes::RETRY_CNT, image.retry_count()) {
            image.set_retry_count(DEFAULT_RETRY_COUNT);
        }
    }

    /// Checks that the device supports this context in state `target`.
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

    /// Returns the RNR retry count in effect, 0 to 7; 7 means that retries are unlimited.
    pub const fn rnr_retry(&self) -> u8 {
        self.image.rnr_retry_code()
    }

    /// Returns the ACK timeout in effect, 4.096 us * 2^code, or `None` if the timeout is disabled.
    pub const fn ack_timeout(&self) -> Option<Duration> {
        match self.image.ack_timeout_code(self.numbering) {
            0 => None,
            code => Some(Duration::from_nanos(4096 << code)),
        }
    }

    /// Returns the retry count in effect, 0 to 7.
    pub const fn retry_count(&self) -> u8 {
        self.image.retry_count()
    }

    /// Returns the RNR NAK timer code to send, 0 to 31.
    pub const fn min_rnr_timer(&self) -> u8 {
        self.image.min_rnr_timer & 0x1f
    }

    /// Returns the context image that QUERY_QP reports. It is all zeros in RESET.
    pub fn query(&self) -> Qpc {
        match self.image.state() {
            Some(QpState::Reset) => Qpc::default(),
            _ => Qpc { opt_param_mask: 0, ..self.image },
        }
    }
}

/// Copies the fields of one attribute. PSN attributes are ignored.
fn copy(attribute: Attributes, to: &mut Qpc, from: &Qpc) {
    macro_rules! fields {
        ($($field:ident),* $(,)?) => {{ $(to.$field = from.$field;)* }};
    }
    match attribute {
        Attributes::PKEY_INDEX => fields!(pkey_index),
        Attributes::PORT => fields!(port),
        Attributes::QKEY => fields!(qkey),
        // In table A1-4 of the specification, the address vector also includes fields that have their own mask bits.
        // Only those bits select them.
        Attributes::AV => fields!(
            my_lmc,
            rlid,
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
        ),
        Attributes::PATH_MTU => fields!(mtu),
        Attributes::TIMEOUT => fields!(ack_timeout),
        Attributes::RETRY_CNT => to.set_retry_count(from.retry_count()),
        Attributes::RNR_RETRY => fields!(rnr_retry),
        Attributes::ALT_PATH => fields!(alternate_path),
        Attributes::MIN_RNR_TIMER => fields!(min_rnr_timer),
        Attributes::DEST_QPN => fields!(remote_qpn),
        _ => {}
    }
}

/// Returns whether any field of the attribute is nonzero.
fn is_nonzero(attribute: Attributes, mailbox: &Qpc) -> bool {
    let mut alone = Qpc::default();
    copy(attribute, &mut alone, mailbox);
    alone != Qpc::default()
}

/// Copies nonzero fields that are not part of any attribute. A field is copied only until the part of the QP that uses
/// it starts to run.
fn merge_setup_fields(transition: Transition, image: &mut Qpc, mailbox: &Qpc) {
    macro_rules! copy_nonzero {
        ($($field:ident),* $(,)?) => {
            $(if mailbox.$field != Qpc::default().$field {
                image.$field = mailbox.$field;
            })*
        };
    }
    match transition {
        Transition::Init2Init | Transition::Init2Rtr => {
            let retry_count = image.retry_count();
            copy_nonzero!(
                reserved_04,
                flags_27_24,
                flags_15_0,
                log_max_msg,
                log_rq_slot,
                log_sq_slot,
                sched_queue,
                usr_page,
                local_qpn,
                pd,
                wqe_base,
                wqe_lkey,
                params1,
                send_cqn,
                sq_lkey,
                sq_len,
                ssn,
                ra_buff_index,
                recv_cqn,
                rq_lkey,
                rq_len,
                rmsn,
                wqe_counters,
            );
            image.set_retry_count(retry_count);
        }
        Transition::Rtr2Rts => {
            copy_nonzero!(log_max_msg, log_sq_slot, usr_page, send_cqn, sq_lkey, sq_len);
        }
        _ => {}
    }
}

fn check_port(mailbox: &Qpc) -> Result<(), CmdError> {
    match mailbox.port {
        0 | 1 => Ok(()),
        other => Err(CmdError::param("port", other.into())),
    }
}

/// Checks the slot size and the length of a queue. A queue of length 0 is absent and can have any slot size.
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
    use crate::ids::{Cqn, Lid, Lkey, Pdn, Qkey, Qpn};
    use proptest::prelude::*;

    /// Returns the image that the public driver sends with every command for an RC QP.
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
    fn rts2rts_with_original_context_keeps_current_psns() {
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

    /// Returns an image in which almost all fields are nonzero and differ from the fields of `image`.
    fn others() -> Qpc {
        Qpc {
            opt_param_mask: 0,
            reserved_04: 4,
            flags_27_24: 5,
            flags_15_0: 6,
            mtu: 5,
            log_max_msg: 20,
            log_rq_slot: 8,
            log_sq_slot: 8,
            sched_queue: 7,
            usr_page: 8,
            local_qpn: Qpn::new(9),
            remote_qpn: Qpn::new(10),
            pkey_index: 11,
            rnr_retry: 6 << 5,
            my_lmc: 12,
            rlid: 13,
            ack_timeout: 19 << 3,
            mgid_index: 14,
            static_rate: 15,
            hop_limit: 16,
            service_level: 1,
            traffic_class: 17,
            flow_label: 18,
            remote_gid: [19; 16],
            dlid: Lid::new(20),
            slid: Lid::new(21),
            smac_high: 22,
            dmac_high: 23,
            source_ip: 24,
            dest_ip: 25,
            alternate_path: [26; 12],
            pd: Pdn::new(27),
            wqe_base: 28,
            wqe_lkey: 29,
            params1: 5 << 16 | 30,
            next_send_psn: Psn::new(31),
            send_cqn: Cqn::new(32),
            sq_lkey: Lkey::new(33),
            sq_len: 0x8000,
            unacked_psn: Psn::new(34),
            ssn: 35,
            min_rnr_timer: 17,
            recv_psn: Psn::new(36),
            ra_buff_index: 37,
            recv_cqn: Cqn::new(38),
            rq_lkey: Lkey::new(39),
            rq_len: 0x8000,
            qkey: Qkey::new(40),
            rmsn: 41,
            wqe_counters: 42,
            ..image()
        }
    }

    fn naming(named: Attributes, mailbox: Qpc) -> Qpc {
        Qpc { opt_param_mask: named.bits(), ..mailbox }
    }

    /// Returns the context of a QP whose driver uses `numbering`, after RST2INIT and `commands`. All commands carry the
    /// fields that `others` returns.
    fn full(numbering: Numbering, service: ServiceType, commands: &[Transition]) -> StoredQpc {
        let opt_param_mask = match numbering {
            Numbering::Document => Attributes::PORT.bits(),
            Numbering::Driver => 1 << 11,
        };
        let mailbox = Qpc { opt_param_mask, service: service.code(), ..others() };
        let init = StoredQpc::default().modify(Transition::Rst2Init, &mailbox).unwrap();
        let mailbox = Qpc { opt_param_mask: 0, ..mailbox };
        commands.iter().fold(init, |qpc, command| qpc.modify(*command, &mailbox).unwrap())
    }

    const TO_RTS: [Transition; 2] = [Transition::Init2Rtr, Transition::Rtr2Rts];
    const TO_SQD: [Transition; 3] = [Transition::Init2Rtr, Transition::Rtr2Rts, Transition::Rts2Sqd];

    #[test]
    fn running_qp_applies_only_selected_attributes() {
        for service in [ServiceType::Rc, ServiceType::Uc, ServiceType::Ud] {
            let rts = full(Numbering::Document, service, &TO_RTS);
            let sqd = full(Numbering::Document, service, &TO_SQD);
            for (before, transition) in
                [(rts, Transition::Rts2Rts), (sqd, Transition::Sqd2Sqd), (sqd, Transition::Sqd2Rts)]
            {
                let same = |after: StoredQpc| {
                    let image = Qpc { state: before.image.state, ..after.image };
                    assert_eq!(image, before.image, "{transition:?} on {service:?}");
                };
                same(before.modify(transition, &image()).unwrap());
                same(before.modify(transition, &Qpc::default()).unwrap());
                let optional = transition.optional(service);
                same(before.modify(transition, &naming(!optional, image())).unwrap());
            }
        }
    }

    #[test]
    fn selected_attribute_can_be_zero() {
        let sqd = full(Numbering::Document, ServiceType::Rc, &TO_SQD);
        for transition in [Transition::Sqd2Sqd, Transition::Sqd2Rts] {
            let retries = Attributes::RNR_RETRY | Attributes::TIMEOUT | Attributes::RETRY_CNT;
            let named = retries | Attributes::MIN_RNR_TIMER;
            let after = sqd.modify(transition, &naming(named, Qpc::default())).unwrap();
            assert_eq!((after.rnr_retry(), after.ack_timeout(), after.retry_count()), (0, None, 0));
            assert_eq!(after.min_rnr_timer(), 0);
            assert_eq!(after.image.params1, 30, "the other bits of the word are preserved");
            let again = after.modify(transition, &naming(Attributes::empty(), others()));
            if let Ok(again) = again {
                assert_eq!((again.rnr_retry(), again.ack_timeout(), again.retry_count()), (0, None, 0));
            }
        }
        let zero = sqd.modify(Transition::Sqd2Sqd, &naming(Attributes::PKEY_INDEX, Qpc::default())).unwrap();
        assert_eq!(zero.image, Qpc { pkey_index: 0, ..sqd.image });
        let ud = full(Numbering::Document, ServiceType::Ud, &TO_RTS);
        let zero = ud.modify(Transition::Rts2Rts, &naming(Attributes::QKEY, Qpc::default())).unwrap();
        assert_eq!(zero.image, Qpc { qkey: Qkey::new(0), ..ud.image });
    }

    #[test]
    fn selected_address_vector_replaces_all_fields() {
        for (before, transition) in [
            (full(Numbering::Document, ServiceType::Rc, &TO_SQD), Transition::Sqd2Sqd),
            (full(Numbering::Document, ServiceType::Uc, &TO_SQD), Transition::Sqd2Rts),
        ] {
            let lid = Qpc { dlid: Lid::new(7), ..Qpc::default() };
            let image = before.modify(transition, &naming(Attributes::AV, lid)).unwrap().image;
            assert_eq!((image.dlid, image.dest_ip, image.dmac_high), (Lid::new(7), 0, 0));
            assert_eq!((image.source_ip, image.smac_high, image.slid), (0, 0, Lid::new(0)));
            assert_eq!((image.service_level, image.traffic_class, image.hop_limit), (0, 0, 0));
            assert_eq!(image.remote_gid, [0; 16]);
            assert_eq!(
                (image.rnr_retry, image.ack_timeout),
                (before.image.rnr_retry, before.image.ack_timeout)
            );
            assert_eq!(image.pkey_index, before.image.pkey_index);
        }
    }

    /// In the specification, bits 6, 11, 14 and 15 are QKEY, RNR_RETRY, ALT_PATH and MIN_RNR_TIMER. In the public
    /// driver's numbering, they are MIN_RNR_TIMER, PORT, TIMEOUT and RNR_RETRY.
    #[test]
    fn mask_bit_meaning_depends_on_numbering() {
        let sqd = |numbering| full(numbering, ServiceType::Rc, &TO_SQD);
        let given = |before: StoredQpc, bit: u32| {
            let mailbox = Qpc { opt_param_mask: 1 << bit, port: 1, ..Qpc::default() };
            let after = before.modify(Transition::Sqd2Sqd, &mailbox).unwrap();
            let Qpc { rnr_retry, ack_timeout, min_rnr_timer, alternate_path, .. } = before.image;
            let same = Qpc { rnr_retry, ack_timeout, min_rnr_timer, alternate_path, ..after.image };
            assert_eq!(same, before.image, "bit {bit}");
            (after.rnr_retry(), after.ack_timeout().is_some(), after.min_rnr_timer())
        };
        let document = sqd(Numbering::Document);
        assert_eq!(
            [6, 11, 14, 15].map(|bit| given(document, bit)),
            [(6, true, 17), (0, true, 17), (6, true, 17), (6, true, 0),]
        );
        let driver = sqd(Numbering::Driver);
        assert_eq!(
            [6, 11, 14, 15].map(|bit| given(driver, bit)),
            [(6, true, 0), (6, true, 17), (6, false, 17), (0, true, 17),]
        );
    }

    #[test]
    fn required_attribute_is_copied_without_mask_bit() {
        let init = StoredQpc::default().modify(Transition::Rst2Init, &image()).unwrap();
        let rtr = init.modify(Transition::Init2Rtr, &others()).unwrap().image;
        let Qpc { mtu, remote_qpn, dlid, dest_ip, min_rnr_timer, recv_psn, .. } = others();
        assert_eq!(
            (rtr.mtu, rtr.remote_qpn, rtr.min_rnr_timer, rtr.recv_psn),
            (mtu, remote_qpn, min_rnr_timer, recv_psn)
        );
        assert_eq!((rtr.dlid, rtr.dest_ip), (dlid, dest_ip));
        assert_eq!(
            (rtr.pkey_index, rtr.alternate_path),
            (0, [0; 12]),
            "optional attributes require a mask bit"
        );
        let kept = init.modify(Transition::Init2Rtr, &Qpc::default()).unwrap().image;
        assert_eq!((kept.mtu, kept.remote_qpn), (image().mtu, image().remote_qpn));
    }

    #[test]
    fn queues_cannot_change_while_running() {
        let init = StoredQpc::default().modify(Transition::Rst2Init, &image()).unwrap();
        let rtr = init.modify(Transition::Init2Rtr, &others()).unwrap();
        let queues = |qpc: &Qpc| (qpc.pd, qpc.rq_lkey, qpc.rq_len, qpc.recv_cqn, qpc.log_rq_slot);
        assert_eq!(queues(&rtr.image), queues(&others()));
        let rts = rtr.modify(Transition::Rtr2Rts, &Qpc { pd: Pdn::new(99), ..image() }).unwrap();
        assert_eq!(queues(&rts.image), queues(&others()), "a running receive queue does not change");
        assert_eq!((rts.image.sq_lkey, rts.image.sq_len), (image().sq_lkey, image().sq_len));
        let later = rts.modify(Transition::Rts2Rts, &others()).unwrap();
        assert_eq!(later, rts);
    }

    /// UD QPs have neither an address vector nor a path MTU attribute, but they use the fields of both.
    #[test]
    fn ud_qp_ignores_path_fields_after_rtr() {
        let ud = Qpc { service: 3, mtu: 0, ..image() };
        let init = StoredQpc::default().modify(Transition::Rst2Init, &ud).unwrap();
        let with_path = Qpc { service_level: 3, mtu: 5, log_max_msg: 11, ..ud };
        let rtr = init.modify(Transition::Init2Rtr, &with_path).unwrap();
        assert_eq!((rtr.image.service_level, rtr.image.mtu, rtr.image.log_max_msg), (3, 5, 11));
        let rts = rtr.modify(Transition::Rtr2Rts, &Qpc { service_level: 4, ..with_path }).unwrap();
        assert_eq!(rts.image.service_level, 3);
    }

    #[test]
    fn only_setup_transitions_set_psns() {
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
    fn unacked_psn_starts_at_next_psn() {
        let odd = Qpc { unacked_psn: Psn::new(0xabc), ..image() };
        let init = StoredQpc::default().modify(Transition::Rst2Init, &odd).unwrap();
        assert_eq!(init.image.unacked_psn, Psn::new(0x100));
    }

    #[test]
    fn service_type_is_set_only_by_rst2init() {
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
    fn qp_state_in_mailbox_is_ignored() {
        let zeroed = Qpc::default();
        let err = rts().modify(Transition::ToErr, &zeroed).unwrap();
        assert_eq!(err.image.state(), Some(QpState::Err));
        assert_eq!(err.modify(Transition::ToRst, &zeroed), Ok(StoredQpc::default()));
    }

    #[test]
    fn wrong_state_returns_bad_qp_state() {
        let error = rts().modify(Transition::Init2Rtr, &image()).unwrap_err();
        assert_eq!(error.status, CmdStatus::BadQpState);
        assert_eq!(error.status.basic(), CmdStatus::BadParam);
    }

    #[test]
    fn sqd2rts_is_accepted_while_draining() {
        let mut qpc = rts().modify(Transition::Rts2Sqd, &image()).unwrap();
        qpc.image.state = QpState::Draining.code();
        assert_eq!(qpc.modify(Transition::Sqd2Rts, &image()).unwrap().image.state(), Some(QpState::Rts));
    }

    #[test]
    fn rejects_bad_port_mtu_and_queues() {
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
    fn rejects_zero_mtu_on_connected_qp() {
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
    fn slot_size_is_ignored_for_empty_queue() {
        let send_only = Qpc { rq_len: 0, log_rq_slot: 0, ..image() };
        let init = StoredQpc::default().modify(Transition::Rst2Init, &send_only).unwrap();
        assert!(init.modify(Transition::Init2Rtr, &send_only).is_ok());
    }

    #[test]
    fn query_qp_returns_default_retry_values() {
        let qpc = rts();
        assert_eq!(qpc.rnr_retry(), 7);
        assert_eq!(qpc.retry_count(), 7);
        assert_eq!(qpc.ack_timeout(), Some(Duration::from_nanos(67_108_864)));
        assert_eq!(qpc.min_rnr_timer(), 0);
        let answer = qpc.query().emit();
        // The public driver reads the high three bits of the first byte and the high five bits of the second.
        assert_eq!((answer[0x20], answer[0x24], answer[0x69]), (7 << 5, 14 << 3, 7));
    }

    #[test]
    fn only_rc_qps_get_default_retries() {
        for service in [1, 3] {
            let mailbox = Qpc { service, ..image() };
            let init = StoredQpc::default().modify(Transition::Rst2Init, &mailbox).unwrap();
            let rts = TO_RTS.iter().fold(init, |qpc, command| qpc.modify(*command, &mailbox).unwrap());
            let Qpc { rnr_retry, ack_timeout, params1, .. } = rts.query();
            assert_eq!((rnr_retry, ack_timeout, params1), (0, 0, 0));
        }
    }

    #[test]
    fn explicit_zero_disables_retries() {
        let document = Attributes::RNR_RETRY | Attributes::TIMEOUT | Attributes::RETRY_CNT;
        for (port, mask) in [(1 << 5, document.bits()), (1 << 11, 1 << 15 | 1 << 14 | 1 << 12)] {
            let begin = Qpc { opt_param_mask: port, ..image() };
            let init = StoredQpc::default().modify(Transition::Rst2Init, &begin).unwrap();
            let rtr = init.modify(Transition::Init2Rtr, &image()).unwrap();
            let qpc = rtr.modify(Transition::Rtr2Rts, &Qpc { opt_param_mask: mask, ..image() }).unwrap();
            assert_eq!((qpc.rnr_retry(), qpc.ack_timeout(), qpc.retry_count()), (0, None, 0));
            let later = qpc.modify(Transition::Rts2Rts, &image()).unwrap();
            assert_eq!(later, qpc);
            assert_eq!(later.image.opt_param_mask, 0);
        }
    }

    #[test]
    fn sqd_notify_leaves_fields_unchanged() {
        let mailbox = Qpc { opt_param_mask: 1 << 2, mtu: 5, qkey: Qkey::new(1), ..Qpc::default() };
        let sqd = rts().modify(Transition::Rts2Sqd, &mailbox).unwrap();
        assert_eq!(sqd.image, Qpc { state: QpState::Sqd.code(), ..rts().image });
    }

    #[test]
    fn query_in_reset_returns_zeros() {
        assert_eq!(StoredQpc::default().query().emit(), [0; LEN]);
    }

    proptest! {
        #[test]
        fn any_mailbox_leaves_valid_context(
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
