//! Frames of [`agent::wire::exec`] on sockets.

use std::io;

use agent::wire::exec::{Frame, HEADER, parse_header};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Reads one frame; none at the end of the input. To be given up only together with the input.
///
/// # Errors
/// The input ends inside a frame or cannot be read, or what it holds is none.
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

/// Writes one frame. To be given up only together with the output.
///
/// # Errors
/// When it cannot be written.
pub(super) async fn write(output: &mut (impl AsyncWrite + Unpin), frame: &impl Frame) -> io::Result<()> {
    output.write_all(&frame.to_bytes()).await
}
