//! The virtual switch that every HCA presents to its guest, and its subnet management agent.
//!
//! # Spec
//! IBTA volume 1, sections 14.2.5 and 14.4.

use protocol::ids::{Lid, MacAddr, Qpn};
use protocol::mad::header::Header;
use protocol::mad::node::{self, NodeInfo};
use protocol::mad::port::{LinkState, PhysicalState, PortInfo};
use protocol::mad::sm::{self, SmInfo};
use protocol::mad::smp::{DATA_LEN, Smp, attribute};
use protocol::mad::switch::SwitchInfo;
use protocol::mad::{Mad, MadStatus, Method};

use super::port::{ManagedPort, put, response};
use super::subnet::{Subnet, switch_port};
use super::{GID_PREFIX, QP0, SM_LID};

/// Number of LIDs per block of the linear forwarding table.
const LIDS_PER_BLOCK: u32 = 64;

/// Forwarding table entry for an unknown LID.
const NO_PORT: u8 = 0xff;

/// Highest priority of a subnet manager. Priorities are four bits wide (IBTA volume 1, section 14.4.1).
const HIGHEST_PRIORITY: u8 = 15;

/// GUID of the switch and of its port 0.
pub(super) const GUID: u64 = node::guid_of_mac(MacAddr::from_lid(SM_LID));

/// The virtual switch, as derived from the discovered nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubnetSwitch<'a> {
    pub(super) subnet: &'a Subnet,
    /// The port of this HCA, at the other end of the link to the switch.
    pub(super) port: &'a ManagedPort,
}

impl SubnetSwitch<'_> {
    /// Returns the response to a subnet management request, or `None` if the request is discarded. All attributes are
    /// read-only.
    pub(super) fn answer(&self, request: &Mad, qp: Qpn) -> Option<Mad> {
        let header = protocol::mad::header(request);
        // Traps are discarded because they are addressed to the subnet manager, which ignores them.
        if qp != QP0 || !header.method.is_request() {
            return None;
        }
        let mut answer = *request;
        let status = if header.base_version != Header::BASE_VERSION || header.class_version != 1 {
            MadStatus::BAD_VERSION
        } else {
            match header.method {
                Method::GET => {
                    let result = self.attribute(&header, &mut Smp::of_mut(&mut answer).data);
                    result.err().unwrap_or(MadStatus::OK)
                }
                Method::SET => MadStatus::BAD_ATTRIBUTE,
                _ => MadStatus::BAD_METHOD,
            }
        };
        protocol::mad::set_header(&mut answer, &response(&header, status));
        Some(answer)
    }

    fn attribute(&self, header: &Header, data: &mut [u8; DATA_LEN]) -> Result<(), MadStatus> {
        match header.attribute {
            attribute::NODE_DESCRIPTION => *data = description(),
            attribute::NODE_INFO => put(data, &self.node_info().emit()),
            attribute::SWITCH_INFO => put(data, &info().emit()),
            attribute::SM_INFO => put(data, &sm_info(self.subnet).emit()),
            attribute::GUID_INFO if header.modifier == 0 => put(data, &GUID.to_be_bytes()),
            attribute::PORT_INFO => {
                let port = u8::try_from(header.modifier).map_err(|_| MadStatus::BAD_VALUE)?;
                *data = self.port_info(port).ok_or(MadStatus::BAD_VALUE)?.emit();
            }
            // Every port has only the default partition.
            attribute::PKEY_TABLE if header.modifier & 0xffff == 0 => put(data, &[0xff; 2]),
            attribute::SL_TO_VL => {
                put(data, &[0x01, 0x23, 0x45, 0x67, 0x01, 0x23, 0x45, 0x67]);
            }
            attribute::LINEAR_FORWARDING_TABLE
                if header.modifier <= u32::from(SM_LID.get()) / LIDS_PER_BLOCK =>
            {
                self.linear_forwarding(header.modifier, data);
            }
            attribute::GUID_INFO | attribute::PKEY_TABLE | attribute::LINEAR_FORWARDING_TABLE => {
                return Err(MadStatus::BAD_VALUE);
            }
            _ => return Err(MadStatus::BAD_ATTRIBUTE),
        }
        Ok(())
    }

    pub(super) fn ports(&self) -> u8 {
        self.subnet.switch_ports()
    }

    pub(super) fn node_info(&self) -> NodeInfo {
        NodeInfo {
            base_version: Header::BASE_VERSION,
            class_version: 1,
            node_type: node::SWITCH,
            ports: self.ports(),
            system_image_guid: GUID,
            node_guid: GUID,
            port_guid: GUID,
            partition_cap: 1,
            local_port: switch_port(self.subnet.own()),
            ..NodeInfo::default()
        }
    }

    /// Returns the PortInfo of a switch port, or `None` if the port does not exist. Port 0 is the switch itself.
    pub(super) fn port_info(&self, port: u8) -> Option<PortInfo> {
        if port > self.ports() {
            return None;
        }
        let attached = port == 0
            || match self.subnet.attached(port) {
                Some(lid) if lid == self.subnet.own() => self.port.is_active(),
                other => other.is_some(),
            };
        let (state, physical_state) = match attached {
            true => (LinkState::ACTIVE, PhysicalState::LINK_UP),
            false => (LinkState::DOWN, PhysicalState::POLLING),
        };
        let port_0 = PortInfo {
            gid_prefix: GID_PREFIX,
            lid: SM_LID,
            sm_lid: SM_LID,
            // IsSM: the switch hosts the subnet manager.
            capabilities: 1 << 1,
            guid_cap: 1,
            subnet_timeout: 18,
            resp_time: 16,
            ..PortInfo::default()
        };
        Some(PortInfo {
            local_port: switch_port(self.subnet.own()),
            width_enabled: 3,
            width_supported: 3,
            width_active: 2,
            speed_enabled: 3,
            speed_supported: 3,
            speed_active: 2,
            state,
            physical_state,
            down_default: PhysicalState::POLLING,
            neighbour_mtu: self.port.mtu(),
            mtu_cap: self.port.mtu(),
            vl_cap: 4,
            operational_vls: 4,
            ..if port == 0 { port_0 } else { PortInfo::default() }
        })
    }

    fn linear_forwarding(&self, block: u32, data: &mut [u8; DATA_LEN]) {
        *data = [NO_PORT; DATA_LEN];
        for (lid, port) in (block * LIDS_PER_BLOCK..).zip(data) {
            let Some(lid) = u16::try_from(lid).ok().map(Lid::new) else { break };
            if lid == SM_LID {
                *port = 0;
            } else if self.subnet.lids().any(|known| known == lid) {
                *port = switch_port(lid);
            }
        }
    }
}

pub(super) fn description() -> [u8; DATA_LEN] {
    node::description("hcad fabric")
}

pub(super) fn info() -> SwitchInfo {
    SwitchInfo {
        linear_cap: SM_LID.get() + 1,
        linear_top: SM_LID.get(),
        lids_per_port: 0,
        enhanced_port_0: true,
        ..SwitchInfo::default()
    }
}

/// Returns the SMInfo that is sent to other subnet managers. If OpenSM runs in a guest, it must find a master that it
/// yields to. OpenSM accepts a master only if the master's SM_Key equals its own, which is 1 by default, and asks a
/// master with a lower priority to hand over. This master therefore has the highest priority.
pub(super) fn sm_info(subnet: &Subnet) -> SmInfo {
    let act_count = subnet.activity();
    SmInfo { guid: GUID, sm_key: 1, act_count, priority: HIGHEST_PRIORITY, state: sm::MASTER }
}
