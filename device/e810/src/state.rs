//! Device state, used by register accesses and admin commands.
//!
//! Every reset drops the state in [`function`](super::function). The link settings and the DDP package survive a
//! function reset that the driver requests (PFR). The MAC survives both a PFR and a PCI function-level reset. The flash
//! and the LAN statistics survive every reset.
//!
//! # Spec
//! E810 interface, sections 1 and 2.

use card::frontend::Context;
use protocol::hca::e810::interrupt::OtherCauses;

use super::function::{Function, Leaves};
use super::lan::Lan;
use super::link::Link;
use super::nvm::Nvm;
use super::options::Setup;
use super::package::Package;
use super::pf_config::PfConfig;

/// Type of a reset of the whole device, as GLGEN_RSTAT reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum ResetType {
    #[default]
    PowerOn = 0,
    Core = 1,
    Global = 2,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) setup: Setup,
    pub(super) nvm: Nvm,
    /// DDP package, which survives a function reset that the driver requests.
    pub(super) package: Package,
    pub(super) link: Link,
    /// Set if the MAC that the driver wrote may have survived a reset. The next command that reads the MAC restores the
    /// permanent one.
    pub(super) keeps_mac: bool,
    /// Type of the last core or global reset, as in GLGEN_RSTAT.
    pub(super) reset_type: ResetType,
    pub(super) function: Function,
    /// LAN data path, whose statistics survive every reset.
    pub(super) lan: Lan,
    /// Set if the last poll for a frame stopped at its limit, which means that more frames may be pending.
    pub(super) more_frames: bool,
}

impl State {
    pub(super) fn new(setup: Setup) -> Self {
        let function = Function::new(&setup);
        Self {
            nvm: Nvm::default(),
            package: Package::default(),
            link: Link::new(setup.options.link_speed),
            keeps_mac: false,
            reset_type: ResetType::default(),
            function,
            lan: Lan::new(setup.options.queues.get()),
            more_frames: false,
            setup,
        }
    }

    /// Drops the function's VSIs, rules, queues and RDMA objects. Called for "clear PF configuration" (02A4) and for
    /// resets that the driver requests.
    pub(super) fn clear_configuration(&mut self, cx: &mut Context<'_>) {
        self.function.rdma.reset(&self.setup, cx);
        cx.port.set_rdma(false);
        self.function.pf_config = PfConfig::default();
        self.function.leaves = Leaves::default();
        self.lan.reset();
    }

    /// Executes a function reset that the driver requested. The port keeps a MAC that the driver wrote, because `ice`
    /// does not write it again when it recovers (E810 interface, section 1.2). The RDMA half receives packets to this
    /// MAC.
    pub(super) fn reset_function(&mut self, cx: &mut Context<'_>) {
        self.clear_configuration(cx);
        self.function = Function::new(&self.setup);
        let mac = cx.port.addresses().own.mac;
        cx.port.reset();
        self.link.finish_restart();
        self.keeps_mac = mac != cx.port.addresses().own.mac;
        if self.keeps_mac {
            cx.port.set_mac(mac);
        }
    }

    /// Executes a core or global reset that the driver requested: a function reset that also drops the DDP
    /// package. The driver is notified first, while its interrupt configuration is still in place.
    pub(super) fn reset_device(&mut self, cx: &mut Context<'_>, reset_type: ResetType) {
        self.reset_type = reset_type;
        self.function.vectors.signal_reset(cx);
        self.reset_function(cx);
        self.function.vectors.set_other(OtherCauses::GLOBAL_RESET);
        self.package = Package::default();
    }

    /// Resets the device to its power-on state, after a PCI function-level reset or when the client disconnects. Unlike
    /// [`State::reset_function`], this also drops the DDP package and the link settings. The caller also resets the
    /// engine and the port.
    pub(super) fn reset(&mut self) {
        self.lan.reset();
        self.function = Function::new(&self.setup);
        self.package = Package::default();
        self.link = Link::new(self.setup.options.link_speed);
        // The port keeps the MAC if this is a function-level reset.
        self.keeps_mac = true;
        self.reset_type = ResetType::default();
    }
}
