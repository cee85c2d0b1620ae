//! A Slurm cluster on a site's hosts: `munged` and `slurmd` run on each host, and `slurmctld` on the first host.
//!
//! Each daemon has its own UTS and mount namespaces. They provide the host name, `/etc/hosts`, and the host's state
//! directory at a path that is the same on all hosts.

use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;
use tokio::time::{Instant, sleep, timeout};

use crate::process::Process;
use crate::run_dir::RunDir;
use crate::scenario::namespace::run;
use crate::scenario::site::{self, HOSTS, Site};

/// Timeout for starting or stopping a daemon, and for all hosts to become available.
const STARTED: Duration = Duration::from_secs(120);
/// Timeout for a job step, including the boot of its guests.
const STEP: Duration = Duration::from_secs(480);
/// Length in bytes of the munge key that all hosts share.
const KEY_LEN: usize = 64;
/// First Slurm release that can disable cgroups.
const WITHOUT_CGROUPS: (u32, u32) = (23, 11);

/// Script that runs a command on a host. Its arguments are the host name, the host's state directory, its mount point,
/// the hosts file, the Slurm configuration, and the command.
const ENTER: &str = r#"set -e
echo "$1" >/proc/sys/kernel/hostname
mount --bind "$2" "$3"
mount --bind "$4" /etc/hosts
export SLURM_CONF="$5"
shift 5
exec "$@""#;

/// Returns the first required program that is not installed.
pub(super) async fn missing_program() -> Option<&'static str> {
    for program in ["munged", "slurmctld", "slurmd", "srun", "sinfo"] {
        // Do not run the programs: without a configuration, some of them cannot even print their version.
        if run(&["sh", "-c", "command -v \"$1\"", "sh", program]).await.is_err() {
            return Some(program);
        }
    }
    None
}

/// The hosts' files and network namespaces, as needed to run commands on them.
struct Hosts {
    namespaces: Vec<String>,
    /// Directory with one subdirectory for each host's state.
    state: PathBuf,
    /// Mount point of the host's state, the same on all hosts.
    own: PathBuf,
    names: PathBuf,
    config: PathBuf,
}

/// A running cluster. Its daemons are killed on drop.
pub(super) struct Cluster {
    hosts: Hosts,
    /// The daemons, in shutdown order.
    daemons: Vec<Process>,
}

/// A finished job step.
#[derive(Debug)]
pub(super) struct Step {
    pub(super) code: Option<i32>,
    pub(super) stdout: String,
    pub(super) stderr: String,
}

impl Hosts {
    /// Creates the files for all hosts.
    async fn create(site: &Site, files: &RunDir) -> Result<Self> {
        let hosts = Self {
            namespaces: site.hosts().iter().map(|host| host.name().to_owned()).collect(),
            state: files.scratch("state"),
            own: files.scratch("own"),
            names: files.file("hosts"),
            config: files.file("slurm.conf"),
        };
        fs::create_dir_all(&hosts.own)?;
        let mut names = String::from("127.0.0.1 localhost\n");
        for host in 0..HOSTS {
            fs::create_dir_all(hosts.state_of(host).join("spool"))?;
            writeln!(names, "{} {}", site::address(host), name(host))?;
        }
        fs::write(&hosts.names, names)?;
        fs::create_dir_all(hosts.state.join("controller"))?;
        let mut key = vec![0; KEY_LEN];
        fs::File::open("/dev/urandom")?.read_exact(&mut key)?;
        fs::write(hosts.key(), key)?;
        fs::set_permissions(hosts.key(), fs::Permissions::from_mode(0o400))?;
        fs::write(&hosts.config, hosts.config())?;
        let version = run(&["slurmd", "-V"]).await?;
        fs::write(files.file("cgroup.conf"), format!("CgroupPlugin={}\n", cgroup_plugin(&version)?))?;
        Ok(hosts)
    }

    fn state_of(&self, host: usize) -> PathBuf {
        self.state.join(name(host))
    }

    fn key(&self) -> PathBuf {
        self.state.join("key")
    }

    fn socket(&self) -> PathBuf {
        self.own.join("munge.socket")
    }

    /// Returns the text of `slurm.conf`, which must be the same on all hosts.
    fn config(&self) -> String {
        let (own, state, socket) = (self.own.display(), self.state.display(), self.socket());
        format!(
            "ClusterName=lab
SlurmctldHost={controller}
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={socket}
StateSaveLocation={state}/controller
SlurmctldPidFile={own}/slurmctld.pid
SlurmdPidFile={own}/slurmd.pid
SlurmdSpoolDir={own}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
SelectType=select/linear
SlurmdParameters=config_overrides
MailProg=/bin/true
NodeName={first}[1-{HOSTS}] CPUs=4 RealMemory=1000
PartitionName=all Nodes=ALL Default=YES State=UP
",
            controller = name(0),
            socket = socket.display(),
            first = NAME,
        )
    }

    /// Returns the command that runs a program on a host.
    fn command(&self, host: usize, program: &str) -> Result<Command> {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.namespaces.get(host).context("no such host")?]);
        command.args(["unshare", "--uts", "sh", "-c", ENTER, "enter", &name(host)]);
        command.arg(self.state_of(host)).arg(&self.own).arg(&self.names).arg(&self.config).arg(program);
        Ok(command)
    }

    async fn start(
        &self,
        host: usize,
        program: &str,
        arguments: &[&Path],
        line: &str,
        files: &RunDir,
    ) -> Result<Process> {
        let mut command = self.command(host, program)?;
        command.args(arguments);
        let mut process = Process::start(&format!("{program}-{}", host + 1), command, files)?;
        process.line(line, STARTED).await?;
        Ok(process)
    }
}

impl Cluster {
    /// Starts the daemons and waits until all hosts are available.
    pub(super) async fn start(site: &Site, files: &RunDir) -> Result<Self> {
        let hosts = Hosts::create(site, files).await?;
        let at = |option: &str, path: &Path| PathBuf::from(format!("{option}={}", path.display()));
        // With --force, munged accepts a path that it considers insecure. This is safe because only this user can write
        // to the lab's directories.
        let munge = [
            at("--socket", &hosts.socket()),
            at("--key-file", &hosts.key()),
            at("--pid-file", &hosts.own.join("munged.pid")),
            at("--seed-file", &hosts.own.join("munged.seed")),
        ];
        let munge: Vec<&Path> = ["--foreground", "--force"]
            .map(Path::new)
            .into_iter()
            .chain(munge.iter().map(PathBuf::as_path))
            .collect();
        let mut daemons = Vec::new();
        for host in 0..HOSTS {
            daemons.push(hosts.start(host, "munged", &munge, "Created socket", files).await?);
        }
        let foreground = [Path::new("-D")];
        daemons.push(hosts.start(0, "slurmctld", &foreground, "started on cluster", files).await?);
        for host in 0..HOSTS {
            daemons.push(hosts.start(host, "slurmd", &foreground, "slurmd started on", files).await?);
        }
        daemons.reverse();
        let cluster = Self { hosts, daemons };
        cluster.await_hosts().await?;
        Ok(cluster)
    }

    /// Waits until all hosts have registered with the controller.
    async fn await_hosts(&self) -> Result<()> {
        let deadline = Instant::now() + STARTED;
        loop {
            let mut command = self.command("sinfo")?;
            command.args(["--noheader", "--Node", "--format=%T"]);
            let states = self.run(command).await?.stdout;
            if states.lines().filter(|state| *state == "idle").count() == HOSTS {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "the hosts were not idle after {STARTED:?}: {states}");
            sleep(Duration::from_millis(200)).await;
        }
    }

    /// Returns the command that runs a program on the first host.
    pub(super) fn command(&self, program: &str) -> Result<Command> {
        self.hosts.command(0, program)
    }

    /// Runs a command and waits until it exits.
    pub(super) async fn run(&self, mut command: Command) -> Result<Step> {
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = timeout(STEP, command.output())
            .await
            .with_context(|| format!("the command did not exit within {STEP:?}"))??;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Step { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) })
    }

    pub(super) async fn stop(self) -> Result<()> {
        for mut daemon in self.daemons {
            daemon.stop(STARTED).await?;
        }
        Ok(())
    }
}

/// Prefix of host names. The host's number follows.
const NAME: &str = "n";

fn name(host: usize) -> String {
    format!("{NAME}{}", host + 1)
}

/// Returns the name of a plugin that keeps `slurmd` from creating cgroups. `version` is the output of `slurmd -V`, such
/// as `slurm-wlm 22.05.8`.
fn cgroup_plugin(version: &str) -> Result<&'static str> {
    let numbers = version.split_whitespace().last().unwrap_or_default();
    let mut numbers = numbers.split('.').map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(year)), Some(Ok(month))) if (year, month) >= WITHOUT_CGROUPS => Ok("disabled"),
        // Older releases cannot disable cgroups, but this plugin creates none unless another plugin uses cgroups.
        (Some(Ok(_)), Some(Ok(_))) => Ok("cgroup/v1"),
        _ => anyhow::bail!("cannot parse the version of slurmd: {version}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup_plugin_depends_on_slurm_version() {
        assert_eq!(cgroup_plugin("slurm-wlm 22.05.8\n").unwrap(), "cgroup/v1");
        assert_eq!(cgroup_plugin("slurm 24.11.5").unwrap(), "disabled");
        assert!(cgroup_plugin("slurm").is_err());
    }
}
