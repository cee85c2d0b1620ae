//! Steps for the HCA: bring-up, single commands, registers and contexts.

use serde::{Deserialize, Serialize};

use super::{DeviceSelector, Hex};

/// Initialises the HCA, which must be bound to vfio-pci. Opens the function through vfio, maps memory, and issues
/// QUERY_ADAPTER, QUERY_DEV_LIM, INIT_HCA and MAP_ICM.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenHca {
    pub device: DeviceSelector,
    /// Location of the command register.
    pub hcr: HcrBase,
    /// Sizes and addresses of the tables in ICM.
    pub icm: IcmOptions,
    /// Amount of memory mapped for the device, in MiB. All DMA goes to this memory. 0 selects the default of 48 MiB.
    pub arena_mib: u32,
    /// Whether to back the memory with huge pages if the kernel has any. The DMA mappings are then fewer but larger.
    pub huge_pages: bool,
    /// Whether to stop before INIT_HCA. In that state, only raw commands and register accesses work.
    pub without_init: bool,
}

/// The two locations of the command register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HcrBase {
    /// BAR0 + 0h, which the public driver (`ib_hgrnic`) uses.
    #[default]
    Zero,
    /// BAR0 + 80000h, which the interface document specifies.
    Document,
}

/// Sizes of the tables in ICM and the mapping of their pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IcmOptions {
    /// Log2 of the number of queue pairs.
    pub log_qps: u8,
    /// Log2 of the number of completion queues.
    pub log_cqs: u8,
    /// Log2 of the number of event queues.
    pub log_eqs: u8,
    /// Log2 of the number of memory regions.
    pub log_mpts: u8,
    /// Log2 of the number of translation entries.
    pub log_mtts: u8,
    /// ICM virtual address of the first table. The other tables follow in order of descending size.
    pub base: u64,
    /// Whether the tables' pages are mapped out of order, in runs of different lengths.
    pub scattered: bool,
}

impl Default for IcmOptions {
    fn default() -> Self {
        Self { log_qps: 10, log_cqs: 10, log_eqs: 5, log_mpts: 12, log_mtts: 16, base: 0, scattered: true }
    }
}

/// Resets the function as a VMM would, and initialises the HCA again. The reset destroys all objects. This step is
/// available only if the agent is the VMM.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ResetHca {}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HcaInfo {
    pub address: String,
    /// Board ID that QUERY_ADAPTER returned.
    pub board_id: u64,
    /// Output mailbox of QUERY_DEV_LIM.
    pub dev_lim: Hex,
    /// Length of BAR0 in bytes.
    pub bar0_size: u64,
    /// Length of BAR2 in bytes.
    pub bar2_size: u64,
    /// First bus address of the memory mapped for the device.
    pub arena_iova: u64,
    pub arena_size: u64,
    /// Time taken to map the memory, in nanoseconds.
    pub map_ns: u64,
    /// ICM base of each table (QPC, CQC, EQC, MPT, MTT), or zeros if INIT_HCA was not issued.
    pub icm_bases: [u64; 5],
}

/// Destroys all objects, unmaps ICM, issues CLOSE_HCA, and closes the function.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CloseHca {
    /// Whether to close the function without issuing any command, as a crashing program would.
    #[serde(default)]
    pub abrupt: bool,
}

/// Issues one HCR command, which may be invalid. A status other than OK does not fail the step.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RawCommand {
    /// Opcode of the command (12 bits).
    pub op: u16,
    /// Opcode modifier of the command (8 bits).
    pub op_modifier: u8,
    pub in_modifier: u32,
    pub input: InParam,
    pub output: OutParam,
    /// Location of the command register. `None` means the location given in [`OpenHca`].
    pub hcr: Option<HcrBase>,
    /// Token of the completion event, if one is requested.
    pub event: Option<u16>,
}

/// Issues HCR commands in sequence, regardless of their results, in one round trip between host and guest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RawCommands {
    pub commands: Vec<RawCommand>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandResults {
    /// Result of each command, in order.
    pub results: Vec<CommandResult>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InParam {
    #[default]
    None,
    /// An immediate value, which may be an unmapped address.
    Immediate(u64),
    /// The address of a mailbox with these bytes (at most 4096), padded with zeros.
    Mailbox(Hex),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutParam {
    #[default]
    None,
    /// An immediate value, which may be an unmapped address.
    Immediate(u64),
    /// The address of a mailbox that is filled with `a5` before the command.
    Mailbox,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandResult {
    pub status: u8,
    /// Word 18h of the HCR, as read when the go bit was clear.
    pub word: u32,
    /// Number of polls that found the go bit set.
    pub busy_polls: u32,
    /// The output mailbox up to the last byte that is no longer `a5`. Empty if the command had no output mailbox.
    pub outbox: Hex,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Region {
    /// BAR0, with the HCR, the reset register and MSI-X.
    #[default]
    Bar0,
    Bar2,
    Config,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MmioWidth {
    Byte,
    Half,
    #[default]
    Word,
    Double,
}

impl MmioWidth {
    pub const fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Half => 2,
            Self::Word => 4,
            Self::Double => 8,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MmioRead {
    pub region: Region,
    /// Byte offset in the region.
    pub offset: u64,
    pub width: MmioWidth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MmioValue {
    /// Value of the register as a little-endian number.
    pub value: u64,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MmioWrite {
    pub region: Region,
    /// Byte offset in the region.
    pub offset: u64,
    pub width: MmioWidth,
    /// The number to write, little-endian and truncated to the width.
    pub value: u64,
}

/// Tables that the device keeps in ICM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextTable {
    /// Queue pair contexts, 256 bytes each.
    Qpc,
    /// Completion queue contexts, 64 bytes each.
    Cqc,
    /// Event queue contexts, 64 bytes each.
    Eqc,
    /// Memory region entries, 64 bytes each.
    Mpt,
    /// Translation entries, 8 bytes each.
    Mtt,
}

/// Reads one entry from the pages mapped with MAP_ICM, as the device last wrote it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ReadContext {
    pub table: ContextTable,
    /// Index of the entry, masked to the size of the table.
    pub index: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextBytes {
    /// The entry's bytes, in memory order.
    pub bytes: Hex,
}
