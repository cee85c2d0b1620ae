//! Adds, removes, reconfigures and hot-plugs devices while guests run, as an operator would.
//!
//! One process serves guests `a` and `b`, which exchange messages and check them throughout. Neither guest may be
//! disturbed.

pub(super) mod hot_unplug;

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent::wire::{Dmesg, ExitStatus, ProgramId};
use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tokio::process::Command;

use super::stock_pair::{MTHCA, address, load_mthca, nic};
use crate::daemon::{Control, Daemon, Fabric, HcaSpec, Interface, free_udp_ports};
use crate::lab::{Guest, Lab};
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::tools::{Exchange, Ready, await_text, spawn, wait};
use crate::vm::{Image, Vm};

/// Program that exchanges messages between the guests during the changes. It takes about 7 s on an idle machine.
const MESSAGES: &str = "ibv_rc_pingpong -c -d mthca0 -n 20000";
const MESSAGES_LIMIT: Duration = Duration::from_secs(240);
/// TCP port that the server listens on.
const PORT: u16 = 18515;
/// How long a port may take to become active after the slot's attention button is pressed. The kernel waits 5 s for a
/// second press, which would cancel the hot-plug, and the driver waits for the device to reset.
const PLUG_LIMIT: Duration = Duration::from_secs(60);
/// Name of the guest's second `ib_mthca` device.
const SECOND: &str = "mthca1";
/// How long a daemon may take to apply changes in its configuration file.
const RELOAD_LIMIT: Duration = Duration::from_secs(60);

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("operator")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let mut site = Site::start(lab, run).await.with_context(|| hint.clone())?;
    report.case("both guests have an active port", &hint, site.load()).await?;
    let mut going = None;
    report
        .case("messages are exchanged between the guests", &hint, async {
            site.begin().await.map(|it| going = Some(it))
        })
        .await?;
    report.case("a device is added, and the others are unchanged", &hint, site.add()).await?;
    report.case("its card is hot-plugged, and the guest driver binds to it", &hint, site.plug()).await?;
    report.case("reload applies changes in the file, and nothing else", &hint, site.reload()).await?;
    report.case("SIGHUP applies changes in the file", &hint, site.hang_up()).await?;
    report
        .case("a file with an error is rejected with one line and changes nothing", &hint, site.refuse())
        .await?;
    report.case("no message between a and b was lost", &hint, site.end(going.as_ref())).await?;
    report.case("the hot-plugged card communicates with the other guest", &hint, site.talk(SECOND)).await?;
    report.case("removing the device affects only its guest", &hint, site.remove()).await?;
    report.case("the first card still communicates with the other guest", &hint, site.talk(MTHCA)).await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, site.stop()).await
}

/// A daemon with two guests, and the operator's files.
struct Site {
    a: Vm,
    b: Vm,
    /// IP address of guest `b`.
    server: String,
    daemon: Daemon,
    control: Control,
    file: PathBuf,
    run: RunDir,
}

/// A program that is running in both guests.
struct RunningProgram {
    server: ProgramId,
    client: ProgramId,
}

impl Site {
    async fn start(lab: &Lab, run: RunDir) -> Result<Self> {
        let image = lab.debian_image(&run).await?;
        let specs = HcaSpec::pair()?.map(|spec| HcaSpec {
            interface: Interface::Mthca,
            fabric: Fabric::Local,
            capture: false,
            trace: lab.trace(),
            ..spec
        });
        let daemon = Daemon::start_by(Command::new(lab.hcad()?), &specs, &run).await?;
        let [one, other] = free_udp_ports()?;
        let (a, b) = tokio::try_join!(
            boot(lab, &run, &image, &specs[0], &daemon.sockets()[0], [one, other]),
            boot(lab, &run, &image, &specs[1], &daemon.sockets()[1], [other, one])
        )?;
        let file = run.file(format!("hcad-{}.json", specs[0].name));
        let server = address(specs[1].id).to_string();
        Ok(Self { a, b, server, control: daemon.controls_of_all(), daemon, file, run })
    }

    async fn load(&mut self) -> Result<()> {
        tokio::try_join!(load_mthca(&mut self.a), load_mthca(&mut self.b)).map(drop)
    }

    async fn begin(&mut self) -> Result<RunningProgram> {
        let server = spawn(&mut self.b, MESSAGES).await?;
        Ready::Tcp(PORT).wait(&mut self.b, server, MESSAGES).await?;
        let client = spawn(&mut self.a, &format!("{MESSAGES} {}", self.server)).await?;
        Ok(RunningProgram { server, client })
    }

    async fn end(&mut self, going: Option<&RunningProgram>) -> Result<()> {
        let going = going.context("the programs were not started")?;
        let client = wait(&mut self.a, going.client, MESSAGES_LIMIT).await?;
        let server = wait(&mut self.b, going.server, MESSAGES_LIMIT).await?;
        for end in [client, server] {
            let text = format!("{}{}", end.stdout, end.stderr);
            ensure!(end.status == ExitStatus::Code(0), "{:?}: {text}", end.status);
            ensure!(text.contains(" iters in ") && !text.contains("invalid data"), "{text}");
        }
        Ok(())
    }

    /// Runs `hcactl device add` with an entry that a user might write.
    async fn add(&mut self) -> Result<()> {
        let entry = self.run.file("hca3.json");
        let socket = self.run.socket("hca3.sock");
        fs::write(&entry, device(3, &socket).to_string())?;
        let answer = self.control.ask(&["device", "add", &entry.display().to_string()]).await?;
        ensure!(answer == json!({ "device": 3, "added": socket }), "{answer}");
        self.devices_are(&[1, 2, 3]).await
    }

    async fn plug(&mut self) -> Result<()> {
        self.a.plug(1, &self.run.socket("hca3.sock")).await?;
        let state = format!("/sys/class/infiniband/{SECOND}/ports/1/state");
        await_text(&mut self.a, &[&state], &["4: ACTIVE"], PLUG_LIMIT).await
    }

    /// Adds two devices that no guest uses, then removes one and changes the other. The guests' devices must not
    /// change.
    async fn reload(&mut self) -> Result<()> {
        let sockets = [4, 5].map(|id| (id, self.run.socket(&format!("hca{id}.sock"))));
        self.rewrite(|devices| devices.extend(sockets.iter().map(|(id, socket)| device(*id, socket))))?;
        let answer = self.control.ask(&["reload"]).await?;
        ensure!(answer == outcome(&[4, 5], &[], &[], &[1, 2]), "{answer}");
        self.rewrite(|devices| {
            devices.retain(|device| device["id"] != 4);
            for device in devices.iter_mut().filter(|device| device["id"] == 5) {
                device["strict"] = json!(true);
            }
        })?;
        let answer = self.control.ask(&["reload"]).await?;
        ensure!(answer == outcome(&[], &[4], &[5], &[1, 2]), "{answer}");
        ensure!(!self.run.socket("hca4.sock").exists(), "the socket of device 4 still exists");
        self.devices_are(&[1, 2, 3, 5]).await
    }

    async fn hang_up(&mut self) -> Result<()> {
        self.rewrite(|devices| devices.retain(|device| device["id"] != 5))?;
        self.daemon.process().signal(libc::SIGHUP)?;
        self.daemon.process().line("reloaded added=[] removed=[5]", RELOAD_LIMIT).await?;
        self.devices_are(&[1, 2, 3]).await
    }

    async fn refuse(&mut self) -> Result<()> {
        let good = fs::read(&self.file)?;
        // The reload must fail: the new entry has the MAC address of a device that was added by `hcactl`.
        let socket = self.run.socket("hca9.sock");
        self.rewrite(|devices| {
            let mut wrong = device(9, &socket);
            wrong["mac"] = json!("02:00:00:00:00:03");
            devices.push(wrong);
        })?;
        let refusal = match self.control.ask(&["reload"]).await {
            Ok(answer) => anyhow::bail!("the device was added, expected an error: {answer}"),
            Err(error) => error.to_string(),
        };
        let problem = "devices[2].mac: 02:00:00:00:00:03 is already used by hca3";
        ensure!(refusal.contains(problem) && refusal.lines().count() == 1, "{refusal}");
        self.daemon.process().line("cannot reload", RELOAD_LIMIT).await?;
        fs::write(&self.file, good)?;
        self.devices_are(&[1, 2, 3]).await
    }

    /// Runs a ping-pong between guest `b` and one of guest `a`'s HCAs.
    async fn talk(&mut self, hca: &str) -> Result<()> {
        let command = |hca| format!("ibv_rc_pingpong -c -d {hca}");
        let client = format!("{} {}", command(hca), self.server);
        let exchange =
            Exchange { server: command(MTHCA), client, ready: Ready::Tcp(PORT), limit: PLUG_LIMIT };
        let ends = exchange.run(&mut self.b, &mut self.a).await?;
        ensure!(!ends.client.stdout.contains("invalid data"), "{}", ends.client.stdout);
        Ok(())
    }

    async fn remove(&mut self) -> Result<()> {
        let refusal = self.control.ask(&["device", "remove", "3"]).await;
        ensure!(refusal.is_err(), "a device with a guest was removed without --yes");
        self.control.ask(&["device", "remove", "3", "--yes"]).await?;
        self.devices_are(&[1, 2]).await?;
        ensure!(!self.run.socket("hca3.sock").exists(), "its socket still exists");
        // The device no longer responds to its driver, but the guest must still respond.
        self.a.call(Dmesg { level: None }).await.map(drop)
    }

    async fn devices_are(&self, expected: &[u64]) -> Result<()> {
        let rows = self.control.ask(&["devices"]).await?;
        let rows = rows.as_array().context("no list of devices")?;
        let ids: Vec<_> = rows.iter().filter_map(|row| row["id"].as_u64()).collect();
        ensure!(ids == expected, "devices {ids:?}, expected {expected:?}");
        let restarts: u64 = rows.iter().filter_map(|row| row["restarts"].as_u64()).sum();
        ensure!(restarts == 0, "a device failed: {rows:?}");
        Ok(())
    }

    /// Changes the devices in the daemon's configuration file, as a user with an editor would.
    fn rewrite(&self, change: impl FnOnce(&mut Vec<Value>)) -> Result<()> {
        let mut config: Value = serde_json::from_slice(&fs::read(&self.file)?)?;
        change(config["devices"].as_array_mut().context("no devices in the daemon's file")?);
        fs::write(&self.file, serde_json::to_string_pretty(&config)?)?;
        Ok(())
    }

    async fn stop(mut self) -> Result<()> {
        self.a.kill().await?;
        self.b.kill().await?;
        self.daemon.stop().await
    }
}

/// Returns the expected result of a reload.
fn outcome(added: &[u16], removed: &[u16], changed: &[u16], unchanged: &[u16]) -> Value {
    json!({
        "added": added, "removed": removed, "changed": changed, "unchanged": unchanged,
        "not_changed": [], "problems": [],
    })
}

/// Returns a configuration entry for an `ib_mthca` device on the same fabric.
fn device(id: u16, socket: &Path) -> Value {
    json!({ "id": id, "frontend": { "mthca": {} }, "fabric": { "local": {} }, "socket_path": socket })
}

/// Boots a guest that has an HCA, a free slot, and an Ethernet NIC. `wire` contains both ends' addresses on the NIC's
/// link.
async fn boot(
    lab: &Lab,
    run: &RunDir,
    image: &Image,
    spec: &HcaSpec,
    socket: &Path,
    wire: [SocketAddr; 2],
) -> Result<Vm> {
    let guest = Guest {
        name: &spec.name,
        hcas: vec![socket.to_owned()],
        nics: vec![nic(spec.id, wire)],
        free_slots: 1,
        ..Guest::default()
    };
    let mut vm = lab.boot(run, image, guest).await?;
    vm.run(&["modprobe", "virtio_net"]).await?;
    vm.run(&["ip", "link", "set", "eth0", "up"]).await?;
    vm.run(&["ip", "address", "add", &format!("{}/16", address(spec.id)), "dev", "eth0"]).await?;
    Ok(vm)
}
