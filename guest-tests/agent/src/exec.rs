//! Executes commands in the guest for users on the host, independently of test steps. Each virtio port carries one
//! command at a time, with its input, output and signals.

mod command;
mod terminal;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::command::Running;
use crate::guest::say;
use crate::wire::exec::{EXEC_PORT_PREFIX, Frame, ToGuest, ToHost};

/// Polling interval for a port while no host is connected to it.
const RETRY: Duration = Duration::from_millis(20);

/// Serves each exec port of the guest on its own thread.
pub(crate) fn serve_ports() {
    for path in ports() {
        std::thread::spawn(move || {
            if let Err(error) = serve_port(&path) {
                say(&format!("{}: {error}", path.display()));
            }
        });
    }
}

fn ports() -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir("/sys/class/virtio-ports") else { return Vec::new() };
    let device = |entry: fs::DirEntry| {
        let name = fs::read_to_string(entry.path().join("name")).ok()?;
        name.starts_with(EXEC_PORT_PREFIX).then(|| Path::new("/dev").join(entry.file_name()))
    };
    entries.flatten().filter_map(device).collect()
}

fn serve_port(path: &Path) -> io::Result<()> {
    let mut port = File::options().read(true).write(true).open(path)?;
    let host = Host::new(port.try_clone()?);
    loop {
        // While no host is connected, reads return end of file.
        serve(&mut port, &host)?;
        std::thread::sleep(RETRY);
    }
}

/// Executes commands from the input until the input ends, then terminates the running command.
///
/// # Errors
/// Fails if the input cannot be read or contains an invalid frame.
fn serve(input: &mut impl Read, host: &Host) -> io::Result<()> {
    let mut running: Option<Running> = None;
    while let Some(frame) = ToGuest::read(input)? {
        match frame {
            ToGuest::Start(start) => match Running::start(&start, host) {
                Ok(command) => running = Some(command),
                Err(error) => host.send(&ToHost::Failed(error)),
            },
            // Frames for a command that has already ended are ignored.
            other => {
                if let Some(command) = &mut running {
                    command.take(other);
                }
            }
        }
    }
    Ok(())
}

/// Sends frames to the host. Clones share the port, so several threads can send.
#[derive(Clone)]
struct Host(Arc<Mutex<dyn Write + Send>>);

impl Host {
    fn new(port: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(port)))
    }

    /// Sends a frame. Blocks while the host is not reading.
    fn send(&self, frame: &ToHost) {
        write(&mut *self.lock(), frame);
    }

    /// Sends the last frame of a command.
    fn send_last(&self, frame: &ToHost, has_ended: &AtomicBool) {
        let mut port = self.lock();
        has_ended.store(true, Ordering::Relaxed);
        write(&mut *port, frame);
    }

    /// Sends a frame of a command, unless its last frame has been sent. The host would attribute a later frame to the
    /// next command.
    fn send_before_last(&self, frame: &ToHost, has_ended: &AtomicBool) {
        // The lock orders the accesses to the flag.
        let mut port = self.lock();
        if !has_ended.load(Ordering::Relaxed) {
            write(&mut *port, frame);
        }
    }

    fn lock(&self) -> MutexGuard<'_, dyn Write + Send + 'static> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(port: &mut dyn Write, frame: &ToHost) {
    // If no host is connected, the frame is lost.
    let _ = port.write_all(&frame.to_bytes()).and_then(|()| port.flush());
}

#[cfg(test)]
mod tests;
