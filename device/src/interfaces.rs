//! The list of device interfaces, the only place in the code where all of them appear.

#[cfg(test)]
mod sketch;

use card::frontend::table::TableSpec;
use card::frontend::{Frontend, FrontendVisitor, Interface, Setup};
use card::telemetry::monitor::Rule;
use card::telemetry::reason::IgnoreReason;
use schemars::JsonSchema;
use serde::Deserialize;
use thiserror::Error;

/// Description of a device interface, for interface-independent code.
#[derive(Clone, Copy, Debug)]
pub struct InterfaceInfo {
    /// Key in the configuration.
    pub key: &'static str,
    /// Crate of the front-end. The interface document in the book has the same name.
    pub module: &'static str,
    /// Name of the interface in documents. Comments cite its document as "NAME interface".
    pub name: &'static str,
    /// Guest drivers for the interface.
    pub drivers: &'static [&'static str],
    /// Reason why the interface's doorbells must trap, if any; see [`Interface::NEEDS_TRAPS`].
    pub needs_traps: Option<&'static str>,
    pub rules: &'static [&'static Rule],
    /// Reasons to ignore a store or a frame, in addition to [`reason::ALL`](card::frontend::reason::ALL).
    pub ignore_reasons: &'static [&'static [IgnoreReason]],
    /// Returns the tables that list the interface's objects.
    pub tables: fn() -> Vec<&'static TableSpec>,
}

impl InterfaceInfo {
    const fn of<F: Interface>(module: &'static str) -> Self {
        Self {
            key: F::KEY,
            module,
            name: F::NAME,
            drivers: F::DRIVERS,
            needs_traps: F::NEEDS_TRAPS,
            rules: F::RULES,
            ignore_reasons: F::IGNORE_REASONS,
            tables: || F::TABLES.iter().map(|table| table.spec).collect(),
        }
    }
}

/// Returns the tables of all interfaces, without duplicates.
pub fn tables() -> Vec<&'static TableSpec> {
    let mut all: Vec<&TableSpec> = Vec::new();
    for spec in ALL.iter().flat_map(|interface| (interface.tables)()) {
        if !all.iter().any(|known| known.name == spec.name) {
            all.push(spec);
        }
    }
    all
}

/// Returns the table with the given name.
///
/// # Errors
/// Fails if the table is unknown.
pub fn table(name: &str) -> Result<&'static TableSpec, UnknownTableError> {
    let found = tables().into_iter().find(|spec| spec.name == name);
    found.ok_or_else(|| UnknownTableError(name.to_owned()))
}

/// Error for an unknown table name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("unknown table \"{}\"; available tables: {}", .0.escape_debug(), names(&tables()))]
pub struct UnknownTableError(String);

/// Returns the keys of all interfaces in the form `a, b or c`, for messages.
pub fn keys() -> String {
    let keys: Vec<_> = ALL.iter().map(|interface| interface.key).collect();
    match keys.split_last() {
        Some((last, [])) => (*last).to_owned(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}

fn names(tables: &[&TableSpec]) -> String {
    tables.iter().map(|spec| spec.name).collect::<Vec<_>>().join(", ")
}

/// Generates the configuration entry and [`ALL`] from one line per interface. The crate of each interface provides
/// `Options` and a `Device` that implements [`Interface`]. The configuration key is the name in `snake_case`, unless a
/// `serde` attribute specifies another key.
macro_rules! interfaces {
    ($($(#[$doc:meta])* $name:ident: $module:ident,)*) => {
        pub const ALL: &[InterfaceInfo] = &[$(InterfaceInfo::of::<$module::Device>(stringify!($module)),)*];

        /// Device interface and its options.
        #[derive(Clone, Debug, Deserialize, JsonSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum FrontendEntry {
            $($(#[$doc])* $name($module::Options),)*
        }

        impl FrontendEntry {
            /// Returns the configuration key of the interface.
            pub const fn key(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => <$module::Device as Frontend>::KEY,)*
                }
            }

            /// Returns why the interface's doorbells must trap, or `None` if they may be mapped.
            pub const fn needs_traps(&self) -> Option<&'static str> {
                match self {
                    $(Self::$name(_) => <$module::Device as Interface>::NEEDS_TRAPS,)*
                }
            }

            /// Passes `visitor` a constructor for devices of the configured type.
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
    Jingzhao: jingzhao,
    /// Mellanox InfiniHost III Lx (MT25204), for the in-tree Linux driver `ib_mthca`.
    Mthca: mthca,
    /// Intel E810-C, for the in-tree Linux drivers `ice` and `irdma`.
    E810: e810,
    /// NVIDIA ConnectX with an Ethernet or InfiniBand port, for the in-tree Linux drivers `mlx5_core` and `mlx5_ib`.
    Connectx: mlx5,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use card::frontend::reason;
    use card::hca::Hca;
    use card::identity::Identity;
    use card::telemetry::reason::Reason;
    use card::vfio::Bar;
    use card::vfio::server::{Device as _, Region};
    use protocol::ids::{Lid, MacAddr};
    use serde_json::json;

    use super::*;

    /// The interface list of a daemon whose only interface is [`sketch`].
    mod with_sketch {
        #![allow(unreachable_pub, reason = "the real list is public")]

        use crate::interfaces::*;

        interfaces! {
            /// A device that does nothing.
            Sketch: sketch,
        }
    }

    /// Visitor that misuses a device and returns the counters, rule violations and tables that the device then reports.
    struct Misuse;

    impl FrontendVisitor for Misuse {
        type Output = serde_json::Value;

        fn visit<F: Interface>(self, frontend: impl Fn() -> F + Send + 'static) -> Self::Output {
            let mut hca = Hca::new(frontend(), Identity::from_lid(Lid::new(1)), None);
            hca.set_strict(true);
            hca.region_write(Region::Config, 4, &[6, 0]);
            hca.region_write(Region::Bar(Bar::Bar0), 0, &[1]);
            hca.region_write(Region::Bar(Bar::Bar0), 4, &[0; 4]);
            hca.region_read(Region::Bar(Bar::Bar0), 0, &mut [0; 4]);
            let pages: Vec<_> = F::TABLES.iter().map(|table| hca.page(table.spec, 0)).collect();
            json!({
                "counters": hca.frontend_counters(),
                "ignored": hca.monitor().ignored_counts().collect::<Vec<_>>(),
                "violations": hca.monitor().violations().collect::<Vec<_>>(),
                "tables": pages.iter().map(|page| page.rows.table().name).collect::<Vec<_>>(),
                "rows": pages.iter().map(|page| &page.rows).collect::<Vec<_>>(),
                "cells": pages.iter().map(|page| page.rows.cells()).collect::<Vec<_>>(),
            })
        }
    }

    /// A module and a line in the list suffice to add an interface.
    #[test]
    fn listed_interface_appears_in_schema_and_tables() {
        let entry: with_sketch::FrontendEntry =
            serde_json::from_value(json!({ "sketch": { "value": 7 } })).unwrap();
        assert_eq!((entry.key(), entry.needs_traps()), ("sketch", Some("do not exist")));
        let schema = serde_json::to_value(schemars::schema_for!(with_sketch::FrontendEntry)).unwrap();
        assert_eq!(schema["oneOf"][0]["required"], json!(["sketch"]));

        let [interface] = with_sketch::ALL else { panic!("there should be one interface") };
        assert_eq!((interface.key, interface.name), ("sketch", "Sketch"));
        assert_eq!(interface.rules.iter().map(|rule| rule.name).collect::<Vec<_>>(), ["narrow_write"]);
        assert_eq!((interface.tables)().iter().map(|spec| spec.name).collect::<Vec<_>>(), ["registers"]);

        let setup =
            Setup { options: (), mac: MacAddr::from_lid(Lid::new(1)), engine: engine::Config::default() };
        assert_eq!(
            entry.make(&setup, Misuse),
            json!({
                "counters": { "reads": 1 },
                "ignored": [["read_only", 1], ["width", 1]],
                "violations": [["narrow_write", 1]],
                "tables": ["registers"],
                "rows": [[{ "offset": 0, "value": 7 }]],
                "cells": [[["0x0", "7"]]],
            })
        );
    }

    #[test]
    fn configuration_key_selects_interface() {
        for interface in ALL {
            let entry: FrontendEntry =
                serde_json::from_str(&format!("{{\"{}\": {{}}}}", interface.key)).unwrap();
            assert_eq!((entry.key(), entry.needs_traps()), (interface.key, interface.needs_traps));
        }
    }

    #[test]
    fn ignore_reasons_have_unique_names() {
        for interface in ALL {
            let declared = interface.ignore_reasons.iter().copied().chain([reason::ALL]).flatten();
            let names: Vec<_> = declared.map(|reason| reason.name).chain(Reason::shared_names()).collect();
            let unique: BTreeSet<_> = names.iter().collect();
            assert_eq!(unique.len(), names.len(), "{}: {names:?}", interface.key);
            for name in names {
                assert!(name.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_')), "{name}");
            }
        }
    }

    /// `hcactl` shows one table per name, so interfaces that share a table name must share the table.
    #[test]
    fn table_names_are_unique() {
        for interface in ALL {
            let specs = (interface.tables)();
            let names: BTreeSet<_> = specs.iter().map(|spec| spec.name).collect();
            assert_eq!(names.len(), specs.len(), "{}", interface.key);
            for spec in specs {
                assert_eq!(table(spec.name), Ok(spec));
            }
        }
    }

    #[test]
    fn unknown_table_error_lists_tables() {
        assert_eq!(
            table("srqs").unwrap_err().to_string(),
            "unknown table \"srqs\"; available tables: qps, cqs, eqs, mrs, icm, queues, link, vsis, rules, \
             scheduler, handles, groups, control, sqs, rqs, tirs, rqts, flow-tables, flow-groups, flow-entries"
        );
    }
}
