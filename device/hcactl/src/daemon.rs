//! Connection to a daemon over its control socket.

use std::io::{self, BufRead as _, BufReader, Read, Take, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use control_api::message::{DeviceRow, ListPage, Request, Response, TextPage};
use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::de::DeserializeOwned;

/// Maximum size of a response in bytes. A page of a table takes about 200 kB.
const MAX_ANSWER_LEN: u64 = 16 << 20;

/// Maximum total size in bytes of all responses to a command. The longest table lists all QPs of a device and takes
/// about 80 MB.
const MAX_ANSWERS_LEN: u64 = 256 << 20;

/// Maximum timeout. It is bounded so that adding it to the current time cannot overflow.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

pub(crate) fn timeout(text: &str) -> anyhow::Result<Duration> {
    let seconds: f64 = text.parse().context("the timeout is not a valid number of seconds")?;
    let limit = Duration::try_from_secs_f64(seconds).context("the timeout is negative or too long")?;
    ensure!(!limit.is_zero(), "the timeout must be greater than 0");
    ensure!(limit <= MAX_TIMEOUT, "the timeout must be at most {} s", MAX_TIMEOUT.as_secs());
    Ok(limit)
}

pub(crate) struct Daemon {
    answers: Take<BufReader<LimitedStream>>,
    path: PathBuf,
    /// Maximum time from the start of a request to the end of its response.
    timeout: Duration,
    /// Whether the complete response to the last request has not been received. It may still arrive.
    is_pending: bool,
}

impl Daemon {
    /// Connects to a daemon. `timeout` limits the time to connect and the time to receive each response.
    pub(crate) fn connect(path: &Path, timeout: Duration) -> anyhow::Result<Self> {
        match LimitedStream::connect(path, timeout) {
            Ok(stream) => {
                let answers = BufReader::new(stream).take(MAX_ANSWERS_LEN);
                Ok(Self { answers, path: path.to_owned(), timeout, is_pending: false })
            }
            Err(error) if is_late(&error) => bail!(too_late(path, timeout)),
            Err(error) => bail!(
                "cannot connect to {}: {error}; check that hcad is running and uses this control socket (--control-socket, \
                 or `control_socket` in its configuration)",
                path.display()
            ),
        }
    }

    /// Starts a new command by resetting the limit on the total size of its responses.
    pub(crate) fn begin(&mut self) {
        self.answers.set_limit(MAX_ANSWERS_LEN);
    }

    /// Sends a request and returns the response. If the response is an error, returns it as `Err`.
    pub(crate) fn ask(&mut self, request: &Request) -> anyhow::Result<Response> {
        if self.is_pending {
            // On a new connection, the late response cannot be taken for the response to this request.
            let left = self.answers.limit();
            *self = Self::connect(&self.path, self.timeout)?;
            self.answers.set_limit(left);
        }
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        let stream = self.answers.get_mut().get_mut();
        stream.deadline = Instant::now() + self.timeout;
        self.is_pending = true;
        // Read the response even if the write failed: hcad sends a reason before closing a connection that it rejects.
        let sent = stream.write_all(&line);
        let mut answer = Vec::new();
        let received = (&mut self.answers).take(MAX_ANSWER_LEN).read_until(b'\n', &mut answer);
        if received.as_ref().is_err_and(is_late) {
            bail!(too_late(&self.path, self.timeout));
        }
        let too_long = answer.len() as u64 == MAX_ANSWER_LEN || self.answers.limit() == 0;
        ensure!(!too_long, "the response from hcad exceeds the size limit");
        if answer.is_empty() {
            sent.and(received).context("hcad closed the connection")?;
            bail!("hcad closed the connection");
        }
        self.is_pending = answer.last() != Some(&b'\n');
        match serde_json::from_slice(&answer).context("cannot parse the response from hcad")? {
            Response::Error(problem) => bail!(problem),
            response => Ok(response),
        }
    }

    /// Sends a request whose response contains no data.
    pub(crate) fn tell(&mut self, request: &Request) -> anyhow::Result<()> {
        match self.ask(request)? {
            Response::Done {} => Ok(()),
            _ => bail!("unexpected response from hcad"),
        }
    }

    pub(crate) fn devices(&mut self) -> anyhow::Result<Vec<DeviceRow>> {
        match self.ask(&Request::Devices {})? {
            Response::Devices(devices) => Ok(devices),
            _ => bail!("unexpected response from hcad"),
        }
    }

    pub(crate) fn check_exist(&mut self, chosen: &[u16]) -> anyhow::Result<()> {
        if chosen.is_empty() {
            return Ok(());
        }
        let devices = self.devices()?;
        for id in chosen {
            ensure!(devices.iter().any(|device| device.id == *id), "device {id} does not exist");
        }
        Ok(())
    }

    /// Reads a table's rows page by page until `take` returns false.
    pub(crate) fn pages<T: DeserializeOwned>(
        &mut self,
        device: u16,
        table: &str,
        mut take: impl FnMut(Vec<T>) -> bool,
    ) -> anyhow::Result<()> {
        self.each_page(device, table, false, |response| {
            let Response::Page(ListPage { rows, next }) = response else { return Ok(None) };
            let rows =
                rows.get(table).context("the response from hcad does not contain the requested table")?;
            let more = take(serde_json::from_str(rows).context("cannot parse the table rows from hcad")?);
            Ok(Some(next.filter(|_| more)))
        })
    }

    pub(crate) fn text_pages(
        &mut self,
        device: u16,
        table: &str,
        mut take: impl FnMut(&TextPage),
    ) -> anyhow::Result<()> {
        self.each_page(device, table, true, |response| {
            let Response::Text(page) = response else { return Ok(None) };
            take(&page);
            Ok(Some(page.next))
        })
    }

    /// Requests a table's pages, starting at index 0, and passes each response to `take`. `take` returns the index of
    /// the next page, `Some(None)` after the last page, or `None` if the response is not a page.
    fn each_page(
        &mut self,
        device: u16,
        table: &str,
        text: bool,
        mut take: impl FnMut(Response) -> anyhow::Result<Option<Option<u64>>>,
    ) -> anyhow::Result<()> {
        let mut from = 0;
        loop {
            let response = self.ask(&Request::List { device, table: table.to_owned(), from, text })?;
            match take(response)?.context("unexpected response from hcad")? {
                None => return Ok(()),
                // `from` must increase, so that hcad cannot keep this loop running forever.
                Some(next) if next > from => from = next,
                Some(_) => bail!("hcad sent the pages of the table out of order"),
            }
        }
    }

    /// Returns the device that a single-device command applies to. If none was chosen, hcad must be serving exactly one
    /// device.
    pub(crate) fn choose(&mut self, chosen: &[u16]) -> anyhow::Result<u16> {
        match self.several(chosen)?.as_slice() {
            [only] => Ok(*only),
            [] => bail!("hcad is not serving any devices"),
            several => {
                let ids: Vec<_> = several.iter().map(u16::to_string).collect();
                bail!(
                    "hcad is serving several devices; select one of these with --device: {}",
                    ids.join(", ")
                )
            }
        }
    }

    /// Returns `error`, which occurred while a command read from `device`. Returns `Ok` instead if no devices were
    /// chosen and the device has been removed in the meantime.
    pub(crate) fn ignore_if_removed(
        &mut self,
        chosen: &[u16],
        device: u16,
        error: anyhow::Error,
    ) -> anyhow::Result<()> {
        let is_removed = |devices: Vec<DeviceRow>| devices.iter().all(|remaining| remaining.id != device);
        if chosen.is_empty() && self.devices().is_ok_and(is_removed) { Ok(()) } else { Err(error) }
    }

    /// Returns the chosen devices without duplicates, or all devices if none were chosen.
    pub(crate) fn several(&mut self, chosen: &[u16]) -> anyhow::Result<Vec<u16>> {
        if chosen.is_empty() {
            return Ok(self.devices()?.iter().map(|device| device.id).collect());
        }
        let mut several = Vec::new();
        for id in chosen {
            if !several.contains(id) {
                several.push(*id);
            }
        }
        Ok(several)
    }
}

/// A stream whose reads and writes fail once the deadline has passed.
struct LimitedStream {
    stream: UnixStream,
    deadline: Instant,
}

impl LimitedStream {
    fn connect(path: &Path, timeout: Duration) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // On a Unix socket, the send timeout also limits how long `connect` waits while the listener's queue is full.
        set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
        retry_on_intr(|| connect(&socket, &address))?;
        Ok(Self { stream: socket.into(), deadline: Instant::now() })
    }

    /// Returns the time left until the deadline, or a `TimedOut` error if the deadline has passed.
    fn left(&self) -> io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for LimitedStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(out)
    }
}

impl Write for LimitedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns whether an error is a timeout. If a blocking socket times out, the kernel reports EAGAIN.
fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock)
}

fn too_late(path: &Path, timeout: Duration) -> String {
    format!("hcad at {} has not replied for {} s", path.display(), timeout.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    /// A device that is busy may respond after the time limit.
    #[test]
    fn late_response_does_not_answer_next_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let listener = UnixListener::bind(&path).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                thread::spawn(move || {
                    let mut is_late = false;
                    for request in BufReader::new(&stream).lines().map_while(Result::ok) {
                        // Respond to a request for counters only when the next request arrives.
                        if std::mem::replace(&mut is_late, request.contains("counters")) {
                            let _ = writeln!(&stream, r#"{{"error":"late"}}"#);
                        }
                        if !is_late {
                            // The write fails if the client has disconnected.
                            let _ = writeln!(&stream, r#"{{"devices":[]}}"#);
                        }
                    }
                });
            }
        });
        let mut daemon = Daemon::connect(&path, Duration::from_millis(100)).unwrap();
        let error = daemon.ask(&Request::Counters { device: 1 }).unwrap_err().to_string();
        assert!(error.ends_with(" has not replied for 0.1 s"), "{error}");
        daemon.timeout = Duration::from_secs(60);
        assert_eq!(daemon.devices().unwrap().len(), 0);
    }
}
