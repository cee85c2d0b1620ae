//! PortInfo: configuration and state of a port.
//!
//! # Spec
//! IBTA volume 1, section 14.2.5.6.

use super::field::{FieldValue, attribute};
use crate::ids::Lid;

/// Logical port state (`PortState`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState(pub u8);

impl LinkState {
    /// In a Set only: the state remains unchanged.
    pub const NO_CHANGE: Self = Self(0);
    /// The physical link is down.
    pub const DOWN: Self = Self(1);
    /// Only SMPs are sent and received.
    pub const INITIALIZE: Self = Self(2);
    /// The subnet manager has configured the port, which is ready to become active.
    pub const ARMED: Self = Self(3);
    /// All packets are sent and received.
    pub const ACTIVE: Self = Self(4);
}

/// Physical port state (`PortPhysicalState`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhysicalState(pub u8);

impl PhysicalState {
    /// In a Set only: the state remains unchanged.
    pub const NO_CHANGE: Self = Self(0);
    /// Polling for a link partner.
    pub const POLLING: Self = Self(2);
    /// The port was disabled by management.
    pub const DISABLED: Self = Self(3);
    /// The physical link is up.
    pub const LINK_UP: Self = Self(5);
}

impl FieldValue for LinkState {
    fn from_bits(bits: u128) -> Self {
        Self(u8::from_bits(bits))
    }

    fn to_bits(self) -> u128 {
        self.0.into()
    }
}

impl FieldValue for PhysicalState {
    fn from_bits(bits: u128) -> Self {
        Self(u8::from_bits(bits))
    }

    fn to_bits(self) -> u128 {
        self.0.into()
    }
}

attribute! {
    /// The PortInfo attribute. Widths, speeds and MTUs use the IBTA encodings.
    pub struct PortInfo[64] {
        /// M_Key that protects the port.
        m_key: u64 = 0, 64;
        /// GID prefix, the high half of the port's GIDs.
        gid_prefix: u64 = 64, 64;
        /// Base LID of the port.
        lid: Lid = 128, 16;
        /// LID of the master subnet manager.
        sm_lid: Lid = 144, 16;
        /// Capability mask of the port (CapabilityMask).
        capabilities: u32 = 160, 32;
        /// Diagnostic code; 0 means no fault.
        diag_code: u16 = 192, 16;
        /// Lease period of the M_Key in seconds.
        m_key_lease: u16 = 208, 16;
        /// Port that received the request.
        local_port: u8 = 224, 8;
        width_enabled: u8 = 232, 8;
        width_supported: u8 = 240, 8;
        width_active: u8 = 248, 8;
        speed_supported: u8 = 256, 4;
        /// Logical state of the port.
        state: LinkState = 260, 4;
        /// State of the physical link.
        physical_state: PhysicalState = 264, 4;
        /// Physical state that the port enters after a link failure.
        down_default: PhysicalState = 268, 4;
        /// M_Key protection level, 0 to 3.
        m_key_protect: u8 = 272, 2;
        /// LID mask control (LMC): log2 of the port's LID count.
        lmc: u8 = 277, 3;
        speed_active: u8 = 280, 4;
        speed_enabled: u8 = 284, 4;
        /// Active MTU of the link (NeighborMTU).
        neighbour_mtu: u8 = 288, 4;
        /// SL for packets to the master subnet manager.
        sm_sl: u8 = 292, 4;
        vl_cap: u8 = 296, 4;
        init_type: u8 = 300, 4;
        /// Maximum amount of high-priority data sent before a low-priority packet.
        vl_high_limit: u8 = 304, 8;
        /// Size of the high-priority VL arbitration table in entries.
        vl_arb_high_cap: u8 = 312, 8;
        /// Size of the low-priority VL arbitration table in entries.
        vl_arb_low_cap: u8 = 320, 8;
        /// Type of initialisation performed (InitTypeReply).
        init_type_reply: u8 = 328, 4;
        mtu_cap: u8 = 332, 4;
        /// Switches only: number of consecutive packet drops that stall a VL.
        vl_stall_count: u8 = 336, 3;
        /// Switches only: maximum lifetime of a packet at the head of a queue, 4.096 us * 2^n.
        hoq_life: u8 = 339, 5;
        operational_vls: u8 = 344, 4;
        /// Number of SMPs received with an invalid M_Key.
        m_key_violations: u16 = 352, 16;
        /// Number of packets received with an invalid P_Key.
        p_key_violations: u16 = 368, 16;
        /// Number of packets received with an invalid Q_Key.
        q_key_violations: u16 = 384, 16;
        /// Size of the GUID table in entries.
        guid_cap: u8 = 400, 8;
        /// In a Set only: clients must renew their subscriptions.
        client_reregister: bool = 408, 1;
        /// Propagation delay of the subnet, 4.096 us * 2^n. It limits the rate of traps.
        subnet_timeout: u8 = 411, 5;
        /// Response time: 4.096 us * 2^n.
        resp_time: u8 = 419, 5;
        /// Threshold for local physical errors.
        local_phy_errors: u8 = 424, 4;
        /// Threshold for buffer overruns.
        overrun_errors: u8 = 428, 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes come from the table in section 8.5 of the mthca interface.
    #[test]
    fn active_port_info_matches_spec_example() {
        let mut bytes = [0; 64];
        bytes[8..10].copy_from_slice(&[0xfe, 0x80]);
        bytes[16..20].copy_from_slice(&[0x00, 0x07, 0xbf, 0xff]);
        bytes[20..24].copy_from_slice(&[0x02, 0x51, 0x0a, 0x68]);
        bytes[28..38].copy_from_slice(&[1, 3, 3, 2, 0x34, 0x52, 0, 0x23, 0x40, 0x40]);
        bytes[41] = 0x04;
        bytes[43] = 0x40;
        bytes[46..50].copy_from_slice(&[0x12, 0x34, 0x56, 0x78]);
        bytes[50..53].copy_from_slice(&[32, 0x80 | 18, 16]);
        let info = PortInfo {
            gid_prefix: 0xfe80_0000_0000_0000,
            lid: Lid::new(7),
            sm_lid: Lid::new(0xbfff),
            capabilities: 0x0251_0a68,
            local_port: 1,
            width_enabled: 3,
            width_supported: 3,
            width_active: 2,
            speed_supported: 3,
            state: LinkState::ACTIVE,
            physical_state: PhysicalState::LINK_UP,
            down_default: PhysicalState::POLLING,
            speed_active: 2,
            speed_enabled: 3,
            neighbour_mtu: 4,
            vl_cap: 4,
            mtu_cap: 4,
            operational_vls: 4,
            p_key_violations: 0x1234,
            q_key_violations: 0x5678,
            guid_cap: 32,
            client_reregister: true,
            subnet_timeout: 18,
            resp_time: 16,
            ..PortInfo::default()
        };
        assert_eq!(info.emit(), bytes);
        assert_eq!(PortInfo::parse(&bytes), info);
    }
}
