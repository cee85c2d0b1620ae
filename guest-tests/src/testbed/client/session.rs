//! Runs one command in a guest and forwards its input and output.

use agent::wire::ExitStatus;
use agent::wire::exec::{Frame as _, INPUT_WINDOW, MAX_PAYLOAD, Start, ToGuest, ToHost};
use anyhow::{Context, Result, bail, ensure};
use tokio::sync::mpsc;

use super::Connection;
use crate::testbed::frames;
use crate::testbed::name::Target;
use crate::testbed::protocol::{Reply, Request};

/// Capacity of a channel, in chunks of input or output.
const WAITING: usize = 4;

/// Maximum number of bytes of a command's output to keep in memory.
const LONGEST_OUTPUT: usize = 1 << 20;

/// A chunk of a command's output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Printed {
    /// Bytes from standard output or from the terminal.
    Output(Vec<u8>),
    /// Bytes from standard error.
    Errors(Vec<u8>),
}

/// A command's input, output and control messages.
pub(super) struct Pipes {
    /// Chunks of at most [`MAX_PAYLOAD`] bytes. Closing the channel ends the input.
    pub(super) input: mpsc::Receiver<Vec<u8>>,
    /// Signals and terminal sizes to forward.
    pub(super) controls: mpsc::Receiver<ToGuest>,
    /// Sender for the output. If its receiver is dropped, the command is terminated.
    pub(super) output: mpsc::Sender<Printed>,
}

/// Creates a channel for input or output with minimal buffering.
pub(super) fn channel<T>() -> (mpsc::Sender<T>, mpsc::Receiver<T>) {
    mpsc::channel(WAITING)
}

/// Appends output, up to a total of [`LONGEST_OUTPUT`] bytes.
pub(super) fn keep(text: &mut Vec<u8>, bytes: &[u8]) {
    let room = LONGEST_OUTPUT.saturating_sub(text.len());
    text.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

/// A command that has been started.
pub(super) struct Session {
    connection: Connection,
}

impl Session {
    /// Starts a command.
    ///
    /// # Errors
    /// Fails if the guest does not exist or is already running the maximum number of commands.
    pub(super) async fn start(target: &Target, start: Start) -> Result<Self> {
        let mut connection = Connection::open(&target.testbed).await?;
        let request = Request::Exec { guest: target.guest, start };
        match connection.ask(&request).await? {
            Reply::Go => Ok(Self { connection }),
            other => bail!("unexpected reply from testbed {}: {other:?}", target.testbed),
        }
    }

    /// Forwards input, output and control messages until the command has exited.
    ///
    /// # Errors
    /// Fails if the command could not be started, its output channel was closed, or the guest has stopped.
    pub(super) async fn run(self, pipes: Pipes) -> Result<ExitStatus> {
        let Connection { mut reader, mut writer } = self.connection;
        let Pipes { mut input, mut controls, output } = pipes;
        let (sender, mut frames) = channel();
        // Reading a frame is not cancel-safe. Frames are therefore read by a dedicated task rather than in a branch of
        // the `select!`.
        let reading = tokio::spawn(async move {
            while let Ok(Some(frame)) = frames::read::<ToHost>(&mut reader).await {
                if sender.send(frame).await.is_err() {
                    return;
                }
            }
        });
        let (mut room, mut has_input, mut has_controls) = (INPUT_WINDOW, true, true);
        let mut waiting: Option<Printed> = None;
        let status = loop {
            let frame = tokio::select! {
                frame = frames.recv(), if waiting.is_none() => {
                    match frame.context("the guest or its testbed stopped before the command exited")? {
                        ToHost::Started => {}
                        ToHost::Failed(error) => return Err(error.into()),
                        ToHost::Output(bytes) => waiting = Some(Printed::Output(bytes)),
                        ToHost::Errors(bytes) => waiting = Some(Printed::Errors(bytes)),
                        ToHost::Taken(count) => room = (room + usize::try_from(count)?).min(INPUT_WINDOW),
                        ToHost::Ended(status) => break status,
                    }
                    None
                }
                slot = output.reserve(), if waiting.is_some() => {
                    let slot = slot.context("cannot forward command output: the output channel is closed")?;
                    if let Some(printed) = waiting.take() {
                        slot.send(printed);
                    }
                    None
                }
                bytes = input.recv(), if has_input && room >= MAX_PAYLOAD => match bytes {
                    Some(bytes) => {
                        room -= bytes.len().min(room);
                        Some(ToGuest::Input(bytes))
                    }
                    None => {
                        has_input = false;
                        Some(ToGuest::InputEnd)
                    }
                },
                control = controls.recv(), if has_controls => {
                    has_controls = control.is_some();
                    control
                }
            };
            if let Some(frame) = frame {
                debug_assert!(frame.parts().1.len() <= MAX_PAYLOAD);
                // If the frame cannot be sent, the command has exited, and the next received frame reports that.
                let _ = frames::write(&mut writer, &frame).await;
            }
        };
        reading.abort();
        Ok(status)
    }
}

/// Runs a command with the given input until it exits. Returns its exit status and its combined standard output and
/// standard error.
///
/// # Errors
/// Same as for [`Session::start`] and [`Session::run`].
pub(super) async fn run(target: &Target, argv: &[&str], input: Vec<u8>) -> Result<(ExitStatus, String)> {
    let argv = argv.iter().map(|&word| word.to_owned()).collect();
    let session = Session::start(target, Start { argv, ..Start::default() }).await?;
    let (feed, input_end) = channel();
    let (_controls, controls) = channel();
    let (output, mut printed) = channel();
    let feeding = tokio::spawn(async move {
        for piece in input.chunks(MAX_PAYLOAD) {
            if feed.send(piece.to_vec()).await.is_err() {
                return;
            }
        }
    });
    let pipes = Pipes { input: input_end, controls, output };
    let collect = async {
        let mut text = Vec::new();
        while let Some(Printed::Output(bytes) | Printed::Errors(bytes)) = printed.recv().await {
            keep(&mut text, &bytes);
        }
        text
    };
    let (status, text) = tokio::join!(session.run(pipes), collect);
    feeding.abort();
    Ok((status?, String::from_utf8_lossy(&text).into_owned()))
}

/// Runs a command and returns its output. The command must succeed.
///
/// # Errors
/// Same as for [`Session::start`] and [`Session::run`]. Also fails if the command fails.
pub(super) async fn run_well(target: &Target, argv: &[&str], input: Vec<u8>) -> Result<String> {
    let (status, text) = run(target, argv, input).await?;
    ensure!(
        status == ExitStatus::Code(0),
        "guest {guest}: {command} failed with {status}: {output}",
        guest = target.guest,
        command = argv.first().unwrap_or(&"the command"),
        output = text.trim_end()
    );
    Ok(text)
}
