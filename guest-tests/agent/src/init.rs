//! Runs as PID 1 in a small initramfs: mounts file systems, loads modules, and then starts the agent.

use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use crate::guest::{self, mount::mount};
use crate::serve::Agent;
use crate::wire::PORT_NAME;

/// List of the modules to load, in order, with one path per line. The file need not exist.
const MODULES: &str = "/lib/modules.list";
/// How long to wait for the port to appear after its driver has been loaded.
const PORT_TIMEOUT: Duration = Duration::from_secs(20);
/// Polling interval for a port that is missing or has no host connected.
const RETRY: Duration = Duration::from_millis(20);

/// Runs as PID 1 and powers off the guest when the agent exits. Never returns.
pub fn run() -> ! {
    if let Err(error) = prepare().and_then(|()| serve_port()) {
        guest::say(&format!("the agent exits: {error:#}"));
    }
    if let Err(error) = guest::shutdown(crate::wire::ShutdownKind::PowerOff) {
        guest::say(&format!("{error:#}"));
    }
    loop {
        std::thread::sleep(Duration::from_secs(3600));
    }
}

/// Serves the host over the agent's virtio-serial port until a shutdown step arrives.
///
/// # Errors
/// Fails if the port does not exist or cannot be opened.
pub fn serve_port() -> Result<()> {
    let path = wait_for_port()?;
    let port =
        File::options().read(true).write(true).open(&path).with_context(|| path.display().to_string())?;
    let output = port.try_clone().context("cannot duplicate the port's descriptor")?;
    crate::exec::serve_ports();
    guest::say(&format!("serving {}", path.display()));
    let mut agent = Agent::default();
    let mut input = BufReader::new(port);
    loop {
        // While no host is connected, reads return end of file and `serve` returns.
        if let Err(error) = agent.serve(&mut input, &output) {
            guest::say(&format!("{error:#}"));
        }
        std::thread::sleep(RETRY);
    }
}

fn prepare() -> Result<()> {
    for (kind, target) in
        [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev"), ("tmpfs", "/tmp"), ("tmpfs", "/run")]
    {
        fs::create_dir_all(target).with_context(|| format!("cannot create {target}"))?;
        match mount(kind, target, kind, 0, "") {
            // The kernel may have mounted this file system already.
            Err(error) if is_busy(&error) => {}
            other => other?,
        }
    }
    let Ok(list) = fs::read_to_string(MODULES) else { return Ok(()) };
    let paths: Vec<String> =
        list.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect();
    for path in &paths {
        // A module that fails to load must not prevent the host from connecting and diagnosing the failure.
        if let Err(error) = guest::load_modules(std::slice::from_ref(path)) {
            guest::say(&format!("{error:#}"));
        }
    }
    Ok(())
}

fn is_busy(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) == Some(libc::EBUSY)
}

fn wait_for_port() -> Result<PathBuf> {
    let started = Instant::now();
    loop {
        if let Some(path) = find_port() {
            return Ok(path);
        }
        anyhow::ensure!(
            started.elapsed() < PORT_TIMEOUT,
            "no virtio-serial port named {PORT_NAME} after {PORT_TIMEOUT:?}"
        );
        std::thread::sleep(RETRY);
    }
}

fn find_port() -> Option<PathBuf> {
    fs::read_dir("/sys/class/virtio-ports").ok()?.flatten().find_map(|entry| {
        let name = fs::read_to_string(entry.path().join("name")).ok()?;
        let device = Path::new("/dev").join(entry.file_name());
        (name.trim() == PORT_NAME && device.exists()).then_some(device)
    })
}
