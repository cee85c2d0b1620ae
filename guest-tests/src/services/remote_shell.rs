//! A remote shell that Open MPI uses to start its daemons in other guests. It accepts any client that can reach it, so
//! use it only on a network of test guests.

/// The client's path in the guest. Set Open MPI's `plm_ssh_agent` parameter to it.
pub(crate) const CLIENT: &str = "/tmp/shell";
/// TCP port of the server.
pub(crate) const PORT: u16 = 5140;

const SERVER: &str = "/tmp/remote_shell.py";
const SERVER_SOURCE: &str = include_str!("../../guest/remote_shell.py");

/// Returns shell code that installs the client.
pub(crate) fn install_client() -> String {
    format!(
        "cat > {CLIENT} <<'END'
#!/bin/sh
host=$1
shift
printf '%s\\n' \"$*\" | nc.openbsd -N $host {PORT}
END
chmod +x {CLIENT}
"
    )
}

/// Returns shell code that installs the server.
pub(crate) fn install_server() -> String {
    format!("cat > {SERVER} <<'END'\n{SERVER_SOURCE}END\n")
}

/// Returns the server's command line, which does not contain quotes.
pub(crate) fn serve(address: &str) -> String {
    format!("python3 {SERVER} {address} {PORT}")
}
