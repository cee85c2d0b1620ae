//! The agent executable. It runs as PID 1 in a small initramfs, or as an ordinary program in a guest.
//!
//! With `--stdio`, it reads requests from standard input and writes replies to standard output, instead of using the
//! virtio-serial port.

use std::io::Write as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    if std::process::id() == 1 {
        agent::init::run();
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => agent::init::serve_port(),
        ["--stdio"] => {
            agent::serve::Agent::default().serve(std::io::stdin().lock(), std::io::stdout().lock())
        }
        _ => Err(anyhow::anyhow!("usage: guest-agent [--stdio]")),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If standard error is closed, the message is lost.
            let _ = writeln!(std::io::stderr(), "guest-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}
