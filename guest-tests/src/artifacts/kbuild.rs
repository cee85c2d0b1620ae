//! The tool chain that builds modules for the guests' kernel: the kernel's headers and scripts, its compiler, and make.
//!
//! The programs start each other by name. They belong to the kernel's Debian release, which may differ from the host's.
//! So each program is replaced by a script that starts it with that release's loader and libraries.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::apt::{Component, Package, Release, Suite, run};
use super::cache::{self, Work};
use super::kernel::{Kernel, KernelChoice};
use super::packages::Set;
use crate::arch::Arch;

/// Name prefixes of the packages to fetch. All other dependencies of the kernel headers are omitted.
const WANTED: &[&str] =
    &["binutils", "cpp", "gcc", "lib", "linux-headers-", "linux-kbuild-", "make", "pahole", "zlib1g"];
/// Path prefixes of the directories with programs that are started by other programs.
const PROGRAMS: &[&str] = &["usr/bin", "usr/libexec", "usr/lib/linux-kbuild-"];
/// Directory with the kernel's build rules.
const SOURCES: &str = "usr/src";
/// Suffix that is added to the names of wrapped programs.
const BEHIND: &str = "elf";

/// Everything needed to build a kernel module.
#[derive(Clone, Debug)]
pub struct ModuleBuild {
    make: PathBuf,
    /// The kernel's build directory.
    tree: PathBuf,
    /// Directory that contains the compiler, or `None` for the host's compiler.
    programs: Option<PathBuf>,
}

impl ModuleBuild {
    /// Returns the command that builds the modules in a directory for a kernel of this machine's architecture. The tool
    /// chain is fetched if it is not cached. Modules for a user-supplied kernel are built with the host's compiler
    /// against the `build` directory next to that kernel's modules.
    ///
    /// # Errors
    /// Fails if the directory does not exist or has no makefile, if the tool chain cannot be fetched, or if the user's
    /// kernel has no build directory.
    pub fn command(cache: &Path, choice: &KernelChoice, folder: &Path) -> Result<Command> {
        // Check the directory first, because the tool chain is a large download.
        let folder = checked(folder)?;
        Ok(Self::obtain(cache, choice)?.make(&folder))
    }

    fn obtain(cache: &Path, choice: &KernelChoice) -> Result<Self> {
        let kernel = Kernel::obtain(cache, Arch::HOST, choice)?;
        let suite = match choice {
            KernelChoice::Stock { suite, .. } => *suite,
            KernelChoice::Path(_) => {
                let tree = kernel.modules.join("build");
                ensure!(
                    tree.is_dir(),
                    "cannot build modules: the kernel build directory {} is missing",
                    tree.display()
                );
                return Ok(Self { make: "make".into(), tree, programs: None });
            }
        };
        let release = kernel.release();
        let headers = format!("linux-headers-{release}");
        let cache = cache.canonicalize()?;
        let name = format!("kbuild-2-{release}");
        let root = cache.join(&name).join("root");
        let own = kernel.modules.ancestors().nth(4).map(|root| root.join("usr")).unwrap_or_default();
        let has_own = own.join("src").join(&headers).is_dir();
        cache::entry(&cache, &name, |work| {
            let made = if has_own {
                let compiler = format!(
                    "{}-{}",
                    compiler(&own.join("src").join(&headers))?,
                    Arch::HOST.libraries().replace('_', "-")
                );
                let made = fetch(work, suite, &[&compiler, "binutils", "libelf1t64", "make", "pahole"])?;
                copy_headers(&own, &made.join("usr"))?;
                made
            } else {
                // The kernel was cached by an earlier version of the lab, which did not fetch headers with kernels.
                // Fetch the headers now.
                fetch(work, suite, &[&headers, "binutils", "make"]).with_context(|| {
                    format!(
                        "cannot download the headers of kernel {release}. If the archive only has a newer kernel, remove '{}/linux-*'; the lab then downloads that kernel and its headers",
                        cache.display()
                    )
                })?
            };
            relocate(&made, &root)
        })?;
        let tree = root.join(SOURCES).join(&headers);
        Ok(Self { make: root.join("usr/bin/make"), tree, programs: Some(root.join("usr/bin")) })
    }

    fn make(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.make);
        command.arg("-C").arg(&self.tree).arg(format!("M={}", folder.display()));
        if let Some(programs) = &self.programs {
            let mut path = OsString::from(programs);
            if let Some(others) = std::env::var_os("PATH") {
                path.push(":");
                path.push(others);
            }
            command.env("PATH", path);
        }
        command
    }
}

/// Checks that a directory contains the rules to build a module, and returns its absolute path.
fn checked(folder: &Path) -> Result<PathBuf> {
    let folder = folder.canonicalize().with_context(|| folder.display().to_string())?;
    let has_rules = ["Kbuild", "Makefile"].iter().any(|name| folder.join(name).is_file());
    ensure!(has_rules, "{} has no Makefile; create one with the line 'obj-m := NAME.o'", folder.display());
    Ok(folder)
}

fn fetch(work: &Work, suite: Suite, install: &[&str]) -> Result<PathBuf> {
    let is_wanted = |package: &Package| WANTED.iter().any(|beginning| package.name.starts_with(beginning));
    let set = Set {
        name: "compiler",
        install,
        arch: Arch::HOST,
        release: Release::Stable(suite),
        component: Component::Main,
        wanted: &is_wanted,
    };
    set.fetch(work)
}

/// Returns the name of the compiler that built the kernel, such as `gcc-14`. `tree` is the kernel's build directory.
fn compiler(tree: &Path) -> Result<String> {
    let file = tree.join(".kernelvariables");
    let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'));
    let is_versioned = |word: &&str| {
        word.strip_prefix("gcc-").is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
    };
    let found = words.rfind(is_versioned);
    found.map(str::to_owned).with_context(|| {
        format!("{} does not contain the version of the gcc that built the kernel", file.display())
    })
}

/// Copies headers and scripts that were fetched together with a kernel. Both arguments are `usr` directories.
fn copy_headers(from: &Path, to: &Path) -> Result<()> {
    let is_script = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("linux-kbuild-"))
    };
    let scripts = list(&from.join("lib"))?.into_iter().filter(is_script);
    let folders = scripts.map(|path| (path, "lib")).chain([(from.join("src"), ".")]);
    for (folder, parent) in folders {
        let mut copy = Command::new("cp");
        copy.args(["-a", "--reflink=auto"]).arg(folder).arg(to.join(parent));
        run(&mut copy).context("cannot copy the kernel headers")?;
    }
    Ok(())
}

/// Adapts the files unpacked below `made` to their final location, `root`.
fn relocate(made: &Path, root: &Path) -> Result<()> {
    let mut folders = Vec::new();
    for path in PROGRAMS {
        let (parent, beginning) = path.rsplit_once('/').unwrap_or(("", path));
        for entry in list(&made.join(parent))? {
            if entry.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning)) {
                folders.push(entry);
            }
        }
    }
    while let Some(folder) = folders.pop() {
        for path in list(&folder)? {
            let kind = fs::symlink_metadata(&path)?;
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() && kind.permissions().mode() & 0o111 != 0 && is_elf(&path)? {
                put_behind_script(&path, made, root)?;
            }
        }
    }
    // The rules of a kernel flavour include the common rules by absolute path, so adapt that path.
    let absolute = format!("/{SOURCES}");
    for folder in list(&made.join(SOURCES))? {
        let makefile = folder.join("Makefile");
        if let Ok(text) = fs::read_to_string(&makefile)
            && text.contains(&absolute)
            && text.len() < 4096
        {
            let here = root.join(SOURCES).display().to_string();
            fs::write(&makefile, text.replace(&absolute, &here))
                .with_context(|| makefile.display().to_string())?;
        }
    }
    Ok(())
}

fn put_behind_script(program: &Path, made: &Path, root: &Path) -> Result<()> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let behind = program.with_file_name(format!("{name}.{BEHIND}"));
    fs::rename(program, &behind).with_context(|| format!("cannot rename {}", program.display()))?;
    let at = |path: &str| root.join(path).display().to_string();
    let script = format!(
        "#!/bin/sh\nexec '{}' --library-path '{}:{}' --argv0 \"$0\" '{}' \"$@\"\n",
        at(Arch::HOST.loader()),
        at(&format!("usr/lib/{}", Arch::HOST.libraries())),
        at("usr/lib"),
        root.join(behind.strip_prefix(made)?).display()
    );
    fs::write(program, script).with_context(|| format!("cannot write {}", program.display()))?;
    Ok(fs::set_permissions(program, fs::Permissions::from_mode(0o755))?)
}

fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    entries.map(|entry| Ok(entry?.path())).collect()
}

fn is_elf(path: &Path) -> Result<bool> {
    let mut magic = Vec::new();
    File::open(path)?.take(4).read_to_end(&mut magic)?;
    Ok(magic == *b"\x7fELF")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_makefile_is_reported_before_download() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let error = ModuleBuild::command(&cache, &KernelChoice::default(), folder.path()).unwrap_err();
        assert!(error.to_string().contains("has no Makefile"), "{error:#}");
        assert!(!cache.exists());
    }

    #[test]
    fn program_wrappers_contain_final_paths() {
        let made = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str, mode| {
            let path = made.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        write("usr/bin/gcc", "\x7fELF of gcc", 0o755);
        write("usr/bin/script", "#!/bin/sh\n", 0o755);
        write("usr/libexec/gcc/14/plugin.so", "\x7fELF", 0o644);
        write("usr/lib/linux-kbuild-7/scripts/mod/modpost", "\x7fELF", 0o755);
        write(
            "usr/src/linux-headers-7-amd64/Makefile",
            "include /usr/src/linux-headers-7-common/Makefile\n",
            0o644,
        );
        relocate(made.path(), Path::new("/at")).unwrap();
        let read = |path: &str| fs::read_to_string(made.path().join(path)).unwrap();
        assert_eq!(read("usr/bin/gcc.elf"), "\x7fELF of gcc");
        assert_eq!(
            read("usr/bin/gcc"),
            "#!/bin/sh\nexec '/at/usr/lib64/ld-linux-x86-64.so.2' --library-path \
             '/at/usr/lib/x86_64-linux-gnu:/at/usr/lib' --argv0 \"$0\" '/at/usr/bin/gcc.elf' \"$@\"\n"
        );
        assert_eq!(read("usr/bin/script"), "#!/bin/sh\n");
        assert_eq!(read("usr/libexec/gcc/14/plugin.so"), "\x7fELF");
        assert!(read("usr/lib/linux-kbuild-7/scripts/mod/modpost").starts_with("#!"));
        let rules = read("usr/src/linux-headers-7-amd64/Makefile");
        assert_eq!(rules, "include /at/usr/src/linux-headers-7-common/Makefile\n");
    }

    #[test]
    fn compiler_is_selected_by_kernel_headers() {
        let kernel = tempfile::tempdir().unwrap();
        let tree = kernel.path().join("src/linux-headers-7-amd64");
        fs::create_dir_all(&tree).unwrap();
        fs::create_dir_all(kernel.path().join("lib/linux-kbuild-7/scripts")).unwrap();
        fs::create_dir_all(kernel.path().join("lib/modules")).unwrap();
        fs::write(tree.join(".kernelvariables"), "CCACHE = ccache\nCC = $(CROSS_COMPILE)gcc-14\n").unwrap();
        assert_eq!(compiler(&tree).unwrap(), "gcc-14");
        let made = tempfile::tempdir().unwrap();
        fs::create_dir(made.path().join("lib")).unwrap();
        copy_headers(kernel.path(), made.path()).unwrap();
        assert!(made.path().join("lib/linux-kbuild-7/scripts").is_dir());
        assert!(made.path().join("src/linux-headers-7-amd64/.kernelvariables").is_file());
        assert!(!made.path().join("lib/modules").exists());
        fs::write(tree.join(".kernelvariables"), "CC = cc\n").unwrap();
        let error = compiler(&tree).unwrap_err();
        assert!(error.to_string().contains("does not contain the version of the gcc"), "{error:#}");
    }

    #[test]
    fn missing_makefile_error_gives_instructions() {
        let build = ModuleBuild { make: "make".into(), tree: "/k".into(), programs: Some("/p".into()) };
        let folder = tempfile::tempdir().unwrap();
        let refused = format!("{:#}", checked(folder.path()).unwrap_err());
        assert!(refused.contains("obj-m := NAME.o"), "{refused}");
        fs::write(folder.path().join("Makefile"), "obj-m := x.o\n").unwrap();
        let command = build.make(&checked(folder.path()).unwrap());
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let folder = folder.path().canonicalize().unwrap();
        assert_eq!(words, ["-C", "/k", &format!("M={}", folder.display())]);
    }
}
