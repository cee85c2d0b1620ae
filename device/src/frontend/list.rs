//! The list of device interfaces, which is the only place that names all of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Frontend, Setup, e810, jingzhao, mthca};

/// Generates, from one line per interface, its configuration key and its counters key. The module of an interface
/// provides `Options` for the first, `Counters` for the second, and `Device`, which implements [`Interface`].
macro_rules! interfaces {
    ($($(#[$doc:meta])* $name:ident: $module:ident,)*) => {
        /// Device interface and its options.
        #[derive(Clone, Debug, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum FrontendEntry {
            $($(#[$doc])* $name($module::Options),)*
        }

        impl FrontendEntry {
            /// Configuration key of the interface.
            pub const fn key(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($module),)*
                }
            }

            /// Reason why its doorbells must trap; `None` if they may be mapped.
            pub const fn needs_traps(&self) -> Option<&'static str> {
                match self {
                    $(Self::$name(_) => <$module::Device as Interface>::NEEDS_TRAPS,)*
                }
            }

            /// Passes `visitor` a constructor of devices of the configured type.
            pub fn make<T: FrontendVisitor>(&self, common: &Setup<()>, visitor: T) -> T::Output {
                match self {
                    $(Self::$name(options) => {
                        let setup = common.with(options.clone());
                        visitor.visit(move || $module::Device::new(setup.clone()))
                    })*
                }
            }
        }

        /// Counters specific to an interface, under its configuration key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum FrontendCounters {
            $($(#[$doc])* $name($module::Counters),)*
        }
    };
}

interfaces! {
    Jingzhao: jingzhao,
    /// Mellanox InfiniHost III Lx (MT25204), for the in-tree Linux driver `ib_mthca`.
    Mthca: mthca,
    /// Intel E810-C, for the in-tree Linux drivers `ice` and `irdma`.
    E810: e810,
}

/// A front-end that can be selected in the configuration.
pub trait Interface: Frontend + Send + 'static {
    /// Options in the configuration.
    type Options;

    /// Reason why its doorbells must trap, as a phrase that follows "its doorbells". `None` if it supports
    /// [`Frontend::map_doorbells`].
    const NEEDS_TRAPS: Option<&'static str>;

    /// Creates a device in its power-on state.
    fn new(setup: Setup<Self::Options>) -> Self;
}

/// Code that is generic over the front-end that the configuration selects.
pub trait FrontendVisitor {
    /// Result of the visit.
    type Output;

    /// Visits a front-end. Each call of `frontend` creates a device in its power-on state.
    fn visit<F: Interface>(self, frontend: impl Fn() -> F + Send + 'static) -> Self::Output;
}
