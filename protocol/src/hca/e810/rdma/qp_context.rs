//! QP context: 256 bytes that the driver writes before it creates or modifies the QP. The device never writes to a
//! context.
//!
//! # Spec
//! E810 interface, section 13.2.

use super::index::ArpIndex;
use super::number::{IpNumber, MacNumber};
use crate::Psn;
use crate::ids::{Cqn, FlowLabel, Pdn, Pkey, Qkey, Qpn};
use crate::layout;
use crate::roce::IpAddrs;

layout! {
    /// A queue pair context.
    pub struct QpContext[256] {
        /// Whether the addresses are IPv4 addresses.
        @0[3]         ipv4: bool,
        /// Whether to insert a VLAN tag into sent packets.
        @0[5]         insert_tag: bool,
        /// Log2 of the receive WQE size in quanta.
        @0[9:8]       log_receive_quanta: u8,
        /// Protection domain, bits 17:16.
        @0[21:20]     pd_high: u8,
        /// Address of the send ring, or index of the first PBLE of its page list.
        @8            send_ring: u64 => Hex,
        /// Address of the receive ring, or index of the first PBLE of its page list.
        @16           receive_ring: u64 => Hex,
        /// TTL or hop limit.
        @24           hop_limit: u8,
        /// Size of the receive ring: log2 of the number of quanta, minus 2.
        @24[11:8]     receive_size: u8,
        /// Size of the send ring: log2 of the number of quanta, minus 2.
        @24[15:12]    send_size: u8,
        /// IPv4 TOS or IPv6 traffic class.
        @27           traffic_class: u8,
        /// Source port of UDP packets.
        @28           source_port: u16,
        /// IP address of a connection's peer.
        @32           destination_ip: IpNumber,
        /// Path MTU in bytes.
        @48[29:16]    mtu: u16,
        /// Tag control information of the VLAN tag.
        @52           tag: u16 => Hex,
        /// ARP table entry of the destination.
        @54           arp_index: ArpIndex,
        @56[19:0]     flow_label: FlowLabel,
        @60           pkey: Pkey,
        /// Protection domain, bits 15:0.
        @62           pd_low: u16,
        /// QP number of a connection's peer.
        @64[23:0]     remote_qpn: Qpn,
        /// Q_Key of a datagram QP.
        @68           qkey: Qkey,
        /// Next PSN to send.
        @80[23:0]     send_psn: Psn,
        /// PSN of the next expected packet.
        @88[23:0]     recv_psn: Psn,
        /// Highest PSN sent so far.
        @96[23:0]     max_psn: Psn,
        /// PSN of the oldest unacknowledged packet.
        @100[23:0]    unacked_psn: Psn,
        /// Retry count for timeouts and sequence errors.
        @128[53:48]   retry_count: u8,
        /// RNR retry count; 7 means that retries are unlimited.
        @128[56:54]   rnr_retry: u8,
        /// CQ of the send queue.
        @136[24:0]    send_cqn: Cqn,
        /// CQ of the receive queue.
        @136[56:32]   recv_cqn: Cqn,
        @152[63:16]   source_mac: MacNumber as u64,
        /// Maximum number of outstanding READs as the requester (ORD).
        @160          ord: u8,
        /// Encoded maximum number of outstanding READs as the responder (IRD); see [`QpContext::ird`].
        @160[18:16]   ird_code: u8,
        /// Whether peers can execute RDMA WRITE.
        @160[20]      remote_write: bool,
        /// Whether peers can execute RDMA READ.
        @160[21]      remote_read: bool,
        /// Whether the QP can bind memory windows.
        @160[23]      bind: bool,
        /// Whether the send queue can register memory.
        @160[24]      fast_register: bool,
        /// Whether STag 0 grants access to all memory by bus address.
        @160[25]      privileged: bool,
        /// Value that the device returns in CQEs and events.
        @168          completion_context: u64 => Hex,
        /// Queue set in the scheduler.
        @176[25:16]   set_handle: u16,
        @184          local_ip: IpNumber,
    }
}

impl QpContext {
    /// Returns the protection domain, combined from its two fields.
    pub fn pd(&self) -> Pdn {
        Pdn::new(u32::from(self.pd_high) << 16 | u32::from(self.pd_low))
    }

    /// Returns the size of the send ring in quanta, at most 2^17.
    pub const fn send_quanta(&self) -> u32 {
        4 << self.send_size
    }

    /// Returns the size of the receive ring in quanta, at most 2^17.
    pub const fn receive_quanta(&self) -> u32 {
        4 << self.receive_size
    }

    /// Returns the size of a receive WQE in quanta: 1, 2, 4 or 8.
    pub const fn quanta_per_receive(&self) -> u32 {
        1 << self.log_receive_quanta
    }

    /// Returns the maximum number of outstanding READs as the responder.
    pub const fn ird(&self) -> u16 {
        match self.ird_code {
            0 => 4,
            1 => 16,
            2 => 64,
            3 => 128,
            _ => 256,
        }
    }

    /// Returns the local address and the peer's address of a connection.
    pub fn addresses(&self) -> IpAddrs {
        self.local_ip.towards(self.destination_ip, self.ipv4)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::hca::e810::rdma::testing::words;
    use crate::ids::MacAddr;

    fn ip(host: u8) -> IpNumber {
        IpAddr::from([10, 0, 0, host]).into()
    }

    /// Returns the example "RC RTS context" from section 16.3.
    fn connected() -> [u8; 256] {
        words(&[
            (0, 8),
            (8, 8),
            (16, 0xc),
            (24, 0x12b7_c009_0000_7740),
            (32, 0x0a00_0002),
            (48, 0x0003_0000_0400_0000),
            (56, 0x0006_ffff_01e0_0000),
            (64, 3),
            (80, 0x0000_ffff_003e_a808),
            (88, 0x0031_7628),
            (96, 0x003e_a808_003e_a808),
            (112, 0x0000_0400_0000_0000),
            (128, 0x0bc7_0000_0000_0000),
            (136, 0x0000_0004_0000_0004),
            (152, 0x02e8_1000_0001_0000),
            (160, 0x0030_0001),
            (168, 0x55ec_bd10_d510),
            (176, 0x1_0000),
            (184, 0x0a00_0001),
            (208, 3),
        ])
    }

    #[test]
    fn parses_rc_context_example() {
        let context = QpContext::parse(&connected());
        let expected = QpContext {
            ipv4: true,
            send_ring: 8,
            receive_ring: 0xc,
            hop_limit: 0x40,
            receive_size: 7,
            send_size: 7,
            source_port: 0xc009,
            destination_ip: ip(2),
            mtu: 1024,
            arp_index: ArpIndex::new(3),
            pkey: Pkey::DEFAULT,
            pd_low: 6,
            remote_qpn: Qpn::new(3),
            send_psn: Psn::new(0x3e_a808),
            recv_psn: Psn::new(0x31_7628),
            max_psn: Psn::new(0x3e_a808),
            unacked_psn: Psn::new(0x3e_a808),
            retry_count: 7,
            rnr_retry: 7,
            send_cqn: Cqn::new(4),
            recv_cqn: Cqn::new(4),
            source_mac: MacNumber(MacAddr([2, 0xe8, 0x10, 0, 0, 1])),
            ord: 1,
            remote_write: true,
            remote_read: true,
            completion_context: 0x55ec_bd10_d510,
            set_handle: 1,
            local_ip: ip(1),
            ..QpContext::default()
        };
        assert_eq!(context, expected);
        assert_eq!(context.pd(), Pdn::new(6));
        assert_eq!((context.send_quanta(), context.receive_quanta()), (512, 512));
        assert_eq!((context.quanta_per_receive(), context.ird()), (1, 4));
        let (src, dst) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
        assert_eq!(context.addresses(), IpAddrs::V4 { src, dst });
    }

    /// Example "GSI context" from section 16.3.
    #[test]
    fn parses_gsi_context_example() {
        let context = QpContext::parse(&words(&[
            (24, 0x12b7_c000_0000_8800),
            (64, 0x8001_0000_0000_0000),
            (128, 0x0a82_0000_0000_0000),
            (136, 0x0000_0003_0000_0003),
            (160, 0x033c_00ff),
        ]));
        assert_eq!((context.send_quanta(), context.receive_quanta()), (1024, 1024));
        assert_eq!(context.qkey, Qkey::new(0x8001_0000));
        assert_eq!((context.send_cqn, context.recv_cqn), (Cqn::new(3), Cqn::new(3)));
        assert!(context.privileged && context.fast_register && context.remote_write && context.remote_read);
        assert!(!context.bind && !context.ipv4);
    }

    /// Covers fields that the examples in section 16.3 do not set.
    #[test]
    fn remaining_context_fields_are_in_specified_bits() {
        let context = QpContext::parse(&words(&[
            (0, 1 << 5 | 3 << 8 | 2 << 20),
            (24, 0x6a << 24),
            (32, 0x89ab_cdef_0123_4567),
            (40, 0x2001_0db8_0011_2233),
            (48, 0x6005 << 32 | 4096 << 16),
            (56, 0xabcde),
            (136, 0x1ff_ffff),
            (160, 2 << 16 | 1 << 23),
            (184, 0x4444_4444_3333_3333),
            (192, 0x2001_0db8_0000_0001),
        ]));
        assert!(context.insert_tag && context.bind && !context.remote_write);
        assert_eq!((context.quanta_per_receive(), context.traffic_class), (8, 0x6a));
        assert_eq!((context.mtu, context.tag, context.pd()), (4096, 0x6005, Pdn::new(0x2_0000)));
        assert_eq!((context.flow_label, context.ird()), (FlowLabel::new(0xabcde), 64));
        assert_eq!((context.send_cqn, context.recv_cqn), (Cqn::new(0xff_ffff), Cqn::new(0)));
        let src = "2001:db8:0:1:4444:4444:3333:3333".parse().unwrap();
        let dst = "2001:db8:11:2233:89ab:cdef:123:4567".parse().unwrap();
        assert_eq!(context.addresses(), IpAddrs::V6 { src, dst });
    }
}
