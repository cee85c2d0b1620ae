//! Flash image: the words that drivers read from the shadow RAM, and the areas that those words point to.
//!
//! # Spec
//! E810 interface, section 5.3.

/// Shadow RAM words, by word index.
pub mod word {
    /// Control word of the image.
    pub const CONTROL: usize = 0x00;
    /// Version of the NVM image.
    pub const VERSION: usize = 0x18;
    /// Wake on LAN: a bit is set for each function that does not support it.
    pub const WAKE_ON_LAN: usize = 0x19;
    /// Low half of the image's EETRACK identifier.
    pub const EETRACK_LOW: usize = 0x2d;
    /// High half of the image's EETRACK identifier.
    pub const EETRACK_HIGH: usize = 0x2e;
    /// Checksum word. All words of the shadow RAM add up to [`CHECKSUM`](super::CHECKSUM).
    pub const CHECKSUM: usize = 0x3f;
    /// Pointer to the preserved field area, in words.
    pub const PRESERVED_FIELDS: usize = 0x40;
    /// Pointer to the NVM banks.
    pub const NVM_BANK: usize = 0x42;
    /// Size of an NVM bank.
    pub const NVM_BANK_SIZE: usize = 0x43;
    /// Pointer to the option ROM banks.
    pub const OPTION_ROM_BANK: usize = 0x44;
    /// Size of an option ROM bank.
    pub const OPTION_ROM_BANK_SIZE: usize = 0x45;
    /// Pointer to the netlist banks.
    pub const NETLIST_BANK: usize = 0x46;
    /// Size of a netlist bank.
    pub const NETLIST_BANK_SIZE: usize = 0x47;
}

/// Control word: the image is valid, and the first bank of each area is active.
pub const CONTROL_VALID: u16 = 0b01 << 6;
/// Pointer flag: the unit of the pointer is a sector of [`SECTOR_LEN`] bytes rather than a word.
pub const POINTER_IN_SECTORS: u16 = 1 << 15;
/// Sum of all words of a valid shadow RAM.
pub const CHECKSUM: u16 = 0xbaba;
/// Length of the shadow RAM in bytes.
pub const SHADOW_RAM_LEN: usize = 0x1_0000;
/// Length of a sector in bytes. Bank pointers and sizes are in sectors.
pub const SECTOR_LEN: usize = 4096;

/// Type of the preserved field that contains the board's part number.
pub const TLV_PART_NUMBER: u16 = 0x16;

/// Indices of the words that contain the length of a bank's CSS header, low word first.
pub const CSS_HEADER_LEN: [usize; 2] = [2, 3];
/// Number of words between the CSS header and the shadow RAM copy.
pub const AUTHENTICATION_WORDS: usize = 8;
/// Alignment of the shadow RAM copy, in words.
pub const COPY_ALIGNMENT_WORDS: usize = 32;

/// Signature of the option ROM's version block, which is aligned to 512 bytes.
pub const OPTION_ROM_SIGNATURE: [u8; 4] = *b"$CIV";

/// Type code in the first word of the netlist.
pub const NETLIST_TYPE: u16 = 0x011b;
/// Length reported in the netlist's third word. It must be at least 0x30.
pub const NETLIST_LEN: u16 = 0x34;
/// Index of the word that contains the node count.
pub const NETLIST_NODES: usize = 3;
/// Index of the identification block's first word in a netlist without nodes. Each node increases the index by two.
pub const NETLIST_ID: usize = 6;
/// Word offset of the version within the identification block. The version consists of major, minor, type and revision,
/// two words each.
pub const NETLIST_VERSION: usize = 2;

/// Returns a pointer to an area that begins at `sector`.
pub const fn sector_pointer(sector: u16) -> u16 {
    POINTER_IN_SECTORS | sector
}
