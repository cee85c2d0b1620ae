//! Steps about programs of a guest that has a user space.
//!
//! A program runs to its end in one step ([`Run`]), or beside other steps: [`Spawn`], any number of [`Ask`], then
//! [`Wait`]. Output is text; what is not UTF-8 is replaced.

use serde::{Deserialize, Serialize};

/// Names a program started by [`Spawn`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProgramId(pub u32);

/// Run a program to its end. Failing to start is a failure of the step; how it ends is the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// The program, looked for in the usual folders, and its arguments.
    pub argv: Vec<String>,
    /// What it reads.
    pub stdin: String,
    /// After so long it is killed, and the step fails with what it printed.
    pub timeout_ms: u32,
}

/// Start a program that runs beside the following steps. Its input stays open until [`Wait`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spawn {
    /// The program, looked for in the usual folders, and its arguments.
    pub argv: Vec<String>,
}

/// Answer of [`Spawn`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawned {
    /// Name for later steps.
    pub program: ProgramId,
}

/// Give a running program a line to read, if one is set, then wait for the next line it prints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ask {
    /// Which.
    pub program: ProgramId,
    /// Line for its input, without line end.
    pub line: Option<String>,
    /// Fail when it has printed no line after so long, or has ended.
    pub timeout_ms: u32,
}

/// Answer of [`Ask`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// The line, without line end.
    pub line: String,
}

/// Close a program's input and wait for its end. The program is forgotten.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wait {
    /// Which.
    pub program: ProgramId,
    /// After so long it is killed, and the step fails with what it printed.
    pub timeout_ms: u32,
}

/// Send a signal to a program and to what it has started. [`Wait`] for it afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// Which.
    pub program: ProgramId,
    /// Number of the signal.
    pub signal: i32,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

/// Answer of [`Run`] and [`Wait`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramEnd {
    /// How it ended.
    pub status: ExitStatus,
    /// What it printed, and no [`Ask`] has taken; 1 MiB of it at most.
    pub stdout: String,
    /// What it complained about; 1 MiB of it at most.
    pub stderr: String,
}
