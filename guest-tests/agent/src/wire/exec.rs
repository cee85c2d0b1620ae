//! Frames that carry a command's start, input, output, signals and exit status over a port. A port carries one command
//! at a time.
//!
//! Besides the port on which the agent receives each [`Request`](super::Request), a guest may have ports whose names
//! consist of [`EXEC_PORT_PREFIX`] and a number. On each of these ports, the host starts a command with
//! [`ToGuest::Start`]. The guest replies with [`ToHost::Started`] and later [`ToHost::Ended`], or with
//! [`ToHost::Failed`]. The port is then free for the next command. Frames for a command that has ended are ignored, and
//! the guest sends none.
//!
//! A frame consists of a kind byte, the payload length as a 32-bit little-endian number, and at most [`MAX_PAYLOAD`]
//! bytes of payload. Output stays in the guest until the host reads the port. Unread input would delay signals, so the
//! host sends at most [`INPUT_WINDOW`] bytes more than the guest has acknowledged with [`ToHost::Taken`].

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};

use super::ExitStatus;

/// Prefix of the names of exec ports.
pub const EXEC_PORT_PREFIX: &str = "org.hcad.exec.";
/// Maximum size of a frame's payload in bytes. Both ends reject longer payloads.
pub const MAX_PAYLOAD: usize = 64 << 10;
/// Maximum number of unacknowledged input bytes, reached if a command does not read its input.
pub const INPUT_WINDOW: usize = 256 << 10;
/// Length of a frame's header in bytes.
pub const HEADER: usize = 5;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Start {
    /// The program, which is looked up in the search path, followed by its arguments.
    pub argv: Vec<String>,
    /// Environment variables in addition to the default ones.
    pub env: BTreeMap<String, String>,
    /// Working directory. `None` means root's home directory.
    pub folder: Option<String>,
    /// Size of the terminal, if the command has one. Standard output and standard error are then merged.
    pub terminal: Option<Size>,
    /// User that runs the command. `None` means root.
    pub user: Option<User>,
}

/// The IDs of a user that runs a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    /// IDs of all supplementary groups.
    pub groups: Vec<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Size {
    pub rows: u16,
    pub columns: u16,
}

/// A frame from the host to the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToGuest {
    /// Starts a command on an idle port.
    Start(Start),
    /// Carries input for the command.
    Input(Vec<u8>),
    /// Marks the end of the input.
    InputEnd,
    /// Sends a signal to the command and its children.
    Signal(i32),
    /// Changes the size of the terminal.
    Resize(Size),
    /// Terminates the command after its user has disconnected.
    HangUp,
}

/// A frame from the guest to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToHost {
    Started,
    /// The command could not be started. The lab's supervisor also sends this frame to the client that runs the command
    /// if the guest has stopped responding.
    Failed(StartError),
    /// Bytes from standard output or from the terminal.
    Output(Vec<u8>),
    /// Bytes from standard error.
    Errors(Vec<u8>),
    /// Acknowledges this number of input bytes, which were passed to the command or, if it had closed its input,
    /// discarded.
    Taken(u32),
    /// The command has exited, and all its output has been sent.
    Ended(ExitStatus),
}

/// The error that prevented a command from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartError {
    pub kind: StartErrorKind,
    /// The error and its causes, as text for the user.
    pub reason: String,
}

/// Kinds of start errors that shells report with different exit statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartErrorKind {
    /// The program does not exist.
    NotFound,
    /// The program exists, but the kernel cannot execute it.
    NotExecutable,
    /// Any other error, such as a lack of memory.
    Other,
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for StartError {}

/// Describes why a frame is invalid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadFrame(String);

impl fmt::Display for BadFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadFrame {}

impl From<BadFrame> for io::Error {
    fn from(error: BadFrame) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// A frame type for one direction.
pub trait Frame: Sized {
    /// Returns the kind and the payload of the frame.
    fn parts(&self) -> (u8, Vec<u8>);

    /// Creates a frame from its kind and payload.
    ///
    /// # Errors
    /// Fails if the kind or the payload is invalid.
    fn of_parts(kind: u8, payload: Vec<u8>) -> Result<Self, BadFrame>;

    /// Serialises the frame. The other end rejects a payload of more than [`MAX_PAYLOAD`] bytes.
    fn to_bytes(&self) -> Vec<u8> {
        let (kind, payload) = self.parts();
        let len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEADER + payload.len());
        bytes.push(kind);
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.extend_from_slice(&payload);
        bytes
    }

    /// Reads one frame. Returns `None` at the end of the input.
    ///
    /// # Errors
    /// Fails if the input ends inside a frame, cannot be read, or contains an invalid frame.
    fn read(input: &mut impl Read) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER];
        if input.read(&mut header[..1])? == 0 {
            return Ok(None);
        }
        input.read_exact(&mut header[1..])?;
        let (kind, len) = parse_header(header)?;
        let mut payload = vec![0; len];
        input.read_exact(&mut payload)?;
        Ok(Some(Self::of_parts(kind, payload)?))
    }
}

/// Parses a header and returns the kind and the payload length.
///
/// # Errors
/// Fails if the length exceeds [`MAX_PAYLOAD`].
pub fn parse_header(header: [u8; HEADER]) -> Result<(u8, usize), BadFrame> {
    let [kind, len @ ..] = header;
    let len = u32::from_le_bytes(len);
    usize::try_from(len)
        .ok()
        .filter(|len| *len <= MAX_PAYLOAD)
        .map(|len| (kind, len))
        .ok_or_else(|| BadFrame(format!("frame of kind {kind} has an invalid length of {len} bytes")))
}

impl Frame for ToGuest {
    fn parts(&self) -> (u8, Vec<u8>) {
        match self {
            Self::Start(start) => (1, json(start)),
            Self::Input(bytes) => (2, bytes.clone()),
            Self::InputEnd => (3, Vec::new()),
            Self::Signal(signal) => (4, signal.to_le_bytes().to_vec()),
            Self::Resize(size) => (5, [size.rows.to_le_bytes(), size.columns.to_le_bytes()].concat()),
            Self::HangUp => (6, Vec::new()),
        }
    }

    fn of_parts(kind: u8, payload: Vec<u8>) -> Result<Self, BadFrame> {
        let wrong = || {
            BadFrame(format!(
                "invalid frame of kind {kind} to the guest, with {} bytes of payload",
                payload.len()
            ))
        };
        match (kind, payload.len()) {
            (1, _) => of_json(&payload).map(Self::Start),
            (2, _) => Ok(Self::Input(payload)),
            (3, 0) => Ok(Self::InputEnd),
            (4, _) => {
                Ok(Self::Signal(i32::from_le_bytes(payload.as_slice().try_into().map_err(|_| wrong())?)))
            }
            (5, _) => {
                let [a, b, c, d] = payload.as_slice().try_into().map_err(|_| wrong())?;
                let (rows, columns) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
                Ok(Self::Resize(Size { rows, columns }))
            }
            (6, 0) => Ok(Self::HangUp),
            _ => Err(wrong()),
        }
    }
}

impl Frame for ToHost {
    fn parts(&self) -> (u8, Vec<u8>) {
        match self {
            Self::Started => (1, Vec::new()),
            Self::Failed(StartError { kind, reason }) => {
                let number = match kind {
                    StartErrorKind::Other => 2,
                    StartErrorKind::NotFound => 7,
                    StartErrorKind::NotExecutable => 8,
                };
                (number, reason.bytes().take(MAX_PAYLOAD).collect())
            }
            Self::Output(bytes) => (3, bytes.clone()),
            Self::Errors(bytes) => (4, bytes.clone()),
            Self::Taken(count) => (5, count.to_le_bytes().to_vec()),
            Self::Ended(status) => (6, json(status)),
        }
    }

    fn of_parts(kind: u8, payload: Vec<u8>) -> Result<Self, BadFrame> {
        let wrong = || {
            BadFrame(format!(
                "invalid frame of kind {kind} to the host, with {} bytes of payload",
                payload.len()
            ))
        };
        let failed = |kind| {
            let reason = String::from_utf8_lossy(&payload).into_owned();
            Ok(Self::Failed(StartError { kind, reason }))
        };
        match (kind, payload.len()) {
            (1, 0) => Ok(Self::Started),
            (2, _) => failed(StartErrorKind::Other),
            (7, _) => failed(StartErrorKind::NotFound),
            (8, _) => failed(StartErrorKind::NotExecutable),
            (3, _) => Ok(Self::Output(payload)),
            (4, _) => Ok(Self::Errors(payload)),
            (5, _) => {
                Ok(Self::Taken(u32::from_le_bytes(payload.as_slice().try_into().map_err(|_| wrong())?)))
            }
            (6, _) => of_json(&payload).map(Self::Ended),
            _ => Err(wrong()),
        }
    }
}

fn json(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("frames have string keys and no failing serializer")
}

fn of_json<'a, T: Deserialize<'a>>(payload: &'a [u8]) -> Result<T, BadFrame> {
    serde_json::from_slice(payload).map_err(|error| BadFrame(format!("invalid frame: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_consists_of_kind_length_and_payload() {
        assert_eq!(ToGuest::Signal(15).to_bytes(), [4, 4, 0, 0, 0, 15, 0, 0, 0]);
        assert_eq!(
            ToGuest::Resize(Size { rows: 24, columns: 0x150 }).to_bytes(),
            [5, 4, 0, 0, 0, 24, 0, 0x50, 1]
        );
        assert_eq!(ToHost::Output(b"ab".to_vec()).to_bytes(), [3, 2, 0, 0, 0, b'a', b'b']);
        let ended = ToHost::Ended(ExitStatus::Code(3)).to_bytes();
        assert_eq!(ended, [&[6, 10, 0, 0, 0][..], b"{\"code\":3}"].concat());
    }

    #[test]
    fn frames_are_read_until_end_of_input() {
        let start = Start { argv: vec!["true".into()], folder: Some("/tmp".into()), ..Start::default() };
        let frames = [ToGuest::Start(start), ToGuest::Input(vec![0; 3]), ToGuest::InputEnd, ToGuest::HangUp];
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::to_bytes).collect();
        let mut input = bytes.as_slice();
        for frame in frames {
            assert_eq!(ToGuest::read(&mut input).unwrap(), Some(frame));
        }
        assert_eq!(ToGuest::read(&mut input).unwrap(), None);
    }

    #[test]
    fn start_error_keeps_kind_and_reason() {
        for kind in [StartErrorKind::Other, StartErrorKind::NotFound, StartErrorKind::NotExecutable] {
            let frame = ToHost::Failed(StartError { kind, reason: "no".into() });
            assert_eq!(ToHost::read(&mut frame.to_bytes().as_slice()).unwrap(), Some(frame));
        }
    }

    #[test]
    fn frame_with_invalid_header_or_payload_is_rejected() {
        let error = |bytes: &[u8]| ToHost::read(&mut &*bytes).unwrap_err().to_string();
        assert_eq!(error(&[3, 1, 0, 1, 0]), "frame of kind 3 has an invalid length of 65537 bytes");
        assert_eq!(error(&[9, 0, 0, 0, 0]), "invalid frame of kind 9 to the host, with 0 bytes of payload");
        assert_eq!(
            error(&[5, 1, 0, 0, 0, 7]),
            "invalid frame of kind 5 to the host, with 1 bytes of payload"
        );
        assert!(error(&[6, 2, 0, 0, 0, b'{', b'}']).starts_with("invalid frame"));
    }
}
