//! The device interfaces there are: the one list that names them all.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Frontend, Setup, jingzhao, mthca};

/// Makes, of one line for each interface, the key of the configuration that chooses it and the key of its counters. The
/// module of an interface has `Options` for the first, `Counters` for the second and `Device`, which implements
/// [`Interface`].
macro_rules! interfaces {
    ($($(#[$doc:meta])* $name:ident: $module:ident,)*) => {
        /// Device interface and its options.
        #[derive(Clone, Debug, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum FrontendEntry {
            $($(#[$doc])* $name($module::Options),)*
        }

        impl FrontendEntry {
            /// The key that names the interface.
            pub const fn key(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($module),)*
                }
            }

            /// Makes a device as after power-on, of whatever type it is, and gives it to somebody.
            pub fn make<T: Taker>(&self, common: &Setup<()>, taker: T) -> T::Output {
                match self {
                    $(Self::$name(options) => {
                        taker.take($module::Device::new(common.with(options.clone())))
                    })*
                }
            }
        }

        /// What an interface counts of the parts only it has, under the key that names it in the configuration.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum FrontendCounters {
            $($(#[$doc])* $name($module::Counters),)*
        }
    };
}

interfaces! {
    /// JingZhao (HanGu) HCA.
    Jingzhao: jingzhao,
    /// Mellanox InfiniHost III Lx (MT25204), for Linux's own `ib_mthca` driver.
    Mthca: mthca,
}

/// A front-end that a configuration can name.
pub trait Interface: Frontend + Send + 'static {
    /// What the configuration says of it.
    type Options;

    /// A device as after power-on.
    fn new(setup: Setup<Self::Options>) -> Self;
}

/// Takes a front-end of any type.
pub trait Taker {
    /// What becomes of it.
    type Output;

    /// Takes it.
    fn take<F: Interface>(self, frontend: F) -> Self::Output;
}
