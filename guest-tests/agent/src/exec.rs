//! Commands of the host's users: each on a port of its own, with its input, outputs and signals, beside the steps.

mod command;
mod terminal;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use self::command::Running;
use crate::guest::say;
use crate::wire::exec::{EXEC_PORT_PREFIX, Frame, ToGuest, ToHost};

/// How often a port without a host is looked at again.
const RETRY: Duration = Duration::from_millis(20);

/// Serves each port for commands that the guest has, on a thread of its own.
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
        // The port reads as ended while no host is connected.
        serve(&mut port, &host)?;
        std::thread::sleep(RETRY);
    }
}

/// Runs what comes in until it ends, and ends the command that runs then.
///
/// # Errors
/// What comes is no frame, or cannot be read.
fn serve(input: &mut impl Read, host: &Host) -> io::Result<()> {
    let mut running: Option<Running> = None;
    while let Some(frame) = ToGuest::read(input)? {
        match frame {
            ToGuest::Start(start) => match Running::start(&start, host) {
                Ok(command) => running = Some(command),
                Err(error) => host.send(&ToHost::Failed(format!("{error:#}"))),
            },
            // One without a command is for one that has ended.
            other => {
                if let Some(command) = &mut running {
                    command.take(other);
                }
            }
        }
    }
    Ok(())
}

/// The way to the host, which takes whole frames from several threads.
#[derive(Clone)]
struct Host(Arc<Mutex<dyn Write + Send>>);

impl Host {
    fn new(port: impl Write + Send + 'static) -> Self {
        Self(Arc::new(Mutex::new(port)))
    }

    /// Waits while the host does not read.
    fn send(&self, frame: &ToHost) {
        let mut port = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Without a host there is nobody to tell.
        let _ = port.write_all(&frame.to_bytes()).and_then(|()| port.flush());
    }
}

#[cfg(test)]
mod tests;
