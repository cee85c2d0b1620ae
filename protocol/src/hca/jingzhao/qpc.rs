//! Queue pair contexts (QPC): the context image in MODIFY_QP and QUERY_QP mailboxes, and in ICM.
//!
//! [`super::modify`] defines how commands change a context.
//!
//! # Spec
//! JingZhao interface, sections 4.3 and 12 (J-13 to J-18).

use std::net::Ipv4Addr;

use bitfield_struct::bitfield;
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use super::transition::{Attributes, Numbering};
use crate::Psn;
use crate::describe::{Hex, describe};
pub use crate::hca::qp::{QpState, ServiceType};
use crate::ids::{Cqn, Lid, Lkey, MacAddr, Pdn, Qkey, Qpn};

/// Length of a context image in bytes, in the mailbox and in ICM.
pub const LEN: usize = 0xc0;
/// Length in bytes of the part that the interface defines. The rest of a mailbox is undefined, and the device writes it
/// as 0.
pub const MEANINGFUL_LEN: usize = 0xa4;

/// Offsets, within the context in ICM, of the words that the device updates.
#[allow(missing_docs)]
pub mod write_back {
    /// Byte offset of [`Qpc::state_word`](super::Qpc::state_word).
    pub const STATE: usize = 0x08;
    pub const NEXT_SEND_PSN: usize = 0x6c;
    pub const LAST_ACKED_PSN: usize = 0x7c;
    /// Byte offset of [`Qpc::next_recv_word`](super::Qpc::next_recv_word).
    pub const NEXT_RECV_PSN: usize = 0x84;
}

/// A context image. Fields that the device does not use are preserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Qpc {
    /// 00h: mask of the attributes to change; see [`super::transition::Attributes`]. QUERY_QP returns 0.
    pub opt_param_mask: u32,
    /// 04h: not used by the device.
    pub reserved_04: u32,
    /// 08h, bits 31:28: see [`Qpc::state`].
    pub state: u8,
    /// 08h, bits 27:24: unused.
    pub flags_27_24: u8,
    /// 08h, bits 23:16: see [`Qpc::service`].
    pub service: u8,
    /// 08h, bits 15:0: unused.
    pub flags_15_0: u16,
    /// 0Ch, bits 31:29: path MTU code, 1 to 5 for 256 to 4096 bytes.
    pub mtu: u8,
    /// 0Ch, bits 28:24: log2 of the largest message in bytes.
    pub log_max_msg: u8,
    /// 0Ch, bits 23:16: log2 of the receive WQE slot size in bytes.
    pub log_rq_slot: u8,
    /// 0Ch, bits 15:8: log2 of the send WQE slot size in bytes.
    pub log_sq_slot: u8,
    /// 0Ch, bits 7:0: unused.
    pub sched_queue: u8,
    /// 10h: UAR page; 0 for a kernel QP (J-13).
    pub usr_page: u32,
    /// 14h: local QP number.
    pub local_qpn: Qpn,
    /// 18h: QP number of the peer.
    pub remote_qpn: Qpn,
    /// 1Ch, bits 26:24: physical port, always 1.
    pub port: u8,
    /// 1Ch, bits 6:0: P_Key index.
    pub pkey_index: u8,
    /// 20h, bits 31:24: see [`Qpc::rnr_retry_code`].
    pub rnr_retry: u8,
    /// 20h, bits 23:16: GRH flag (bit 7) and path bits. Unused.
    pub my_lmc: u8,
    /// 20h, bits 15:0: unused.
    pub rlid: u16,
    /// 24h, bits 31:24: see [`Qpc::ack_timeout_code`].
    pub ack_timeout: u8,
    /// 24h, bits 23:16: source GID index. Unused.
    pub mgid_index: u8,
    /// 24h, bits 15:8: unused.
    pub static_rate: u8,
    /// 24h, bits 7:0: unused.
    pub hop_limit: u8,
    /// 28h, bits 31:28: service level (J-16).
    pub service_level: u8,
    /// 28h, bits 27:20: traffic class.
    pub traffic_class: u8,
    /// 28h, bits 19:0: flow label.
    pub flow_label: u32,
    /// 2Ch: GID of the destination.
    pub remote_gid: [u8; 16],
    /// 3Ch, bits 31:16: destination LID, or bits 15:0 of the destination MAC; see [`Qpc::dmac`].
    pub dlid: Lid,
    /// 3Ch, bits 15:0: source LID, or bits 15:0 of the source MAC; see [`Qpc::smac`].
    pub slid: Lid,
    /// 40h: source MAC, bits 47:16.
    pub smac_high: u32,
    /// 44h: destination MAC, bits 47:16.
    pub dmac_high: u32,
    /// 48h: source IPv4 address.
    pub source_ip: u32,
    /// 4Ch: destination IPv4 address; see [`Qpc::dip`].
    pub dest_ip: u32,
    /// 50h: alternate path. Unused.
    pub alternate_path: [u8; 12],
    /// 5Ch: protection domain for the queues and the data.
    pub pd: Pdn,
    /// 60h: not used by the device.
    pub wqe_base: u32,
    /// 64h: not used by the device.
    pub wqe_lkey: u32,
    /// 68h: bits 18:16 are the retry count (J-17).
    pub params1: u32,
    /// 6Ch: next PSN to send. The device updates it while the QP runs.
    pub next_send_psn: Psn,
    /// 70h: CQ number of the send queue.
    pub send_cqn: Cqn,
    /// 74h: L_Key of the send queue's region.
    pub sq_lkey: Lkey,
    /// 78h: length of the send queue in bytes.
    pub sq_len: u32,
    /// 7Ch: oldest unacknowledged PSN. The device updates it while the QP runs.
    pub unacked_psn: Psn,
    /// 80h: not used by the device.
    pub ssn: u32,
    /// 84h, bits 31:24: minimum RNR NAK timer code in the low five bits.
    pub min_rnr_timer: u8,
    /// 84h, bits 23:0: expected PSN. The device updates it while the QP runs.
    pub recv_psn: Psn,
    /// 88h: not used by the device.
    pub ra_buff_index: u32,
    /// 8Ch: CQ number of the receive queue.
    pub recv_cqn: Cqn,
    /// 90h: L_Key of the receive queue's region.
    pub rq_lkey: Lkey,
    /// 94h: length of the receive queue in bytes.
    pub rq_len: u32,
    /// 98h: Q_Key of a UD QP.
    pub qkey: Qkey,
    /// 9Ch: not used by the device.
    pub rmsn: u32,
    /// A0h: not used by the device (J-18).
    pub wqe_counters: u32,
}

impl Qpc {
    /// Parses an image. Accepts any content; values are checked when a command is applied.
    pub fn parse(image: &[u8; LEN]) -> Self {
        let raw: Raw = transmute!(*image);
        Self {
            opt_param_mask: raw.opt_param_mask.get(),
            reserved_04: raw.reserved_04.get(),
            state: raw.flags.state(),
            flags_27_24: raw.flags.flags_27_24(),
            service: raw.flags.service(),
            flags_15_0: raw.flags.flags_15_0(),
            mtu: raw.mtu_msgmax.mtu(),
            log_max_msg: raw.mtu_msgmax.log_max_msg(),
            log_rq_slot: raw.log_rq_slot,
            log_sq_slot: raw.log_sq_slot,
            sched_queue: raw.sched_queue,
            usr_page: raw.usr_page.get(),
            local_qpn: Qpn::new(raw.local_qpn.get()),
            remote_qpn: Qpn::new(raw.remote_qpn.get()),
            port: raw.port_pkey.port(),
            pkey_index: raw.port_pkey.pkey_index(),
            rnr_retry: raw.rnr_retry,
            my_lmc: raw.my_lmc,
            rlid: raw.rlid.get(),
            ack_timeout: raw.ack_timeout,
            mgid_index: raw.mgid_index,
            static_rate: raw.static_rate,
            hop_limit: raw.hop_limit,
            service_level: raw.path.service_level(),
            traffic_class: raw.path.traffic_class(),
            flow_label: raw.path.flow_label(),
            remote_gid: raw.remote_gid,
            dlid: Lid::new(raw.dlid.get()),
            slid: Lid::new(raw.slid.get()),
            smac_high: raw.smac_high.get(),
            dmac_high: raw.dmac_high.get(),
            source_ip: raw.source_ip.get(),
            dest_ip: raw.dest_ip.get(),
            alternate_path: raw.alternate_path,
            pd: Pdn::new(raw.pd.get()),
            wqe_base: raw.wqe_base.get(),
            wqe_lkey: raw.wqe_lkey.get(),
            params1: raw.params1.get(),
            next_send_psn: Psn::new(raw.next_send_psn.get()),
            send_cqn: Cqn::new(raw.send_cqn.get()),
            sq_lkey: Lkey::new(raw.sq_lkey.get()),
            sq_len: raw.sq_len.get(),
            unacked_psn: Psn::new(raw.unacked_psn.get()),
            ssn: raw.ssn.get(),
            min_rnr_timer: raw.recv.min_rnr_timer(),
            recv_psn: Psn::new(raw.recv.recv_psn()),
            ra_buff_index: raw.ra_buff_index.get(),
            recv_cqn: Cqn::new(raw.recv_cqn.get()),
            rq_lkey: Lkey::new(raw.rq_lkey.get()),
            rq_len: raw.rq_len.get(),
            qkey: Qkey::new(raw.qkey.get()),
            rmsn: raw.rmsn.get(),
            wqe_counters: raw.wqe_counters.get(),
        }
    }

    /// Returns the image in wire format. Values that exceed their fields are truncated.
    pub fn emit(&self) -> [u8; LEN] {
        transmute!(Raw {
            opt_param_mask: self.opt_param_mask.into(),
            reserved_04: self.reserved_04.into(),
            flags: self.flags(),
            mtu_msgmax: MtuMsgMax::new().with_mtu(self.mtu & 0x7).with_log_max_msg(self.log_max_msg & 0x1f),
            log_rq_slot: self.log_rq_slot,
            log_sq_slot: self.log_sq_slot,
            sched_queue: self.sched_queue,
            usr_page: self.usr_page.into(),
            local_qpn: self.local_qpn.get().into(),
            remote_qpn: self.remote_qpn.get().into(),
            port_pkey: PortPkey::new().with_port(self.port & 0x7).with_pkey_index(self.pkey_index & 0x7f),
            rnr_retry: self.rnr_retry,
            my_lmc: self.my_lmc,
            rlid: self.rlid.into(),
            ack_timeout: self.ack_timeout,
            mgid_index: self.mgid_index,
            static_rate: self.static_rate,
            hop_limit: self.hop_limit,
            path: Path::new()
                .with_service_level(self.service_level & 0xf)
                .with_traffic_class(self.traffic_class)
                .with_flow_label(self.flow_label & 0xf_ffff),
            remote_gid: self.remote_gid,
            dlid: self.dlid.get().into(),
            slid: self.slid.get().into(),
            smac_high: self.smac_high.into(),
            dmac_high: self.dmac_high.into(),
            source_ip: self.source_ip.into(),
            dest_ip: self.dest_ip.into(),
            alternate_path: self.alternate_path,
            pd: self.pd.get().into(),
            wqe_base: self.wqe_base.into(),
            wqe_lkey: self.wqe_lkey.into(),
            params1: self.params1.into(),
            next_send_psn: self.next_send_psn.get().into(),
            send_cqn: self.send_cqn.get().into(),
            sq_lkey: self.sq_lkey.get().into(),
            sq_len: self.sq_len.into(),
            unacked_psn: self.unacked_psn.get().into(),
            ssn: self.ssn.into(),
            recv: self.recv(),
            ra_buff_index: self.ra_buff_index.into(),
            recv_cqn: self.recv_cqn.get().into(),
            rq_lkey: self.rq_lkey.get().into(),
            rq_len: self.rq_len.into(),
            qkey: self.qkey.get().into(),
            rmsn: self.rmsn.into(),
            wqe_counters: self.wqe_counters.into(),
            reserved_a4: [0; LEN - MEANINGFUL_LEN],
        })
    }

    /// Returns the word at 08h of the image: the state, the service type and unused bits, which the device preserves.
    pub fn state_word(&self) -> [u8; 4] {
        transmute!(self.flags())
    }

    /// Returns the word at 84h of the image: the RNR NAK timer code and the expected PSN.
    pub fn next_recv_word(&self) -> [u8; 4] {
        transmute!(self.recv())
    }

    fn flags(&self) -> Flags {
        Flags::new()
            .with_state(self.state & 0xf)
            .with_flags_27_24(self.flags_27_24 & 0xf)
            .with_service(self.service)
            .with_flags_15_0(self.flags_15_0)
    }

    fn recv(&self) -> Recv {
        Recv::new().with_min_rnr_timer(self.min_rnr_timer).with_recv_psn(self.recv_psn.get())
    }

    /// Returns the service type, or `None` for an unsupported code.
    pub const fn service(&self) -> Option<ServiceType> {
        ServiceType::from_code(self.service)
    }

    /// Returns the state, or `None` for an undefined code.
    pub const fn state(&self) -> Option<QpState> {
        QpState::from_code(self.state)
    }

    /// Returns the destination MAC address, if its high part is nonzero.
    pub const fn dmac(&self) -> Option<MacAddr> {
        mac(self.dmac_high, self.dlid)
    }

    /// Returns the source MAC address, if its high part is nonzero.
    pub const fn smac(&self) -> Option<MacAddr> {
        mac(self.smac_high, self.slid)
    }

    /// Returns the destination IPv4 address, if nonzero.
    pub const fn dip(&self) -> Option<Ipv4Addr> {
        if self.dest_ip == 0 { None } else { Some(Ipv4Addr::from_bits(self.dest_ip)) }
    }

    /// Returns the source IPv4 address, if nonzero.
    pub const fn sip(&self) -> Option<Ipv4Addr> {
        if self.source_ip == 0 { None } else { Some(Ipv4Addr::from_bits(self.source_ip)) }
    }

    /// Returns the RNR retry count, 0 to 7; 7 means that retries are unlimited. The specification puts the count in the
    /// low three bits of the byte, but the public driver uses the high three bits. If any of the low five bits is set,
    /// the device uses the low three bits. Otherwise, it uses the high three bits (J-14).
    pub const fn rnr_retry_code(&self) -> u8 {
        if self.rnr_retry & 0x1f != 0 { self.rnr_retry & 0x7 } else { self.rnr_retry >> 5 }
    }

    /// Returns the ACK timeout code, 0 to 31; 0 disables the timeout. The specification puts the code in the low five
    /// bits of the byte, but the public driver uses the high five bits. If any of the low three bits is set, the device
    /// uses the low five bits. The values 8, 16 and 24 are valid in both encodings; `numbering` selects one. For all
    /// other values, the device uses the high five bits (J-14).
    pub const fn ack_timeout_code(&self, numbering: Numbering) -> u8 {
        let byte = self.ack_timeout;
        let low = match numbering {
            Numbering::Document => byte <= 0x1f,
            Numbering::Driver => false,
        };
        if low || byte & 0x7 != 0 { byte & 0x1f } else { byte >> 3 }
    }

    /// Returns the retry count, 0 to 7, from the word at 68h (J-17).
    pub const fn retry_count(&self) -> u8 {
        // The mask leaves three bits, which fit into `u8`.
        (self.params1 >> 16 & 0x7) as u8
    }

    /// Sets the retry count in the word at 68h.
    pub fn set_retry_count(&mut self, count: u8) {
        self.params1 = self.params1 & !(0x7 << 16) | u32::from(count & 0x7) << 16;
    }
}

describe!(Qpc {
    opt_param_mask as Attributes::from_bits_retain,
    reserved_04 as Hex,
    state as QpState::word,
    flags_27_24 as Hex,
    service as ServiceType::word,
    flags_15_0 as Hex,
    mtu,
    log_max_msg,
    log_rq_slot,
    log_sq_slot,
    sched_queue as Hex,
    usr_page as Hex,
    local_qpn,
    remote_qpn,
    port,
    pkey_index,
    rnr_retry,
    my_lmc as Hex,
    rlid as Hex,
    ack_timeout,
    mgid_index,
    static_rate,
    hop_limit,
    service_level,
    traffic_class as Hex,
    flow_label as Hex,
    remote_gid,
    dlid,
    slid,
    smac_high as Hex,
    dmac_high as Hex,
    source_ip as ip_address,
    dest_ip as ip_address,
    alternate_path,
    pd,
    wqe_base as Hex,
    wqe_lkey as Hex,
    params1 as Hex,
    next_send_psn,
    send_cqn,
    sq_lkey,
    sq_len as Hex,
    unacked_psn,
    ssn as Hex,
    min_rnr_timer,
    recv_psn,
    ra_buff_index as Hex,
    recv_cqn,
    rq_lkey,
    rq_len as Hex,
    qkey,
    rmsn as Hex,
    wqe_counters as Hex,
});

/// Decodes an IPv4 address. Returns `None` if the field is 0, which means that the address is unset.
fn ip_address(field: u32) -> Option<Ipv4Addr> {
    (field != 0).then(|| Ipv4Addr::from_bits(field))
}

/// Combines the high 32 and the low 16 bits of a MAC address, which are separate fields in contexts and in the UD unit.
/// Returns `None` if the high part is 0; the low part is then a LID.
pub(super) const fn mac(high: u32, low: Lid) -> Option<MacAddr> {
    if high == 0 {
        return None;
    }
    let [a, b, c, d] = high.to_be_bytes();
    let [e, f] = low.get().to_be_bytes();
    Some(MacAddr([a, b, c, d, e, f]))
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Flags {
    flags_15_0: u16,
    service: u8,
    #[bits(4)]
    flags_27_24: u8,
    #[bits(4)]
    state: u8,
}

/// First byte of the word at 0Ch.
#[bitfield(u8)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct MtuMsgMax {
    #[bits(5)]
    log_max_msg: u8,
    #[bits(3)]
    mtu: u8,
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct PortPkey {
    #[bits(7)]
    pkey_index: u8,
    #[bits(17)]
    __: u32,
    #[bits(3)]
    port: u8,
    #[bits(5)]
    __: u8,
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Path {
    #[bits(20)]
    flow_label: u32,
    traffic_class: u8,
    #[bits(4)]
    service_level: u8,
}

#[bitfield(u32, repr = U32, from = U32::new, into = U32::get)]
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct Recv {
    #[bits(24)]
    recv_psn: u32,
    min_rnr_timer: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    opt_param_mask: U32,
    reserved_04: U32,
    flags: Flags,
    mtu_msgmax: MtuMsgMax,
    log_rq_slot: u8,
    log_sq_slot: u8,
    sched_queue: u8,
    usr_page: U32,
    local_qpn: U32,
    remote_qpn: U32,
    port_pkey: PortPkey,
    rnr_retry: u8,
    my_lmc: u8,
    rlid: U16,
    ack_timeout: u8,
    mgid_index: u8,
    static_rate: u8,
    hop_limit: u8,
    path: Path,
    remote_gid: [u8; 16],
    dlid: U16,
    slid: U16,
    smac_high: U32,
    dmac_high: U32,
    source_ip: U32,
    dest_ip: U32,
    alternate_path: [u8; 12],
    pd: U32,
    wqe_base: U32,
    wqe_lkey: U32,
    params1: U32,
    next_send_psn: U32,
    send_cqn: U32,
    sq_lkey: U32,
    sq_len: U32,
    unacked_psn: U32,
    ssn: U32,
    recv: Recv,
    ra_buff_index: U32,
    recv_cqn: U32,
    rq_lkey: U32,
    rq_len: U32,
    qkey: U32,
    rmsn: U32,
    wqe_counters: U32,
    reserved_a4: [u8; LEN - MEANINGFUL_LEN],
}

const _: () = assert!(std::mem::offset_of!(Raw, reserved_a4) == MEANINGFUL_LEN);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Example image from section 14.7.
    pub(crate) const INIT2RTR: [u8; LEN] = {
        let head: [u8; 0x20] = [
            0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x20, 0x00, 0x00, 0x00, 0x7f, 0x07, 0x07,
            0x00, //
            0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x05, 0x00, 0x00, 0x00, 0x09, 0x01, 0x00, 0x00, 0x00,
        ];
        let tail: [u8; 0x50] = [
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x03, //
            0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x21, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x00, //
            0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x21, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00,
            0x00, //
            0x00, 0x00, 0x00, 0x00, 0x0c, 0x12, 0x34, 0x56, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
            0x02, //
            0x00, 0x00, 0x00, 0x22, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00,
        ];
        let mut image = [0; LEN];
        let (first, rest) = image.split_at_mut(0x20);
        first.copy_from_slice(&head);
        rest.split_at_mut(0x30).1.split_at_mut(0x50).0.copy_from_slice(&tail);
        image
    };

    fn init2rtr() -> Qpc {
        Qpc {
            opt_param_mask: 1 << 6,
            state: 2,
            mtu: 3,
            log_max_msg: 31,
            log_rq_slot: 7,
            log_sq_slot: 7,
            usr_page: 1,
            local_qpn: Qpn::new(5),
            remote_qpn: Qpn::new(9),
            port: 1,
            pd: Pdn::new(3),
            wqe_lkey: 0x21,
            send_cqn: Cqn::new(1),
            sq_lkey: Lkey::new(0x21),
            sq_len: 0x4000,
            min_rnr_timer: 12,
            recv_psn: Psn::new(0x12_3456),
            recv_cqn: Cqn::new(2),
            rq_lkey: Lkey::new(0x22),
            rq_len: 0x4000,
            ..Qpc::default()
        }
    }

    #[test]
    fn example_mailbox_round_trips() {
        assert_eq!(Qpc::parse(&INIT2RTR), init2rtr());
        assert_eq!(init2rtr().emit(), INIT2RTR);
        assert_eq!(init2rtr().service(), Some(ServiceType::Rc));
        assert_eq!(init2rtr().state(), Some(QpState::Rtr));
    }

    #[test]
    fn undefined_bytes_are_ignored() {
        let mut dirty = INIT2RTR;
        dirty[MEANINGFUL_LEN..].fill(0xa5);
        assert_eq!(Qpc::parse(&dirty), init2rtr());
    }

    #[test]
    fn qp_context_fields_are_at_specified_offsets() {
        let qpc = Qpc {
            state: 7,
            flags_27_24: 0xa,
            service: 3,
            flags_15_0: 0xbcde,
            pkey_index: 0x55,
            rnr_retry: 0xe0,
            my_lmc: 0x81,
            ack_timeout: 0x70,
            mgid_index: 1,
            static_rate: 2,
            hop_limit: 3,
            service_level: 0xb,
            traffic_class: 0xcd,
            flow_label: 0xe_f012,
            dlid: Lid::new(0x0002),
            slid: Lid::new(0x0001),
            smac_high: 0x5254_0000,
            dmac_high: 0x5254_0001,
            source_ip: 0x0a00_0001,
            dest_ip: 0x0a00_0002,
            next_send_psn: Psn::new(0xff_fff0),
            unacked_psn: Psn::new(0xff_ffe0),
            qkey: Qkey::new(0x1111_1111),
            ..Qpc::default()
        };
        let image = qpc.emit();
        assert_eq!(image[0x08..0x0c], [0x7a, 0x03, 0xbc, 0xde]);
        assert_eq!(image[0x1c..0x20], [0, 0, 0, 0x55]);
        assert_eq!(image[0x20..0x2c], [0xe0, 0x81, 0, 0, 0x70, 1, 2, 3, 0xbc, 0xde, 0xf0, 0x12]);
        assert_eq!(image[0x3c..0x48], [0, 2, 0, 1, 0x52, 0x54, 0, 0, 0x52, 0x54, 0, 1]);
        assert_eq!(image[0x48..0x50], [10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!(image[0x6c..0x70], [0, 0xff, 0xff, 0xf0]);
        assert_eq!(image[0x7c..0x80], [0, 0xff, 0xff, 0xe0]);
        assert_eq!(image[0x98..0x9c], [0x11; 4]);
        assert_eq!(Qpc::parse(&image), qpc);
        assert_eq!(qpc.dmac(), Some(MacAddr([0x52, 0x54, 0, 1, 0, 2])));
        assert_eq!(qpc.smac(), Some(MacAddr([0x52, 0x54, 0, 0, 0, 1])));
        assert_eq!(qpc.dip(), Some(Ipv4Addr::new(10, 0, 0, 2)));
    }

    #[test]
    fn retry_and_timeout_accept_both_encodings() {
        let rnr = |byte| Qpc { rnr_retry: byte, ..Qpc::default() }.rnr_retry_code();
        assert_eq!([rnr(0), rnr(7), rnr(3), rnr(0xe0), rnr(0x60)], [0, 7, 3, 7, 3]);
        for numbering in [Numbering::Document, Numbering::Driver] {
            let timeout = |byte| Qpc { ack_timeout: byte, ..Qpc::default() }.ack_timeout_code(numbering);
            assert_eq!(
                [timeout(0), timeout(14), timeout(31), timeout(4 << 3), timeout(14 << 3), timeout(31 << 3)],
                [0, 14, 31, 4, 14, 31]
            );
        }
    }

    /// The specification's encoding yields 1 ms, 268 ms and 69 s. The public driver's encoding yields 8, 16 and 33 us.
    #[test]
    fn ambiguous_ack_timeout_depends_on_numbering() {
        let timeout =
            |byte, numbering| Qpc { ack_timeout: byte, ..Qpc::default() }.ack_timeout_code(numbering);
        assert_eq!([8, 16, 24].map(|byte| timeout(byte, Numbering::Document)), [8, 16, 24]);
        assert_eq!([8, 16, 24].map(|byte| timeout(byte, Numbering::Driver)), [1, 2, 3]);
    }

    #[test]
    fn retry_count_is_in_specified_bits() {
        let mut qpc = Qpc { params1: 0x8000_0001, ..Qpc::default() };
        assert_eq!(qpc.retry_count(), 0);
        qpc.set_retry_count(5);
        assert_eq!(qpc.emit()[0x68..0x6c], [0x80, 0x05, 0x00, 0x01]);
        assert_eq!(qpc.retry_count(), 5);
    }

    proptest! {
        #[test]
        fn any_context_image_round_trips(image in prop::collection::vec(any::<u8>(), LEN)) {
            let qpc = Qpc::parse(&image.try_into().unwrap());
            prop_assert_eq!(Qpc::parse(&qpc.emit()), qpc);
        }
    }
}
