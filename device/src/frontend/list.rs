//! The list of device interfaces, which is the only place that names all of them.

use schemars::JsonSchema;
use serde::Deserialize;

use super::{Frontend, FrontendVisitor, Interface, Setup, e810, jingzhao, mlx5, mthca};

/// Generates the configuration entry from one line per interface. The module of an interface provides `Options` and
/// `Device`, which implements [`Interface`]. Its name is the configuration key.
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
                    $(Self::$name(_) => <$module::Device as Frontend>::KEY,)*
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
    };
}

interfaces! {
    /// JingZhao (HanGu) HCA.
    Jingzhao: jingzhao,
    /// Mellanox InfiniHost III Lx (MT25204), for the in-tree Linux driver `ib_mthca`.
    Mthca: mthca,
    /// Intel E810-C, for the in-tree Linux drivers `ice` and `irdma`.
    E810: e810,
    /// NVIDIA ConnectX with an InfiniBand port, for the in-tree Linux drivers `mlx5_core` and `mlx5_ib`.
    #[serde(rename = "connectx-ib")]
    ConnectxIb: mlx5,
}
