//! Raw mode and size of this program's terminal.

use std::io::{IsTerminal as _, stdin};

use agent::wire::exec::Size;
use anyhow::{Context, Result};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};

/// A terminal in raw mode. Its previous mode is restored on drop.
#[derive(Debug)]
pub struct RawTerminal {
    before: Option<Termios>,
}

impl RawTerminal {
    /// Sets raw mode if standard input is a terminal. Otherwise, the returned object does nothing.
    ///
    /// # Errors
    /// Fails if the mode cannot be changed.
    pub fn enter() -> Result<Self> {
        let stdin = stdin();
        if !stdin.is_terminal() {
            return Ok(Self { before: None });
        }
        let before = tcgetattr(&stdin).context("cannot read the terminal mode")?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&stdin, OptionalActions::Now, &raw).context("cannot set the terminal mode")?;
        Ok(Self { before: Some(before) })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // An error cannot be reported from `drop`.
            let _ = tcsetattr(stdin(), OptionalActions::Drain, before);
        }
    }
}

/// Returns the terminal's current size.
pub(super) fn size() -> Option<Size> {
    let size = tcgetwinsize(stdin()).ok()?;
    Some(Size { rows: size.ws_row, columns: size.ws_col })
}
