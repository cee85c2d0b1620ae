//! Cursor over an admin command's buffer, for parsing and in-place replies.

use protocol::hca::e810::admin::AdminError;

#[derive(Debug)]
pub(super) struct Buffer<'a>(&'a mut [u8]);

impl<'a> Buffer<'a> {
    pub(super) const fn new(bytes: &'a mut [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the next `N` bytes and advances past them.
    ///
    /// # Errors
    /// EINVAL if fewer bytes remain, that is, if a count in the command is too large for the buffer.
    pub(super) fn next<const N: usize>(&mut self) -> Result<&'a mut [u8; N], AdminError> {
        let left = self.0.len();
        let Some((next, rest)) = std::mem::take(&mut self.0).split_first_chunk_mut() else {
            return Err(AdminError::invalid("truncated buffer, remaining bytes", left as u64));
        };
        self.0 = rest;
        Ok(next)
    }

    /// Returns the next `count` objects, each `N` bytes long, and advances past them.
    ///
    /// # Errors
    /// The same as for [`Buffer::next`].
    pub(super) fn next_all<const N: usize>(&mut self, count: u16) -> Result<&'a mut [[u8; N]], AdminError> {
        let left = self.0.len();
        let Some((next, rest)) = std::mem::take(&mut self.0).split_at_mut_checked(usize::from(count) * N)
        else {
            return Err(AdminError::invalid("truncated buffer, remaining bytes", left as u64));
        };
        self.0 = rest;
        Ok(next.as_chunks_mut().0)
    }

    /// Skips `count` bytes, or all remaining bytes if fewer remain.
    pub(super) fn skip(&mut self, count: usize) {
        let count = count.min(self.0.len());
        self.0 = std::mem::take(&mut self.0).split_at_mut(count).1;
    }
}
