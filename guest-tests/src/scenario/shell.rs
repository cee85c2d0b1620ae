//! Keeps a scenario's guests running and opens a shell on the console of one of them.

use std::io::{Read as _, Write as _};
use std::time::Duration;

use agent::wire::Shell;
use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use super::Scenario;
use super::pair::{Direction, Pair};
use crate::lab::Lab;
use crate::report::line;
use crate::testbed::client::RawTerminal;

/// Timeout for the shell, longer than any interactive session.
const SESSION: Duration = Duration::from_secs(30 * 24 * 3600);

/// Boots a pair of guests and connects this terminal to a shell in guest `a` or `b` until the shell exits.
///
/// # Errors
/// Fails if the scenario does not use a pair of guests or if the guests do not boot.
pub async fn run(lab: &Lab, scenario: &Scenario, guest: &str) -> Result<()> {
    ensure!(
        scenario.pair,
        "scenario {} has no guests for a shell; boot guests with 'guest-lab up mthca' and open a shell with 'guest-lab shell mthca:a'",
        scenario.name
    );
    let direction = if guest == "b" { Direction::BToA } else { Direction::AToB };
    line("booting two guests")?;
    let mut pair = Pair::start_with_console(lab, "shell", guest).await?;
    line(&format!("shell in guest {guest}; 'exit' or Ctrl-D closes it and stops both guests"))?;
    line(&pair.hint())?;
    let (vm, _) = pair.towards(direction);
    let console = vm.take_console().context("the guest was started without a console for the lab")?;
    let _terminal = RawTerminal::enter()?;
    tokio::select! {
        ended = vm.call_within(SESSION, Shell { command: None }) => {
            ended?;
        }
        relayed = relay(console) => relayed?,
    }
    Ok(())
}

/// Copies standard input to the console and the console's output to standard output, until the console closes.
async fn relay(console: UnixStream) -> Result<()> {
    let (mut from_console, mut to_console) = console.into_split();
    let mut typed = typed();
    let mut buffer = [0; 4096];
    let mut out = std::io::stdout();
    loop {
        tokio::select! {
            read = from_console.read(&mut buffer) => match read? {
                0 => return Ok(()),
                len => {
                    out.write_all(&buffer[..len])?;
                    out.flush()?;
                }
            },
            Some(bytes) = typed.recv() => to_console.write_all(&bytes).await?,
        }
    }
}

/// Reads standard input in a separate thread, because a blocking read cannot be cancelled. Returns a channel that
/// delivers the bytes.
fn typed() -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel(16);
    std::thread::spawn(move || {
        let mut buffer = [0; 256];
        while let Ok(len @ 1..) = std::io::stdin().lock().read(&mut buffer) {
            if sender.blocking_send(buffer[..len].to_vec()).is_err() {
                return;
            }
        }
    });
    receiver
}
