//! PortInfo: what a port is and does.
//!
//! # Spec
//! IBTA volume 1, section 14.2.5.6.

use super::field::{FieldValue, attribute};
use crate::ids::Lid;

/// `PortState`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkState(pub u8);

impl LinkState {
    /// In Set: leave it as it is.
    pub const NO_CHANGE: Self = Self(0);
    /// No link.
    pub const DOWN: Self = Self(1);
    /// Subnet management packets only.
    pub const INITIALIZE: Self = Self(2);
    /// Ready to become active.
    pub const ARMED: Self = Self(3);
    /// All packets.
    pub const ACTIVE: Self = Self(4);
}

/// `PortPhysicalState`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PhysicalState(pub u8);

impl PhysicalState {
    /// In Set: leave it as it is.
    pub const NO_CHANGE: Self = Self(0);
    /// Looking for somebody at the other end.
    pub const POLLING: Self = Self(2);
    /// Switched off.
    pub const DISABLED: Self = Self(3);
    /// Connected.
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
    /// PortInfo. Codes of widths, speeds and MTUs are the specification's.
    pub struct PortInfo[64] {
        /// Key of the one who manages the port.
        m_key: u64 = 0, 64;
        /// Upper half of the port's GIDs.
        gid_prefix: u64 = 64, 64;
        /// Base LID.
        lid: Lid = 128, 16;
        /// LID of the subnet manager.
        sm_lid: Lid = 144, 16;
        /// What the port can do.
        capabilities: u32 = 160, 32;
        /// Diagnosis.
        diag_code: u16 = 192, 16;
        /// Seconds after which an M_Key lapses.
        m_key_lease: u16 = 208, 16;
        /// The port the question came through.
        local_port: u8 = 224, 8;
        /// Widths allowed.
        width_enabled: u8 = 232, 8;
        /// Widths there are.
        width_supported: u8 = 240, 8;
        /// Width in use.
        width_active: u8 = 248, 8;
        /// Speeds there are.
        speed_supported: u8 = 256, 4;
        /// State.
        state: LinkState = 260, 4;
        /// Physical state.
        physical_state: PhysicalState = 264, 4;
        /// What a port without link does.
        down_default: PhysicalState = 268, 4;
        /// How far the M_Key protects.
        m_key_protect: u8 = 272, 2;
        /// Log2 of the port's LIDs.
        lmc: u8 = 277, 3;
        /// Speed in use.
        speed_active: u8 = 280, 4;
        /// Speeds allowed.
        speed_enabled: u8 = 284, 4;
        /// Path MTU towards the other end.
        neighbour_mtu: u8 = 288, 4;
        /// SL of packets to the subnet manager.
        sm_sl: u8 = 292, 4;
        /// Virtual lanes there are.
        vl_cap: u8 = 296, 4;
        /// Kind of initialisation asked for.
        init_type: u8 = 300, 4;
        /// Limit of high priority.
        vl_high_limit: u8 = 304, 8;
        /// Entries of the high-priority arbitration table.
        vl_arb_high_cap: u8 = 312, 8;
        /// Entries of the low-priority arbitration table.
        vl_arb_low_cap: u8 = 320, 8;
        /// Kind of initialisation done.
        init_type_reply: u8 = 328, 4;
        /// Largest MTU.
        mtu_cap: u8 = 332, 4;
        /// Of switches.
        vl_stall_count: u8 = 336, 3;
        /// Of switches.
        hoq_life: u8 = 339, 5;
        /// Virtual lanes in use.
        operational_vls: u8 = 344, 4;
        /// Packets whose M_Key was wrong.
        m_key_violations: u16 = 352, 16;
        /// Packets whose P_Key was wrong.
        p_key_violations: u16 = 368, 16;
        /// Packets whose Q_Key was wrong.
        q_key_violations: u16 = 384, 16;
        /// Entries of the GUID table.
        guid_cap: u8 = 400, 8;
        /// In Set: clients are to register again.
        client_reregister: bool = 408, 1;
        /// Time a trap may take: 4.096 us times 2 to this.
        subnet_timeout: u8 = 411, 5;
        /// Time an answer may take: 4.096 us times 2 to this.
        resp_time: u8 = 419, 5;
        /// Threshold of local physical errors.
        local_phy_errors: u8 = 424, 4;
        /// Threshold of overruns.
        overrun_errors: u8 = 428, 4;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of section 8.5 of the mthca interface, byte by byte.
    #[test]
    fn an_active_port_is_as_the_table_has_it() {
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
