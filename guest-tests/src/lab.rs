//! The parts shared by all scenarios: programs, guest configuration, and functions that boot guests.

mod options;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

pub(crate) use self::options::size_in_mebibytes;
pub use self::options::{Chance, Options};
use crate::arch::{Arch, Iommu};
use crate::artifacts::{
    Added, Artifacts, Disks, Kernel, KernelChoice, ModuleBuild, Overrides, Pages, RdmaCore, Suite, cache_dir,
    folder_of_linux,
};
use crate::initramfs::Initramfs;
use crate::kvm;
use crate::modules::ModuleList;
use crate::programs;
use crate::qemu::{Accelerator, Machine, Nic, Share, command_line};
use crate::report::Skip;
use crate::run_dir::RunDir;
use crate::vm::{self, Image, Vm};

/// Name of the script created by [`Lab::boot_files`].
pub const BOOT_SCRIPT: &str = "boot.ipxe";
/// Timeout from the start of QEMU to the agent's first response. Emulated guests on two busy cores can take a minute.
const BOOT_TIMEOUT: Duration = Duration::from_secs(180);
/// Kernel arguments of every guest. Only warnings and errors go to the console, which is a slow emulated serial line.
/// Mitigations serve no purpose here and are expensive under emulation.
const KERNEL_ARGS: &str = "loglevel=5 mitigations=off";
/// Modules needed by a guest for its disks.
const DISK_MODULES: &[&str] = &["virtio_blk", "ext4", "overlay"];
/// Modules needed by a guest to mount shared host directories.
const SHARE_MODULES: &[&str] = &["9pnet_virtio", "9p", "overlay"];
/// Modules that ext4 requests through an alias, if the kernel has them.
const DISK_MODULES_IF_ANY: &[&str] = &["crc32c_generic", "crc32c_cryptoapi"];

/// Everything needed to start guests.
#[derive(Debug)]
pub struct Lab {
    artifacts: Artifacts,
    kernel: KernelChoice,
    own_modules: Vec<PathBuf>,
    agent: Option<PathBuf>,
    hcad: Option<PathBuf>,
    accelerator: Accelerator,
    cpus: u32,
    memory_mib: u32,
    trace: bool,
    chance: Chance,
    without_guests: bool,
    runs: PathBuf,
    given: Vec<String>,
}

/// Settings for one guest in a scenario. Settings for all guests are in [`Lab`].
#[derive(Clone, Debug, Default)]
pub struct Guest<'a> {
    /// Name, such as `a`.
    pub name: &'a str,
    /// Sockets of the guest's HCAs on the root bus.
    pub hcas: Vec<PathBuf>,
    /// Sockets of the guest's HCAs behind root ports, like plug-in cards.
    pub cards: Vec<PathBuf>,
    /// Number of additional root ports for hot-plugged HCAs.
    pub free_slots: usize,
    /// The guest's Ethernet NICs.
    pub nics: Vec<Nic>,
    /// Whether the lab can write to the guest's console.
    pub with_console: bool,
    /// Disk images in addition to the root file system. They become /dev/vdc and so on.
    pub disks: Vec<PathBuf>,
    /// Image of an additional, writable disk.
    pub own_disk: Option<PathBuf>,
    /// Host directories that the guest can mount.
    pub shares: Vec<Share>,
    /// Number of commands that can run concurrently, independently of the agent's steps.
    pub commands: usize,
    /// Whether the guest can reboot. Otherwise, QEMU exits when the guest tries to.
    pub reboots: bool,
    /// Memory reserved for the crash kernel, in MiB. The crash kernel runs after a panic.
    pub crash_memory_mib: u32,
    /// Minimum number of virtual CPUs, regardless of the user's choice.
    pub least_cpus: u32,
    /// Minimum memory in MiB, regardless of the user's choice.
    pub least_memory_mib: u32,
    /// Memory in MiB, overriding the user's choice and `least_memory_mib`.
    pub memory_mib: Option<u32>,
    /// Boot loader for a network boot. It fetches the files created by [`Lab::boot_files`].
    pub boot_loader: Option<PathBuf>,
}

impl Lab {
    /// Finds, fetches or builds all artifacts.
    ///
    /// # Errors
    /// Fails if an artifact is missing.
    pub async fn prepare(options: &Options) -> Result<Self> {
        Self::prepare_with(options, Added::default()).await
    }

    /// Finds, fetches or builds all artifacts, and adds packages to the root file system.
    ///
    /// # Errors
    /// Same as for [`Self::prepare`].
    pub async fn prepare_with(options: &Options, added: Added) -> Result<Self> {
        let chosen = options.accel;
        let options = options.clone();
        // Use a blocking thread, since downloads and builds do not yield.
        let mut lab = tokio::task::spawn_blocking(move || Self::gather(&options, added)).await??;
        lab.accelerator = match chosen {
            Some(Accelerator::Tcg) => Accelerator::Tcg,
            Some(Accelerator::Kvm) => match lab.kvm_obstacle().await? {
                Some(obstacle) => {
                    bail!("--accel kvm requires KVM, which is not usable on this host: {obstacle}")
                }
                None => Accelerator::Kvm,
            },
            None if lab.kvm_obstacle().await?.is_some() => Accelerator::Tcg,
            None => Accelerator::Kvm,
        };
        Ok(lab)
    }

    fn gather(options: &Options, added: Added) -> Result<Self> {
        let overrides = Overrides {
            arch: options.arch,
            qemu: options.qemu.clone(),
            kernel: options.kernel.clone().unwrap_or_default(),
            root: options.root.clone(),
            added,
        };
        options.check_files()?;
        let artifacts = Artifacts::obtain(&cache_dir()?, &overrides)?;
        // Check the modules now because the guest could report an error only after booting.
        if !options.modules.is_empty() {
            let kernel = ModuleList::new(&artifacts.kernel.modules)?;
            options.modules.iter().try_for_each(|file| kernel.check_file(file))?;
        }
        Ok(Self {
            artifacts,
            kernel: overrides.kernel,
            own_modules: options.modules.clone(),
            agent: options.agent.clone(),
            hcad: options.hcad.clone(),
            accelerator: Accelerator::Tcg,
            cpus: options.cpus,
            memory_mib: options.memory,
            trace: options.trace,
            chance: Chance::default(),
            without_guests: false,
            runs: programs::lab_dir()?,
            given: options.given(),
        })
    }

    /// Returns a lab for guests of the given architecture with Debian's kernel. It keeps its runs in a separate
    /// directory. It uses the user's daemon, but not the user's kernel or other guest components.
    ///
    /// # Errors
    /// Fails if an artifact cannot be fetched.
    pub async fn for_guests(&self, arch: Arch, pages: Pages) -> Result<Self> {
        let suite = match self.kernel {
            KernelChoice::Stock { suite, .. } => suite,
            KernelChoice::Path(_) => Suite::TrixieBackports,
        };
        let options = Options {
            arch: Some(arch),
            kernel: Some(KernelChoice::Stock { suite, pages }),
            hcad: self.hcad.clone(),
            cpus: self.cpus,
            memory: self.memory_mib,
            trace: self.trace,
            ..Options::default()
        };
        let lab = Self::prepare(&options).await?.with_chance(self.chance);
        Ok(Self { runs: self.runs.join(format!("{arch}-guests")), ..lab })
    }

    /// Returns the path of the daemon under test.
    ///
    /// # Errors
    /// Fails if the daemon was not built.
    pub fn hcad(&self) -> Result<PathBuf> {
        self.hcad.clone().map_or_else(programs::hcad, Ok)
    }

    /// Checks that the daemon under test is a release build. Scenarios that compare speeds need one, as a development
    /// build is several times slower.
    ///
    /// # Errors
    /// Fails if the daemon was not built, cannot be run, or is a development build.
    pub fn require_release_build(&self) -> Result<()> {
        let program = self.hcad()?;
        let output = Command::new(&program).arg("--version").stdin(Stdio::null()).output();
        let output = output.with_context(|| format!("cannot run {}", program.display()))?;
        ensure!(output.status.success(), "{} --version failed: {}", program.display(), output.status);
        ensure!(
            !String::from_utf8_lossy(&output.stdout).contains("development build"),
            "{} is a development build, which is too slow to compare speeds; run 'cargo build --release', and set \
             HCAD_PROGRAMS=target/release",
            program.display()
        );
        Ok(())
    }

    /// Returns the configuration of the guests' kernel.
    ///
    /// # Errors
    /// Fails if the configuration file is missing.
    pub fn kernel_config(&self) -> Result<String> {
        self.artifacts.kernel.config()
    }

    /// Returns the command-line options that select this lab's programs, kernel and root file system.
    pub fn given(&self) -> &[String] {
        &self.given
    }

    pub fn kernel(&self) -> &Kernel {
        &self.artifacts.kernel
    }

    /// Fetches the root file system for guests if it is not cached.
    ///
    /// # Errors
    /// Fails if the root file system cannot be fetched or created.
    pub async fn fetch_user_space(&self) -> Result<()> {
        let artifacts = self.artifacts.clone();
        tokio::task::spawn_blocking(move || artifacts.disks()).await?.map(drop)
    }

    /// Returns whether daemons write traces.
    pub fn trace(&self) -> bool {
        self.trace
    }

    /// Sets the options for scenarios with random choices.
    #[must_use]
    pub fn with_chance(self, chance: Chance) -> Self {
        Self { chance, ..self }
    }

    /// Makes scenarios run without guests if they support it.
    #[must_use]
    pub fn without_guests(self) -> Self {
        Self { without_guests: true, ..self }
    }

    /// Returns whether scenarios that support it run without guests. The lab's own user-space HCA driver then runs on
    /// the host.
    pub fn has_no_guests(&self) -> bool {
        self.without_guests
    }

    pub fn chance(&self) -> Chance {
        self.chance
    }

    pub fn accelerator(&self) -> Accelerator {
        self.accelerator
    }

    /// Creates the directory for a new run of `scenario`.
    ///
    /// # Errors
    /// Fails if the directory cannot be created.
    pub fn new_run(&self, scenario: &str) -> Result<RunDir> {
        RunDir::create(&self.runs, scenario)
    }

    /// Returns the image for a guest without a root file system. It contains the agent, busybox, and the named modules
    /// with their dependencies. The guest's devices are behind an IOMMU.
    ///
    /// # Errors
    /// Fails if a module or a file is missing.
    pub fn image(&self, run: &RunDir, module_names: &[&str]) -> Result<Image> {
        let arch = self.artifacts.kernel.arch;
        if arch.iommu().is_none() {
            let reason = format!("user-space drivers need an IOMMU, which {arch} guests do not have");
            return Err(Skip(reason).into());
        }
        let image = self.pack(run, "initramfs", module_names, &[], &[])?;
        Ok(Image { iommu: true, ..image })
    }

    /// Returns the image for a guest whose root will be a shared host directory. Such a root lacks modules for the
    /// lab's kernel, so the image contains the named modules and `files`, which the modules may load as firmware.
    ///
    /// # Errors
    /// Fails if a module or a file is missing.
    pub fn shared_root_image(
        &self,
        run: &RunDir,
        module_names: &[&str],
        files: &[(&str, &[u8])],
    ) -> Result<Image> {
        self.pack(run, "initramfs-shared", &[SHARE_MODULES, module_names].concat(), &[], files)
    }

    /// Returns the image for a guest with a Debian root file system, whose tools can load all modules of the kernel.
    ///
    /// # Errors
    /// Fails if a package cannot be fetched or if a module or a file is missing.
    pub async fn debian_image(&self, run: &RunDir) -> Result<Image> {
        let artifacts = self.artifacts.clone();
        let disks = tokio::task::spawn_blocking(move || artifacts.disks()).await??;
        self.pack_for_disks(run, "initramfs-debian", disks)
    }

    /// Returns the image for a guest with a Debian root file system and DPDK's `testpmd`.
    ///
    /// # Errors
    /// Same as for [`Lab::debian_image`].
    pub async fn dpdk_image(&self, run: &RunDir) -> Result<Image> {
        let artifacts = self.artifacts.clone();
        let disks = tokio::task::spawn_blocking(move || artifacts.dpdk_disks()).await??;
        self.pack_for_disks(run, "initramfs-dpdk", disks)
    }

    /// Returns the image for a guest that runs the kernel's network driver selftests.
    ///
    /// # Errors
    /// Same as for [`Lab::debian_image`].
    pub async fn self_test_image(&self, run: &RunDir) -> Result<Image> {
        let artifacts = self.artifacts.clone();
        let disks = tokio::task::spawn_blocking(move || artifacts.self_test_disks()).await??;
        self.pack_for_disks(run, "initramfs-selftest", disks)
    }

    /// Returns a disk with the kernel's network driver selftests, at the same paths as in the Linux source tree.
    ///
    /// # Errors
    /// Fails if the source or the compiler cannot be fetched, or if a program does not compile.
    pub async fn self_tests(&self) -> Result<PathBuf> {
        let artifacts = self.artifacts.clone();
        tokio::task::spawn_blocking(move || artifacts.self_tests()).await?
    }

    /// Returns the image for a guest with the newest rdma-core.
    ///
    /// # Errors
    /// Same as for [`Lab::debian_image`].
    pub async fn newest_rdma_core_image(&self, run: &RunDir) -> Result<Image> {
        let artifacts = self.artifacts.clone();
        let disks = tokio::task::spawn_blocking(move || artifacts.newest_rdma_core_disks()).await??;
        self.pack_for_disks(run, "initramfs-newest", disks)
    }

    /// Returns a disk with Debian's DDP package as `ice.pkg`.
    ///
    /// # Errors
    /// Fails if the Debian mirror in use does not carry the package, which is non-free.
    pub async fn debian_ddp(&self) -> Result<PathBuf> {
        let artifacts = self.artifacts.clone();
        tokio::task::spawn_blocking(move || artifacts.debian_ddp()).await?
    }

    /// Returns the iPXE boot loader for [`Guest::boot_loader`].
    ///
    /// # Errors
    /// Fails if the boot loader cannot be fetched.
    pub async fn ipxe(&self) -> Result<PathBuf> {
        let artifacts = self.artifacts.clone();
        tokio::task::spawn_blocking(move || artifacts.ipxe()).await?
    }

    /// Creates a directory with the files that a guest with the given image fetches in a network boot: the kernel, the
    /// initramfs, and the iPXE script [`BOOT_SCRIPT`].
    ///
    /// # Errors
    /// Fails if a file cannot be written.
    pub fn boot_files(&self, run: &RunDir, image: &Image) -> Result<PathBuf> {
        let folder = run.scratch("tftp");
        fs::create_dir_all(&folder)?;
        fs::copy(&self.artifacts.kernel.image, folder.join("vmlinuz"))?;
        fs::copy(&image.initramfs, folder.join("initramfs"))?;
        // iPXE resolves file names relative to the script's location. A kernel started through EFI finds its initramfs
        // through `initrd=`.
        let arch = self.artifacts.kernel.arch;
        let args = command_line(arch, &kernel_args(arch, None, 0));
        let script = format!("#!ipxe\nkernel vmlinuz initrd=initramfs {args}\ninitrd initramfs\nboot\n");
        fs::write(folder.join(BOOT_SCRIPT), script)?;
        Ok(folder)
    }

    /// Returns a disk with rdma-core's tests in the directory `tests`.
    ///
    /// # Errors
    /// Fails if the tests cannot be fetched.
    pub async fn rdma_core_tests(&self, rdma_core: RdmaCore) -> Result<PathBuf> {
        let artifacts = self.artifacts.clone();
        tokio::task::spawn_blocking(move || artifacts.rdma_core_tests(rdma_core)).await?
    }

    /// Returns a disk with NIXL and its Python modules.
    ///
    /// # Errors
    /// Fails if the wheels cannot be fetched.
    pub async fn nixl(&self) -> Result<PathBuf> {
        let artifacts = self.artifacts.clone();
        tokio::task::spawn_blocking(move || artifacts.nixl()).await?
    }

    /// Builds a Linux driver for the guests' kernel from source, after applying `change` to the source.
    ///
    /// # Errors
    /// Fails if the source or a compiler cannot be fetched, or if the changed source does not compile.
    pub async fn build_changed_driver(
        &self,
        run: &RunDir,
        folder: &'static str,
        change: impl FnOnce(&Path) -> Result<()> + Send + 'static,
    ) -> Result<PathBuf> {
        let arch = self.artifacts.kernel.arch;
        ensure!(arch == Arch::HOST, "guest-lab cannot build drivers for {arch} guests on this machine");
        let (kernel, own) = (self.kernel.clone(), run.file("driver"));
        tokio::task::spawn_blocking(move || {
            let cache = cache_dir()?;
            let source = folder_of_linux(&cache, &kernel, folder)?;
            let copied =
                Command::new("cp").arg("-r").args([&source, &own]).status().context("cannot start cp")?;
            ensure!(copied.success(), "cannot copy {}", source.display());
            change(&own)?;
            let mut make = ModuleBuild::command(&cache, &kernel, &own)?;
            let made = make.args(["-j2", "modules"]).output().context("cannot start make")?;
            ensure!(made.status.success(), "make failed: {}", String::from_utf8_lossy(&made.stderr));
            let files = fs::read_dir(&own)?.filter_map(|entry| Some(entry.ok()?.path()));
            let mut modules = files.filter(|file| file.extension().is_some_and(|end| end == "ko"));
            modules.next().with_context(|| format!("make did not create a module in {}", own.display()))
        })
        .await?
    }

    fn pack_for_disks(&self, run: &RunDir, name: &str, disks: Disks) -> Result<Image> {
        let image = self.pack(run, name, DISK_MODULES, DISK_MODULES_IF_ANY, &[])?;
        Ok(Image { disks: Some(disks), ..image })
    }

    fn pack(
        &self,
        run: &RunDir,
        name: &str,
        needed: &[&str],
        if_any: &[&str],
        files: &[(&str, &[u8])],
    ) -> Result<Image> {
        let read = |path: &Path| fs::read(path).with_context(|| format!("cannot read {}", path.display()));
        let mut wanted = ModuleList::new(&self.artifacts.kernel.modules)?;
        // Load user-supplied modules first, as they may replace dependencies of other modules.
        for file in &self.own_modules {
            wanted.add_file(file)?;
        }
        for module in if_any {
            if wanted.exists(module) {
                wanted.add(module)?;
            }
        }
        for module in needed {
            wanted.add(module)?;
        }
        let modules = wanted.finish();
        let mut archive = match &self.agent {
            Some(agent) => Initramfs::new(&read(agent)?),
            None => Initramfs::new(programs::agent(self.artifacts.kernel.arch)?),
        };
        archive.add_busybox(&read(&self.artifacts.busybox)?, self.artifacts.busybox_applets()?.lines());
        let modules = archive.add_modules(&modules);
        for (path, content) in files {
            archive.add_file(path, content);
        }
        // Guests of several architectures can share a run, so the file name contains the architecture.
        let initramfs = run.scratch(&format!("{name}-{}", self.artifacts.kernel.arch));
        fs::write(&initramfs, archive.finish())
            .with_context(|| format!("cannot write {}", initramfs.display()))?;
        Ok(Image { initramfs, modules, disks: None, iommu: false })
    }

    /// Boots one guest.
    ///
    /// # Errors
    /// Fails if the guest does not boot.
    pub async fn boot(&self, run: &RunDir, image: &Image, guest: Guest<'_>) -> Result<Vm> {
        self.boot_within(BOOT_TIMEOUT, run, image, guest).await
    }

    async fn boot_within(
        &self,
        limit: Duration,
        run: &RunDir,
        image: &Image,
        guest: Guest<'_>,
    ) -> Result<Vm> {
        // Kernel drivers work without an IOMMU. With an IOMMU, each DMA mapping would cause a VM exit.
        let arch = self.artifacts.kernel.arch;
        let iommu = arch.iommu().filter(|_| image.iommu);
        let machine = Machine {
            name: guest.name.to_owned(),
            memory_mib: guest.memory_mib.unwrap_or_else(|| self.memory_mib.max(guest.least_memory_mib)),
            cpus: self.cpus.max(guest.least_cpus),
            accelerator: self.accelerator,
            kernel_args: kernel_args(arch, iommu, guest.crash_memory_mib),
            iommu,
            disks: image
                .disks
                .iter()
                .flat_map(|d| [d.system.clone(), d.modules.clone()])
                .chain(guest.disks)
                .collect(),
            own_disk: guest.own_disk,
            nics: guest.nics,
            hcas: guest.hcas,
            cards: guest.cards,
            free_slots: guest.free_slots,
            shares: guest.shares,
            reboots: guest.reboots,
            boot_loader: guest.boot_loader,
        };
        let wanted = vm::GuestPorts {
            console: guest.with_console,
            commands: guest.commands,
            monitor: guest.free_slots > 0,
        };
        Vm::boot(&machine, &self.artifacts, image, run, wanted, limit).await
    }

    /// Returns why KVM cannot boot the guest's kernel on this host, or `None` if it can. Opening `/dev/kvm` is not a
    /// sufficient test: on some virtual hosts, KVM can start firmware but cannot run Linux. The result is cached until
    /// the host reboots.
    async fn kvm_obstacle(&mut self) -> Result<Option<String>> {
        let arch = self.artifacts.kernel.arch;
        if arch != Arch::HOST {
            return Ok(Some(format!("the guests are {arch}, but this machine is {}", Arch::HOST)));
        }
        if let Err(error) = fs::File::options().read(true).write(true).open("/dev/kvm") {
            return Ok(Some(format!("/dev/kvm: {error}")));
        }
        let known = kvm::result_file(&cache_dir()?);
        let obstacle = match fs::read_to_string(&known) {
            Ok(answer) => answer,
            Err(_) => {
                tracing::info!(
                    "testing whether KVM can run guests on this host (up to {} s, once per host boot)",
                    kvm::BOOT_TIMEOUT.as_secs()
                );
                self.accelerator = Accelerator::Kvm;
                let answer = match self.try_boot().await {
                    Ok(()) => kvm::WORKS.to_owned(),
                    Err(error) => format!("{}\n\n{error:#}", kvm::explain(&error)),
                };
                // If the result cannot be cached, the next run repeats the test.
                let _ = fs::write(&known, &answer);
                answer
            }
        };
        let first = obstacle.lines().next().unwrap_or_default();
        Ok((first != kvm::WORKS).then(|| {
            format!(
                "a test guest did not boot with KVM: {}. To repeat the test, remove {}",
                first.trim_end_matches(['.', ':']),
                known.display()
            )
        }))
    }

    async fn try_boot(&self) -> Result<()> {
        let run = self.new_run("kvm-probe")?;
        let image = self.image(&run, &[])?;
        let guest = Guest { name: "probe", ..Guest::default() };
        self.boot_within(kvm::BOOT_TIMEOUT, &run, &image, guest).await.map(drop)
    }
}

/// Returns the number of guests that may boot at the same time: two per CPU. Guests spend part of the boot waiting for
/// devices, so two can share a CPU. With more, boots could exceed their time limit.
pub fn guests_per_wave() -> usize {
    std::thread::available_parallelism().map_or(2, |cpus| 2 * cpus.get())
}

fn kernel_args(arch: Arch, iommu: Option<Iommu>, crash_memory_mib: u32) -> String {
    let iommu = iommu.map_or("", |iommu| iommu.kernel_args);
    let crash = if crash_memory_mib > 0 { format!("crashkernel={crash_memory_mib}M") } else { String::new() };
    let all = [iommu, KERNEL_ARGS, arch.kernel_args(), &crash];
    all.into_iter().filter(|args| !args.is_empty()).collect::<Vec<_>>().join(" ")
}
