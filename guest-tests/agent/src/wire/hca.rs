//! Steps about the HCA as a whole: bring-up, single commands, registers, contexts.

use serde::{Deserialize, Serialize};

use super::{DeviceSelector, Hex};

/// Bring the HCA up: open the function through vfio, lend memory, issue QUERY_ADAPTER, QUERY_DEV_LIM, INIT_HCA and
/// MAP_ICM. The function must be bound to vfio-pci.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct OpenHca {
    /// Which function.
    pub device: DeviceSelector,
    /// Where commands are issued.
    pub hcr: HcrBase,
    /// Sizes and places of the tables lent to the device.
    pub icm: IcmOptions,
    /// Memory mapped for the device, MiB; everything the device reaches lies inside. 0 means 48.
    pub arena_mib: u32,
    /// Back that memory with huge pages where the kernel has them: fewer and larger DMA mappings.
    pub huge_pages: bool,
    /// Stop before INIT_HCA: only raw commands and registers work then.
    pub without_init: bool,
}

/// The two places of the HCR.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HcrBase {
    /// BAR0 + 0h, where the public driver uses it.
    #[default]
    Zero,
    /// BAR0 + 80000h, where the interface document has it.
    Document,
}

/// Tables in ICM: log2 of their number of entries, and how their pages are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct IcmOptions {
    /// Queue pairs.
    pub log_qps: u8,
    /// Completion queues.
    pub log_cqs: u8,
    /// Event queues.
    pub log_eqs: u8,
    /// Memory regions.
    pub log_mpts: u8,
    /// Translation entries.
    pub log_mtts: u8,
    /// ICM virtual address of the first table; the others follow, largest first.
    pub base: u64,
    /// Lend pages in an order unlike that of their ICM addresses, in runs of different lengths.
    pub scattered: bool,
}

impl Default for IcmOptions {
    fn default() -> Self {
        Self { log_qps: 10, log_cqs: 10, log_eqs: 5, log_mpts: 12, log_mtts: 16, base: 0, scattered: true }
    }
}

/// Reset the function as its VMM does, and bring the HCA up again as it was opened. All objects are gone. Only where the
/// agent is the VMM.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct ResetHca {}

/// Answer of [`OpenHca`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HcaInfo {
    /// Address of the function.
    pub address: String,
    /// QUERY_ADAPTER's board id.
    pub board_id: u64,
    /// QUERY_DEV_LIM's outbox as the device wrote it.
    pub dev_lim: Hex,
    /// Length of BAR0 in bytes.
    pub bar0_size: u64,
    /// Length of BAR2 in bytes.
    pub bar2_size: u64,
    /// First bus address of the memory mapped for the device.
    pub arena_iova: u64,
    /// Bytes mapped.
    pub arena_size: u64,
    /// What mapping took, nanoseconds.
    pub map_ns: u64,
    /// ICM base of each table: QPC, CQC, EQC, MPT, MTT; zeros without INIT_HCA.
    pub icm_bases: [u64; 5],
}

/// Destroy every object, unmap ICM, CLOSE_HCA, and give the function back to vfio-pci.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct CloseHca {
    /// Issue no command: just let go, as a crashing program would.
    #[serde(default)]
    pub abrupt: bool,
}

/// One HCR command, valid or not. A status other than OK is an answer here, not a failure.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RawCommand {
    /// Opcode, 12 bits.
    pub op: u16,
    /// op_modifier, 8 bits.
    pub op_modifier: u8,
    /// in_modifier.
    pub in_modifier: u32,
    /// in_param.
    pub input: InParam,
    /// out_param.
    pub output: OutParam,
    /// Where; the place chosen at [`OpenHca`] without it.
    pub hcr: Option<HcrBase>,
    /// Ask for an event at the end, with this token.
    pub event: Option<u16>,
}

/// HCR commands one after the other, whatever each answers: one round trip between host and guest for all of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RawCommands {
    /// The commands, in order.
    pub commands: Vec<RawCommand>,
}

/// Answer of [`RawCommands`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandResults {
    /// Of each command.
    pub results: Vec<CommandResult>,
}

/// What in_param holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InParam {
    /// Zero.
    #[default]
    None,
    /// A value, which may be an address that is not mapped.
    Immediate(u64),
    /// The address of a mailbox with these bytes (at most 4096), followed by zeros.
    Mailbox(Hex),
}

/// What out_param holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OutParam {
    /// Zero.
    #[default]
    None,
    /// A value, which may be an address that is not mapped.
    Immediate(u64),
    /// The address of a mailbox filled with `a5`.
    Mailbox,
}

/// Answer of [`RawCommand`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandResult {
    /// Status code.
    pub status: u8,
    /// Word 18h of the HCR when go had become 0.
    pub word: u32,
    /// How often go was still 1.
    pub busy_polls: u32,
    /// The output mailbox up to the last byte that is not `a5` any more; empty without one.
    pub outbox: Hex,
}

/// Regions of registers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Region {
    /// BAR0: HCR, reset, MSI-X.
    #[default]
    Bar0,
    /// BAR2: UAR pages.
    Bar2,
    /// PCI configuration space.
    Config,
}

/// Width of one register access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MmioWidth {
    /// One byte.
    Byte,
    /// Two bytes.
    Half,
    /// Four bytes.
    #[default]
    Word,
    /// Eight bytes.
    Double,
}

impl MmioWidth {
    /// Number of bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Byte => 1,
            Self::Half => 2,
            Self::Word => 4,
            Self::Double => 8,
        }
    }
}

/// Read one register.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MmioRead {
    /// Region.
    pub region: Region,
    /// Byte offset in the region.
    pub offset: u64,
    /// Width.
    pub width: MmioWidth,
}

/// Answer of [`MmioRead`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MmioValue {
    /// The bytes as a little-endian number.
    pub value: u64,
}

/// Write one register.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MmioWrite {
    /// Region.
    pub region: Region,
    /// Byte offset in the region.
    pub offset: u64,
    /// Width.
    pub width: MmioWidth,
    /// The number written, little-endian; bytes beyond the width are dropped.
    pub value: u64,
}

/// Tables in ICM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ContextTable {
    /// Queue pair contexts, 256 bytes each.
    Qpc,
    /// Completion queue contexts, 64 bytes each.
    Cqc,
    /// Event queue contexts, 64 bytes each.
    Eqc,
    /// Memory regions, 64 bytes each.
    Mpt,
    /// Translation entries, 8 bytes each.
    Mtt,
}

/// Read one entry from the pages lent to the device, as the device left it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ReadContext {
    /// Table.
    pub table: ContextTable,
    /// Index of the entry; numbers are masked with the table's size.
    pub index: u32,
}

/// Answer of [`ReadContext`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContextBytes {
    /// The entry's bytes in memory order.
    pub bytes: Hex,
}
