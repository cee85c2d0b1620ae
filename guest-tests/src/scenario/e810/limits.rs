//! Pushes one E810 to its limits: many neighbours, 16 GiB of registered memory, and four NVMe over RDMA controllers,
//! each with eight I/O queues, one per CPU.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::daemon::HcaSpec;
use crate::lab::{Guest, Lab};
use crate::report::Report;
use crate::scenario::nic::roce::{self, DEVICE};
use crate::scenario::nic::station::{Station, shape, strict_e810};
use crate::tools;

/// The program that registers memory regions.
const PROGRAM: &str = include_str!("../../../guest/registrations.py");
/// Number of CPUs in the client guest, which is also the number of I/O queues per controller.
const CPUS: u32 = 8;
const CONTROLLERS: u32 = 4;
const NEIGHBOURS: u64 = 1000;
/// Number of memory regions. Their total size exceeds the guest's memory, so they all cover the same buffer.
const REGIONS: u32 = 128;
const REGION_MIB: u32 = 128;
/// Size of the content written to each disk, in MiB.
const CONTENT_MIB: u32 = 2;
/// Timeout for each step.
const LIMIT: Duration = Duration::from_secs(600);
const POLL: Duration = Duration::from_millis(200);

/// Script that creates several NVMe subsystems, each of which exports a file on tmpfs.
const SERVE: &str = "modprobe -a nvmet nvmet-rdma
    mount -t configfs configfs /sys/kernel/config 2>&1 || mountpoint -q /sys/kernel/config
    cd /sys/kernel/config/nvmet
    mkdir ports/1
    echo rdma > ports/1/addr_trtype
    echo ipv4 > ports/1/addr_adrfam
    echo {server} > ports/1/addr_traddr
    echo 4420 > ports/1/addr_trsvcid
    for i in $(seq {controllers}); do
        truncate -s {mib}M /dev/shm/disk$i
        mkdir subsystems/hcad$i subsystems/hcad$i/namespaces/1
        echo 1 > subsystems/hcad$i/attr_allow_any_host
        echo /dev/shm/disk$i > subsystems/hcad$i/namespaces/1/device_path
        echo 1 > subsystems/hcad$i/namespaces/1/buffered_io
        echo 1 > subsystems/hcad$i/namespaces/1/enable
        ln -s /sys/kernel/config/nvmet/subsystems/hcad$i ports/1/subsystems/hcad$i
    done";

/// Script that connects to all subsystems. The keep-alive timeout is a day: while an emulated guest boots on a busy
/// host, its clock can run up to twenty times too fast.
const CONNECT: &str = "modprobe nvme-rdma
    for i in $(seq {controllers}); do
        nvme connect -t rdma -a {server} -s 4420 -n hcad$i --nr-io-queues={queues} --keep-alive-tmo=86400
    done";

struct Pair {
    client: Station,
    server: Station,
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("e810-limits")?;
    let hint = format!("console output, logs and command lines: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    let [client, server] = HcaSpec::pair()?.map(|spec| strict_e810(lab, spec));
    let many = Guest { least_cpus: CPUS, ..shape(&client.name) };
    let (client, server) = tokio::try_join!(
        Station::with_e810_in(lab, &run, &image, &client, many),
        Station::with_e810(lab, &run, &image, &server, Vec::new()),
    )
    .with_context(|| hint.clone())?;
    let mut pair = Pair { client, server };
    let start = async {
        roce::start(&mut pair.client).await?;
        roce::start(&mut pair.server).await
    };
    report.case("both ports are active", &hint, start).await?;
    let name = format!("the device has {NEIGHBOURS} neighbours");
    report.case_within(LIMIT, &name, &hint, neighbours(&mut pair.client)).await?;
    let name = format!(
        "with {} GiB registered, {CONTROLLERS} NVMe controllers with {CPUS} queues each transfer data",
        (REGIONS * REGION_MIB) >> 10
    );
    report.case_within(LIMIT * 2, &name, &hint, everything(&mut pair)).await?;
    let stop = async {
        // Both guests may log NVMe messages when the other end shuts down.
        pair.client.no_warnings_but(&["nvme"]).await?;
        pair.server.no_warnings_but(&["nvmet"]).await?;
        pair.client.stop().await?;
        pair.server.stop().await
    };
    report.case("no kernel warnings, and the daemons exit cleanly on SIGTERM", &hint, stop).await
}

/// Adds entries to the kernel's neighbour cache. `irdma` programs all of them into the device.
async fn neighbours(client: &mut Station) -> Result<()> {
    let device = &client.device;
    let script = format!(
        "awk 'BEGIN {{ for (i = 0; i < {NEIGHBOURS}; i++) {{ high = int(i / 250); low = i % 250 + 1; \
         printf \"neigh replace 10.99.%d.%d lladdr 02:00:00:99:%02x:%02x dev {device} nud permanent\\n\", high, low, high, low \
         }} }}' | ip -batch -"
    );
    client.within(LIMIT, &script).await?;
    let control = client.daemon.as_ref().context("the station has no daemon")?.controls();
    let deadline = Instant::now() + LIMIT;
    loop {
        let rows = control.ask(&["cqp"]).await?;
        let known =
            rows.pointer("/0/neighbours").and_then(Value::as_u64).with_context(|| rows.to_string())?;
        // The count includes the real neighbours and may therefore be higher.
        if known >= NEIGHBOURS {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the device has {known} neighbours after {LIMIT:?}");
        sleep(POLL).await;
    }
}

/// Runs NVMe while all regions are registered. NVMe then uses the last page-list entries and the last neighbour.
async fn everything(pair: &mut Pair) -> Result<()> {
    let [length, count] = [(u64::from(REGION_MIB) << 20).to_string(), REGIONS.to_string()];
    let argv = ["python3", "-u", "-c", PROGRAM, DEVICE, &length, &count].map(str::to_owned).to_vec();
    let program = pair.client.vm.call(agent::wire::Spawn { argv }).await?.program;
    let result = async {
        tools::line(&mut pair.client.vm, program, &format!("registered {REGIONS} regions"), LIMIT).await?;
        nvme(pair).await
    }
    .await;
    let end = tools::stop(&mut pair.client.vm, program).await?;
    result.with_context(|| format!("registrations: {}", end.stderr))
}

async fn nvme(pair: &mut Pair) -> Result<()> {
    let script = |text: &str| {
        let text = text.replace("{server}", &pair.server.address(0).ipv4).replace("{mib}", "16");
        let text = text.replace("{controllers}", &CONTROLLERS.to_string());
        format!("set -e; {}", text.replace("{queues}", &CPUS.to_string()))
    };
    let (serve, connect) = (script(SERVE), script(CONNECT));
    pair.server.within(LIMIT, &serve).await?;
    pair.client.within(LIMIT, &connect).await?;
    for controller in 0..CONTROLLERS {
        let disk = controller + 1;
        let line = format!(
            "until [ -b /dev/nvme{controller}n1 ]; do sleep 0.1; done; cat /sys/class/nvme/nvme{controller}/queue_count"
        );
        let queues = pair.client.within(LIMIT, &line).await?;
        // The additional queue is the admin queue.
        ensure!(queues.trim() == (CPUS + 1).to_string(), "controller {controller} has {queues} queues");
        let write = format!(
            "set -e; dd if=/dev/urandom of=/dev/shm/content bs=1M count={CONTENT_MIB} status=none; \
             dd if=/dev/shm/content of=/dev/nvme{controller}n1 bs=256k oflag=direct status=none; \
             md5sum < /dev/shm/content"
        );
        let wrote = pair.client.within(LIMIT, &write).await?;
        let there = format!("head -c {CONTENT_MIB}M /dev/shm/disk{disk} | md5sum");
        let found = pair.server.within(LIMIT, &there).await?;
        ensure!(
            wrote == found,
            "controller {controller} wrote data with checksum {wrote}, its disk contains {found}"
        );
    }
    pair.client.within(LIMIT, "nvme disconnect-all").await.map(drop)
}
