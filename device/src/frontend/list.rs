//! The device interfaces there are: the one list that names them all.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Frontend, Setup, e810, jingzhao, mthca};

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

            /// Why its doorbells have to trap, if they have to.
            pub const fn needs_traps(&self) -> Option<&'static str> {
                match self {
                    $(Self::$name(_) => <$module::Device as Interface>::NEEDS_TRAPS,)*
                }
            }

            /// Gives `visitor` what makes devices as after power-on, of whatever type they are.
            pub fn make<T: FrontendVisitor>(&self, common: &Setup<()>, visitor: T) -> T::Output {
                match self {
                    $(Self::$name(options) => {
                        let setup = common.with(options.clone());
                        visitor.visit(move || $module::Device::new(setup.clone()))
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
    /// Mellanox InfiniHost III Lx (MT25204), for the in-tree Linux driver `ib_mthca`.
    Mthca: mthca,
    /// Intel E810-C, for the in-tree Linux drivers `ice` and `irdma`.
    E810: e810,
}

/// A front-end that a configuration can name.
pub trait Interface: Frontend + Send + 'static {
    /// What the configuration says of it.
    type Options;

    /// Why its doorbells have to trap, in words that go on behind "its doorbells": `None` if it has
    /// [`Frontend::map_doorbells`].
    const NEEDS_TRAPS: Option<&'static str>;

    /// A device as after power-on.
    fn new(setup: Setup<Self::Options>) -> Self;
}

/// Is given a front-end whose type the configuration decides.
pub trait FrontendVisitor {
    /// What becomes of it.
    type Output;

    /// Makes something of it. Each that `frontend` makes is as after power-on.
    fn visit<F: Interface>(self, frontend: impl Fn() -> F + Send + 'static) -> Self::Output;
}
