//! Runs the book's example of a request that never completes, as a reader would.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::user::User;
use crate::daemon::Control;

const PAGE: &str = include_str!("../../../../device/book/src/stuck.md");
/// How long to wait for the programs to exchange data and for the sender to receive RNR NAKs. Emulated guests are slow.
const LIMIT: Duration = Duration::from_secs(180);
const INTERVAL: Duration = Duration::from_millis(500);
/// Number of messages that must have been sent before the server is stopped.
const MESSAGES: u64 = 1000;

/// Returns the page's commands for guests. Each command comes with the name of the guest that runs it.
fn commands() -> Vec<(&'static str, &'static str)> {
    let command = |line: &'static str| {
        let (guest, command) = line.trim().strip_prefix("guest-lab exec lab:")?.split_once(" -- ")?;
        Some((guest, command.split(" </dev/null").next().unwrap_or(command)))
    };
    PAGE.lines().filter_map(command).collect()
}

/// Checks that `hcactl explain` shows the sender waiting for the receiver to post a receive.
pub(super) async fn explained(user: &User) -> Result<()> {
    let commands = commands();
    let [server, client, stop] = commands.as_slice() else {
        bail!("the page has unexpected commands: {commands:?}")
    };
    let target = |guest: &str| format!("ci:{guest}");
    // The programs are terminated when these handles are dropped.
    let _server = user.start(&["exec", &target(server.0), "--", "sh", "-c", server.1])?;
    let _client = user.start(&["exec", &target(client.0), "--", "sh", "-c", client.1])?;

    let listed: Value = user.run(&["ps", "--json"]).await?.json()?;
    let socket = listed[0]["guests"][0]["control_socket"].as_str().context("no control socket")?;
    let control = Control::at(Path::new(socket));
    let is_busy = |row: &Value| row["counters"]["sends"].as_u64().is_some_and(|sends| sends >= MESSAGES);
    wait("messages", async || Ok(connected(&control).await?.iter().any(is_busy))).await?;
    user.run(&["exec", &target(stop.0), "--", "sh", "-c", stop.1]).await?.succeeded()?;
    wait("RNR NAKs", async || {
        for row in connected(&control).await? {
            let answer = control.ask(&["explain", "qp", &row["qpn"].to_string()]).await?;
            let mut text = answer["text"].as_array().into_iter().flatten().filter_map(Value::as_str);
            if text.any(|line| line.starts_with("requester: receiver not ready (RNR): ")) {
                return Ok(true);
            }
        }
        Ok(false)
    })
    .await
}

/// Returns the rows for the connected QPs.
async fn connected(control: &Control) -> Result<Vec<Value>> {
    let rows = control.ask(&["qps"]).await?;
    let rows = rows.as_array().context("the list of QPs is not an array")?;
    Ok(rows.iter().filter(|row| row["service"] == "rc" && row["state"] == "rts").cloned().collect())
}

async fn wait(what: &str, mut is_met: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !is_met().await? {
        ensure!(begun.elapsed() < LIMIT, "no {what} within {LIMIT:?}");
        sleep(INTERVAL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn book_page_lists_server_client_and_stop_commands() {
        let commands = commands();
        assert_eq!(commands.iter().map(|(guest, _)| *guest).collect::<Vec<_>>(), ["b", "a", "b"]);
        assert!(commands.iter().all(|(_, command)| command.contains("ib_send_bw")), "{commands:?}");
        assert!(!commands.iter().any(|(_, command)| command.ends_with(['&', ' '])), "{commands:?}");
    }
}
