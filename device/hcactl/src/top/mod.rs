//! `hcactl top`: a live view of devices and queue pairs.

mod sample;
mod screen;

use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::ensure;
use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use self::sample::{Sample, View};
use self::screen::Choice;
use crate::{Daemon, counters};

/// Width of the `--once` output, in columns.
const WIDTH: u16 = 80;

/// Number of queue pairs that Page Up and Page Down scroll by.
const PAGE: usize = 10;

/// Monitor devices and queue pairs: rates, retransmissions, errors
///
/// Keys: q, Esc and Ctrl-C quit. p pauses. s changes the sort key of the queue pairs: requests, outstanding
/// requests, failed requests or number. d changes the sort key of the devices: number, bytes sent, bytes
/// received, retransmissions or drops. r reverses both sort orders. The arrow keys, Page Up, Page Down and
/// Home scroll the queue pairs.
#[derive(Clone, Debug, Args)]
pub(crate) struct Top {
    /// Refresh interval, in seconds (minimum: 0.1)
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = counters::period)]
    every: Duration,

    /// Print one snapshot as plain text, then exit
    #[arg(long)]
    once: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Continue,
    Quit,
}

impl Top {
    /// Runs until the user quits. With `--once`, returns a single screen as text instead.
    pub(crate) fn run(&self, daemon: &mut Daemon, socket: &Path, devices: &[u16]) -> anyhow::Result<String> {
        let title = format!("hcad at {}, every {} s", socket.display(), self.every.as_secs_f64());
        daemon.check_exist(devices)?;
        let first = Sample::take(daemon, devices)?;
        if self.once {
            std::thread::sleep(self.every);
            let view = Sample::take(daemon, devices)?.since(&first);
            return Ok(screen::text(&view, &title, &Choice::default(), WIDTH));
        }
        ensure!(io::stdout().is_terminal(), "standard output is not a terminal; use --once");
        // `try_init` also installs a hook that restores the terminal after a panic.
        let mut terminal = ratatui::try_init()?;
        let ended = self.show(&mut terminal, daemon, devices, &title, first);
        ratatui::try_restore()?;
        ended.map(|()| String::new())
    }

    fn show(
        &self,
        terminal: &mut DefaultTerminal,
        daemon: &mut Daemon,
        devices: &[u16],
        title: &str,
        first: Sample,
    ) -> anyhow::Result<()> {
        let mut choice = Choice::default();
        let mut before = first;
        let mut view: View = before.since(&before);
        let mut next = Instant::now() + self.every;
        loop {
            choice.above = choice.above.min(view.qps.len());
            terminal.draw(|frame| screen::show(&view, title, &choice, frame))?;
            if event::poll(next.saturating_duration_since(Instant::now()))? {
                if let Event::Key(key) = event::read()?
                    && press(&mut choice, key) == Action::Quit
                {
                    return Ok(());
                }
                continue;
            }
            next = Instant::now() + self.every;
            if !choice.paused {
                let now = Sample::take(daemon, devices)?;
                view = now.since(&before);
                before = now;
            }
        }
    }
}

fn press(choice: &mut Choice, key: KeyEvent) -> Action {
    if key.kind == KeyEventKind::Release {
        return Action::Continue;
    }
    let above = &mut choice.above;
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Action::Quit,
        KeyCode::Char('q') | KeyCode::Esc => return Action::Quit,
        KeyCode::Char('p') => choice.paused = !choice.paused,
        KeyCode::Char('s') => choice.qps = choice.qps.next(),
        KeyCode::Char('d') => choice.devices = choice.devices.next(),
        KeyCode::Char('r') => choice.reversed = !choice.reversed,
        KeyCode::Up => *above = above.saturating_sub(1),
        KeyCode::Down => *above = above.saturating_add(1),
        KeyCode::PageUp => *above = above.saturating_sub(PAGE),
        KeyCode::PageDown => *above = above.saturating_add(PAGE),
        KeyCode::Home => *above = 0,
        _ => {}
    }
    Action::Continue
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_behave_as_documented_in_help() {
        let mut choice = Choice::default();
        let mut key = |code, modifiers| press(&mut choice, KeyEvent::new(code, modifiers));
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::CONTROL), Action::Quit);
        assert_eq!(key(KeyCode::Char('c'), KeyModifiers::NONE), Action::Continue);
        assert_eq!(key(KeyCode::Esc, KeyModifiers::NONE), Action::Quit);
        assert_eq!(key(KeyCode::Char('q'), KeyModifiers::NONE), Action::Quit);
        for code in [KeyCode::PageDown, KeyCode::Down, KeyCode::Up, KeyCode::Char('p'), KeyCode::Char('r')] {
            assert_eq!(key(code, KeyModifiers::NONE), Action::Continue);
        }
        assert_eq!((choice.above, choice.paused, choice.reversed), (PAGE, true, true));
    }
}
