//! WireGuard tunnels between all hosts of a site. If the kernel does not support WireGuard, a user-space program
//! implements the tunnels.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::{Instant, sleep};

use crate::process::Process;
use crate::report::Skip;
use crate::run_dir::RunDir;
use crate::scenario::namespace::{Namespace, run};
use crate::scenario::site::{self, HOSTS, Site};

/// MTU of the tunnels. As in `wg-quick`, it is 1500 bytes minus the 80 bytes that WireGuard adds over IPv6.
const MTU: u16 = 1420;
const PORT: &str = "51820";
/// UDP port of the HCAs, as in the book. It differs from RoCEv2's port, which soft-RoCE on a host uses.
const HCA_PORT: u16 = 47911;
/// How long a user-space program may take to create its interface.
const STARTED: Duration = Duration::from_secs(60);

/// Tunnels between the hosts, removed on drop.
#[derive(Debug)]
pub(super) struct Tunnels {
    /// The user-space programs. Empty if the kernel supports WireGuard.
    _programs: Vec<Process>,
}

impl Tunnels {
    /// Creates the tunnels.
    ///
    /// # Errors
    /// Returns [`Skip`] if the host does not have WireGuard.
    pub(super) async fn start(site: &Site, files: &RunDir) -> Result<Self> {
        let mut keys = Vec::new();
        for number in 1..=HOSTS {
            let private = match run(&["wg", "genkey"]).await {
                Ok(key) => key,
                Err(error) => {
                    return Err(Skip(format!("WireGuard does not work on this host: {error:#}")).into());
                }
            };
            let file = files.file(format!("wireguard-{number}.key"));
            std::fs::write(&file, &private).with_context(|| format!("cannot write {}", file.display()))?;
            keys.push((file, public_key(&private).await?));
        }
        let mut programs = Vec::new();
        for (number, host) in site.hosts().iter().enumerate() {
            // Interface names must be unique across namespaces, because the programs name their control sockets after
            // the interfaces and create all of them in one directory.
            let interface = format!("wg{}-{}", std::process::id(), number + 1);
            programs.extend(make(host, &interface, files).await?);
            let own = keys.get(number).context("one key per host")?;
            let own = own.0.to_str().context("a path in UTF-8")?;
            host.exec(&["wg", "set", &interface, "listen-port", PORT, "private-key", own]).await?;
            for (other, (_, public)) in keys.iter().enumerate().filter(|(other, _)| *other != number) {
                let endpoint = format!("{}:{PORT}", site::address(other));
                let allowed = format!("{}/32", inner(other));
                let peer = ["peer", public, "endpoint", &endpoint, "allowed-ips", &allowed];
                host.exec(&[&["wg", "set", &interface][..], &peer].concat()).await?;
            }
            host.ip(&["address", "add", &format!("{}/24", inner(number)), "dev", &interface]).await?;
            host.ip(&["link", "set", &interface, "mtu", &MTU.to_string(), "up"]).await?;
        }
        Ok(Self { _programs: programs })
    }

    /// Returns the UDP address of a host's HCA.
    pub(super) fn address(&self, host: usize) -> SocketAddr {
        (inner(host), HCA_PORT).into()
    }

    /// Returns the MTU of the tunnels in bytes.
    pub(super) fn mtu(&self) -> u16 {
        MTU
    }
}

/// Returns the address of a host in WireGuard's network.
fn inner(host: usize) -> Ipv4Addr {
    let [a, b, c, d] = Ipv4Addr::new(198, 51, 100, 1).octets();
    Ipv4Addr::new(a, b, c, d.saturating_add(u8::try_from(host).unwrap_or(u8::MAX)))
}

/// Creates the interface in the kernel or, if the kernel does not support WireGuard, with a user-space program.
async fn make(host: &Namespace, interface: &str, files: &RunDir) -> Result<Option<Process>> {
    let Err(refused) = host.ip(&["link", "add", interface, "type", "wireguard"]).await else {
        return Ok(None);
    };
    if let Err(missing) = run(&["wireguard-go", "--version"]).await {
        let why = format!(
            "the kernel does not support WireGuard ({refused:#}), and no user-space implementation was found: {missing:#}"
        );
        return Err(Skip(why).into());
    }
    let mut command = host.command("wireguard-go");
    command.args(["--foreground", interface]);
    let mut program = Process::start(interface, command, files)?;
    let deadline = Instant::now() + STARTED;
    // The interface exists as soon as the program responds.
    while host.exec(&["wg", "show", interface]).await.is_err() {
        ensure!(program.status()?.is_none(), "wireguard-go exited; see {}", program.log().display());
        ensure!(Instant::now() < deadline, "no interface after {STARTED:?}; see {}", program.log().display());
        sleep(Duration::from_millis(20)).await;
    }
    Ok(Some(program))
}

async fn public_key(private: &str) -> Result<String> {
    let mut command = Command::new("wg");
    command.arg("pubkey").stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().context("cannot start wg")?;
    let mut input = child.stdin.take().context("wg has no standard input")?;
    input.write_all(private.as_bytes()).await?;
    drop(input);
    let output = child.wait_with_output().await?;
    ensure!(output.status.success(), "wg pubkey: {}", output.status);
    Ok(String::from_utf8(output.stdout)?.trim_end().to_owned())
}
