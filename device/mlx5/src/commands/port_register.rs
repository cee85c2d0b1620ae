//! Registers of an Ethernet port, and the counters of an InfiniBand port.
//!
//! # Spec
//! mlx5 interface, sections 14.4, 15.1, 15.4 and 17.1.

use card::frontend::Context;
use protocol::hca::mlx5::access_register::{Direction, PortRegister};
use protocol::hca::mlx5::port_register::{
    CounterGroup, Mcia, Paos, Pddr, Pfcc, Pmlp, Pmtu, PortCounters, PortStatus, Ptys,
};

use super::Output;
use super::port::check;
use crate::check::{Check, Rejection};
use crate::port::{LinkModes, MAX_MTU};
use crate::resources::Resources;

/// Accesses a register and returns its data.
///
/// # Errors
/// Fails if the port is an InfiniBand port or if the data is too short or invalid.
pub(super) fn access(
    resources: &mut Resources,
    cx: &mut Context<'_>,
    (register, direction): (PortRegister, Direction),
    data: &[u8],
) -> Result<Output, Rejection> {
    let unknown = Check::Register.rejects(register.code());
    let short = || Check::RegisterLength.rejects(data.len() as u64);
    let port = resources.port.ethernet_mut().ok_or(unknown)?;
    let is_write = direction == Direction::Write;
    Ok(match register {
        PortRegister::Pmtu => {
            let set = Pmtu::parse_prefix(data).ok_or_else(short)?;
            check(set.port)?;
            if is_write {
                if set.admin > MAX_MTU {
                    return Err(Check::Mtu.rejects(set.admin));
                }
                port.mtu = set.admin;
            }
            Pmtu { port: set.port, max: MAX_MTU, admin: port.mtu, operational: port.mtu }.emit().to_vec()
        }
        PortRegister::Ptys => {
            let set = Ptys::parse_prefix(data).ok_or_else(short)?;
            check(set.port)?;
            let modes = &mut port.link_modes;
            if set.protocol != Ptys::ETHERNET {
                Ptys { port: set.port, protocol: set.protocol, ..Ptys::default() }
            } else {
                if is_write {
                    modes.enable(set.admin);
                    modes.autoneg_disabled = set.autoneg_disabled;
                }
                Ptys {
                    autoneg_disabled: modes.autoneg_disabled,
                    autoneg_disable_supported: true,
                    port: set.port,
                    protocol: set.protocol,
                    supported: LinkModes::SUPPORTED,
                    admin: modes.enabled(),
                    operational: if cx.port.is_up() { modes.fastest() } else { 0 },
                }
            }
            .emit()
            .to_vec()
        }
        PortRegister::Paos => {
            let set = Paos::parse_prefix(data).ok_or_else(short)?;
            check(set.port)?;
            if is_write && set.set_admin {
                let status = PortStatus::from_code(set.admin);
                let status = status.ok_or_else(|| Check::PortStatus.rejects(set.admin))?;
                port.enabled = status == PortStatus::Up;
            }
            let status = |up| if up { PortStatus::Up.code() } else { PortStatus::Down.code() };
            let admin = status(port.enabled);
            resources.update_link(cx);
            let operational = status(cx.port.is_up());
            Paos { port: set.port, admin, operational, set_admin: false }.emit().to_vec()
        }
        PortRegister::Ppcnt => {
            let query = PortCounters::parse_prefix(data).ok_or_else(short)?;
            check(query.port)?;
            let group = CounterGroup::from_code(query.group);
            let group = group.ok_or_else(|| Check::CounterGroup.rejects(query.group))?;
            let counters = match group {
                CounterGroup::InfiniBand => infiniband_group(cx),
                _ => port.frames.group(group, query.priority, cx.port.stats()),
            };
            // `query.clear` has no effect, since other counters are derived from these.
            query.with(&counters).emit().to_vec()
        }
        // Flow control is always off, and the port has no module. Writes have no effect.
        PortRegister::Pfcc => Pfcc::parse_prefix(data).ok_or_else(short)?.emit().to_vec(),
        PortRegister::Pmlp => Pmlp::parse_prefix(data).ok_or_else(short)?.emit().to_vec(),
        PortRegister::Mcia => {
            let access = Mcia::parse_prefix(data).ok_or_else(short)?;
            Mcia { status: Mcia::NOT_CONNECTED, ..access }.emit().to_vec()
        }
        // Status 0 in the troubleshooting page means that there is nothing to report.
        PortRegister::Pddr => Pddr::parse_prefix(data).ok_or_else(short)?.emit().to_vec(),
        _ => return Err(unknown),
    })
}

/// Reads the counters of an InfiniBand port, which has only one group.
///
/// # Errors
/// Fails if the data is too short, or names another port or group.
pub(super) fn infiniband_counters(cx: &Context<'_>, data: &[u8]) -> Result<Output, Rejection> {
    let short = || Check::RegisterLength.rejects(data.len() as u64);
    let query = PortCounters::parse_prefix(data).ok_or_else(short)?;
    check(query.port)?;
    match CounterGroup::from_code(query.group) {
        Some(CounterGroup::InfiniBand) => Ok(query.with(&infiniband_group(cx)).emit().to_vec()),
        _ => Err(Check::CounterGroup.rejects(query.group)),
    }
}

/// Returns the counters of [`CounterGroup::InfiniBand`].
fn infiniband_group(cx: &Context<'_>) -> [u8; 248] {
    /// Length of the port number and the mask that precede the counters of the PortCounters attribute.
    const HEADER_LEN: usize = 4;
    let mut group = [0; 248];
    let attribute = cx.port_counters().emit();
    group.iter_mut().zip(attribute.iter().skip(HEADER_LEN)).for_each(|(to, from)| *to = *from);
    group
}
