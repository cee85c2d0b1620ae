//! A compiler for programs that run in guests, with the C library of the guests' Debian release and the headers of
//! their kernel. It also compiles BPF programs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};

use super::apt::{Component, Package, Release, Suite, run};
use super::cache::Work;
use super::packages::{Set, Unpacked};
use crate::arch::Arch;

/// Major version of the compiler in Debian's stable release.
const VERSION: &str = "19";
/// Name prefixes of the packages to fetch. All other dependencies are for C++, Objective-C, profilers and sanitizers.
const WANTED: &[&str] = &[
    "base-files",
    "clang-",
    "libbpf-dev",
    "libbsd",
    "libc6",
    "libclang",
    "libedit",
    "libffi",
    "libgcc-s1",
    "libllvm",
    "liblzma",
    "libmd",
    "libstdc++6",
    "libtinfo",
    "libxml2",
    "libz3",
    "libzstd1",
    "linux-libc-dev",
    "lld-",
    "zlib1g",
];

/// The target to compile a file for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Guest,
    Bpf,
}

pub(super) struct Clang {
    root: PathBuf,
}

impl Clang {
    /// Fetches the compiler into the scratch directory of an unfinished cache entry. The kernel headers come from
    /// `suite`.
    ///
    /// # Errors
    /// Fails if a package cannot be fetched.
    pub(super) fn fetch(work: &Work, suite: Suite) -> Result<Self> {
        let folder = work.scratch.join("clang");
        let own = Work { entry: folder.join("entry"), scratch: folder.join("scratch") };
        let (clang, lld) = (format!("clang-{VERSION}"), format!("lld-{VERSION}"));
        let is_wanted =
            |package: &Package| WANTED.iter().any(|beginning| package.name.starts_with(beginning));
        let set = Set {
            name: "C compiler",
            install: &["base-files", &clang, &lld, "libc6-dev", "libbpf-dev"],
            arch: Arch::HOST,
            release: Release::Stable(suite),
            component: Component::Main,
            wanted: &is_wanted,
        };
        Ok(Self { root: set.fetch(&own)? })
    }

    /// Compiles a file. The directories `includes` are added to the search path for headers.
    ///
    /// # Errors
    /// Fails if the file does not compile.
    pub(super) fn compile(
        &self,
        target: Target,
        source: &Path,
        includes: &[&Path],
        object: &Path,
    ) -> Result<()> {
        let mut command = self.tool("clang");
        let resources = format!("lib/clang/{VERSION}");
        command.arg("-resource-dir").arg(self.llvm().join(resources)).arg("--sysroot").arg(&self.root);
        match target {
            Target::Guest => command.arg("--target=x86_64-linux-gnu"),
            // libbpf reads the types of maps from the debug information.
            Target::Bpf => command.args(["--target=bpf", "-g"]).arg("-idirafter").arg(self.headers()),
        };
        command.args(["-O2", "-w"]);
        command.args(includes.iter().flat_map(|folder| [Path::new("-I"), folder]));
        run(command.arg("-c").arg(source).arg("-o").arg(object))
            .with_context(|| format!("cannot compile {}", source.display()))
            .map(drop)
    }

    /// Links an object file into a program, together with the object files in `others` that it needs.
    ///
    /// The linker needs the dynamic loader of its own Debian release. The compiler would start the linker without that
    /// loader, so this function starts the linker directly.
    ///
    /// # Errors
    /// Fails if a symbol is missing.
    pub(super) fn link(&self, object: &Path, others: &[PathBuf], program: &Path) -> Result<()> {
        let libraries = self.root.join("usr/lib/x86_64-linux-gnu");
        let mut command = self.tool("ld.lld");
        command.arg("--sysroot").arg(&self.root).args(["-m", "elf_x86_64"]);
        command.args(["-dynamic-linker", "/lib64/ld-linux-x86-64.so.2", "-L"]).arg(&libraries);
        command.args(["crt1.o", "crti.o"].map(|file| libraries.join(file))).arg(object);
        command.arg("--start-lib").args(others).args(["--end-lib", "-lc", "-lpthread"]);
        run(command.arg(libraries.join("crtn.o")).arg("-o").arg(program))
            .with_context(|| format!("cannot link {}", program.display()))
            .map(drop)
    }

    /// Deletes the compiler.
    ///
    /// # Errors
    /// Fails if a file cannot be deleted.
    pub(super) fn remove(self) -> Result<()> {
        fs::remove_dir_all(&self.root).with_context(|| format!("cannot remove {}", self.root.display()))
    }

    fn llvm(&self) -> PathBuf {
        self.root.join(format!("usr/lib/llvm-{VERSION}"))
    }

    /// Returns the directory with the headers `asm/*.h`. Clang does not search this directory when it compiles for
    /// another processor.
    fn headers(&self) -> PathBuf {
        self.root.join("usr/include/x86_64-linux-gnu")
    }

    fn tool(&self, name: &str) -> Command {
        let program = format!("usr/lib/llvm-{VERSION}/bin/{name}");
        Unpacked::new(&self.root, &program, Some(name)).command()
    }
}
