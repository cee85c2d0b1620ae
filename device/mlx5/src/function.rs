//! The state of the PCI function between ENABLE_HCA and DISABLE_HCA.
//!
//! # Spec
//! mlx5 interface, sections 4 and 18.3.

use std::mem;

use super::capabilities::Capabilities;
use super::options::Options;
use super::pages::GivenPages;
use super::port::EthernetPort;
use super::port::counters::FrameCounters;
use super::resources::Resources;

#[derive(Debug)]
pub enum Function {
    /// After a reset or DISABLE_HCA. Only ENABLE_HCA is accepted. The counters of the Ethernet port are kept.
    Disabled(Box<FrameCounters>),
    Enabled(Box<Enabled>),
}

impl Default for Function {
    fn default() -> Self {
        Self::Disabled(Box::default())
    }
}

#[derive(Debug)]
pub struct Enabled {
    pub issi: u16,
    pub caps: Capabilities,
    pub pages: GivenPages,
    /// Byte order of the host, as reported by the driver.
    pub host_endianness: u32,
    /// The device's objects. `None` before INIT_HCA and after TEARDOWN_HCA.
    pub resources: Option<Box<Resources>>,
    /// Counters of the Ethernet port while there are no objects.
    pub frames: FrameCounters,
}

impl Enabled {
    fn new(options: &Options, frames: FrameCounters) -> Self {
        Self {
            issi: 0,
            caps: Capabilities::new(options),
            pages: GivenPages::default(),
            host_endianness: 0,
            resources: None,
            frames,
        }
    }

    /// Drops all objects. Keeps the counters of the Ethernet port.
    pub fn drop_resources(&mut self) {
        if let Some(frames) = self.ethernet_mut().map(|port| mem::take(&mut port.frames)) {
            self.frames = frames;
        }
        self.resources = None;
    }
}

impl Enabled {
    /// Returns the Ethernet port's state, or `None` for an InfiniBand port or an uninitialised device.
    pub fn ethernet_mut(&mut self) -> Option<&mut EthernetPort> {
        self.resources.as_mut()?.port.ethernet_mut()
    }
}

impl Function {
    /// Drops everything except the counters of the Ethernet port. Section 17.1: they survive resets, like those of RoCE
    /// packets.
    pub fn disable(&mut self) {
        if let Self::Enabled(enabled) = self {
            enabled.drop_resources();
            let frames = mem::take(&mut enabled.frames);
            *self = Self::Disabled(Box::new(frames));
        }
    }

    /// Enables the function, without objects.
    pub fn enable(&mut self, options: &Options) {
        self.disable();
        if let Self::Disabled(frames) = self {
            let frames = mem::take(&mut **frames);
            *self = Self::Enabled(Box::new(Enabled::new(options, frames)));
        }
    }

    /// Returns the objects, or `None` if the function is not initialised.
    pub fn resources(&self) -> Option<&Resources> {
        match self {
            Self::Disabled(_) => None,
            Self::Enabled(enabled) => enabled.resources.as_deref(),
        }
    }

    /// Returns the objects, or `None` if the function is not initialised.
    pub fn resources_mut(&mut self) -> Option<&mut Resources> {
        match self {
            Self::Disabled(_) => None,
            Self::Enabled(enabled) => enabled.resources.as_deref_mut(),
        }
    }
}
