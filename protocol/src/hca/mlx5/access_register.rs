//! Registers of the port and the firmware, as read and written by the ACCESS_REG command.
//!
//! # Spec
//! mlx5 interface, sections 5.5, 14.4, 14.5 and 15.4.

use super::code::codes;
use super::firmware_register::{Mcam, Mcqi, Mcqs, Mfrl, Mnvda};
use super::port_register::{Mcia, Paos, Pddr, Pfcc, Pmlp, Pmtu, PortCounters, Ptys};
use crate::describe::{Describe, Value, Visitor};
use crate::layout;

codes! {
    /// A register that drivers access with ACCESS_REG.
    pub enum PortRegister(u16) {
        /// InfiniBand: capability mask of a port.
        Pcap = 0x5001 "PCAP",
        /// Ethernet: lanes and module of a port.
        Pmlp = 0x5002 "PMLP",
        /// Ethernet: maximum frame length of a port.
        Pmtu = 0x5003 "PMTU",
        /// Link modes of a port.
        Ptys = 0x5004 "PTYS",
        /// Ethernet: administrative and operational state of a port.
        Paos = 0x5006 "PAOS",
        /// Ethernet: flow control of a port.
        Pfcc = 0x5007 "PFCC",
        /// Counters of a port.
        Ppcnt = 0x5008 "PPCNT",
        /// Ethernet: diagnostics of a port.
        Pddr = 0x5031 "PDDR",
        /// NodeDescription of the device. `rdma-ndd` writes the host name to it.
        NodeDescription = 0x6001 "NODE_DESC",
        /// Byte order of the host. A driver fails to load if it cannot write this register.
        HostEndianness = 0x7004 "HOST_ENDIANNESS",
        /// Ethernet: contents of a module's EEPROM.
        Mcia = 0x9014 "MCIA",
        /// Configuration item in non-volatile memory.
        Mnvda = 0x9024 "MNVDA",
        /// Resets that software can request after a firmware update.
        Mfrl = 0x9028 "MFRL",
        /// Status of a firmware component.
        Mcqs = 0x9060 "MCQS",
        /// Information about a firmware component.
        Mcqi = 0x9061 "MCQI",
        /// Mask of supported registers.
        Mcam = 0x907f "MCAM",
    }
}

codes! {
    /// Direction of an access, specified by the op_mod field of ACCESS_REG.
    pub enum Direction(u16) {
        /// Writes the register and returns its data.
        Write = 0 "write",
        /// Reads the register without writing it.
        Read = 1 "read",
    }
}

layout! {
    /// Fixed part of the ACCESS_REG input. The register data starts at byte 16 of both the input and the output.
    pub struct AccessReg[16] big_endian {
        /// A value of [`Direction`].
        @0x06  direction: u16 => Direction::word,
        /// A value of [`PortRegister`].
        @0x0a  register: u16 => PortRegister::word,
        /// Argument of the access; always 0.
        @0x0c  argument: u32,
    }
}

layout! {
    /// Data of the PCAP register. A driver writes it to change the capability mask in PortInfo.
    pub struct Pcap[20] big_endian {
        /// Port number, starting at 1.
        @0x00[23:16]  port: u8,
        /// New value of the capability mask.
        @0x04         capability_mask: u32 => Hex,
    }
}

layout! {
    /// Data of the NODE_DESC register.
    pub struct NodeDescription[64] big_endian {
        /// UTF-8 text, padded with zeros.
        @0x00  text: [u8; 64],
    }
}

layout! {
    /// Data of the HOST_ENDIANNESS register.
    pub struct HostEndianness[16] big_endian {
        /// Byte order of the host; 0 means little-endian.
        @0x00  raw: u32 => Hex,
    }
}

/// Passes the data of a register to the visitor.
pub fn describe(register: u16, data: &[u8], to: &mut dyn Visitor) {
    match PortRegister::from_code(register) {
        Some(PortRegister::Pmlp) if data.len() >= Pmlp::LEN => {
            Pmlp::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Pmtu) if data.len() >= Pmtu::LEN => {
            Pmtu::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Ptys) if data.len() >= Ptys::LEN => {
            Ptys::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Paos) if data.len() >= Paos::LEN => {
            Paos::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Pfcc) if data.len() >= Pfcc::LEN => {
            Pfcc::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Ppcnt) if data.len() >= PortCounters::LEN => {
            PortCounters::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Pddr) if data.len() >= Pddr::LEN => {
            Pddr::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Mcia) if data.len() >= Mcia::LEN => {
            Mcia::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Pcap) if data.len() >= Pcap::LEN => {
            Pcap::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::NodeDescription) if data.len() >= NodeDescription::LEN => {
            NodeDescription::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::HostEndianness) if data.len() >= HostEndianness::LEN => {
            HostEndianness::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Mnvda) if data.len() >= Mnvda::LEN => {
            Mnvda::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Mfrl) if data.len() >= Mfrl::LEN => {
            Mfrl::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Mcam) if data.len() >= Mcam::LEN => {
            Mcam::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Mcqs) if data.len() >= Mcqs::LEN => {
            Mcqs::parse_prefix(data).unwrap_or_default().describe(to);
        }
        Some(PortRegister::Mcqi) if data.len() >= Mcqi::LEN => {
            Mcqi::parse_prefix(data).unwrap_or_default().describe(to);
        }
        _ => to.value("data", Value::Bytes(data)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    #[test]
    fn port_register_fields_are_at_specified_offsets() {
        let access = AccessReg { direction: 1, register: 0x5001, argument: 7 };
        assert_eq!(access.emit(), words(&[(4, 1), (8, 0x5001), (12, 7)]));
        let pcap = Pcap { port: 1, capability_mask: 0x0251_0a6a };
        assert_eq!(pcap.emit(), words(&[(0, 0x0001_0000), (4, 0x0251_0a6a)]));
        assert_eq!(PortRegister::from_code(0x7004), Some(PortRegister::HostEndianness));
    }
}
