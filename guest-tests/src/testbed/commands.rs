//! The supervisor's side of a guest's exec ports: allocates ports and relays frames between a port and a user's
//! connection.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent::wire::ExitStatus;
use agent::wire::exec::{
    Frame as _, INPUT_WINDOW, MAX_PAYLOAD, Start, StartError, StartErrorKind, ToGuest, ToHost,
};
use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncRead, AsyncWrite, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::watch;
use tokio::time::timeout;

use super::frames;

/// Maximum number of commands that can run in a guest at once.
pub(super) const MOST_COMMANDS: usize = 12;
/// Timeout for the lab's own commands, such as those that load drivers while several emulated guests share a busy host.
const OWN_COMMAND_TIMEOUT: Duration = Duration::from_secs(240);
/// Maximum number of output bytes to keep for each of the lab's own commands.
const LONGEST_OUTPUT: usize = 1 << 20;

/// The exec ports of one guest.
#[derive(Clone, Debug)]
pub(super) struct Ports {
    free: Arc<Mutex<Vec<Port>>>,
    count: usize,
}

/// An exec port with no running command.
#[derive(Debug)]
struct Port {
    input: BufReader<OwnedReadHalf>,
    output: OwnedWriteHalf,
}

impl Ports {
    /// Creates the ports for a guest that has just booted.
    pub(super) fn new(streams: Vec<UnixStream>) -> Self {
        let port = |stream: UnixStream| {
            let (input, output) = stream.into_split();
            Port { input: BufReader::new(input), output }
        };
        let free: Vec<Port> = streams.into_iter().map(port).collect();
        Self { count: free.len(), free: Arc::new(Mutex::new(free)) }
    }

    /// Returns the number of commands that are running.
    pub(super) fn busy(&self) -> usize {
        self.count - self.lock().len()
    }

    /// Allocates a port for one command.
    ///
    /// # Errors
    /// Fails if all ports are in use.
    pub(super) fn take(&self) -> Result<Taken> {
        let port = self.lock().pop();
        ensure!(
            port.is_some(),
            "too many commands are running in the guest (maximum {}); wait for one of them to exit",
            self.count
        );
        Ok(Taken { port, home: self.clone() })
    }

    /// Runs one of the lab's own commands and returns its output. The command must succeed.
    ///
    /// # Errors
    /// Fails if the guest has stopped or if the command cannot be started, fails or takes longer than
    /// [`OWN_COMMAND_TIMEOUT`]. If the command fails, the error contains its output.
    pub(super) async fn run(&self, argv: &[&str], input: &[u8]) -> Result<String> {
        let seconds = OWN_COMMAND_TIMEOUT.as_secs();
        timeout(OWN_COMMAND_TIMEOUT, self.run_to_end(argv, input))
            .await
            .with_context(|| format!("{argv:?} did not exit within {seconds} s"))?
    }

    async fn run_to_end(&self, argv: &[&str], input: &[u8]) -> Result<String> {
        let mut port = self.take()?.begin()?;
        let owned = argv.iter().map(|&word| word.to_owned()).collect();
        frames::write(&mut port.output, &ToGuest::Start(Start { argv: owned, ..Start::default() })).await?;
        let (mut chunks, mut room, mut ended) = (input.chunks(MAX_PAYLOAD), INPUT_WINDOW, false);
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let status = loop {
            while !ended && room >= MAX_PAYLOAD {
                let frame = chunks.next().map_or(ToGuest::InputEnd, |chunk| ToGuest::Input(chunk.to_vec()));
                room -= frame.parts().1.len();
                ended = frame == ToGuest::InputEnd;
                frames::write(&mut port.output, &frame).await?;
            }
            match frames::read(&mut port.input)
                .await?
                .context("the guest stopped before the command exited")?
            {
                ToHost::Started => {}
                ToHost::Taken(count) => room += usize::try_from(count)?,
                ToHost::Output(bytes) => append(&mut output, &bytes),
                ToHost::Errors(bytes) => append(&mut errors, &bytes),
                ToHost::Ended(status) => break status,
                ToHost::Failed(error) => return Err(error.into()),
            }
        };
        self.lock().push(port);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (output, errors) = (text(&output), text(&errors));
        ensure!(status == ExitStatus::Code(0), "{argv:?} failed with {status}:\n{output}{errors}");
        Ok(output)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Port>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn append(kept: &mut Vec<u8>, bytes: &[u8]) {
    let room = LONGEST_OUTPUT.saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

/// An allocated port. On drop, the port is freed if its command has exited or was never started. Otherwise, the port's
/// state is unknown and it is closed.
#[derive(Debug)]
pub(super) struct Taken {
    port: Option<Port>,
    home: Ports,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.home.lock().extend(self.port.take());
    }
}

impl Taken {
    /// Starts a command and relays frames between the user and the guest until the command has exited. If the user
    /// disconnects, the command is terminated.
    ///
    /// While waiting for the guest, polls a future returned by `silence`. If that future completes, the guest is
    /// unresponsive. The user then receives the future's output as an error, and the port stays allocated until the
    /// command exits.
    ///
    /// # Errors
    /// Fails if the guest has stopped or sends an invalid frame.
    pub(super) async fn relay<S: Future<Output = String>>(
        mut self,
        start: Start,
        from_user: impl AsyncRead + Unpin,
        to_user: impl AsyncWrite + Unpin,
        silence: impl Fn() -> S,
    ) -> Result<()> {
        let Port { mut input, mut output } = self.begin()?;
        frames::write(&mut output, &ToGuest::Start(start)).await?;
        let (ended, end) = watch::channel(false);
        let (forth, back) = tokio::join!(forward(from_user, &mut output, end), async {
            let result = backward(&mut input, to_user, silence).await;
            ended.send_replace(true);
            result
        });
        forth?;
        back?;
        self.port = Some(Port { input, output });
        Ok(())
    }

    /// Takes the port so that it is not freed on drop while its state is unknown.
    fn begin(&mut self) -> Result<Port> {
        self.port.take().context("the command port is already in use")
    }
}

/// Relays frames from the user to the guest until the command has exited.
async fn forward(
    mut user: impl AsyncRead + Unpin,
    guest: &mut OwnedWriteHalf,
    mut end: watch::Receiver<bool>,
) -> Result<()> {
    loop {
        let frame = tokio::select! {
            biased;
            _ = end.wait_for(|ended| *ended) => return Ok(()),
            // A frame that is only partly read when the command exits is lost, but it is no longer needed.
            frame = frames::read::<ToGuest>(&mut user) => frame,
        };
        match frame {
            // Ignore a second start, since the command is already running.
            Ok(Some(ToGuest::Start(_))) => {}
            Ok(Some(frame)) => frames::write(guest, &frame).await?,
            Ok(None) | Err(_) => {
                frames::write(guest, &ToGuest::HangUp).await?;
                return Ok(());
            }
        }
    }
}

/// Relays frames from the guest to the user until the command has exited. If the user has disconnected or the guest is
/// unresponsive, further frames are discarded.
async fn backward<S: Future<Output = String>>(
    guest: &mut (impl AsyncRead + Unpin),
    mut user: impl AsyncWrite + Unpin,
    silence: impl Fn() -> S,
) -> Result<()> {
    let mut connected = true;
    loop {
        let frame = {
            // As reading a frame is not cancel-safe, the same future is polled until it completes.
            let mut frame = pin!(frames::read::<ToHost>(guest));
            loop {
                tokio::select! {
                    biased;
                    frame = &mut frame => break frame,
                    reason = silence(), if connected => {
                        let error = StartError { kind: StartErrorKind::Other, reason };
                        // The user may have disconnected in the meantime.
                        let _ = frames::write(&mut user, &ToHost::Failed(error)).await;
                        connected = false;
                    }
                }
            }
        };
        let frame = frame?.context("the guest stopped before the command exited")?;
        connected = connected && frames::write(&mut user, &frame).await.is_ok();
        if matches!(frame, ToHost::Ended(_) | ToHost::Failed(_)) {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use tokio::io::AsyncWriteExt as _;

    use super::*;

    /// Returns the ports of a guest with a single port, and the stream that the test uses to act as the guest.
    fn guest() -> (Ports, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Ports::new(vec![ours]), theirs)
    }

    #[tokio::test]
    async fn finished_command_frees_port() {
        let (ports, mut guest) = guest();
        let (user, ours) = UnixStream::pair().unwrap();
        let (read, write) = ours.into_split();
        let start = Start { argv: vec!["x".into()], ..Start::default() };
        let relay = tokio::spawn(ports.take().unwrap().relay(start.clone(), read, write, pending));
        let error = ports.take().unwrap_err();
        assert!(
            error.to_string().contains("too many commands are running in the guest (maximum 1)"),
            "{error:#}"
        );
        let (mut from, mut to) = user.into_split();
        assert_eq!(frames::read(&mut guest).await.unwrap(), Some(ToGuest::Start(start)));
        frames::write(&mut to, &ToGuest::Signal(15)).await.unwrap();
        assert_eq!(frames::read(&mut guest).await.unwrap(), Some(ToGuest::Signal(15)));
        let ended = ToHost::Ended(ExitStatus::Signal(15));
        for frame in [ToHost::Started, ToHost::Output(b"bye".to_vec()), ended] {
            frames::write(&mut guest, &frame).await.unwrap();
            assert_eq!(frames::read(&mut from).await.unwrap(), Some(frame));
        }
        relay.await.unwrap().unwrap();
        assert_eq!(ports.busy(), 0);
    }

    #[tokio::test]
    async fn user_disconnect_terminates_command() {
        let (ports, mut guest) = guest();
        let (user, ours) = UnixStream::pair().unwrap();
        let (read, write) = ours.into_split();
        let relay = tokio::spawn(ports.take().unwrap().relay(Start::default(), read, write, pending));
        drop(user);
        assert!(matches!(frames::read(&mut guest).await.unwrap(), Some(ToGuest::Start(_))));
        assert_eq!(frames::read(&mut guest).await.unwrap(), Some(ToGuest::HangUp));
        frames::write(&mut guest, &ToHost::Output(vec![0; 9])).await.unwrap();
        assert_eq!(ports.busy(), 1);
        frames::write(&mut guest, &ToHost::Ended(ExitStatus::Signal(1))).await.unwrap();
        relay.await.unwrap().unwrap();
        assert_eq!(ports.busy(), 0);
    }

    #[tokio::test]
    async fn unresponsive_guest_fails_command_but_port_stays_busy() {
        let (ports, mut guest) = guest();
        let (mut user, ours) = UnixStream::pair().unwrap();
        let (read, write) = ours.into_split();
        let silence = || ready("guest lab:a has not answered for 30 s".to_owned());
        let relay = tokio::spawn(ports.take().unwrap().relay(Start::default(), read, write, silence));
        let Some(ToHost::Failed(error)) = frames::read(&mut user).await.unwrap() else { panic!() };
        assert_eq!(error.reason, "guest lab:a has not answered for 30 s");
        drop(user);
        // The guest resumes, starts the command and terminates it immediately.
        assert!(matches!(frames::read(&mut guest).await.unwrap(), Some(ToGuest::Start(_))));
        assert_eq!(frames::read(&mut guest).await.unwrap(), Some(ToGuest::HangUp));
        assert_eq!(ports.busy(), 1);
        frames::write(&mut guest, &ToHost::Started).await.unwrap();
        frames::write(&mut guest, &ToHost::Ended(ExitStatus::Signal(1))).await.unwrap();
        relay.await.unwrap().unwrap();
        assert_eq!(ports.busy(), 0);
    }

    #[tokio::test]
    async fn frame_split_across_reads_is_relayed() {
        let (ports, mut guest) = guest();
        let (mut user, ours) = UnixStream::pair().unwrap();
        let (read, write) = ours.into_split();
        let relay = tokio::spawn(ports.take().unwrap().relay(Start::default(), read, write, pending));
        let bytes = ToHost::Output(b"late".to_vec()).to_bytes();
        guest.write_all(&bytes[..3]).await.unwrap();
        tokio::task::yield_now().await;
        guest.write_all(&bytes[3..]).await.unwrap();
        assert_eq!(frames::read(&mut user).await.unwrap(), Some(ToHost::Output(b"late".to_vec())));
        frames::write(&mut guest, &ToHost::Ended(ExitStatus::Code(0))).await.unwrap();
        relay.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn unused_port_is_freed_on_drop() {
        let (ports, _guest) = guest();
        drop(ports.take().unwrap());
        assert_eq!(ports.busy(), 0);
    }

    #[tokio::test]
    async fn ports_are_unavailable_after_guest_exits() {
        let (ports, guest) = guest();
        drop(guest);
        assert!(ports.run(&["true"], b"").await.is_err());
        assert!(ports.take().is_err());
    }

    #[tokio::test]
    async fn lab_command_input_respects_window() {
        let (ports, mut guest) = guest();
        let input = vec![7; 2 * INPUT_WINDOW];
        let serve = tokio::spawn(async move {
            let (mut got, mut owed) = (0, 0);
            loop {
                match frames::read(&mut guest).await.unwrap().unwrap() {
                    ToGuest::Input(bytes) => {
                        (got, owed) = (got + bytes.len(), owed + bytes.len());
                        assert!(owed <= INPUT_WINDOW);
                        if owed == INPUT_WINDOW {
                            frames::write(&mut guest, &ToHost::Taken(u32::try_from(owed).unwrap()))
                                .await
                                .unwrap();
                            owed = 0;
                        }
                    }
                    ToGuest::InputEnd => break,
                    _ => {}
                }
            }
            frames::write(&mut guest, &ToHost::Ended(ExitStatus::Code(0))).await.unwrap();
            got
        });
        ports.run(&["cat"], &input).await.unwrap();
        assert_eq!(serve.await.unwrap(), input.len());
    }
}
