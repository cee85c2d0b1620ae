//! Receive side scaling: which queue of a VSI takes a frame.
//!
//! The hash is over the words that the driver programs ([`profiles`]). Where it programs none, it is over source and
//! destination address of every IP packet, and over the ports too of TCP, UDP and SCTP, unless it is a fragment, which is
//! also what drivers program by default.
//!
//! # Spec
//! E810 interface, sections 5.9, 6.3 and 8.5.

pub(super) mod profiles;

use protocol::hca::e810::admin::AdminError;
use protocol::hca::e810::admin::rss::{KEY_LEN, KeyParameters, TableParameters};
use protocol::hca::e810::admin::vsi::{HashKind, TableKind};
use protocol::hca::e810::packet_type::PacketType;
use protocol::net::layers::Layers;
use protocol::net::toeplitz::{self, Key};

use super::buffer::Buffer;
use super::vsi::{Vsi, VsiNumber, Vsis};

/// Entries of the function's table, which capability 0040 says.
const FUNCTION_ENTRIES: usize = 2048;
/// Entries of a VSI's table.
const VSI_ENTRIES: usize = 64;

/// Key and table of a VSI.
#[derive(Clone, Debug)]
pub(super) struct VsiRss {
    key: Option<Key>,
    table: [u8; VSI_ENTRIES],
}

impl Default for VsiRss {
    fn default() -> Self {
        Self { key: None, table: [0; VSI_ENTRIES] }
    }
}

impl VsiRss {
    /// Whether there is a key to hash flows by.
    pub(super) const fn has_key(&self) -> bool {
        self.key.is_some()
    }
}

/// Table of the function, which its VSIs can share: queues by the low bits of a hash. Software chooses its length each time
/// it sets the table. Linux's driver takes the longest, DPDK's 512 entries.
#[derive(Clone, Debug)]
pub(super) struct FunctionTable {
    entries: Box<[u8; FUNCTION_ENTRIES]>,
    /// A power of two.
    len: usize,
}

impl Default for FunctionTable {
    fn default() -> Self {
        Self { entries: Box::new([0; FUNCTION_ENTRIES]), len: FUNCTION_ENTRIES }
    }
}

/// Where a received frame goes within its VSI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steering {
    /// Hash of its flow, if there is a key and the frame is IP.
    pub(super) hash: Option<u32>,
    /// Receive queue of the device.
    pub(super) queue: u16,
}

impl Vsis {
    /// Where a frame goes that this VSI takes.
    pub(super) fn steer(&self, number: VsiNumber, vsi: &Vsi, layers: &Layers) -> Steering {
        let hash = vsi.rss.key.as_ref().zip(layers.ip).map(|(key, ip)| {
            let ip = match vsi.options.hash {
                HashKind::SymmetricToeplitz => toeplitz::symmetric(&ip),
                // Drivers ask for no other kinds.
                HashKind::Toeplitz | HashKind::Xor | HashKind::Jenkins => ip,
            };
            match self.profiles.fields(number, PacketType::of(layers)) {
                Some(fields) => key.hash_words(fields.words(&ip)),
                // Fragments are without ports.
                None => key.hash(&ip, ip.transport.ports()),
            }
        });
        let [low, high, ..] = hash.unwrap_or(0).to_le_bytes();
        let low_bits = usize::from(u16::from_le_bytes([low, high]));
        let index = match vsi.options.table {
            TableKind::Vsi => vsi.rss.table[low_bits % VSI_ENTRIES],
            TableKind::Function => self.function_table.entries[low_bits % self.function_table.len],
            // No command sets one.
            TableKind::Global | TableKind::Reserved => 0,
        };
        Steering { hash, queue: vsi.queues.receive_queue(index.into()) }
    }

    /// "Set RSS key".
    ///
    /// # Errors
    /// ENOENT for an unknown VSI; EINVAL for a buffer that is too short.
    pub(super) fn set_key(&mut self, parameters: &KeyParameters, buffer: &[u8]) -> Result<(), AdminError> {
        let vsi = self.scaled(parameters.vsi, parameters.vsi_valid)?;
        let Some(written) = buffer.first_chunk() else {
            return Err(AdminError::invalid("RSS key length", buffer.len() as u64));
        };
        vsi.rss.key = Some(Key::new(*written));
        Ok(())
    }

    /// "Get RSS key"; gives the bytes written. A key that was never set is zero.
    ///
    /// # Errors
    /// ENOENT for an unknown VSI; EINVAL for a buffer that is too short.
    pub(super) fn get_key(
        &mut self,
        parameters: &KeyParameters,
        buffer: &mut [u8],
    ) -> Result<usize, AdminError> {
        let vsi = self.scaled(parameters.vsi, parameters.vsi_valid)?;
        *Buffer::new(buffer).next()? = vsi.rss.key.as_ref().map_or([0; KEY_LEN], Key::bytes);
        Ok(KEY_LEN)
    }

    /// "Set RSS table".
    ///
    /// # Errors
    /// ENOENT for an unknown VSI; EINVAL for an unknown table or length, or a buffer that is too short.
    pub(super) fn set_table(
        &mut self,
        parameters: &TableParameters,
        buffer: &[u8],
    ) -> Result<(), AdminError> {
        let table = self.table(parameters)?;
        let Some(entries) = buffer.get(..table.len()) else {
            return Err(AdminError::invalid("RSS table length", buffer.len() as u64));
        };
        table.copy_from_slice(entries);
        if let TableKind::Function = parameters.table() {
            self.function_table.len = entries.len();
        }
        Ok(())
    }

    /// "Get RSS table"; gives the bytes written.
    ///
    /// # Errors
    /// As for [`Vsis::set_table`], and EINVAL for a length that differs from the function table's.
    pub(super) fn get_table(
        &mut self,
        parameters: &TableParameters,
        buffer: &mut [u8],
    ) -> Result<usize, AdminError> {
        let set = self.function_table.len;
        let table = self.table(parameters)?;
        if parameters.table() == TableKind::Function && table.len() != set {
            return Err(AdminError::invalid("RSS table size", parameters.size.into()));
        }
        let len = buffer.len();
        let Some(entries) = buffer.get_mut(..table.len()) else {
            return Err(AdminError::invalid("RSS table length", len as u64));
        };
        entries.copy_from_slice(table);
        Ok(table.len())
    }

    /// The table that a command names, in the length that the command names.
    fn table(&mut self, parameters: &TableParameters) -> Result<&mut [u8], AdminError> {
        self.scaled(parameters.vsi, parameters.vsi_valid)?;
        match parameters.table() {
            TableKind::Vsi => Ok(&mut self.scaled(parameters.vsi, parameters.vsi_valid)?.rss.table),
            TableKind::Function => parameters
                .function_entries()
                .and_then(|len| self.function_table.entries.get_mut(..len))
                .ok_or(AdminError::invalid("RSS table size", parameters.size.into())),
            TableKind::Global | TableKind::Reserved => {
                Err(AdminError::invalid("RSS table type", parameters.kind.into()))
            }
        }
    }

    fn scaled(&mut self, vsi: u16, valid: bool) -> Result<&mut Vsi, AdminError> {
        let found = self.get_mut(VsiNumber::new(vsi)).filter(|_| valid);
        found.ok_or(AdminError::no_entry("VSI", vsi.into()))
    }
}

#[cfg(test)]
mod tests;
