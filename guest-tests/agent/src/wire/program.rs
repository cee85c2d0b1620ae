//! Steps for programs of a guest with a user space.
//!
//! A program runs to its end in one step ([`Run`]), or in the background: [`Spawn`], any number of [`Ask`], then
//! [`Wait`]. Output is text; bytes that are not UTF-8 are replaced.

use serde::{Deserialize, Serialize};

/// Identifies a program started by [`Spawn`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProgramId(pub u32);

/// Runs a program to its end. If it cannot be started, the step fails. Its exit status is the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// The program, which is looked up in the search path, and its arguments.
    pub argv: Vec<String>,
    /// Standard input of the program.
    pub stdin: String,
    /// Time limit, after which the program is killed and the step fails with its output.
    pub timeout_ms: u32,
}

/// Starts a program in the background. Its input stays open until [`Wait`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spawn {
    /// The program, which is looked up in the search path, and its arguments.
    pub argv: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spawned {
    /// Identifier for later steps.
    pub program: ProgramId,
}

/// Writes a line to a running program, if one is given, then waits for the next line of its output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ask {
    pub program: ProgramId,
    /// Line for its input, without newline.
    pub line: Option<String>,
    /// Time limit for the line. The step also fails if the program ends.
    pub timeout_ms: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// The line of output, without newline.
    pub line: String,
}

/// Closes a program's input and waits for its end. The identifier becomes invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Wait {
    pub program: ProgramId,
    /// Time limit, after which the program is killed and the step fails with its output.
    pub timeout_ms: u32,
}

/// Sends a signal to a program and its children. [`Wait`] must follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    pub program: ProgramId,
    /// Number of the signal.
    pub signal: i32,
}

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    /// The program exited with this code.
    Code(i32),
    /// Number of the signal that ended the program.
    Signal(i32),
}

/// Answer of [`Run`] and [`Wait`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgramEnd {
    pub status: ExitStatus,
    /// Standard output that no [`Ask`] has returned; at most 1 MiB.
    pub stdout: String,
    /// Standard error; at most 1 MiB.
    pub stderr: String,
}
