//! Resources held by a process: descriptors, mappings and anonymous memory.

use std::fs;

use anyhow::{Context as _, Result, ensure};

/// Tolerated growth of anonymous memory in KiB. The allocator does not return all freed memory to the kernel.
const KEPT_KIB: u64 = 4 << 10;
/// Tolerated number of additional mappings. The allocator may keep some.
const KEPT_MAPS: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    /// Targets of all descriptors, sorted.
    descriptors: Vec<String>,
    /// Number of memfd mappings, which indicates how much guest memory is mapped.
    shared_maps: usize,
    /// Number of other mappings.
    own_maps: usize,
    /// Anonymous memory in KiB, excluding memory shared with guests.
    anonymous_kib: u64,
}

impl Account {
    pub(super) fn of(process: u32) -> Result<Self> {
        let folder = format!("/proc/{process}");
        let links = fs::read_dir(format!("{folder}/fd")).with_context(|| format!("process {process}"))?;
        let mut descriptors: Vec<String> = links
            .filter_map(|link| Some(kind(&fs::read_link(link.ok()?.path()).ok()?.to_string_lossy())))
            .collect();
        descriptors.sort();
        let maps = fs::read_to_string(format!("{folder}/maps"))?;
        let (shared, own): (Vec<&str>, Vec<&str>) = maps.lines().partition(|line| line.contains("/memfd:"));
        let status = fs::read_to_string(format!("{folder}/status"))?;
        let anonymous_kib = value(&status, "RssAnon:").with_context(|| format!("no RssAnon in {status}"))?;
        Ok(Self { descriptors, shared_maps: shared.len(), own_maps: own.len(), anonymous_kib })
    }

    /// Returns whether the descriptors and the number of memfd mappings are the same as in `before`.
    pub(super) fn is_as_open_as(&self, before: &Self) -> bool {
        self.descriptors == before.descriptors && self.shared_maps == before.shared_maps
    }

    /// Checks for leaks since `before`, which was recorded in an equivalent state. Descriptors and memfd mappings must
    /// be the same. Other resources may grow within the tolerances.
    pub(super) fn is_like(&self, before: &Self) -> Result<()> {
        ensure!(
            self.descriptors == before.descriptors,
            "descriptors changed: {:?}, then {:?}",
            before.descriptors,
            self.descriptors
        );
        ensure!(
            self.shared_maps == before.shared_maps && self.own_maps <= before.own_maps + KEPT_MAPS,
            "maps: {} shared and {} own, then {} and {}",
            before.shared_maps,
            before.own_maps,
            self.shared_maps,
            self.own_maps
        );
        ensure!(
            self.anonymous_kib <= before.anonymous_kib + KEPT_KIB,
            "private memory: {} KiB, then {} KiB",
            before.anonymous_kib,
            self.anonymous_kib
        );
        Ok(())
    }
}

impl std::fmt::Display for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { descriptors, shared_maps, own_maps, anonymous_kib } = self;
        let count = descriptors.len();
        write!(
            f,
            "{count} descriptors, {shared_maps} shared and {own_maps} own maps, {anonymous_kib} KiB of private memory"
        )
    }
}

/// Returns a descriptor's target without its unique number, such as `socket:` for `socket:[4711]`.
fn kind(target: &str) -> String {
    target.split('[').next().filter(|kind| kind.ends_with(':')).unwrap_or(target).to_owned()
}

/// Returns the value in KiB from the line `NAME: VALUE kB`.
fn value(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_classified_by_target() {
        assert_eq!(kind("socket:[4711]"), "socket:");
        assert_eq!(kind("anon_inode:[eventpoll]"), "anon_inode:");
        assert_eq!(kind("/memfd:pc.ram (deleted)"), "/memfd:pc.ram (deleted)");
    }

    #[test]
    fn resource_growth_is_detected() {
        let before = Account::of(std::process::id()).unwrap();
        let mut more = before.clone();
        more.is_like(&before).unwrap();
        more.descriptors.push("socket:".into());
        let error = more.is_like(&before).unwrap_err();
        assert!(error.to_string().starts_with("descriptors"), "{error:#}");
        let more = Account { anonymous_kib: before.anonymous_kib + KEPT_KIB + 1, ..before.clone() };
        assert!(more.is_like(&before).is_err());
        let more = Account { shared_maps: before.shared_maps + 1, ..before.clone() };
        assert!(more.is_like(&before).is_err());
    }
}
