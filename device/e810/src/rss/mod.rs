//! Receive side scaling (RSS): selects a frame's receive queue within a VSI.
//!
//! The driver can program the hash input ([`profiles`]). Without a matching profile, the input consists of the source
//! and destination IP addresses and, for unfragmented TCP, UDP and SCTP packets, the ports. Drivers program the same
//! input by default.
//!
//! # Spec
//! E810 interface, sections 5.9, 6.3 and 8.5.

pub(super) mod profiles;

use card::nic::flow_hash::{self, Input};
use protocol::hca::e810::admin::AdminError;
use protocol::hca::e810::admin::rss::{KEY_LEN, KeyParameters, TableParameters};
use protocol::hca::e810::admin::vsi::{HashKind, TableKind};
use protocol::hca::e810::packet_type::PacketType;
use protocol::net::layers::Layers;
use protocol::net::toeplitz::Key;

use super::buffer::Buffer;
use super::limits::{RSS_FUNCTION_ENTRIES, RSS_VSI_ENTRIES};
use super::vsi::{Vsi, VsiNumber, Vsis};

/// Number of entries in the function's lookup table, as reported in capability 0040.
const FUNCTION_ENTRIES: usize = RSS_FUNCTION_ENTRIES as usize;

#[derive(Clone, Debug)]
pub(super) struct VsiRss {
    key: Option<Key>,
    table: [u8; RSS_VSI_ENTRIES],
}

impl Default for VsiRss {
    fn default() -> Self {
        Self { key: None, table: [0; RSS_VSI_ENTRIES] }
    }
}

impl VsiRss {
    /// Returns whether a key was set. Without a key, no frame is hashed.
    pub(super) const fn has_key(&self) -> bool {
        self.key.is_some()
    }
}

/// Lookup table that the function's VSIs can share. It is indexed by the low bits of the hash. Each write sets the
/// table size: Linux uses the maximum, and DPDK uses 512 entries.
#[derive(Clone, Debug)]
pub(super) struct FunctionTable {
    entries: Box<[u8; FUNCTION_ENTRIES]>,
    /// Number of entries in use, a power of two.
    len: usize,
}

impl Default for FunctionTable {
    fn default() -> Self {
        Self { entries: Box::new([0; FUNCTION_ENTRIES]), len: FUNCTION_ENTRIES }
    }
}

/// Receive queue selected for a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Steering {
    /// Flow hash; `None` if no key is set or the frame contains no IP packet.
    pub(super) hash: Option<u32>,
    /// Receive queue, numbered device-wide.
    pub(super) queue: u16,
}

impl Vsis {
    /// Selects the receive queue for a frame within a VSI.
    pub(super) fn steer(&self, number: VsiNumber, vsi: &Vsi, layers: &Layers) -> Steering {
        let hash = vsi.rss.key.as_ref().zip(layers.ip).map(|(key, ip)| {
            let symmetric = match vsi.options.hash {
                HashKind::SymmetricToeplitz => true,
                // The XOR and Jenkins hashes are not implemented, since drivers do not use them. The device uses
                // Toeplitz instead.
                HashKind::Toeplitz | HashKind::Xor | HashKind::Jenkins => false,
            };
            let fields = self.profiles.fields(number, PacketType::of(layers));
            let input = fields.map_or(Input::Flow, |fields| Input::Fields(fields.get()));
            flow_hash::hash(key, symmetric, &ip, input)
        });
        let [low, high, ..] = hash.unwrap_or(0).to_le_bytes();
        let low_bits = usize::from(u16::from_le_bytes([low, high]));
        let index = match vsi.options.table {
            TableKind::Vsi => vsi.rss.table[low_bits % RSS_VSI_ENTRIES],
            TableKind::Function => self.function_table.entries[low_bits % self.function_table.len],
            // No command sets these tables, so their entries are 0.
            TableKind::Global | TableKind::Reserved => 0,
        };
        Steering { hash, queue: vsi.queues.receive_queue(index.into()) }
    }

    /// Executes "Set RSS key".
    ///
    /// # Errors
    /// ENOENT for an unknown VSI; EINVAL for a short buffer.
    pub(super) fn set_key(&mut self, parameters: &KeyParameters, buffer: &[u8]) -> Result<(), AdminError> {
        let vsi = self.vsi_mut(parameters.vsi, parameters.vsi_valid)?;
        let Some(written) = buffer.first_chunk() else {
            return Err(AdminError::invalid("RSS key length", buffer.len() as u64));
        };
        vsi.rss.key = Some(Key::new(*written));
        Ok(())
    }

    /// Executes "Get RSS key". Returns the number of bytes written. A key that was never set reads as zero.
    ///
    /// # Errors
    /// ENOENT for an unknown VSI; EINVAL for a short buffer.
    pub(super) fn get_key(
        &mut self,
        parameters: &KeyParameters,
        buffer: &mut [u8],
    ) -> Result<usize, AdminError> {
        let vsi = self.vsi_mut(parameters.vsi, parameters.vsi_valid)?;
        *Buffer::new(buffer).next()? = vsi.rss.key.as_ref().map_or([0; KEY_LEN], Key::bytes);
        Ok(KEY_LEN)
    }

    /// Executes "Set RSS LUT".
    ///
    /// # Errors
    /// ENOENT for an unknown VSI; EINVAL for an unknown table type or size, or a short buffer.
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

    /// Executes "Get RSS LUT". Returns the number of bytes written.
    ///
    /// # Errors
    /// The same as for [`Vsis::set_table`]; also EINVAL if the command selects the function's table but specifies a
    /// size other than the current one.
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

    /// Returns the table selected by a command. The size in the command applies only to the function's table.
    fn table(&mut self, parameters: &TableParameters) -> Result<&mut [u8], AdminError> {
        self.vsi_mut(parameters.vsi, parameters.vsi_valid)?;
        match parameters.table() {
            TableKind::Vsi => Ok(&mut self.vsi_mut(parameters.vsi, parameters.vsi_valid)?.rss.table),
            TableKind::Function => parameters
                .function_entries()
                .and_then(|len| self.function_table.entries.get_mut(..len))
                .ok_or(AdminError::invalid("RSS table size", parameters.size.into())),
            TableKind::Global | TableKind::Reserved => {
                Err(AdminError::invalid("RSS table type", parameters.kind.into()))
            }
        }
    }

    fn vsi_mut(&mut self, vsi: u16, valid: bool) -> Result<&mut Vsi, AdminError> {
        let found = self.get_mut(VsiNumber::new(vsi)).filter(|_| valid);
        found.ok_or(AdminError::no_entry("VSI", vsi.into()))
    }
}

#[cfg(test)]
mod tests;
