//! Packages that the user has added to the guests' root file system. Guests in scenarios do not have these packages.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result};

/// Name of the cache file that lists the packages, one per line.
const LIST: &str = "added-packages";

/// Name of a Debian package, according to Debian policy 5.6.7.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PackageName(String);

/// Error for text that is not a valid package name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadPackageName(String);

impl fmt::Display for BadPackageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not the name of a Debian package (such as 'gdb' or 'libstdc++6')", self.0)
    }
}

impl std::error::Error for BadPackageName {}

impl FromStr for PackageName {
    type Err = BadPackageName;

    fn from_str(text: &str) -> Result<Self, BadPackageName> {
        let begins = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        let is_good = text.len() >= 2
            && text.starts_with(begins)
            && text.chars().all(|c| begins(c) || matches!(c, '+' | '-' | '.'));
        // Reject names that end in a dash or a plus. apt-get treats a trailing dash as a request to remove the package,
        // and a trailing plus as a request to install it. `g++` is the only useful package name of this kind.
        if is_good && !text.ends_with(['-', '+']) || text == "g++" {
            Ok(Self(text.to_owned()))
        } else {
            Err(BadPackageName(text.to_owned()))
        }
    }
}

impl fmt::Display for PackageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The set of packages that the user has added.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Added(BTreeSet<PackageName>);

impl Added {
    /// Reads the list from the cache.
    ///
    /// # Errors
    /// Fails if the list cannot be read or contains an invalid name.
    pub fn read(cache: &Path) -> Result<Self> {
        let path = cache.join(LIST);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::default()),
            text => text.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let names: Result<_, _> = text.lines().map(str::parse).collect();
        names.map(Self).with_context(|| format!("cannot parse {}", path.display()))
    }

    /// Writes the list to the cache.
    ///
    /// # Errors
    /// Fails if the list cannot be written.
    pub fn write(&self, cache: &Path) -> Result<()> {
        let path = cache.join(LIST);
        let text: String = self.names().map(|name| format!("{name}\n")).collect();
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the list with more packages added.
    #[must_use]
    pub fn with(mut self, more: impl IntoIterator<Item = PackageName>) -> Self {
        self.0.extend(more);
        self
    }

    /// Returns the list with the given packages removed.
    #[must_use]
    pub fn without(mut self, some: &[PackageName]) -> Self {
        self.0.retain(|name| !some.contains(name));
        self
    }

    /// Returns the names in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|name| name.0.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn package_name_must_follow_debian_policy() {
        for good in ["tcpdump", "libstdc++6", "python3.13", "0ad", "g++"] {
            assert_eq!(good.parse::<PackageName>().unwrap().to_string(), good);
        }
        for bad in ["", "x", "-y", "Tcpdump", "a b", "tcpdump-", "tcpdump=1", "a/b", "--option"] {
            assert!(bad.parse::<PackageName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn saved_package_list_has_no_duplicates() {
        let cache = tempfile::tempdir().unwrap();
        assert_eq!(Added::read(cache.path()).unwrap(), Added::default());
        let name = |text: &str| text.parse::<PackageName>().unwrap();
        let added = Added::default().with([name("tcpdump"), name("gdb"), name("gdb")]);
        added.write(cache.path()).unwrap();
        let read = Added::read(cache.path()).unwrap();
        assert_eq!(read.names().collect::<Vec<_>>(), ["gdb", "tcpdump"]);
        assert_eq!(read.without(&[name("gdb")]).names().collect::<Vec<_>>(), ["tcpdump"]);
    }
}
