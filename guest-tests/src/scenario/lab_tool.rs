//! Tests `guest-lab` itself, by running its commands as a user would type them, mostly on two guests with `ib_mthca`.

pub(super) mod here;
pub(super) mod impair;
pub(super) mod many;
mod stuck;
pub(super) mod templates;
mod user;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;

use self::user::{Outcome, User};
use super::extent::Extent;
use crate::artifacts::cache_dir;
use crate::lab::Lab;
use crate::report::Report;

/// Mount point of a shared host directory in the guests.
const SHARE: &str = "/t";
/// A stock kernel module that no other test uses. It stands in for a user-supplied module.
const MODULE: &str = "rdma_rxe";
/// Timeout for starting a guest on a busy host.
const START: Duration = Duration::from_secs(120);
/// Interval between checks for a file.
const POLL: Duration = Duration::from_millis(50);

pub(super) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let run = lab.new_run(extent.select("lab-tool", "lab-tool-full"))?;
    let hint = format!("transcripts of all commands: {}", run.path().display());
    let user = User::new(lab, &run)?;
    let shared = run.file("shared");
    fs::create_dir_all(&shared)?;
    save_script(&shared.join("hello.sh"), "#!/bin/sh\necho hello from $HCAD_GUEST of $HCAD_GUESTS\n")?;

    report
        .case("problems are reported before anything boots", &hint, refusals(&user, lab, run.path()))
        .await?;
    report.case("two guests boot and describe themselves", &hint, up(&user, &shared)).await?;
    report.case("input, output and exit status of a command are forwarded", &hint, streams(&user)).await?;
    report.case("a command receives signals, and is killed if its user exits", &hint, signals(&user)).await?;
    report.case("a command has a terminal if requested", &hint, terminal(&user)).await?;
    report.case("guests resolve each other's names, and RDMA works between them", &hint, rdma(&user)).await?;
    report.case("hcactl queries the device of a guest", &hint, hcactl(&user)).await?;
    report.case("the book's stopped receiver is explained", &hint, stuck::explained(&user)).await?;
    report.case("a host directory is shared with the guests", &hint, share(&user, &shared)).await?;
    report
        .case("files and directories are copied in both directions", &hint, copies(&user, run.path()))
        .await?;
    let case = build(&user, run.path());
    report.case("a module is edited, built and reloaded, and its message appears", &hint, case).await?;
    report.case("a stock driver is reloaded and works again", &hint, reload(&user, lab)).await?;
    report.case("logs are collected in one directory", &hint, logs(&user, run.path())).await?;
    // This case is slow, since it waits for timeouts to expire.
    if extent == Extent::Full {
        report.case("commands fail if their guest does not answer", &hint, suspended(&user)).await?;
    }
    report.case("nothing is left behind after down", &hint, down(&user)).await?;
    report.case("logs remain available after down", &hint, old_logs(&user, run.path())).await?;
    let case = ci(&user, &shared, run.path());
    report
        .case(
            "ci: a script runs in all guests with its directory, and its exit status is returned",
            &hint,
            case,
        )
        .await?;
    let case = verbs_example(&user, run.path());
    report.case("ci: the verbs example between soft-RoCE and irdma", &hint, case).await?;
    let case = nvme_example(&user, run.path());
    report.case("ci: the NVMe example without driver violations", &hint, case).await?;
    let case = ci_failures(&user, &shared, run.path());
    report.case("ci: failures of the lab have a distinct status", &hint, case).await?;
    // Only the full run includes these cases. The last one contacts a package archive each time.
    if extent == Extent::Full {
        report.case("guests stop when the process of --for-pid exits", &hint, bound(&user)).await?;
        report.case("a guest without its hcad is listed as such", &hint, device_lost(&user)).await?;
        let cache = run.scratch("cache");
        report
            .case("a Debian package is added to the guests and removed", &hint, root(&user, &cache))
            .await?;
    }
    report.case("a killed supervisor leaves nothing behind", &hint, killed(&user)).await?;
    report.case("an interrupted 'up' leaves nothing behind", &hint, interrupted(&user)).await
}

async fn refusals(user: &User, lab: &Lab, folder: &Path) -> Result<()> {
    let module = folder.join("own.ko");
    fs::write(&module, "\x7fELF\0vermagic=1.2.3 SMP preempt \0depends=\0")?;
    let path = module.display().to_string();
    let release = lab.kernel().release();
    user.run(&["up", "mthca", "--module", &path])
        .await?
        .failed(&["was built for the kernel '1.2.3", &release])?;
    user.run(&["up", "mthca", "--qemu", "/bin/true"]).await?.failed(&["/bin/true is not QEMU"])?;
    user.run(&["up", "mthca", "--share", "/does/not/exist:/t"]).await?.failed(&["/does/not/exist"])?;
    user.run(&["up", "mthca", "--name", "a/b"]).await?.failed(&["'a/b' is not a valid testbed name"])?;
    user.run(&["exec", "ci:a", "--", "true"])
        .await?
        .failed(&["testbed ci does not exist; no testbed is running"])?;
    user.run(&["exec", "ci", "--", "true"])
        .await?
        .failed(&["'ci' does not name a guest; use NAME:GUEST, such as 'ci:a'"])
}

async fn up(user: &User, shared: &Path) -> Result<()> {
    let share = format!("{}:{SHARE}", shared.display());
    let up = user.run(&["up", "mthca", "--name", "ci", "--share", &share, "--strict", "--json"]).await?;
    let up: Value = up.json()?;
    let listed: Value = user.run(&["ps", "--json"]).await?.json()?;
    for described in [&up, &listed[0]] {
        ensure!(described["name"] == "ci" && described["kind"] == "mthca", "{described}");
        let guests = described["guests"].as_array().context("no guests")?;
        let names: Vec<&Value> = guests.iter().map(|guest| &guest["name"]).collect();
        ensure!(names == ["a", "b"] && guests.iter().all(|guest| guest["stage"] == "ready"), "{described}");
        ensure!(guests.iter().all(|guest| guest["rdma_device"] == "mthca0"), "{described}");
    }
    user.run(&["up", "mthca", "--name", "ci"]).await?.failed(&["testbed ci is already running"])
}

async fn streams(user: &User) -> Result<()> {
    let script = "cat; echo to stderr >&2; exit 3";
    // The input is larger than the window of unacknowledged bytes and is not text.
    let input: Vec<u8> = (0..3_000_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();
    let outcome = user.run_with(&input, &["exec", "ci:b", "--", "sh", "-c", script]).await?;
    ensure!(outcome.stdout == input, "received {} bytes, sent {}", outcome.stdout.len(), input.len());
    ensure!((outcome.code, outcome.stderr.as_str()) == (Some(3), "to stderr\n"), "{outcome:?}");
    let mut command = user.start(&["exec", "ci:a", "--", "yes"])?;
    command.line("y").await?;
    let outcome = command.end_without_output().await?;
    ensure!((outcome.code, outcome.stderr.as_str()) == (Some(128 + libc::SIGPIPE), ""), "{outcome:?}");
    let outcome = user
        .run(&["exec", "ci:a", "--env", "X=a b", "--folder", "/usr", "--", "sh", "-c", "echo $X; pwd"])
        .await?;
    ensure!(outcome.stdout == b"a b\n/usr\n", "{outcome:?}");
    user.run(&["exec", "ci:a", "--", "no-such-program"]).await?.failed(&["cannot start no-such-program"])?;
    user.run(&["exec", "ci:c", "--", "true"]).await?.failed(&["has no guest c"])
}

async fn signals(user: &User) -> Result<()> {
    let script = "trap 'echo caught; exit 9' TERM; echo ready; while :; do sleep 0.1; done";
    let mut command = user.start(&["exec", "ci:a", "--", "sh", "-c", script])?;
    command.line("ready").await?;
    command.signal(libc::SIGTERM)?;
    command.line("caught").await?;
    let code = command.end().await?.code;
    ensure!(code == Some(9), "exit status {code:?}");
    let mut command = user.start(&["exec", "ci:a", "--", "sh", "-c", "echo ready; exec sleep 777"])?;
    command.line("ready").await?;
    command.signal(libc::SIGKILL)?;
    command.end().await?;
    // The guest needs a moment to terminate the command.
    let gone = "while grep -lx sleep /proc/[0-9]*/comm >/dev/null 2>&1; do sleep 0.1; done";
    user.run(&["exec", "ci:a", "--", "timeout", "30", "sh", "-c", gone]).await?.succeeded()?;
    let outcome = user.run(&["exec", "ci:a", "--", "sh", "-c", "kill -9 $$"]).await?;
    ensure!(outcome.code == Some(128 + 9), "{outcome:?}");
    for (program, code) in [("no-such-program", 127), ("/etc/passwd", 126)] {
        let outcome = user.run(&["exec", "ci:a", "--", program]).await?;
        ensure!(outcome.code == Some(code) && outcome.stderr.contains(program), "{outcome:?}");
    }
    let outcome = user.run(&["exec", "ci:a", "--folder", "/no/such", "--", "true"]).await?;
    ensure!(outcome.code == Some(125) && outcome.stderr.contains("/no/such"), "{outcome:?}");
    Ok(())
}

async fn terminal(user: &User) -> Result<()> {
    let outcome = user.run(&["exec", "ci:a", "--tty", "true", "--", "sh", "-c", "tty; stty size"]).await?;
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(text.starts_with("/dev/pts/") && text.ends_with("24 80\r\n"), "{outcome:?}");
    let outcome = user.run(&["exec", "ci:a", "--", "tty"]).await?;
    ensure!(outcome.stdout == b"not a tty\n", "{outcome:?}");
    Ok(())
}

async fn rdma(user: &User) -> Result<()> {
    user.run(&["exec", "ci:a", "--", "ping", "-c", "1", "b"]).await?.succeeded()?;
    let server =
        user.start(&["exec", "ci:b", "--", "sh", "-c", "ibv_rc_pingpong -d $HCAD_RDMA_DEVICE -c -n 200"])?;
    let client = "until ibv_rc_pingpong -d $HCAD_RDMA_DEVICE -c -n 200 $HCAD_IP_B; do sleep 0.2; done";
    let outcome = user.run(&["exec", "ci:a", "--", "timeout", "60", "sh", "-c", client]).await?;
    outcome.succeeded()?;
    let server = server.end().await?;
    for end in [&outcome, &server] {
        let text = String::from_utf8_lossy(&end.stdout);
        ensure!(text.contains("200 iters in") && !text.contains("invalid data"), "{end:?}");
    }
    Ok(())
}

async fn hcactl(user: &User) -> Result<()> {
    for (guest, id) in [("ci:a", 1), ("ci:b", 2)] {
        let devices: Value = user.run(&["hcactl", guest, "--json", "devices"]).await?.json()?;
        ensure!(devices[0]["id"] == id && devices[0]["connected"] == true, "{devices}");
    }
    let outcome = user.run(&["hcactl", "ci:a", "no-such-command"]).await?;
    // hcactl exits with this status if it cannot parse its command line.
    ensure!(outcome.code == Some(2), "{outcome:?}");
    user.run(&["hcactl", "ci:c", "devices"]).await?.failed(&["guest ci:c does not exist"])
}

async fn share(user: &User, shared: &Path) -> Result<()> {
    let outcome = user.run(&["exec", "ci:b", "--", "/t/hello.sh"]).await?;
    ensure!(outcome.stdout == b"hello from b of a b\n", "{outcome:?}");
    user.run(&["exec", "ci:a", "--", "sh", "-c", "echo from a > /t/result"]).await?.succeeded()?;
    let result = fs::read_to_string(shared.join("result")).context("data written by guest a")?;
    ensure!(result == "from a\n", "{result}");
    // A change made on the host is visible in the guest.
    fs::write(shared.join("result"), "from the host\n")?;
    let outcome = user.run(&["exec", "ci:b", "--", "cat", "/t/result"]).await?;
    ensure!(outcome.stdout == b"from the host\n", "{outcome:?}");
    Ok(())
}

async fn copies(user: &User, folder: &Path) -> Result<()> {
    let from = folder.join("from");
    fs::create_dir_all(from.join("deep"))?;
    let content: Vec<u8> = (0..1_500_000_u32).map(|n| n.wrapping_mul(40_503).to_le_bytes()[1]).collect();
    fs::write(from.join("deep/data"), &content)?;
    let text = |path: &Path| path.display().to_string();
    user.run(&["cp", &text(&from), "ci:a:/tmp"]).await?.succeeded()?;
    user.run(&["cp", &text(&from.join("deep/data")), "ci:a:/tmp/renamed"]).await?.succeeded()?;
    user.run(&["exec", "ci:a", "--", "busybox", "cmp", "/tmp/from/deep/data", "/tmp/renamed"])
        .await?
        .succeeded()?;
    let back = folder.join("back");
    user.run(&["cp", "ci:a:/tmp/from", &text(&back)]).await?.succeeded()?;
    ensure!(fs::read(back.join("deep/data"))? == content, "the content differs after copying it back");
    user.run(&["cp", "ci:a:/no/such", &text(&folder.join("x"))]).await?.failed(&["guest a"])?;
    user.run(&["cp", "x", "y"]).await?.failed(&["both paths are on the host"])
}

/// Writes the source of an out-of-tree module that prints `number` when it is loaded.
fn own_module(folder: &Path, number: u32) -> Result<()> {
    let code = format!(
        "#include <linux/module.h>\n\
         static int __init own_init(void) {{ pr_info(\"own says {number}\\n\"); return 0; }}\n\
         static void __exit own_exit(void) {{}}\n\
         module_init(own_init);\nmodule_exit(own_exit);\nMODULE_LICENSE(\"GPL\");\n"
    );
    fs::write(folder.join("Makefile"), "obj-m := own.o\n")?;
    Ok(fs::write(folder.join("own.c"), code)?)
}

async fn build(user: &User, folder: &Path) -> Result<()> {
    let folder = folder.join("own");
    fs::create_dir_all(&folder)?;
    let (source, module) = (folder.display().to_string(), folder.join("own.ko").display().to_string());
    user.run(&["build", &source]).await?.failed(&["obj-m := NAME.o"])?;
    for number in [41, 42] {
        own_module(&folder, number)?;
        user.build(&source).await?.succeeded()?;
        let outcome = user.run(&["reload", "ci", "--module", &module]).await?;
        let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
        for guest in ["a", "b"] {
            let said = |line: &str| {
                line.starts_with(&format!("{guest}: ")) && line.contains(&format!("own says {number}"))
            };
            ensure!(text.lines().any(said), "guest {guest} did not print {number}: {outcome:?}");
            ensure!(text.contains(&format!("{guest}: own loaded in")), "{outcome:?}");
        }
    }
    let files = [
        ("Makefile", include_str!("../../examples/module/Makefile")),
        ("ports.c", include_str!("../../examples/module/ports.c")),
    ];
    let own = example(&folder.join("ports"), &files)?;
    user.build(&own).await?.succeeded()?;
    let outcome = user.run(&["reload", "ci:a", "--module", &format!("{own}/ports.ko")]).await?;
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(text.contains("a: mthca0: port 1 is active, path MTU 2048\n"), "{outcome:?}");
    user.run(&["exec", "ci:a", "--", "rmmod", "ports"]).await?.succeeded()?;
    fs::write(folder.join("own.c"), "no C\n")?;
    let outcome = user.build(&source).await?;
    outcome.failed(&["own.c:1"])?;
    ensure!(outcome.code == Some(2), "not the status of make: {outcome:?}");
    user.run(&["exec", "ci:b", "--", "test", "-d", "/sys/module/own"]).await?.succeeded()
}

async fn reload(user: &User, lab: &Lab) -> Result<()> {
    for name in [MODULE, "ib_mthca"] {
        let module = crate::modules::find(&lab.kernel().modules, name)?.display().to_string();
        for _ in 0..2 {
            let outcome = user.run(&["reload", "ci:b", "--module", &module]).await?;
            let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
            ensure!(text.contains(&format!("b: {name} loaded in")), "{outcome:?}");
        }
    }
    let active = "until grep -q ACTIVE /sys/class/infiniband/mthca0/ports/1/state; do sleep 0.1; done";
    user.run(&["exec", "ci:b", "--", "timeout", "30", "sh", "-c", active]).await?.succeeded()
}

async fn logs(user: &User, folder: &Path) -> Result<()> {
    user.run(&["exec", "ci:a", "--", "sh", "-c", "echo '<6>told by the driver' > /dev/kmsg"])
        .await?
        .succeeded()?;
    let to = folder.join("logs");
    user.run(&["logs", "ci", "--to", &to.display().to_string()]).await?.succeeded()?;
    for file in ["guest-a.console", "guest-a.dmesg"] {
        let text = fs::read(to.join(file)).with_context(|| file.to_owned())?;
        ensure!(String::from_utf8_lossy(&text).contains("told by the driver"), "not in {file}");
    }
    for file in ["hcad-a.log", "hcad-b.json", "guest-b.cmd"] {
        ensure!(to.join(file).is_file(), "{file} does not exist");
    }
    Ok(())
}

async fn suspended(user: &User) -> Result<()> {
    let mut command = user.start(&["exec", "ci:a", "--", "sh", "-c", "echo ready; exec sleep 777"])?;
    command.line("ready").await?;
    let qemu = *user.processes("ci").await?.get(1).context("no QEMU")?;
    user::signal(qemu, Signal::STOP)?;
    let listed: Value = user.run(&["ps", "--json"]).await?.json()?;
    ensure!(listed[0]["guests"][0]["stage"] == "suspended", "{listed}");
    let (new, running) = tokio::join!(user.run(&["exec", "ci:a", "--", "true"]), command.end());
    for (outcome, seconds) in [(new?, 30), (running?, 40)] {
        let silence = format!("guest ci:a has not answered for {seconds} s");
        outcome.failed(&[&silence, &format!("kill -CONT {qemu}")])?;
        ensure!(outcome.code == Some(125), "{outcome:?}");
    }
    user::signal(qemu, Signal::CONT)?;
    user.run(&["exec", "ci:a", "--", "true"]).await?.succeeded()
}

async fn device_lost(user: &User) -> Result<()> {
    user.run(&["up", "mthca", "--count", "1"]).await?.succeeded()?;
    let processes = user.processes("mthca").await?;
    let supervisor = *processes.first().context("no supervisor")?;
    user::kill(user::child(supervisor, "hcad")?)?;
    let begun = Instant::now();
    loop {
        let listed = user.run(&["ps"]).await?;
        if String::from_utf8_lossy(&listed.stdout).contains("device lost") {
            break;
        }
        // The kernel needs a moment to terminate hcad.
        ensure!(begun.elapsed() < Duration::from_secs(20), "{listed:?}");
    }
    user.run(&["down", "mthca"]).await?.failed(&["hcad-a"])?;
    user.expect_nothing_left(&processes).await
}

async fn down(user: &User) -> Result<()> {
    let processes = user.processes("ci").await?;
    ensure!(processes.len() == 3, "{processes:?}");
    user.run(&["down", "ci"]).await?.succeeded()?;
    user.expect_nothing_left(&processes).await
}

async fn old_logs(user: &User, folder: &Path) -> Result<()> {
    let outcome = user.run(&["logs", "ci"]).await?;
    outcome.succeeded()?;
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(
        text.lines().any(|path| path.ends_with("guest-a.console") && Path::new(path).is_file()),
        "{text}"
    );
    let to = folder.join("old-logs");
    user.run(&["logs", "ci", "--to", &to.display().to_string()]).await?.succeeded()?;
    ensure!(to.join("guest-a.console").is_file(), "guest-a.console does not exist");
    user.run(&["logs", "never-up"]).await?.failed(&["testbed never-up is not running"])
}

async fn ci(user: &User, shared: &Path, folder: &Path) -> Result<()> {
    let script = "#!/bin/sh\necho $HCAD_GUEST in $PWD\ncase $HCAD_GUEST in\na) ping -c 1 b >/dev/null; exec sleep 777;;\n\
        b) test -x hello.sh && exit 5;;\nesac\n";
    save_script(&shared.join("test.sh"), script)?;
    let (from, logs) = (shared.display().to_string(), folder.join("ci-logs"));
    let to = logs.display().to_string();
    let outcome = user.run(&["ci", "mthca", "--folder", &from, "--logs", &to, "--", "./test.sh"]).await?;
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(outcome.code == Some(5), "{outcome:?}");
    ensure!(text.contains("b| b in /work\n"), "{outcome:?}");
    for file in ["guest-a.dmesg", "hcad-b.log"] {
        ensure!(logs.join(file).is_file(), "{file} does not exist");
    }
    user.expect_nothing_left(&[]).await
}

/// Writes the files of an example to a new directory and returns the directory's path.
fn example(folder: &Path, files: &[(&str, &str)]) -> Result<String> {
    fs::create_dir_all(folder)?;
    for (name, text) in files {
        save_script(&folder.join(name), text)?;
    }
    Ok(folder.display().to_string())
}

async fn verbs_example(user: &User, folder: &Path) -> Result<()> {
    let files = [
        ("test.sh", include_str!("../../examples/verbs/test.sh")),
        ("hello.py", include_str!("../../examples/verbs/hello.py")),
    ];
    let from = example(&folder.join("verbs"), &files)?;
    let outcome =
        user.run(&["ci", "mixed", "--folder", &from, "--timeout", "120", "--", "./test.sh"]).await?;
    outcome.succeeded()?;
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(text.contains("a| received: hello\n"), "{outcome:?}");
    user.expect_nothing_left(&[]).await
}

async fn nvme_example(user: &User, folder: &Path) -> Result<()> {
    let from = example(&folder.join("nvme"), &[("test.sh", include_str!("../../examples/nvme/test.sh"))])?;
    let outcome = user
        .run(&["ci", "e810", "--strict", "--folder", &from, "--timeout", "120", "--", "./test.sh"])
        .await?;
    outcome.succeeded()?;
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(text.contains("b| 16 MiB were read back as written\n"), "{outcome:?}");
    user.expect_nothing_left(&[]).await
}

/// Checks that lab errors and test failures produce different exit statuses.
async fn ci_failures(user: &User, shared: &Path, folder: &Path) -> Result<()> {
    let from = shared.display().to_string();
    let ci = async |more: &[&str]| {
        user.run(&[&["ci", "rxe", "--count", "1", "--folder", &from], more].concat()).await
    };
    let logs = folder.join("late-logs");
    let to = logs.display().to_string();
    let outcome = ci(&["--timeout", "1", "--logs", &to, "--", "sleep", "777"]).await?;
    outcome.failed(&["did not exit within 1 s"])?;
    ensure!(outcome.code == Some(125) && logs.join("guest-a.console").is_file(), "{outcome:?}");
    let large = folder.join("large");
    fs::create_dir_all(&large)?;
    fs::File::create(large.join("file"))?.set_len(257 << 20)?;
    let outcome = user.run(&["ci", "rxe", "--folder", &large.display().to_string(), "--", "true"]).await?;
    outcome.failed(&["half of each guest's memory"])?;
    // To cancel a job, a CI system first sends SIGTERM.
    let mut running = user.start(&[
        "ci",
        "rxe",
        "--count",
        "1",
        "--folder",
        &from,
        "--",
        "sh",
        "-c",
        "echo on; sleep 777",
    ])?;
    running.line("a| on").await?;
    running.signal(libc::SIGTERM)?;
    let outcome = running.end().await?;
    ensure!(outcome.code == Some(125), "{outcome:?}");
    cancelled_boot(user, shared, &folder.join("boot-logs")).await?;
    user.expect_nothing_left(&[]).await
}

/// Cancels a job while its guest is booting. The logs written before the cancellation must be copied.
async fn cancelled_boot(user: &User, shared: &Path, logs: &Path) -> Result<()> {
    let (from, to) = (shared.display().to_string(), logs.display().to_string());
    let running =
        user.start(&["ci", "rxe", "--count", "1", "--folder", &from, "--logs", &to, "--", "true"])?;
    let runs = cache_dir()?.join("testbeds").join(format!("ci-{}", running.id()?));
    let begun = Instant::now();
    while !runs.join("latest/guest-a.console").exists() {
        ensure!(begun.elapsed() < START, "no guest was started within {START:?}");
        tokio::time::sleep(POLL).await;
    }
    running.signal(libc::SIGTERM)?;
    let outcome = running.end().await?;
    ensure!(outcome.code == Some(125) && logs.join("guest-a.console").is_file(), "{outcome:?}");
    Ok(())
}

/// Tests the commands of `guest-lab root`. They use a separate cache and leave the user's guests unchanged.
async fn root(user: &User, cache: &Path) -> Result<()> {
    let user = user.with_cache(cache)?;
    user.run(&["root", "add", "--", "-y"]).await?.failed(&["'-y' is not the name of a Debian package"])?;
    user.run(&["root", "add", "no-such-package-at-all"]).await?.failed(&["no-such-package-at-all"])?;
    user.run(&["root", "list"]).await?.printed("")?;
    user.run(&["root", "add", "strace"]).await?.succeeded()?;
    user.run(&["root", "list"]).await?.printed("strace\n")?;
    let empty = cache.join("empty");
    fs::create_dir_all(&empty)?;
    let folder = empty.display().to_string();
    let outcome = user.run(&["ci", "rxe", "--count", "1", "--folder", &folder, "--", "strace", "-V"]).await?;
    outcome.succeeded()?;
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    ensure!(text.starts_with("a| strace -- version"), "{outcome:?}");
    user.run(&["root", "remove", "strace"]).await?.succeeded()?;
    user.run(&["root", "list"]).await?.printed("")
}

fn save_script(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    Ok(fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755))?)
}

async fn killed(user: &User) -> Result<()> {
    user.run(&["up", "rxe", "--count", "1"]).await?.succeeded()?;
    let processes = user.processes("rxe").await?;
    let supervisor = *processes.first().context("no supervisor")?;
    user::kill(supervisor)?;
    user.expect_nothing_left(&processes).await
}

async fn bound(user: &User) -> Result<()> {
    let mut job = tokio::process::Command::new("sleep").arg("777").kill_on_drop(true).spawn()?;
    let id = job.id().context("the job has already exited")?.to_string();
    user.run(&["up", "rxe", "--count", "1", "--for-pid", &id]).await?.succeeded()?;
    let processes = user.processes("rxe").await?;
    job.kill().await?;
    user.expect_nothing_left(&processes).await?;
    let mut up = user.start(&["up", "rxe", "--count", "1", "--foreground"])?;
    up.line("ready").await?;
    let processes = user.processes("rxe").await?;
    // The kernel sends this signal when the terminal closes.
    up.signal(libc::SIGHUP)?;
    up.end().await?;
    user.expect_nothing_left(&processes).await
}

async fn interrupted(user: &User) -> Result<()> {
    let up = user.start(&["up", "mthca", "--count", "1"])?;
    let processes = user.wait_for_processes("mthca", Duration::from_secs(60)).await?;
    up.signal(libc::SIGINT)?;
    let outcome = up.end().await?;
    ensure!(outcome.code == Some(1), "{outcome:?}");
    user.expect_nothing_left(&processes).await
}

impl Outcome {
    fn json(&self) -> Result<Value> {
        self.succeeded()?;
        serde_json::from_slice(&self.stdout).with_context(|| format!("{self:?}"))
    }
}
