//! Sends and receives [`agent::wire::exec`] frames over sockets.

use std::io;

use agent::wire::exec::{Frame, HEADER, parse_header};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Reads one frame or returns `None` at the end of the input. Not cancel-safe: the input must not be used after a
/// cancellation.
///
/// # Errors
/// Fails if the input ends inside a frame, cannot be read, or contains an invalid frame.
pub(super) async fn read<F: Frame>(input: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<F>> {
    let mut header = [0; HEADER];
    if input.read(&mut header[..1]).await? == 0 {
        return Ok(None);
    }
    input.read_exact(&mut header[1..]).await?;
    let (kind, len) = parse_header(header)?;
    let mut payload = vec![0; len];
    input.read_exact(&mut payload).await?;
    Ok(Some(F::of_parts(kind, payload)?))
}

/// Writes one frame. Not cancel-safe: the output must not be used after a cancellation.
///
/// # Errors
/// Fails if the frame cannot be written.
pub(super) async fn write(output: &mut (impl AsyncWrite + Unpin), frame: &impl Frame) -> io::Result<()> {
    output.write_all(&frame.to_bytes()).await
}
