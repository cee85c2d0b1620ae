//! Tests the `--impair` option of `guest-lab up`, `guest-lab ci` and `guest-lab here`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::user::User;
use crate::lab::Lab;
use crate::report::Report;

/// Profiles that are in effect from the start.
const PERMANENT: [&str; 5] = ["lossy", "slow", "reordering", "congested", "corrupting"];
/// Number of log lines to compare when random impairments are repeated with the same seed.
const COMPARED: usize = 8;
/// How long the compared log lines may take to appear.
const EPISODES: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(200);

/// Command for a ping-pong with content checks. It runs as the server, or as the client if the server's address is
/// appended.
const PING_PONG: &str = "ibv_rc_pingpong -d $HCAD_RDMA_DEVICE -c -n 500";

/// Runs in guest `b`. Waits until guest `a` stops answering pings to the IP address of its RDMA device and then answers
/// them again. Then waits until the link of guest `b` has gone down more than once.
const LOST_AND_BACK: &str = r#"
answers() { ping -c 1 -W 1 "$HCAD_RDMA_IP_A" >/dev/null; }
until answers; do sleep 0.1; done
while answers; do sleep 0.1; done
echo lost
until answers; do sleep 0.1; done
echo back
net=$(echo /sys/class/infiniband/"$HCAD_RDMA_DEVICE"/device/net/*)
until [ "$(cat "$net"/carrier_down_count)" -gt 1 ]; do sleep 0.1; done
echo down
"#;

pub(in crate::scenario) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("impair")?;
    let hint = format!("transcripts of all commands: {}", run.path().display());
    let folder = run.file("folder");
    fs::create_dir_all(&folder)?;
    let user = User::new(lab, &run)?.bound().in_folder(&folder, &[]);
    report.case("problems are reported before anything boots", &hint, refusals(&user)).await?;
    let case = permanent(&user);
    report.case("content is exact on a lossy, slow, reordering and corrupting network", &hint, case).await?;
    let case = changing(&user);
    report.case("a partition and flapping links begin and end", &hint, case).await?;
    let case = random(&user, &folder);
    report.case("random impairments are repeated with the same seed", &hint, case).await
}

async fn refusals(user: &User) -> Result<()> {
    user.run(&["up", "mthca", "--impair", "bad"])
        .await?
        .failed(&["lossy, slow, reordering", "random:SEED"])?;
    user.run(&["up", "rxe", "--impair", "lossy"]).await?.failed(&["'rxe' use soft-RoCE"])?;
    user.run(&["here", "mixed", "--pair", "--impair", "slow", "--", "true"])
        .await?
        .failed(&["'mixed' use soft-RoCE"])
}

async fn permanent(user: &User) -> Result<()> {
    let mut words = vec!["up", "mthca", "--name", "trouble", "--strict"];
    words.extend(PERMANENT.iter().flat_map(|profile| ["--impair", profile]));
    user.run(&words).await?.succeeded()?;
    let server = user.start(&["exec", "trouble:a", "--", "sh", "-c", PING_PONG])?;
    let client = format!("until {PING_PONG} $HCAD_IP_A; do sleep 0.2; done");
    let outcome = user.run(&["exec", "trouble:b", "--", "timeout", "120", "sh", "-c", &client]).await?;
    outcome.succeeded()?;
    for end in [&outcome, &server.end().await?] {
        let text = String::from_utf8_lossy(&end.stdout);
        ensure!(text.contains("500 iters in") && !text.contains("invalid data"), "{end:?}");
    }
    for guest in ["trouble:a", "trouble:b"] {
        let rules = user.run(&["hcactl", guest, "--json", "impair", "list"]).await?;
        let rules: Value = serde_json::from_slice(&rules.stdout).with_context(|| format!("{rules:?}"))?;
        let rules = rules.as_array().context("no list of rules")?;
        // The congested profile has three rules, and each of the other profiles has one.
        ensure!(rules.len() == PERMANENT.len() + 2, "{rules:?}");
        let has_hit = |rule: &&Value| rule["hits"].as_u64().is_some_and(|hits| hits > 0);
        // The congested profile drops so few frames that its drop rule may have had no hits so far.
        ensure!(rules.iter().filter(has_hit).count() > PERMANENT.len(), "{rules:?}");
    }
    user.run(&["down", "trouble"]).await?.succeeded()
}

async fn changing(user: &User) -> Result<()> {
    user.run(&["up", "connectx", "--name", "trouble", "--impair", "partition", "--impair", "flapping"])
        .await?
        .succeeded()?;
    let outcome = user.run(&["exec", "trouble:b", "--", "timeout", "150", "sh", "-c", LOST_AND_BACK]).await?;
    outcome.printed("lost\nback\ndown\n")?;
    user.run(&["down", "trouble"]).await?.succeeded()
}

/// Runs random impairments without specifying a seed and repeats them with the seed that was printed.
async fn random(user: &User, folder: &Path) -> Result<()> {
    let up = ["up", "mthca", "--name", "trouble", "--json", "--impair"];
    let first = user.run(&[&up[..], &["random"]].concat()).await?;
    let (seed, lines) = episodes(&first.stdout).await?;
    ensure!(first.stderr.contains(&format!("use --impair {seed}")), "{first:?}");
    user.run(&["down", "trouble"]).await?.succeeded()?;
    let again = user.run(&[&up[..], &[seed.as_str()]].concat()).await?;
    let repeated = episodes(&again.stdout).await?;
    user.run(&["down", "trouble"]).await?.succeeded()?;
    ensure!(repeated == (seed.clone(), lines), "repeated: {repeated:?}");

    let ci = ["ci", "mthca", "--count", "1", "--folder", ".", "--impair", &seed, "--", "true"];
    let outcome = user.in_folder(folder, &[]).run(&ci).await?;
    outcome.succeeded()?;
    ensure!(outcome.stderr.contains(&format!("use --impair {seed}")), "{outcome:?}");
    user.run(&["here", "mthca", "--no-check", "--impair", "lossy", "--", "true"]).await?.succeeded()
}

/// Returns a testbed's impairment and the first lines of the impairment log, without timestamps.
async fn episodes(description: &[u8]) -> Result<(String, Vec<String>)> {
    let testbed: Value = serde_json::from_slice(description)
        .with_context(|| String::from_utf8_lossy(description).into_owned())?;
    let seed = testbed["impairments"][0].as_str().context("the testbed has no impairment")?;
    let folder = PathBuf::from(testbed["folder"].as_str().context("the testbed has no logs")?);
    let begun = Instant::now();
    loop {
        let text = fs::read_to_string(folder.join("impairments.log")).context("no log of impairments")?;
        let lines: Vec<&str> = text.lines().collect();
        if let Some(first) = lines.get(..COMPARED) {
            let without_time =
                |line: &&str| line.trim_start().split_once(' ').map(|(_, rest)| rest.to_owned());
            return Ok((seed.to_owned(), first.iter().filter_map(without_time).collect()));
        }
        ensure!(begun.elapsed() < EPISODES, "{} lines within {EPISODES:?}", lines.len());
        tokio::time::sleep(POLL).await;
    }
}
