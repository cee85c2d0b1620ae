//! Command-line names for testbeds, guests, and files in guests.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::MOST_GUESTS;

/// Maximum number of characters in a testbed's name, which becomes part of socket paths.
const LONGEST: usize = 24;

/// The reason why a name is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadName(String);

impl fmt::Display for BadName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadName {}

/// A testbed's name. It consists of letters, digits and dashes, and does not start with a dash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TestbedName(String);

impl TestbedName {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for TestbedName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let is_good = |c: char| c.is_ascii_alphanumeric() || c == '-';
        if text.is_empty() || text.len() > LONGEST || text.starts_with('-') || !text.chars().all(is_good) {
            return Err(BadName(format!(
                "'{text}' is not a valid testbed name; a name has 1 to {LONGEST} letters, digits and dashes, and starts with a letter or digit"
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

impl TryFrom<String> for TestbedName {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        text.parse()
    }
}

impl From<TestbedName> for String {
    fn from(name: TestbedName) -> Self {
        name.0
    }
}

impl fmt::Display for TestbedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A guest's name in its testbed: `a` to `z`, then `aa`, `ab` and so on. The value is the guest's index, starting at 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GuestName(u8);

const LETTERS: u8 = 26;

impl GuestName {
    /// Yields the names of the first `count` guests.
    pub fn first(count: u8) -> impl Iterator<Item = Self> {
        (0..count.min(MOST_GUESTS)).map(Self)
    }
}

impl FromStr for GuestName {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        Self::first(MOST_GUESTS)
            .find(|name| name.to_string() == text)
            .ok_or_else(|| BadName(format!("'{text}' is not a guest name; guests are named a, b, c, ...")))
    }
}

impl TryFrom<String> for GuestName {
    type Error = BadName;

    fn try_from(text: String) -> Result<Self, BadName> {
        text.parse()
    }
}

impl From<GuestName> for String {
    fn from(name: GuestName) -> Self {
        name.to_string()
    }
}

impl fmt::Display for GuestName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = |index: u8| char::from(b'a' + index % LETTERS);
        if let Some(index) = self.0.checked_sub(LETTERS) {
            write!(f, "{}", letter(index / LETTERS))?;
        }
        write!(f, "{}", letter(self.0))
    }
}

/// One guest in a testbed, written as `NAME:GUEST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub testbed: TestbedName,
    pub guest: GuestName,
}

impl FromStr for Target {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        let (testbed, guest) = text.split_once(':').ok_or_else(|| {
            BadName(format!("'{text}' does not name a guest; use NAME:GUEST, such as '{text}:a'"))
        })?;
        Ok(Self { testbed: testbed.parse()?, guest: guest.parse()? })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.testbed, self.guest)
    }
}

/// All guests in a testbed, written as `NAME`, or one of them, written as `NAME:GUEST`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Targets {
    pub testbed: TestbedName,
    /// The guest, if only one is selected.
    pub guest: Option<GuestName>,
}

impl FromStr for Targets {
    type Err = BadName;

    fn from_str(text: &str) -> Result<Self, BadName> {
        match text.split_once(':') {
            None => Ok(Self { testbed: text.parse()?, guest: None }),
            Some((testbed, guest)) => Ok(Self { testbed: testbed.parse()?, guest: Some(guest.parse()?) }),
        }
    }
}

/// Source or destination of a copy, written as a path on the host or as `NAME:GUEST:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A path on the host.
    Host(PathBuf),
    /// A path in a guest.
    Guest(Target, PathBuf),
}

impl FromStr for Place {
    type Err = BadName;

    /// Parses a source or destination. If a slash precedes the first colon, as in `./a:b:c`, the path is on the host.
    fn from_str(text: &str) -> Result<Self, BadName> {
        let parts: Vec<&str> = text.splitn(3, ':').collect();
        let [testbed, guest, path] = parts[..] else { return Ok(Self::Host(text.into())) };
        if testbed.contains('/') {
            return Ok(Self::Host(text.into()));
        }
        let target = Target { testbed: testbed.parse()?, guest: guest.parse()? };
        if path.is_empty() {
            return Err(BadName(format!("'{text}' does not name a file in guest {guest}")));
        }
        Ok(Self::Guest(target, path.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn testbed_names_are_safe_directory_names() {
        for good in ["ci", "mthca", "Run-12", "0"] {
            assert_eq!(good.parse::<TestbedName>().unwrap().as_str(), good);
        }
        for bad in ["", "-x", "a/b", "..", "a b", "a:b", "abcdefghijklmnopqrstuvwxyz"] {
            assert!(bad.parse::<TestbedName>().is_err(), "{bad}");
        }
    }

    #[test]
    fn target_requires_testbed_and_guest() {
        assert_eq!("ci:b".parse::<Target>().unwrap().to_string(), "ci:b");
        assert_eq!(
            "ci".parse::<Target>().unwrap_err().to_string(),
            "'ci' does not name a guest; use NAME:GUEST, such as 'ci:a'"
        );
        assert!("ci:ag".parse::<Target>().is_err() && "ci:aaa".parse::<Target>().is_err());
        assert_eq!("ci".parse::<Targets>().unwrap().guest, None);
    }

    #[test]
    fn guest_names_continue_after_z() {
        let names: Vec<String> = GuestName::first(MOST_GUESTS).map(|name| name.to_string()).collect();
        assert_eq!((names.len(), names[0].as_str(), names[25].as_str()), (32, "a", "z"));
        assert_eq!(names[26..], ["aa", "ab", "ac", "ad", "ae", "af"]);
        for (name, text) in GuestName::first(MOST_GUESTS).zip(&names) {
            assert_eq!(text.parse(), Ok(name));
        }
    }

    #[test]
    fn copy_path_selects_host_or_guest() {
        let place = |text: &str| text.parse::<Place>();
        assert_eq!(place("./a:b:c"), Ok(Place::Host("./a:b:c".into())));
        assert_eq!(place("file"), Ok(Place::Host("file".into())));
        assert_eq!(place("ci:a:/t/x:y"), Ok(Place::Guest("ci:a".parse().unwrap(), "/t/x:y".into())));
        assert!(place("ci:a:").is_err() && place("ci:other:/x").is_err());
    }
}
