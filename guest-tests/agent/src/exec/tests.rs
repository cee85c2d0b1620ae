use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::*;
use crate::wire::ExitStatus;
use crate::wire::exec::{INPUT_WINDOW, MAX_PAYLOAD, Size, Start, StartError, StartErrorKind};

/// Timeout for each wait, generous for busy hosts.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The host's end of an exec port.
struct Port(UnixStream);

impl Port {
    fn open() -> Self {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(TIMEOUT)).unwrap();
        let host = Host::new(theirs.try_clone().unwrap());
        std::thread::spawn(move || serve(&mut theirs, &host));
        Self(ours)
    }

    fn send(&mut self, frame: &ToGuest) {
        self.0.write_all(&frame.to_bytes()).unwrap();
    }

    fn start(&mut self, script: &str, terminal: Option<Size>) {
        let argv = ["sh", "-c", script].map(str::to_owned).to_vec();
        self.send(&ToGuest::Start(Start { argv, terminal, ..Start::default() }));
        assert_eq!(self.next(), ToHost::Started);
    }

    fn next(&mut self) -> ToHost {
        ToHost::read(&mut self.0).unwrap().unwrap()
    }

    /// Reads frames until the command ends. Returns its standard output, standard error and exit status.
    fn rest(&mut self) -> (String, String, ExitStatus) {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        loop {
            match self.next() {
                ToHost::Output(bytes) => output.extend(bytes),
                ToHost::Errors(bytes) => errors.extend(bytes),
                ToHost::Taken(_) => {}
                ToHost::Ended(status) => {
                    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
                    return (text(output), text(errors), status);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn until(&mut self, text: &str) {
        let mut seen = String::new();
        while !seen.contains(text) {
            match self.next() {
                ToHost::Output(bytes) => seen.push_str(std::str::from_utf8(&bytes).unwrap()),
                ToHost::Taken(_) => {}
                other => panic!("{other:?} after {seen:?}"),
            }
        }
    }
}

#[test]
fn successive_commands_share_port() {
    let mut port = Port::open();
    for code in [0, 3] {
        port.start(&format!("cat; echo no >&2; exit {code}"), None);
        port.send(&ToGuest::Input(b"a\0b".to_vec()));
        port.send(&ToGuest::InputEnd);
        assert_eq!(port.rest(), ("a\0b".into(), "no\n".into(), ExitStatus::Code(code)));
        // This signal arrives after its command has exited.
        port.send(&ToGuest::Signal(libc::SIGKILL));
    }
}

#[test]
fn failed_start_frees_port() {
    let mut port = Port::open();
    port.send(&ToGuest::Start(Start { argv: vec!["/does/not/exist".into()], ..Start::default() }));
    let ToHost::Failed(error) = port.next() else { panic!() };
    assert!(error.reason.starts_with("cannot start /does/not/exist"), "{error}");
    port.send(&ToGuest::Start(Start::default()));
    let error = StartError { kind: StartErrorKind::Other, reason: "no command is given".into() };
    assert_eq!(port.next(), ToHost::Failed(error));
    port.start("echo yes", None);
    assert_eq!(port.rest().0, "yes\n");
}

#[test]
fn start_error_distinguishes_missing_from_unusable_program() {
    let folder = std::env::temp_dir().display().to_string();
    let missing = format!("{folder}/does/not/exist");
    let cases = [
        (["no-such-program-at-all", "/"], StartErrorKind::NotFound),
        ([missing.as_str(), "/"], StartErrorKind::NotFound),
        (["/etc/passwd", "/"], StartErrorKind::NotExecutable),
        ([folder.as_str(), "/"], StartErrorKind::NotExecutable),
        // The program exists, but its working directory does not.
        (["true", missing.as_str()], StartErrorKind::Other),
    ];
    for terminal in [None, Some(Size { rows: 24, columns: 80 })] {
        for ([program, at], expected) in cases {
            let mut port = Port::open();
            let argv = vec![program.to_owned()];
            let start = Start { argv, folder: Some(at.to_owned()), terminal, ..Start::default() };
            port.send(&ToGuest::Start(start));
            let ToHost::Failed(error) = port.next() else { panic!("{program} in {at}") };
            assert_eq!(error.kind, expected, "{error}");
            assert!(error.reason.contains(program), "{error}");
        }
    }
}

#[test]
fn command_uses_requested_environment_and_directory() {
    let mut port = Port::open();
    let argv = ["sh", "-c", "echo $X; pwd"].map(str::to_owned).to_vec();
    let env = [("X".to_owned(), "a b".to_owned())].into();
    port.send(&ToGuest::Start(Start { argv, env, folder: Some("/usr".into()), ..Start::default() }));
    assert_eq!(port.next(), ToHost::Started);
    assert_eq!(port.rest().0, "a b\n/usr\n");
}

#[test]
fn signal_reaches_command_with_unread_input() {
    let mut port = Port::open();
    port.start("echo ready; exec sleep 600", None);
    port.until("ready");
    for _ in 0..INPUT_WINDOW / MAX_PAYLOAD {
        port.send(&ToGuest::Input(vec![b'x'; MAX_PAYLOAD]));
    }
    port.send(&ToGuest::Signal(libc::SIGTERM));
    assert_eq!(port.rest().2, ExitStatus::Signal(libc::SIGTERM));
}

#[test]
fn exceeding_input_window_ends_command() {
    let mut port = Port::open();
    port.start("trap '' HUP; echo ready; exec sleep 600", None);
    port.until("ready");
    for _ in 0..=2 * INPUT_WINDOW / MAX_PAYLOAD {
        port.send(&ToGuest::Input(vec![b'x'; MAX_PAYLOAD]));
    }
    assert_eq!(port.rest().2, ExitStatus::Signal(libc::SIGKILL));
}

#[test]
fn input_to_closed_stdin_is_discarded() {
    let mut port = Port::open();
    port.start("exec <&-; echo closed; read x < /dev/zero | :; sleep 600", None);
    port.until("closed");
    port.send(&ToGuest::Input(vec![0; MAX_PAYLOAD]));
    assert_eq!(port.next(), ToHost::Taken(u32::try_from(MAX_PAYLOAD).unwrap()));
    port.send(&ToGuest::HangUp);
    assert_eq!(port.rest().2, ExitStatus::Signal(libc::SIGHUP));
}

#[test]
fn hangup_ends_command_that_ignores_sighup() {
    let mut port = Port::open();
    port.start("trap '' HUP; echo ready; while :; do sleep 1; done", None);
    port.until("ready");
    port.send(&ToGuest::HangUp);
    assert_eq!(port.rest().2, ExitStatus::Signal(libc::SIGKILL));
}

#[test]
fn command_ends_while_child_holds_output_open() {
    let mut port = Port::open();
    port.start("sleep 600 & head -c 300000 /dev/zero | tr '\\0' x", None);
    let (output, errors, status) = port.rest();
    assert_eq!((output.len(), errors.as_str(), status), (300_000, "", ExitStatus::Code(0)));
}

#[test]
fn terminal_reports_its_size_and_handles_ctrl_c() {
    let mut port = Port::open();
    let script =
        "trap 'echo interrupted; stty size; exit 7' INT; stty size; tty; while :; do sleep 0.1; done";
    port.start(script, Some(Size { rows: 30, columns: 90 }));
    port.until("30 90\r\n/dev/pts/");
    port.send(&ToGuest::Resize(Size { rows: 40, columns: 100 }));
    port.send(&ToGuest::Input(vec![3]));
    let (output, _, status) = port.rest();
    assert!(output.contains("interrupted\r\n40 100\r\n"), "{output:?}");
    assert_eq!(status, ExitStatus::Code(7));
}

#[test]
fn end_of_input_reaches_program_on_terminal() {
    let mut port = Port::open();
    port.start("cat; echo over", Some(Size { rows: 24, columns: 80 }));
    port.send(&ToGuest::Input(b"line\n".to_vec()));
    port.send(&ToGuest::InputEnd);
    let (output, _, status) = port.rest();
    assert!(output.ends_with("over\r\n") && output.contains("line"), "{output:?}");
    assert_eq!(status, ExitStatus::Code(0));
}

#[test]
fn ended_command_acknowledges_no_more_input() {
    let mut port = Port::open();
    // The child keeps the input open, but does not read it.
    port.start("exec 3<&0; sleep 5 <&3 >/dev/null 2>&1 & echo started", None);
    for _ in 0..INPUT_WINDOW / MAX_PAYLOAD {
        port.send(&ToGuest::Input(vec![b'x'; MAX_PAYLOAD]));
    }
    assert_eq!(port.rest().2, ExitStatus::Code(0));
    // The thread that writes the input gives up during this command, which has received no input to acknowledge.
    port.start("sleep 1", None);
    assert_eq!(port.next(), ToHost::Ended(ExitStatus::Code(0)));
}
