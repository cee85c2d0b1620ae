//! An admin command as seen by its handler: the parameters and a copy of the buffer. The handler overwrites
//! them with the response.

use card::memory::GuestMemory;
use protocol::hca::e810::admin::descriptor::{BUFFER_LEN, Flags};
use protocol::hca::e810::admin::{AdminError, AdminStatus, Descriptor, PARAMETERS_LEN};

/// An admin command that has been fetched but not yet completed.
#[derive(Debug)]
pub struct Command {
    parameters: [u8; PARAMETERS_LEN],
    buffer: Vec<u8>,
    /// Number of buffer bytes in the response; `None` if the handler did not write the buffer.
    response_len: Option<usize>,
}

impl Command {
    /// Creates a command from its descriptor. Reads the buffer from guest memory if the READ flag is set.
    ///
    /// # Errors
    /// EINVAL if the buffer exceeds the maximum length; EIO if the buffer is not in mapped memory.
    pub fn read(descriptor: &Descriptor, dma: &GuestMemory) -> Result<Self, AdminError> {
        let len = usize::from(descriptor.buffer_len);
        let mut buffer = Vec::new();
        if descriptor.flags.contains(Flags::BUFFER) {
            if len > BUFFER_LEN {
                return Err(AdminError::invalid("buffer length", len as u64));
            }
            buffer.resize(len, 0);
            if descriptor.flags.contains(Flags::READ) {
                dma.read(descriptor.buffer(), &mut buffer)
                    .map_err(|error| unreachable_buffer(error.iova.get()))?;
            }
        }
        Ok(Self { parameters: descriptor.parameters, buffer, response_len: None })
    }

    #[cfg(test)]
    pub(crate) const fn of(parameters: [u8; PARAMETERS_LEN], buffer: Vec<u8>) -> Self {
        Self { parameters, buffer, response_len: None }
    }

    pub fn parameters<T>(&self, parse: fn(&[u8; PARAMETERS_LEN]) -> T) -> T {
        parse(&self.parameters)
    }

    /// Sets the response parameters. If the command has a buffer, the driver receives only the first eight bytes of the
    /// parameters.
    pub fn answer(&mut self, parameters: [u8; PARAMETERS_LEN]) {
        self.parameters = parameters;
    }

    /// Returns the buffer. It holds the driver's data if the READ flag is set, and zeros otherwise.
    pub fn buffer(&self) -> &[u8] {
        &self.buffer
    }

    /// Returns a mutable reference to the buffer and makes the whole buffer the response.
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        self.response_len = Some(self.buffer.len());
        &mut self.buffer
    }

    /// Calls `fill` to write the buffer. `fill` returns the length of the response.
    ///
    /// # Errors
    /// Returns any error from `fill`.
    pub fn fill(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, AdminError>,
    ) -> Result<(), AdminError> {
        self.response_len = Some(fill(&mut self.buffer)?.min(self.buffer.len()));
        Ok(())
    }

    /// Parses an object at the start of the buffer.
    ///
    /// # Errors
    /// EINVAL if the buffer is too short.
    pub fn object<T>(&self, parse: fn(&[u8]) -> Option<T>) -> Result<T, AdminError> {
        parse(&self.buffer).ok_or(AdminError::invalid("buffer length", self.buffer.len() as u64))
    }

    /// Copies `bytes` to the start of the buffer as the response.
    ///
    /// # Errors
    /// EINVAL if the buffer is too short.
    pub fn reply(&mut self, bytes: &[u8]) -> Result<(), AdminError> {
        let len = self.buffer.len() as u64;
        let place = self.buffer.get_mut(..bytes.len()).ok_or(AdminError::invalid("buffer length", len))?;
        place.copy_from_slice(bytes);
        self.response_len = Some(bytes.len());
        Ok(())
    }

    /// Returns the part of the buffer that the response fills.
    pub(super) fn output(&self) -> &[u8] {
        self.response_len.and_then(|len| self.buffer.get(..len)).unwrap_or_default()
    }

    /// Completes a successful command: writes the buffer to guest memory and updates the descriptor.
    ///
    /// # Errors
    /// EIO if the buffer is not in mapped memory.
    pub(super) fn finish(&self, descriptor: &mut Descriptor, dma: &GuestMemory) -> Result<(), AdminError> {
        if let Some(len) = self.response_len {
            dma.write(descriptor.buffer(), self.output())
                .map_err(|error| unreachable_buffer(error.iova.get()))?;
            descriptor.buffer_len = u16::try_from(len).unwrap_or(descriptor.buffer_len);
        }
        let kept = if descriptor.flags.contains(Flags::BUFFER) { PARAMETERS_LEN / 2 } else { PARAMETERS_LEN };
        descriptor.parameters[..kept].copy_from_slice(&self.parameters[..kept]);
        Ok(())
    }
}

fn unreachable_buffer(address: u64) -> AdminError {
    AdminError::new(AdminStatus::Io, "buffer not in mapped memory at", address)
}
