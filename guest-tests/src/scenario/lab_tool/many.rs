//! Tests `guest-lab up --count 16`.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::user::User;
use crate::lab::Lab;
use crate::run_dir::RunDir;

const COUNT: usize = 16;
/// Timeout for booting sixteen emulated guests in waves.
const LIMIT: Duration = Duration::from_secs(15 * 60);
/// Memory of each guest in MiB.
const MEMORY: &str = "256";

pub(in crate::scenario) async fn run(lab: &Lab, run: &RunDir) -> Result<()> {
    let user = User::new(lab, run)?.bound().within(LIMIT);
    let count = COUNT.to_string();
    let up =
        user.run(&["up", "mthca", "--name", "many", "--count", &count, "--memory", MEMORY, "--json"]).await?;
    let up: Value = up.json()?;
    let guests = up["guests"].as_array().context("no guests")?;
    let names: Vec<&str> = guests.iter().filter_map(|guest| guest["name"].as_str()).collect();
    ensure!(names.len() == COUNT && names.last() == Some(&"p"), "{names:?}");
    let talks = names.as_chunks::<2>().0.iter().map(|&[server, client]| ping_pong(&user, server, client));
    futures_util::future::try_join_all(talks).await?;
    user.run(&["down", "many"]).await?.succeeded()?;
    user.expect_nothing_left(&[]).await
}

async fn ping_pong(user: &User, server: &str, client: &str) -> Result<()> {
    let line = "ibv_rc_pingpong -d mthca0 -c -n 100";
    let [at_server, at_client] = [server, client].map(|guest| format!("many:{guest}"));
    let listener = user.start(&["exec", &at_server, "--", "sh", "-c", line])?;
    let talk = format!("until {line} {server}; do sleep 0.5; done");
    let ends = [
        user.run(&["exec", &at_client, "--", "timeout", "120", "sh", "-c", &talk]).await?,
        listener.end().await?,
    ];
    for end in &ends {
        let text = String::from_utf8_lossy(&end.stdout);
        ensure!(text.contains("100 iters in") && !text.contains("invalid data"), "{end:?}");
    }
    Ok(())
}
