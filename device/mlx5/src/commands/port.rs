//! MAD_IFC, InfiniBand port state, and registers.
//!
//! # Spec
//! mlx5 interface, sections 5.5 and 14.

use card::frontend::{Context, PortNumber};
use card::management::MkeyCheck;
use protocol::hca::mlx5::access_register::{
    AccessReg, Direction, HostEndianness, NodeDescription, Pcap, PortRegister,
};
use protocol::hca::mlx5::mad_ifc::{MadAnswer, MadIfc};
use protocol::hca::mlx5::opcode::Opcode;
use protocol::hca::mlx5::vport::{QueriedVport, VportContext};

use super::{Call, Output, firmware_register, nothing, port_register};
use crate::check::{Check, Rejection};
use crate::function::Enabled;

pub(super) fn check(port: u8) -> Result<(), Rejection> {
    if port == PortNumber::ONE.get() { Ok(()) } else { Err(Check::Port.rejects(port)) }
}

/// Executes MAD_IFC. The command fails if the MAD has no response. Such a failure is not always a driver error: the
/// driver forwards MADs from the fabric, some of which do not need a response.
pub(super) fn mad_ifc(call: Call<'_, '_>, execute: &MadIfc) -> Result<Output, Rejection> {
    check(execute.port)?;
    let m_key = if execute.ignore_mkey { MkeyCheck::Ignore } else { MkeyCheck::Enforce };
    let class = protocol::mad::header(&execute.mad).class;
    let answer = call.cx.mad_ifc(&execute.mad, m_key).ok_or_else(|| Check::Mad.rejects(class.0))?;
    Ok(MadAnswer { mad: answer }.emit().to_vec())
}

pub(super) fn query_context(call: Call<'_, '_>) -> Result<Output, Rejection> {
    let info = call.cx.port_info().unwrap_or_default();
    let gid = call.cx.management.as_ref().and_then(|management| management.gid(0)).unwrap_or_default();
    let [.., a, b, c, d, e, f, g, h] = gid;
    let guid = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    let context = VportContext {
        has_smi: true,
        grh_required: false,
        physical_state: info.physical_state.0,
        vport_state: 0,
        port_state: info.state.0,
        system_guid: guid,
        port_guid: guid,
        node_guid: guid,
        capability_mask: info.capabilities,
        lid: info.lid,
        lmc: info.lmc,
        subnet_timeout: info.subnet_timeout,
        sm_lid: info.sm_lid,
        sm_service_level: info.sm_sl,
    };
    Ok(QueriedVport { context }.emit().to_vec())
}

pub(super) fn access_register(
    enabled: &mut Enabled,
    cx: &mut Context<'_>,
    access: &AccessReg,
    data: &[u8],
) -> Result<Output, Rejection> {
    let short = || Check::RegisterLength.rejects(data.len() as u64);
    let direction = Direction::from_code(access.direction);
    let direction = direction.ok_or_else(|| Check::RegisterDirection.rejects(access.direction))?;
    let unknown = || Check::Register.rejects(access.register);
    let value = match PortRegister::from_code(access.register).ok_or_else(unknown)? {
        PortRegister::HostEndianness => {
            let set = HostEndianness::parse_prefix(data).ok_or_else(short)?;
            if direction == Direction::Write {
                enabled.host_endianness = set.raw;
            }
            HostEndianness { raw: enabled.host_endianness }.emit().to_vec()
        }
        PortRegister::NodeDescription => {
            let set = NodeDescription::parse_prefix(data).ok_or_else(short)?;
            let is_write = direction == Direction::Write;
            let text = match (&mut cx.management, enabled.ethernet_mut()) {
                (Some(management), _) => {
                    if is_write {
                        management.set_description(set.text);
                    }
                    management.description()
                }
                (None, Some(port)) => {
                    if is_write {
                        port.description = set.text;
                    }
                    port.description
                }
                (None, None) => return Err(Check::NotInitialised.rejects(Opcode::AccessReg.code())),
            };
            NodeDescription { text }.emit().to_vec()
        }
        // Section 20, M-23: an InfiniBand port needs this register. `ib_cm` drops the port if the access fails.
        PortRegister::Pcap if cx.management.is_none() => return Err(unknown()),
        PortRegister::Pcap => {
            let set = Pcap::parse_prefix(data).ok_or_else(short)?;
            check(set.port)?;
            if direction == Direction::Write
                && let Some(management) = &mut cx.management
            {
                management.set_capabilities(set.capability_mask);
            }
            let capability_mask = cx.port_info().map_or(0, |info| info.capabilities);
            Pcap { port: set.port, capability_mask }.emit().to_vec()
        }
        register @ (PortRegister::Mnvda
        | PortRegister::Mfrl
        | PortRegister::Mcqs
        | PortRegister::Mcqi
        | PortRegister::Mcam) => firmware_register::access(register, direction, data)?,
        // Section 17.1: `mlx5_ib` reads the error counters in sysfs from this register.
        PortRegister::Ppcnt if cx.management.is_some() => port_register::infiniband_counters(cx, data)?,
        register if enabled.caps.has_ethernet_port() => {
            let resources = enabled.resources.as_mut();
            let resources =
                resources.ok_or_else(|| Check::NotInitialised.rejects(Opcode::AccessReg.code()))?;
            port_register::access(resources, cx, (register, direction), data)?
        }
        _ => return Err(unknown()),
    };
    Ok([nothing(), value].concat())
}
