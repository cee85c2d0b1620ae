//! Tests `guest-lab here`, which runs this machine's programs in guests. Requires a C compiler, `libibverbs-dev`,
//! `ibverbs-providers` and `ibverbs-utils`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use super::save_script;
use super::user::User;
use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::extent::Extent;

/// The example program from the book.
const HELLO: &str = include_str!("../../../examples/here/hello.c");
/// Timeout for starting a guest on a busy host.
const START: Duration = Duration::from_secs(120);

/// Prints the user, directory, environment, files, compiler, Python environment and input of a command. Also
/// modifies files, which must not affect this machine.
const SEEN: &str = r#"#!/bin/sh -e
id -u; id -g; id -G
pwd
echo "$HOME $GIVEN $COPIED ${SECRET-unset}"
stat -c '%n %U %a %s' hello.c /etc/passwd /usr/bin/env
cksum < /usr/bin/env
cc -O1 hello.c -o built -libverbs && cksum < built
python3 -c 'import sys; print(sys.prefix)'
cksum
echo changed > hello.c && cat hello.c
if [ -n "$HCAD_GUEST" ] && [ -w /etc ]; then echo changed > /etc/hcad-here; fi
echo opened > /dev/stdout
exit 3
"#;

/// Ping-pong with content checks. Guest `b` retries until guest `a` is listening.
const PING_PONG: &str = r#"#!/bin/sh -e
set -- -c -n 100 -d "$HCAD_RDMA_DEVICE"
case $HCAD_GUEST in
a) exec ibv_rc_pingpong "$@" ;;
b) for attempt in $(seq 60); do ibv_rc_pingpong "$@" a && exit 0; sleep 0.5; done; exit 1 ;;
esac
"#;

pub(in crate::scenario) async fn run(lab: &Lab, report: &mut Report, extent: Extent) -> Result<()> {
    let run = lab.new_run(extent.select("here", "here-full"))?;
    let hint = format!("transcripts of all commands: {}", run.path().display());
    let folder = run.file("folder");
    fs::create_dir_all(&folder)?;
    // Programs in the guest report the directory's path with symbolic links resolved.
    let folder = folder.canonicalize()?;
    fs::write(folder.join("hello.c"), HELLO)?;
    save_script(&folder.join("seen.sh"), SEEN)?;
    save_script(&folder.join("pingpong.sh"), PING_PONG)?;
    let user = User::new(lab, &run)?.in_folder(&folder, &[]);

    report.case("problems are reported before anything boots", &hint, refusals(&user)).await?;
    report
        .case("a verbs program built on this machine uses a ConnectX", &hint, hello(&user, &folder))
        .await?;
    let case = same_as_here(&user, &folder);
    report.case("a command sees this machine, and its changes are discarded", &hint, case).await?;
    let case = writable(&user, &folder);
    report.case("--write: a command changes files in the current directory", &hint, case).await?;
    report.case("--pair: programs of this machine exchange messages", &hint, pair(&user)).await?;
    report.case("SIGTERM ends the command, and nothing is left behind", &hint, terminated(&user)).await?;
    if extent == Extent::Full {
        for (kind, device) in
            [("mthca", "mthca0"), ("e810", "irdma0"), ("connectx-ib", "mlx5_0"), ("rxe", "rxe0")]
        {
            let case = hello_from(&user, kind, device);
            report.case(&format!("the program uses the device of {kind}"), &hint, case).await?;
        }
    }
    Ok(())
}

async fn refusals(user: &User) -> Result<()> {
    user.run(&["here", "mthca", "--", "./absent"]).await?.failed(&["cannot run ./absent"])?;
    user.run(&["here", "mthca", "--pair", "--count", "3", "--", "true"]).await?.failed(&["--pair"])?;
    user.run(&["here", "mthca", "--root", "/absent", "--", "true"]).await?.failed(&["--root"])?;
    let elsewhere = user.in_folder(Path::new("/proc"), &[]);
    elsewhere.run(&["here", "mthca", "--", "true"]).await?.failed(&["guests do not see /proc"])
}

/// Builds the example on this machine, as a user would, and runs it.
async fn hello(user: &User, folder: &Path) -> Result<()> {
    let mut cc = Command::new("cc");
    let built = cc.args(["hello.c", "-o", "hello", "-libverbs"]).current_dir(folder).output().await;
    let built = built.context("cannot start cc")?;
    ensure!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    hello_from(user, "connectx", "mlx5_0").await
}

async fn hello_from(user: &User, kind: &str, device: &str) -> Result<()> {
    let outcome = user.run(&["here", kind, "--", "./hello"]).await?;
    outcome.printed(&format!("hello from {device}: port active\n"))
}

/// Runs the same script in a guest and on this machine, and compares the output.
async fn same_as_here(user: &User, folder: &Path) -> Result<()> {
    let venv = folder.join("venv");
    let made = Command::new("python3").args(["-m", "venv", "--without-pip"]).arg(&venv).output().await?;
    ensure!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let path = std::env::var("PATH").context("PATH is not set")?;
    let path = format!("{}:{path}", venv.join("bin").display());
    let variables = [("PATH", path.as_str()), ("COPIED", "two"), ("SECRET", "three")];
    let input: Vec<u8> = (0..100_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect();

    let words = ["here", "mthca", "--env", "GIVEN=one", "--env", "COPIED", "--", "./seen.sh"];
    let seen = user.in_folder(folder, &variables).run_with(&input, &words).await?;
    ensure!(seen.code == Some(3), "{seen:?}");
    ensure!(fs::read_to_string(folder.join("hello.c"))? == HELLO, "hello.c was changed");
    let changed = [folder.join("built"), PathBuf::from("/etc/hcad-here")];
    ensure!(!changed.iter().any(|path| path.exists()), "{changed:?}");

    let mut script = Command::new(folder.join("seen.sh"));
    script
        .current_dir(folder)
        .envs(variables)
        .env("GIVEN", "one")
        .env_remove("SECRET")
        .env_remove("HCAD_GUEST");
    let input_file = folder.join("input");
    fs::write(&input_file, &input)?;
    let expected = script.stdin(fs::File::open(&input_file)?).output().await?;
    fs::write(folder.join("hello.c"), HELLO)?;
    ensure!(
        seen.stdout == expected.stdout,
        "expected '{}': {seen:?}",
        String::from_utf8_lossy(&expected.stdout)
    );
    Ok(())
}

async fn writable(user: &User, folder: &Path) -> Result<()> {
    let script = "echo kept > result && mkdir made && mv hello.c made && echo lost > ../lost && cat ../lost";
    let outcome = user.run(&["here", "mthca", "--write", "--strict", "--", "sh", "-ec", script]).await?;
    outcome.printed("lost\n")?;
    let result = folder.join("result");
    ensure!(fs::read_to_string(&result)? == "kept\n", "the result is wrong");
    let owner = fs::metadata(&result)?.uid();
    ensure!(owner == rustix::process::geteuid().as_raw(), "the result belongs to user {owner}");
    ensure!(fs::read_to_string(folder.join("made/hello.c"))? == HELLO, "the file was not moved");
    let above = folder.parent().context("no parent")?.join("lost");
    ensure!(!above.exists(), "{} exists", above.display());
    Ok(())
}

async fn pair(user: &User) -> Result<()> {
    let outcome = user.run(&["here", "mthca", "--pair", "--", "./pingpong.sh"]).await?;
    outcome.succeeded()?;
    let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
    for guest in ["a", "b"] {
        let has_result = text.lines().any(|line| line.starts_with(&format!("{guest}| 100 iters in ")));
        ensure!(has_result, "guest {guest} has no result: {outcome:?}");
    }
    Ok(())
}

async fn terminated(user: &User) -> Result<()> {
    let mut running = user.start(&[
        "here",
        "mthca",
        "--",
        "sh",
        "-c",
        "trap 'echo caught; exit 7' TERM; echo on; sleep 777 & wait",
    ])?;
    running.line("on").await?;
    let testbed = format!("here-{}", running.id()?);
    let processes = user.wait_for_processes(&testbed, START).await?;
    let begun = Instant::now();
    running.signal(libc::SIGTERM)?;
    let outcome = running.end().await?;
    ensure!(outcome.code == Some(7), "after {:?}: {outcome:?}", begun.elapsed());
    ensure!(outcome.stdout == b"on\ncaught\n", "{outcome:?}");
    user.expect_nothing_left(&processes).await
}
