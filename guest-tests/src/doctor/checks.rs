//! Evaluates the findings. Each check becomes one line of the output.

use super::findings::{Cache, Findings, Kvm, Program};
use super::{Check, State};
use crate::artifacts::NoArchive;

const MIB: u64 = 1 << 20;
/// Free space needed to fetch all components: the packages, the unpacked files and the images.
const SPACE_TO_FETCH: u64 = 2 << 30;
/// Free space needed for logs and captures once everything is cached.
const SPACE_TO_RUN: u64 = 512 * MIB;
/// Memory needed for one guest of the default size, including its QEMU process and its daemon.
const GUEST_MEMORY: u64 = 640 * MIB;
/// The oldest host kernel that `hcad` supports.
const HOST_KERNEL: (u32, u32) = (5, 11);

/// Evaluates the findings. Returns the checks in printing order.
pub(super) fn judge(findings: &Findings) -> Vec<Check> {
    let mut checks = vec![machine(findings), kvm(&findings.kvm)];
    checks.extend(parts(findings));
    checks.extend([
        archive(findings),
        disk(findings),
        memory(findings.memory),
        runtime(findings),
        hcad(&findings.hcad),
        hcactl(&findings.hcactl),
        rust(findings.rustc.as_deref()),
        compiler(findings.has_cc),
        user_namespaces(&findings.user_namespaces),
        network_namespaces(&findings.network_namespaces),
    ]);
    checks
}

fn ok(name: &'static str, found: impl Into<String>) -> Check {
    Check { name, state: State::Ok, found: found.into(), remedy: None }
}

fn limited(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { name, state: State::Limited, found: found.into(), remedy: Some(remedy.into()) }
}

fn skipped(name: &'static str, found: impl Into<String>) -> Check {
    Check { name, state: State::Skipped, found: found.into(), remedy: None }
}

fn missing(name: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Check {
    Check { name, state: State::Missing, found: found.into(), remedy: Some(remedy.into()) }
}

fn machine(findings: &Findings) -> Check {
    const NAME: &str = "machine";
    let Findings { arch, kernel, .. } = findings;
    let (major, minor) = HOST_KERNEL;
    if arch != "x86_64" {
        return missing(
            NAME,
            format!("the architecture is {arch}; the lab requires x86-64"),
            "Use an x86-64 machine",
        );
    }
    match two_numbers(kernel) {
        Some(version) if version < HOST_KERNEL => missing(
            NAME,
            format!("Linux {kernel}; hcad requires {major}.{minor} or later"),
            "Install a newer kernel",
        ),
        _ => ok(NAME, format!("x86-64, Linux {kernel}")),
    }
}

fn kvm(kvm: &Kvm) -> Check {
    const NAME: &str = "KVM";
    const SLOWER: &str = "so guests are emulated (several times slower)";
    match kvm {
        Kvm::Works => ok(NAME, "a test guest has booted with KVM"),
        Kvm::Untested => ok(NAME, "/dev/kvm can be opened; the first boot tests whether KVM runs guests"),
        Kvm::Absent => limited(
            NAME,
            format!("/dev/kvm does not exist, {SLOWER}"),
            "Enable virtualisation in the firmware or the hypervisor, and load kvm_intel or kvm_amd",
        ),
        Kvm::Denied => limited(
            NAME,
            format!("this user has no permission to open /dev/kvm, {SLOWER}"),
            "Run 'sudo usermod -aG kvm $USER' and log in again",
        ),
        Kvm::Unusable(error) => limited(
            NAME,
            format!("/dev/kvm cannot be opened, {SLOWER}. The error is: {error}"),
            "Check that the kernel module kvm_intel or kvm_amd is loaded",
        ),
        Kvm::Fails { error, note } => limited(
            NAME,
            format!(
                "/dev/kvm can be opened, but a test guest did not boot with it, {SLOWER}. The reason was: {}",
                error.trim_end_matches(['.', ':'])
            ),
            format!("To repeat the test, remove {}", note.display()),
        ),
    }
}

/// Checks that QEMU, the kernel and the root file system are cached or can be fetched.
fn parts(findings: &Findings) -> Vec<Check> {
    let cached = findings.cache.as_ref().map(|cache| cache.parts.clone()).unwrap_or_default();
    let user_space = cached.user_space.map(|count| format!("{count} Debian packages"));
    let parts = [("QEMU", cached.qemu), ("guest kernel", cached.kernel), ("root filesystem", user_space)];
    let check = |(name, version): (_, Option<String>)| match (version, &findings.archive) {
        (Some(version), _) => ok(name, format!("{version}, cached")),
        (None, Some(Ok(()))) => ok(name, "not cached; 'guest-lab fetch' or the first boot downloads it"),
        (None, None) => missing(
            name,
            "not cached, and the Debian archive was not checked",
            "Run 'guest-lab doctor' without --offline, or run 'guest-lab fetch'",
        ),
        (None, Some(Err(_))) => missing(
            name,
            "not cached, and cannot be downloaded",
            "Make the Debian archive available (see below), or run 'guest-lab fetch' on another machine and copy \
             its cache directory",
        ),
    };
    parts.into_iter().map(check).collect()
}

fn archive(findings: &Findings) -> Check {
    const NAME: &str = "Debian archive";
    let problem = match &findings.archive {
        None => return skipped(NAME, "not checked (--offline)"),
        Some(Ok(())) => {
            return ok(NAME, "the archive in /etc/apt provides trixie and trixie-backports");
        }
        Some(Err(problem)) => problem,
    };
    let (found, remedy) = match problem {
        NoArchive::Program(program) => {
            (format!("{program} is not installed"), "Install the Debian packages apt and dpkg")
        }
        NoArchive::Answer(message) => explain(message),
    };
    let is_complete = findings.cache.as_ref().is_ok_and(|cache| cache.parts.is_complete());
    // If everything is cached, an unusable archive affects only optional downloads. Parts missing from the cache are
    // reported by their own checks.
    if is_complete {
        limited(NAME, format!("{found}; other kernels and additional packages cannot be downloaded"), remedy)
    } else {
        missing(NAME, found, remedy)
    }
}

/// Returns an explanation of an apt error message, and a remedy. The explanation omits the host names in the message.
fn explain(message: &str) -> (String, &'static str) {
    const SHOW: &str = "Run 'sudo apt-get update' to see apt's message";
    let reasons: [(&[&str], &str, &'static str); 6] = [
        (
            &["no Debian archive is configured"],
            "no Debian archive is configured in /etc/apt",
            "Add a Debian archive to /etc/apt/sources.list.d",
        ),
        (
            &["resolving", "Could not resolve"],
            "the host name of the archive in /etc/apt does not resolve",
            "Check the network, the DNS settings and apt's proxy settings",
        ),
        (
            &["Could not connect", "Unable to connect", "timed out", "unreachable", "refused"],
            "the archive in /etc/apt does not respond",
            "Check the network and apt's proxy settings",
        ),
        (
            &["NO_PUBKEY", "is not signed", "GPG error", "signature"],
            "the signature of the archive in /etc/apt cannot be verified",
            "Install the package debian-archive-keyring, or set Signed-By in /etc/apt",
        ),
        (
            &["certificate"],
            "the certificate of the archive in /etc/apt cannot be verified",
            "Install the package ca-certificates",
        ),
        (
            &["404", "does not have a Release file", "no longer has a Release file"],
            "the archive in /etc/apt lacks trixie or trixie-backports",
            "Add an archive that has both to /etc/apt/sources.list.d",
        ),
    ];
    let matching = |(parts, ..): &&(&[&str], &str, &str)| parts.iter().any(|part| message.contains(part));
    match reasons.iter().find(matching) {
        Some((_, found, remedy)) => ((*found).into(), remedy),
        None => ("apt-get update fails for the archive in /etc/apt".into(), SHOW),
    }
}

fn disk(findings: &Findings) -> Check {
    const NAME: &str = "disk space";
    let Cache { folder, free, parts } = match &findings.cache {
        Ok(cache) => cache,
        Err(error) => {
            return missing(NAME, error.clone(), "Set HCAD_LAB_CACHE to a writable directory");
        }
    };
    let (needed, purpose) = if parts.is_complete() {
        (SPACE_TO_RUN, "logs and captures")
    } else {
        (SPACE_TO_FETCH, "downloading QEMU, the kernel and the root filesystem")
    };
    let found = format!("{} free in {}", gibibytes(*free), folder.display());
    if *free >= needed {
        return ok(NAME, found);
    }
    missing(
        NAME,
        format!("{found}; {purpose} can take {}", gibibytes(needed)),
        "Free some disk space, or set HCAD_LAB_CACHE to a directory on a different disk",
    )
}

fn memory(available: Option<u64>) -> Check {
    const NAME: &str = "memory";
    let Some(available) = available else {
        return limited(
            NAME,
            "/proc/meminfo does not report the available memory",
            "Check that /proc is mounted",
        );
    };
    let found = format!("{} available", gibibytes(available));
    let needs = |guests: u64| gibibytes(guests * GUEST_MEMORY);
    match available / GUEST_MEMORY {
        0 => missing(
            NAME,
            format!("{found}; one guest requires {}", needs(1)),
            "Stop other programs, or use a machine with more memory",
        ),
        1 => limited(
            NAME,
            format!("{found}; two guests require {}", needs(2)),
            "Boot one guest (--count 1) or smaller guests (--memory 256M), or stop other programs",
        ),
        _ => ok(NAME, found),
    }
}

fn runtime(findings: &Findings) -> Check {
    const NAME: &str = "runtime directory";
    match &findings.runtime {
        Ok(folder) => ok(NAME, folder.display().to_string()),
        Err(error) => missing(
            NAME,
            error.clone(),
            "Set HCAD_LAB_STATE to a directory that you own and that only you can write to",
        ),
    }
}

fn hcad(found: &Result<Program, String>) -> Check {
    const REMEDY: &str =
        "Run 'cargo build --release', or set HCAD_PROGRAMS to the directory that contains the binaries";
    match found {
        Err(error) => missing("hcad", error.clone(), REMEDY),
        Ok(program) => of_this_version("hcad", program),
    }
}

fn hcactl(found: &Result<Program, String>) -> Check {
    const REMEDY: &str =
        "Run 'cargo build --release', or set HCAD_PROGRAMS to the directory that contains the binaries";
    match found {
        Err(error) => limited(
            "hcactl",
            format!("{error}; 'guest-lab up --strict' and some scenarios require it"),
            REMEDY,
        ),
        Ok(program) => of_this_version("hcactl", program),
    }
}

fn of_this_version(name: &'static str, program: &Program) -> Check {
    let Program { path, version } = program;
    let own = env!("CARGO_PKG_VERSION");
    let found = format!("{version} in {}", path.display());
    if version == own {
        ok(name, found)
    } else {
        limited(
            name,
            format!("{found}, but the version of guest-lab is {own}"),
            "Build both from the same sources",
        )
    }
}

fn rust(version: Option<&str>) -> Check {
    const NAME: &str = "Rust toolchain";
    let needed = env!("CARGO_PKG_RUST_VERSION");
    let Some(version) = version else {
        return limited(
            NAME,
            "rustc cannot be run, so hcad and guest-lab cannot be built on this machine",
            format!("Install Rust {needed} or later with rustup"),
        );
    };
    let number = version.strip_prefix("rustc ").unwrap_or(version);
    if two_numbers(number) < two_numbers(needed) {
        return limited(
            NAME,
            format!("{version}; building hcad and guest-lab requires {needed} or later"),
            "Run 'rustup update'",
        );
    }
    ok(NAME, version)
}

fn compiler(has_cc: bool) -> Check {
    const NAME: &str = "C compiler";
    if has_cc {
        return ok(NAME, "cc");
    }
    limited(
        NAME,
        "cc is not installed, so hcad and guest-lab cannot be built on this machine",
        "Run 'sudo apt-get install gcc libc6-dev'",
    )
}

fn user_namespaces(found: &Result<(), String>) -> Check {
    const NAME: &str = "user namespaces";
    match found {
        Ok(()) => ok(NAME, "can be created, and can mount file systems"),
        Err(error) => limited(
            NAME,
            format!(
                "mounting a file system in a user namespace fails ({error}); the torture scenario skips some cases"
            ),
            "In a container, give the container more privileges. Otherwise set the sysctl kernel.unprivileged_userns_clone to 1",
        ),
    }
}

fn network_namespaces(found: &Result<(), String>) -> Check {
    const NAME: &str = "network namespaces";
    match found {
        Ok(()) => ok(NAME, "can be created"),
        Err(error) => limited(
            NAME,
            format!("cannot be created ({error}); the scenarios fabric-tap and fabric-hosts require them"),
            "Run these scenarios as root. In a container, start it with --privileged",
        ),
    }
}

fn gibibytes(bytes: u64) -> String {
    let tenths = (bytes * 10) >> 30;
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

/// Returns the first two numbers in a version string, such as 6 and 12 for `6.12.4+deb13-amd64`.
fn two_numbers(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifacts::CachedParts;

    fn program(name: &str) -> Result<Program, String> {
        Ok(Program { path: format!("/opt/hcad/{name}").into(), version: env!("CARGO_PKG_VERSION").into() })
    }

    /// Returns the findings for a machine without problems and with all components in its cache.
    fn well() -> Findings {
        Findings {
            arch: "x86_64".into(),
            kernel: "6.12.4+deb13-amd64".into(),
            kvm: Kvm::Works,
            cache: Ok(Cache {
                folder: "/home/user/.cache/hcad-lab".into(),
                free: 20 << 30,
                parts: CachedParts {
                    qemu: Some("1:11.0.2".into()),
                    kernel: Some("7.2.12+deb13-amd64".into()),
                    user_space: Some(280),
                },
            }),
            archive: Some(Ok(())),
            memory: Some(8 << 30),
            runtime: Ok("/run/user/1000/hcad-lab".into()),
            user_namespaces: Ok(()),
            network_namespaces: Ok(()),
            rustc: Some("rustc 1.95.0 (59807616e 2026-04-14)".into()),
            has_cc: true,
            hcad: program("hcad"),
            hcactl: program("hcactl"),
        }
    }

    fn empty_cache() -> Result<Cache, String> {
        well().cache.map(|cache| Cache { parts: CachedParts::default(), ..cache })
    }

    fn state(findings: &Findings, name: &str) -> State {
        judge(findings).into_iter().find(|check| check.name == name).unwrap().state
    }

    fn line(findings: &Findings, name: &str) -> String {
        judge(findings).into_iter().find(|check| check.name == name).unwrap().to_line()
    }

    #[test]
    fn fully_equipped_host_passes_every_check() {
        for check in judge(&well()) {
            assert_eq!(check.state, State::Ok, "{check:?}");
            assert_eq!(check.remedy, None, "{check:?}");
        }
    }

    #[test]
    fn every_problem_has_one_line_remedy() {
        let broken = Findings {
            arch: "aarch64".into(),
            kernel: String::new(),
            kvm: Kvm::Denied,
            cache: Err("/x cannot be created: Permission denied".into()),
            archive: Some(Err(NoArchive::Program("apt-get"))),
            memory: Some(1),
            runtime: Err("/run is not a directory".into()),
            user_namespaces: Err("Operation not permitted".into()),
            network_namespaces: Err("not root".into()),
            rustc: None,
            has_cc: false,
            hcad: Err("/x/hcad does not exist".into()),
            hcactl: Err("/x/hcactl does not exist".into()),
        };
        for check in judge(&broken) {
            assert_ne!(check.state, State::Ok, "{check:?}");
            assert!(check.remedy.is_some(), "{check:?}");
            assert!(!check.to_line().contains('\n'), "{check:?}");
        }
    }

    #[test]
    fn doctor_reports_unusable_kvm_as_limited() {
        let denied = Findings { kvm: Kvm::Denied, ..well() };
        assert_eq!(state(&denied, "KVM"), State::Limited);
        assert!(line(&denied, "KVM").contains("usermod -aG kvm"));
        let note = "/cache/kvm-1".into();
        let fails = Findings { kvm: Kvm::Fails { error: "booting".into(), note }, ..well() };
        assert!(line(&fails, "KVM").contains("booting") && line(&fails, "KVM").contains("/cache/kvm-1"));
    }

    #[test]
    fn uncached_artifacts_require_archive() {
        let fresh = Findings { cache: empty_cache(), ..well() };
        for part in ["QEMU", "guest kernel", "root filesystem"] {
            assert_eq!(state(&fresh, part), State::Ok);
            let offline = Findings { archive: None, ..fresh.clone() };
            assert_eq!(state(&offline, part), State::Missing);
        }
        let offline = Findings { archive: None, ..well() };
        assert_eq!(state(&offline, "Debian archive"), State::Skipped);
        let answer = "Could not resolve 'mirror.invalid'".to_owned();
        let cut_off = Findings { archive: Some(Err(NoArchive::Answer(answer))), ..fresh };
        assert_eq!(state(&cut_off, "Debian archive"), State::Missing);
        let cached = Findings { cache: well().cache, ..cut_off };
        assert_eq!(state(&cached, "Debian archive"), State::Limited);
        assert_eq!(state(&cached, "QEMU"), State::Ok);
    }

    #[test]
    fn archive_errors_are_explained_without_host_names() {
        for (message, reason) in [
            ("Temporary failure resolving 'mirror.invalid'", "does not resolve"),
            ("Could not connect to mirror.invalid:80 (192.0.2.1)", "does not respond"),
            ("Err http://mirror.invalid/debian trixie-backports Release 404 Not Found", "trixie-backports"),
            (
                "no Debian archive is configured in /etc/apt/sources.list or /etc/apt/sources.list.d",
                "no Debian archive is configured",
            ),
            ("GPG error: http://mirror.invalid/debian NO_PUBKEY 6ED0E7B82643E131", "signature"),
            ("something new from mirror.invalid", "apt-get update fails"),
        ] {
            let archive = Some(Err(NoArchive::Answer(message.into())));
            let said = line(&Findings { archive, ..well() }, "Debian archive");
            assert!(said.contains(reason) && !said.contains("mirror"), "{message}: {said}");
        }
    }

    #[test]
    fn uncached_artifacts_require_more_disk_space() {
        let with = |cache: Result<Cache, String>, free| {
            let cache = cache.map(|cache| Cache { free, ..cache });
            state(&Findings { cache, ..well() }, "disk space")
        };
        assert_eq!(with(well().cache, 1 << 30), State::Ok);
        assert_eq!(with(empty_cache(), 1 << 30), State::Missing);
        assert_eq!(with(empty_cache(), SPACE_TO_FETCH), State::Ok);
        assert_eq!(with(well().cache, 1 << 20), State::Missing);
    }

    #[test]
    fn memory_for_only_one_guest_is_reported_as_limited() {
        let with = |memory| state(&Findings { memory, ..well() }, "memory");
        assert_eq!(with(Some(GUEST_MEMORY - 1)), State::Missing);
        assert_eq!(with(Some(GUEST_MEMORY)), State::Limited);
        assert_eq!(with(Some(2 * GUEST_MEMORY)), State::Ok);
        assert_eq!(with(None), State::Limited);
    }

    #[test]
    fn old_rust_and_old_kernel_are_reported() {
        let old = Findings { rustc: Some("rustc 1.85.1 (abc 2025-03-15)".into()), ..well() };
        assert!(line(&old, "Rust toolchain").contains("rustup update"));
        assert_eq!(state(&old, "Rust toolchain"), State::Limited);
        let old = Findings { kernel: "5.10.0-32-amd64".into(), ..well() };
        assert_eq!(state(&old, "machine"), State::Missing);
        let new = Findings { kernel: "5.11.0".into(), ..well() };
        assert_eq!(state(&new, "machine"), State::Ok);
    }

    #[test]
    fn missing_hcactl_does_not_prevent_boot() {
        let absent = || Err("/x does not exist".to_owned());
        assert_eq!(state(&Findings { hcad: absent(), ..well() }, "hcad"), State::Missing);
        assert_eq!(state(&Findings { hcactl: absent(), ..well() }, "hcactl"), State::Limited);
        let other = Ok(Program { path: "/x/hcad".into(), version: "0.0.1".into() });
        assert!(line(&Findings { hcad: other, ..well() }, "hcad").contains("guest-lab is"));
    }
}
