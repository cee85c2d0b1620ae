//! The port: type-specific behaviour and the state of an Ethernet port.
//!
//! # Spec
//! mlx5 interface, section 15.

pub mod counters;
pub mod gid_table;
pub mod vport;

use card::frontend::{Context, PortNumber};
use card::management::Management;
use card::net::address::Addresses;
use card::net::{Link, Port as FabricPort};
use protocol::hca::mlx5::eqe::{Eqe, PortChange};
use protocol::hca::mlx5::nic_vport::AdminState;
use protocol::ids::MacAddr;

use self::counters::FrameCounters;
use self::gid_table::GidTable;
use self::vport::NicVport;
use super::address::Resolver;
use super::options::Port;
use super::resources::Resources;

/// Maximum frame length in bytes, including the Ethernet header, a VLAN tag and the frame check sequence.
pub const MAX_MTU: u16 = 9978;
/// Frame length in bytes for an MTU of 1500.
const DEFAULT_MTU: u16 = 1500 + OVERHEAD;
const OVERHEAD: u16 = 22;
/// Length of the frame check sequence.
const FCS_LEN: u16 = 4;

#[derive(Debug)]
pub enum PortState {
    /// The management agents keep the state of an InfiniBand port.
    InfiniBand,
    Ethernet(Box<EthernetPort>),
}

impl PortState {
    pub fn new(port: Port, mac: MacAddr) -> Self {
        match port {
            Port::InfiniBand => Self::InfiniBand,
            Port::Ethernet => Self::Ethernet(Box::new(EthernetPort::new(mac))),
        }
    }

    /// Returns the Ethernet port's state, or `None` for an InfiniBand port.
    pub fn ethernet(&self) -> Option<&EthernetPort> {
        match self {
            Self::InfiniBand => None,
            Self::Ethernet(port) => Some(port),
        }
    }

    /// Returns the Ethernet port's state, or `None` for an InfiniBand port.
    pub fn ethernet_mut(&mut self) -> Option<&mut EthernetPort> {
        match self {
            Self::InfiniBand => None,
            Self::Ethernet(port) => Some(port),
        }
    }

    /// Returns whether packets with source MAC `mac` were sent by the device itself. `own` is the port's MAC. GID table
    /// entries can have other MACs, such as those of macvlan devices.
    pub fn is_own_mac(&self, own: MacAddr, mac: MacAddr) -> bool {
        mac == own || self.ethernet().is_some_and(|port| port.gids.addresses().any(|of| of.mac == mac))
    }

    /// Returns the resolver for the paths of QPs.
    pub fn resolver<'a>(&'a self, addresses: &'a Addresses) -> Resolver<'a> {
        match self {
            Self::InfiniBand => Resolver::InfiniBand(addresses),
            Self::Ethernet(port) => Resolver::Ethernet { addresses, gids: &port.gids },
        }
    }
}

/// State of an Ethernet port. INIT_HCA creates it, except for the counters.
#[derive(Debug)]
pub struct EthernetPort {
    pub gids: GidTable,
    pub vport: NicVport,
    /// Frames that the network device sent and received.
    pub frames: FrameCounters,
    /// Maximum frame length in bytes, as set by the driver; at most [`MAX_MTU`].
    pub mtu: u16,
    /// Text in the NODE_DESC register.
    pub description: [u8; 64],
    /// Whether the driver has enabled the port with PAOS.
    pub enabled: bool,
    /// State that the driver has set for the vport.
    pub admin: AdminState,
    pub link_modes: LinkModes,
}

/// Ethernet link modes in the PTYS register, one bit each. They have no effect except on the reported speed.
#[derive(Clone, Copy, Debug)]
pub struct LinkModes {
    enabled: u32,
    /// Whether the driver has disabled autonegotiation.
    pub autoneg_disabled: bool,
}

impl LinkModes {
    /// 100GBASE-LR4/ER4, 50GBASE-KR2 and CR2, and 25GBASE-SR, KR and CR.
    pub const SUPPORTED: u32 = 0xf880_0000;
    /// The supported modes, ordered by speed.
    const FASTEST_FIRST: [u32; 6] = [1 << 23, 1 << 31, 1 << 30, 1 << 29, 1 << 28, 1 << 27];

    /// Enables the supported modes in `modes` and disables the others. Has no effect if no mode would remain.
    pub fn enable(&mut self, modes: u32) {
        let modes = modes & Self::SUPPORTED;
        if modes != 0 {
            self.enabled = modes;
        }
    }

    pub const fn enabled(&self) -> u32 {
        self.enabled
    }

    /// Returns the fastest enabled mode, which is in use while the link is up.
    pub fn fastest(&self) -> u32 {
        Self::FASTEST_FIRST.into_iter().find(|mode| self.enabled & mode != 0).unwrap_or_default()
    }
}

impl Default for LinkModes {
    fn default() -> Self {
        Self { enabled: 1 << 23, autoneg_disabled: false }
    }
}

impl EthernetPort {
    pub fn new(mac: MacAddr) -> Self {
        let mut description = [0; 64];
        description.iter_mut().zip(format!("hcad {mac}").bytes()).for_each(|(to, byte)| *to = byte);
        Self {
            gids: GidTable::default(),
            vport: NicVport::new(mac),
            frames: FrameCounters::default(),
            mtu: DEFAULT_MTU,
            description,
            enabled: true,
            admin: AdminState::Up,
            link_modes: LinkModes::default(),
        }
    }

    /// Returns the maximum length of a frame without its check sequence.
    pub fn max_frame(&self) -> usize {
        usize::from(self.mtu.saturating_sub(FCS_LEN))
    }

    /// Returns true unless the driver has brought the port or the vport down.
    pub fn is_enabled(&self) -> bool {
        self.enabled && self.admin != AdminState::Down
    }

    /// Directs RoCE packets for addresses in the GID table to the engine. If RoCE is disabled, the network device
    /// receives them like any other frames.
    pub fn publish_gids(&self, port: &mut FabricPort) {
        if self.vport.context().roce {
            port.set_roce_addresses(self.gids.addresses().collect());
        } else {
            port.set_rdma(false);
        }
    }
}

impl Resources {
    /// Brings the link up or down to match the states that the driver has set for the port and its vport. Section 15.1:
    /// a change raises an event, and the driver then queries the vport's state.
    pub fn update_link(&mut self, cx: &mut Context<'_>) {
        let Some(port) = self.port.ethernet() else { return };
        let enabled = port.is_enabled();
        let was_up = cx.port.is_up();
        cx.port.set_link(Link { enabled, ..cx.port.link() });
        if cx.port.is_up() != was_up {
            self.report_link(cx, !was_up);
        }
    }

    pub fn report_link(&mut self, cx: &mut Context<'_>, up: bool) {
        let change = if up { PortChange::Up } else { PortChange::Down };
        self.raise(cx, &Eqe::Port { port: PortNumber::ONE.get(), change });
    }

    /// Reports that a MAD has changed the P_Key table. Section 14.1: the driver keeps a copy of the table, and reads it
    /// again only after this event.
    pub fn report_pkeys(&mut self, cx: &mut Context<'_>) {
        let pkeys = cx.management.as_deref().map_or(&[][..], |management| management.pkeys());
        if *pkeys != *self.pkeys {
            self.pkeys = pkeys.into();
            self.raise(cx, &Eqe::Port { port: PortNumber::ONE.get(), change: PortChange::Pkey });
        }
    }

    /// Reports that a MAD has requested client reregistration. Section 8.2: `mlx5_ib` does not examine MADs, so its
    /// users rejoin their multicast groups only after this event.
    pub fn report_reregistration(&mut self, cx: &mut Context<'_>) {
        if cx.management.as_deref_mut().is_some_and(Management::take_reregistration_request) {
            self.raise(cx, &Eqe::Port { port: PortNumber::ONE.get(), change: PortChange::ClientReregister });
        }
    }
}

/// Undoes the driver's settings on the fabric port. Called only for devices with an Ethernet port.
pub fn release(port: &mut FabricPort) {
    port.reset();
    port.set_link(Link { enabled: true, ..port.link() });
}
