//! Runs dnsmasq as a site's name server.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use crate::process::Process;
use crate::run_dir::RunDir;
use crate::scenario::namespace::run;
use crate::scenario::site::{self, HOSTS, Site};

/// DNS name that resolves to the IPv4 addresses of the hosts.
pub(super) const ALL: &str = "hcad.lab.example";
/// Name whose SRV records point to the hosts.
pub(super) const SERVICE: &str = "_hcad._udp.lab.example";
/// Number that determines the server's own address.
const NUMBER: u8 = 254;
/// How long the server may take to start or stop.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running name server.
pub(super) struct NameServer<'a> {
    site: &'a Site,
    files: &'a RunDir,
    /// File with the address records, in the format of `/etc/hosts`.
    hosts: PathBuf,
    /// The dnsmasq process, or `None` while the server is stopped.
    process: Option<Process>,
}

impl<'a> NameServer<'a> {
    /// Checks that dnsmasq is installed.
    pub(super) async fn find() -> Result<()> {
        run(&["dnsmasq", "--version"]).await.map(drop)
    }

    /// Starts the server without any address records.
    pub(super) async fn start(site: &'a Site, files: &'a RunDir) -> Result<Self> {
        site.add_server(NUMBER).await?;
        let mut server = Self { site, files, hosts: files.file("hosts"), process: None };
        write(&server.hosts, "")?;
        server.restart().await?;
        Ok(server)
    }

    pub(super) fn addr(&self) -> SocketAddr {
        (site::ipv4(NUMBER), 53).into()
    }

    /// Makes [`ALL`] resolve to the IPv4 addresses of the hosts in `numbers` (see [`site::ipv4`]). Removes all other
    /// address records.
    pub(super) fn set_ipv4(&self, numbers: &[u8]) -> Result<()> {
        let line = |text: &mut String, number: &u8| writeln!(text, "{} {ALL}", site::ipv4(*number));
        self.set(numbers, line)
    }

    /// Makes the [`SERVICE`] target of each host in `numbers` resolve to the host's IPv6 address. Removes all other
    /// address records.
    pub(super) fn set_ipv6(&self, numbers: &[u8]) -> Result<()> {
        let line =
            |text: &mut String, number: &u8| writeln!(text, "{} {}", site::ipv6(*number), target(*number));
        self.set(numbers, line)
    }

    fn set(&self, numbers: &[u8], line: impl Fn(&mut String, &u8) -> std::fmt::Result) -> Result<()> {
        let mut text = String::new();
        numbers.iter().try_for_each(|number| line(&mut text, number))?;
        write(&self.hosts, &text)?;
        // SIGHUP makes dnsmasq reload the file.
        self.process.as_ref().map_or(Ok(()), |process| process.signal(libc::SIGHUP))
    }

    /// Starts the server after [`Self::stop`].
    pub(super) async fn restart(&mut self) -> Result<()> {
        let mut command = self.site.wire().command("dnsmasq");
        command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--pid-file=", "--user=root"]);
        command.args(["--log-facility=-", "--log-queries", "--bind-interfaces"]);
        command.arg(format!("--listen-address={}", self.addr().ip()));
        command.args(["--no-resolv", "--no-hosts", "--local=/lab.example/", "--local-ttl=1"]);
        command.arg(format!("--addn-hosts={}", self.hosts.display()));
        for host in 0..HOSTS {
            command.arg(format!("--srv-host={SERVICE},{},{}", target(site::number(host)), super::HCA_PORT));
        }
        let mut process = Process::start("dnsmasq", command, self.files)?;
        process.line("started, version", TIMEOUT).await?;
        self.process = Some(process);
        Ok(())
    }

    pub(super) async fn stop(&mut self) -> Result<()> {
        let mut process = self.process.take().context("the name server is already stopped")?;
        process.stop(TIMEOUT).await.map(drop)
    }
}

fn target(number: u8) -> String {
    format!("host{number}.lab.example")
}

/// Replaces a file atomically, since dnsmasq may read it at any time.
fn write(file: &Path, text: &str) -> Result<()> {
    let new = file.with_extension("new");
    std::fs::write(&new, text)
        .and_then(|()| std::fs::rename(&new, file))
        .with_context(|| format!("cannot write {}", file.display()))
}
