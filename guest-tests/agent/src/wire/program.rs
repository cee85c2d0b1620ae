//! Steps for programs in guests that have a user space.
//!
//! A program runs either to completion in one step ([`Run`]) or in the background. A background program is started by
//! [`Spawn`], responds to any number of [`Ask`] steps, and ends with [`Wait`]. Output is returned as text; bytes that
//! are not valid UTF-8 are replaced.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Identifies a program started by [`Spawn`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProgramId(pub u32);

/// Runs a program to completion. Its exit status is part of the answer; the step fails only if the program cannot be
/// started or runs too long.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// The program, which is looked up in the search path, followed by its arguments.
    pub argv: Vec<String>,
    pub stdin: String,
    /// Timeout in milliseconds, after which the program is killed. The step then fails and reports the program's
    /// output.
    pub timeout_ms: u32,
}

/// Starts a program in the background. Its input stays open until [`Wait`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spawn {
    /// The program, which is looked up in the search path, followed by its arguments.
    pub argv: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawned {
    /// Identifier for later steps.
    pub program: ProgramId,
}

/// Writes a line, if given, to a running program, and then waits for its next line of output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ask {
    pub program: ProgramId,
    /// Line to write to the program's input, without the newline.
    pub line: Option<String>,
    /// Timeout for the answer, in milliseconds. The step also fails if the program exits.
    pub timeout_ms: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// The line of output, without the newline.
    pub line: String,
}

/// Closes a program's input and waits for it to exit. The identifier becomes invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wait {
    pub program: ProgramId,
    /// Timeout in milliseconds, after which the program is killed. The step then fails and reports the program's
    /// output.
    pub timeout_ms: u32,
}

/// Sends a signal to a program and its children. A [`Wait`] step must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    pub program: ProgramId,
    pub signal: i32,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// The program exited with this code.
    Code(i32),
    /// The program was killed by the signal with this number.
    Signal(i32),
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => write!(f, "signal {signal}"),
        }
    }
}

/// Answer to [`Run`] and [`Wait`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramEnd {
    pub status: ExitStatus,
    /// Standard output that no [`Ask`] has returned, at most 1 MiB.
    pub stdout: String,
    /// Standard error, at most 1 MiB.
    pub stderr: String,
}
