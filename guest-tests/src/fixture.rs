//! Testbeds for Rust tests.
//!
//! A [`Pair`] boots two guests with RDMA devices, named `a` and `b`, and stops them when it is dropped:
//!
//! ```no_run
//! use guest_tests::fixture::{Kind, Pair};
//!
//! let pair = Pair::boot(Kind::Connectx)?;
//! let devices = pair.a.run(&["ibv_devices"])?;
//! assert!(devices.contains("mlx5_0"));
//! # anyhow::Ok(())
//! ```
//!
//! [`Guest::command`] returns a [`std::process::Command`]. A test can start a server in one guest, pass it input and
//! read its output, and meanwhile run a client in the other guest:
//!
//! ```no_run
//! # use guest_tests::fixture::{Kind, Pair};
//! # let pair = Pair::boot(Kind::Mthca)?;
//! let mut server = pair.a.command("ibv_rc_pingpong").spawn()?;
//! pair.b.run_until_success(&["ibv_rc_pingpong", "a"])?;
//! assert!(server.wait()?.success());
//! # anyhow::Ok(())
//! ```
//!
//! The fixture runs the programs `guest-lab`, `hcad` and `hcactl` from the directory in the environment variable
//! `HCAD_PROGRAMS`. If that variable is not set, the fixture uses the programs that Cargo built alongside the test. If
//! the test process is killed, the guests stop as well.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::programs;
pub use crate::testbed::kind::Kind;
use crate::testbed::protocol::{Description, GuestDescription};

/// How long [`Guest::run_until_success`] keeps retrying.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between attempts in [`Guest::run_until_success`].
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

/// Number of testbeds that this process has booted, used to create unique names.
static BOOTED: AtomicU32 = AtomicU32::new(0);

/// Two guests with RDMA devices on one fabric. The guests are stopped on drop.
#[derive(Debug)]
pub struct Pair {
    pub a: Guest,
    pub b: Guest,
    _testbed: Testbed,
}

impl Pair {
    /// Boots two guests and waits until both can run commands and the ports of their RDMA devices are active. Without
    /// KVM, this takes about ten seconds on an idle machine. The first boot on a machine downloads the guest
    /// components.
    ///
    /// # Errors
    /// Fails if a program is missing or a guest does not boot. The error names the directory with the logs.
    pub fn boot(kind: Kind) -> Result<Self> {
        Self::boot_with(kind, &[])
    }

    /// Boots two guests with additional options for `guest-lab up`, such as `--strict` or `--share=target:/t`.
    ///
    /// # Errors
    /// Fails if an option is invalid. All other errors are the same as for [`Self::boot`].
    pub fn boot_with(kind: Kind, options: &[&str]) -> Result<Self> {
        let (testbed, guests) = Testbed::boot(kind, &[options, &["--count=2"]].concat())?;
        let [a, b] = <[Guest; 2]>::try_from(guests)
            .map_err(|guests| anyhow::anyhow!("expected two guests: {guests:?}"))?;
        Ok(Self { a, b, _testbed: testbed })
    }
}

/// A testbed that is stopped on drop.
#[derive(Debug)]
pub struct Testbed {
    program: PathBuf,
    name: String,
}

impl Testbed {
    /// Boots guests with the given options for `guest-lab up`. Returns the testbed, which stops the guests when it is
    /// dropped, and the guests ordered by name.
    ///
    /// # Errors
    /// Same as for [`Pair::boot_with`].
    pub fn boot(kind: Kind, options: &[&str]) -> Result<(Self, Vec<Guest>)> {
        let process = std::process::id();
        let name = format!("fixture-{process}-{}", BOOTED.fetch_add(1, Ordering::Relaxed));
        let program = programs::guest_lab()?;
        let mut up = Command::new(&program);
        up.args(["up", kind.name(), "--json", "--name", &name, "--for-pid", &process.to_string()]);
        up.args(options).stdin(Stdio::null());
        let up = up.output().context("cannot start guest-lab")?;
        let testbed = Self { program, name };
        ensure!(up.status.success(), "guest-lab up failed:\n{}", String::from_utf8_lossy(&up.stderr));
        let description: Description =
            serde_json::from_slice(&up.stdout).context("cannot parse the output of guest-lab up")?;
        let guest = |description| Guest {
            program: testbed.program.clone(),
            testbed: testbed.name.clone(),
            description,
        };
        let guests = description.guests.into_iter().map(guest).collect();
        Ok((testbed, guests))
    }

    /// Returns the testbed's name for commands such as `guest-lab logs`.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        // If the guests have not booted or have already stopped, this command fails harmlessly.
        let _ = Command::new(&self.program).args(["down", &self.name]).stdin(Stdio::null()).output();
    }
}

/// A running guest in a testbed.
#[derive(Clone, Debug)]
pub struct Guest {
    program: PathBuf,
    testbed: String,
    description: GuestDescription,
}

impl Guest {
    /// Returns the guest's name, such as `a`.
    pub fn name(&self) -> String {
        self.description.name.to_string()
    }

    /// Returns the guest's address on the Ethernet network between the guests.
    pub fn ip(&self) -> Ipv4Addr {
        self.description.ip
    }

    /// Returns the IP address of the RDMA device's network interface, if it has one.
    pub fn rdma_ip(&self) -> Option<Ipv4Addr> {
        self.description.rdma_ip
    }

    /// Returns the name of the RDMA device, if a stock driver creates one.
    pub fn rdma_device(&self) -> Option<&str> {
        self.description.rdma_device.as_deref()
    }

    /// Returns a command that runs a program in the guest as root, through `guest-lab exec`. The program's input,
    /// output and exit status are passed through. Killing the command's process also ends the program in the guest.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(&self.program);
        let target = format!("{}:{}", self.testbed, self.description.name);
        command.args(["exec", &target, "--tty", "false", "--", program]);
        command
    }

    /// Runs a program without input and returns its standard output. The program must succeed.
    ///
    /// # Errors
    /// Fails if the program does not succeed. The error contains its output.
    pub fn run(&self, argv: &[&str]) -> Result<String> {
        let output = self.output(argv)?;
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let name = self.description.name;
        ensure!(output.status.success(), "{argv:?} failed in guest {name}, {}:\n{out}{err}", output.status);
        Ok(out.into_owned())
    }

    /// Runs a program repeatedly until it succeeds, such as a client whose server in the other guest may not be
    /// listening yet. Returns its standard output.
    ///
    /// # Errors
    /// Fails if the program still fails after a minute. The error contains the output of the last attempt.
    pub fn run_until_success(&self, argv: &[&str]) -> Result<String> {
        let begun = Instant::now();
        loop {
            match self.run(argv) {
                Err(_) if begun.elapsed() < RETRY_TIMEOUT => sleep(RETRY_INTERVAL),
                result => return result,
            }
        }
    }

    fn output(&self, argv: &[&str]) -> Result<Output> {
        let (program, arguments) = argv.split_first().context("no program is given")?;
        let mut command = self.command(program);
        command.args(arguments).stdin(Stdio::null()).output().context("cannot start guest-lab")
    }
}
