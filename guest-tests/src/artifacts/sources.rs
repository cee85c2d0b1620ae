//! Determines from apt's configuration where this machine gets its Debian packages.
//!
//! The lab uses the address and the signing key of the machine's Debian archive, and requests other suites from it. The
//! lab therefore works wherever the machine's own `apt` works, including with mirrors, and the code contains no host
//! names.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::apt::{Component, Kind};
use crate::arch::Arch;

/// Names of Debian releases in source lists. Entries for other releases do not refer to Debian's archive, even if they
/// have the component `main`.
const RELEASES: [&str; 12] = [
    "stable",
    "testing",
    "unstable",
    "sid",
    "oldstable",
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "rc-buggy",
    "oldoldstable",
];

/// Options of an entry that affect how the archive is verified. They also apply to the suites that the lab requests.
const KEPT_OPTIONS: [&str; 3] = ["signed-by", "trusted", "check-valid-until"];

/// A Debian archive used by this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Archive {
    uris: String,
    options: Vec<(String, String)>,
}

impl Archive {
    /// Returns the archives listed in `etc_apt` (normally `/etc/apt`), without duplicates and in apt's order.
    ///
    /// # Errors
    /// Fails if the source lists cannot be read or contain no Debian archive.
    pub(super) fn of_machine(etc_apt: &Path) -> Result<Vec<Self>> {
        let mut archives = Vec::new();
        for file in source_files(etc_apt) {
            let text =
                fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
            let found = if file.extension().is_some_and(|e| e == "sources") {
                parse_deb822(&text)
            } else {
                parse_one_line(&text)
            };
            for archive in found {
                if !archives.contains(&archive) {
                    archives.push(archive);
                }
            }
        }
        ensure!(
            !archives.is_empty(),
            "no Debian archive is configured in {0}/sources.list or {0}/sources.list.d; \
             add one so that guest-lab can download packages",
            etc_apt.display()
        );
        Ok(archives)
    }

    /// Returns a deb822 source list that selects one component of `suites` in this archive.
    pub(super) fn source_list(&self, kind: Kind, suites: &str, component: Component, arch: Arch) -> String {
        let kind = match kind {
            Kind::Binary => "deb",
            Kind::Source => "deb-src",
        };
        let mut text = format!(
            "Types: {kind}\nURIs: {}\nSuites: {suites}\nComponents: {}\nArchitectures: {arch}\n",
            self.uris,
            component.name()
        );
        for (name, value) in &self.options {
            writeln!(text, "{name}: {value}").expect("writing to a String cannot fail");
        }
        text
    }
}

fn source_files(etc_apt: &Path) -> Vec<PathBuf> {
    let mut parts: Vec<PathBuf> = fs::read_dir(etc_apt.join("sources.list.d"))
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "list" || e == "sources"))
        .collect();
    parts.sort();
    let main = etc_apt.join("sources.list");
    main.exists().then_some(main).into_iter().chain(parts).collect()
}

fn is_debian<'a>(suites: impl IntoIterator<Item = &'a str>, components: &[&str]) -> bool {
    components.contains(&"main") && suites.into_iter().any(|suite| RELEASES.contains(&suite))
}

/// Parses paragraphs of `Name: value` fields. A line that starts with white space continues the preceding value.
fn parse_deb822(text: &str) -> Vec<Archive> {
    let mut archives = Vec::new();
    let mut fields: Vec<(String, String)> = Vec::new();
    for line in text.lines().chain([""]) {
        if line.starts_with('#') {
            continue;
        }
        if line.trim().is_empty() {
            archives.extend(archive_of_fields(&fields));
            fields.clear();
        } else if line.starts_with([' ', '\t']) {
            if let Some((_, value)) = fields.last_mut() {
                value.push('\n');
                value.push_str(line);
            }
        } else if let Some((name, value)) = line.split_once(':') {
            fields.push((name.trim().to_owned(), value.trim().to_owned()));
        }
    }
    archives
}

fn archive_of_fields(fields: &[(String, String)]) -> Option<Archive> {
    let get = |name: &str| {
        fields.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map_or("", |(_, v)| v.as_str())
    };
    let components: Vec<&str> = get("components").split_whitespace().collect();
    let wanted = get("types").split_whitespace().any(|t| t == "deb")
        && !get("enabled").eq_ignore_ascii_case("no")
        && is_debian(get("suites").split_whitespace(), &components);
    wanted.then(|| Archive {
        uris: get("uris").to_owned(),
        options: fields
            .iter()
            .filter(|(name, _)| KEPT_OPTIONS.contains(&name.to_ascii_lowercase().as_str()))
            .cloned()
            .collect(),
    })
}

/// Parses lines of the form `deb [option=value ...] uri suite component ...`.
fn parse_one_line(text: &str) -> Vec<Archive> {
    text.lines().filter_map(|line| archive_of_line(line.split('#').next().unwrap_or(""))).collect()
}

fn archive_of_line(line: &str) -> Option<Archive> {
    let rest = line.trim().strip_prefix("deb")?;
    if !rest.starts_with([' ', '\t', '[']) {
        return None;
    }
    let rest = rest.trim_start();
    let (bracket, rest) = match rest.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?,
        None => ("", rest),
    };
    let mut words = rest.split_whitespace();
    let uri = words.next()?;
    let suite = words.next()?;
    let components: Vec<&str> = words.collect();
    is_debian([suite], &components).then(|| Archive {
        uris: uri.to_owned(),
        options: bracket
            .split_whitespace()
            .filter_map(|option| option.split_once('='))
            .filter(|(name, _)| KEPT_OPTIONS.contains(name))
            .map(|(name, value)| (name.to_owned(), value.replace(',', " ")))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deb822_list_yields_main_archive_and_key() {
        let text = "# comment\nTypes: deb deb-src\n# another\nURIs: mirror+file:/etc/apt/mirrors/debian.list\n\
            Suites: bookworm bookworm-updates\nComponents: main contrib\n\
            Signed-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n\n\
            Types: deb\nURIs: http://mirror.invalid/debian-security\nSuites: bookworm-security\nComponents: main\n";
        let archives = parse_deb822(text);
        assert_eq!(archives.len(), 1);
        assert_eq!(
            archives[0].source_list(Kind::Binary, "trixie", Component::Main, Arch::Arm64),
            "Types: deb\nURIs: mirror+file:/etc/apt/mirrors/debian.list\nSuites: trixie\nComponents: main\n\
             Architectures: arm64\nSigned-By: \n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abc\n"
        );
    }

    #[test]
    fn one_line_list_yields_trust_options() {
        let text = "deb [arch=amd64 signed-by=/k.gpg] http://mirror.invalid/debian trixie main # main\n\
            deb-src http://mirror.invalid/debian trixie main\n\
            deb http://other.invalid/apt vendor-1 main\n#deb http://off.invalid/debian trixie main\n";
        let archives = parse_one_line(text);
        assert_eq!(
            archives,
            [Archive {
                uris: "http://mirror.invalid/debian".into(),
                options: vec![("signed-by".into(), "/k.gpg".into())]
            }]
        );
    }

    #[test]
    fn disabled_entry_is_skipped() {
        let text =
            "Types: deb\nURIs: http://mirror.invalid/debian\nSuites: sid\nComponents: main\nEnabled: no\n";
        assert_eq!(parse_deb822(text), []);
    }
}
