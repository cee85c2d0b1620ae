//! The state of the PCI function between ENABLE_HCA and DISABLE_HCA.
//!
//! # Spec
//! mlx5 interface, sections 4 and 18.3.

use super::capabilities::Capabilities;
use super::options::Options;
use super::pages::GivenPages;
use super::port::EthernetPort;
use super::resources::Resources;

#[derive(Debug, Default)]
pub enum Function {
    /// After a reset or DISABLE_HCA. Only ENABLE_HCA is accepted.
    #[default]
    Disabled,
    Enabled(Box<Enabled>),
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
}

impl Enabled {
    pub fn new(options: &Options) -> Self {
        Self {
            issi: 0,
            caps: Capabilities::new(options),
            pages: GivenPages::default(),
            host_endianness: 0,
            resources: None,
        }
    }
}

impl Enabled {
    /// Returns the Ethernet port's state, or `None` for an InfiniBand port or an uninitialised device.
    pub fn ethernet_mut(&mut self) -> Option<&mut EthernetPort> {
        self.resources.as_mut()?.port.ethernet_mut()
    }
}

impl Function {
    /// Returns the objects, or `None` if the function is not initialised.
    pub fn resources(&self) -> Option<&Resources> {
        match self {
            Self::Disabled => None,
            Self::Enabled(enabled) => enabled.resources.as_deref(),
        }
    }

    /// Returns the objects, or `None` if the function is not initialised.
    pub fn resources_mut(&mut self) -> Option<&mut Resources> {
        match self {
            Self::Disabled => None,
            Self::Enabled(enabled) => enabled.resources.as_deref_mut(),
        }
    }
}
