//! A command as its handler sees it: typed parameters, a copy of the buffer, and the answer in the same places.

use protocol::hca::e810::admin::descriptor::{BUFFER_LEN, Flags};
use protocol::hca::e810::admin::{AdminError, AdminStatus, Descriptor, PARAMETERS_LEN};

use crate::memory::GuestMemory;

/// A command from the time it was read until it is answered.
#[derive(Debug)]
pub struct Command {
    parameters: [u8; PARAMETERS_LEN],
    buffer: Vec<u8>,
    /// Bytes of the buffer that the driver gets.
    answered: Option<usize>,
}

impl Command {
    /// Reads a command's buffer, if it has one for the device to read.
    ///
    /// # Errors
    /// EINVAL for a buffer that is longer than those of the interface, EIO for one that cannot be read.
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
        Ok(Self { parameters: descriptor.parameters, buffer, answered: None })
    }

    /// A command that did not come through a ring.
    #[cfg(test)]
    pub(in crate::frontend::e810) const fn of(parameters: [u8; PARAMETERS_LEN], buffer: Vec<u8>) -> Self {
        Self { parameters, buffer, answered: None }
    }

    /// Parameters of a command, of whatever type the command has.
    pub fn parameters<T>(&self, parse: fn(&[u8; PARAMETERS_LEN]) -> T) -> T {
        parse(&self.parameters)
    }

    /// Answers with parameters. Of a command with a buffer only the first eight bytes count.
    pub fn answer(&mut self, parameters: [u8; PARAMETERS_LEN]) {
        self.parameters = parameters;
    }

    /// The buffer: what the driver wrote, or zeros.
    pub fn buffer(&self) -> &[u8] {
        &self.buffer
    }

    /// The buffer, all of which the driver gets back.
    pub fn buffer_mut(&mut self) -> &mut [u8] {
        self.answered = Some(self.buffer.len());
        &mut self.buffer
    }

    /// Lets `fill` write the buffer; the driver gets as many bytes of it as that says.
    ///
    /// # Errors
    /// Those of `fill`.
    pub fn fill(
        &mut self,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, AdminError>,
    ) -> Result<(), AdminError> {
        self.answered = Some(fill(&mut self.buffer)?.min(self.buffer.len()));
        Ok(())
    }

    /// The buffer begins with an object.
    ///
    /// # Errors
    /// EINVAL: it is too short.
    pub fn object<T>(&self, parse: fn(&[u8]) -> Option<T>) -> Result<T, AdminError> {
        parse(&self.buffer).ok_or(AdminError::invalid("buffer length", self.buffer.len() as u64))
    }

    /// Answers with these bytes in the buffer.
    ///
    /// # Errors
    /// EINVAL: the driver's buffer has no room for them.
    pub fn reply(&mut self, bytes: &[u8]) -> Result<(), AdminError> {
        let len = self.buffer.len() as u64;
        let place = self.buffer.get_mut(..bytes.len()).ok_or(AdminError::invalid("buffer length", len))?;
        place.copy_from_slice(bytes);
        self.answered = Some(bytes.len());
        Ok(())
    }

    /// What the driver gets in its buffer.
    pub(super) fn output(&self) -> &[u8] {
        self.answered.and_then(|len| self.buffer.get(..len)).unwrap_or_default()
    }

    /// Makes the completion of a command that succeeded, and writes the buffer.
    ///
    /// # Errors
    /// EIO: the buffer cannot be written.
    pub(super) fn finish(&self, descriptor: &mut Descriptor, dma: &GuestMemory) -> Result<(), AdminError> {
        if let Some(len) = self.answered {
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
