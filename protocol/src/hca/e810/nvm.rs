//! The flash image: the words of the shadow RAM and of the areas it points to that drivers look at.
//!
//! # Spec
//! E810 interface, section 5.3.

/// Words of the shadow RAM, by their place in it.
pub mod word {
    /// Control word.
    pub const CONTROL: usize = 0x00;
    /// Version of the image.
    pub const VERSION: usize = 0x18;
    /// Identifier of the image, low half.
    pub const EETRACK_LOW: usize = 0x2d;
    /// Identifier of the image, high half.
    pub const EETRACK_HIGH: usize = 0x2e;
    /// Makes the words of the shadow RAM add up to [`CHECKSUM`](super::CHECKSUM).
    pub const CHECKSUM: usize = 0x3f;
    /// Where the area of preserved fields begins, in words.
    pub const PRESERVED_FIELDS: usize = 0x40;
    /// Where the banks of the image begin.
    pub const NVM_BANK: usize = 0x42;
    /// Size of one of them.
    pub const NVM_BANK_SIZE: usize = 0x43;
    /// Where the banks of the option ROM begin.
    pub const OPTION_ROM_BANK: usize = 0x44;
    /// Size of one of them.
    pub const OPTION_ROM_BANK_SIZE: usize = 0x45;
    /// Where the banks of the netlist begin.
    pub const NETLIST_BANK: usize = 0x46;
    /// Size of one of them.
    pub const NETLIST_BANK_SIZE: usize = 0x47;
}

/// Control word: the image is valid, and the first bank of every area holds.
pub const CONTROL_VALID: u16 = 0b01 << 6;
/// In a pointer: it counts sectors of [`SECTOR_LEN`] bytes instead of words.
pub const POINTER_IN_SECTORS: u16 = 1 << 15;
/// Sum of the words of a valid shadow RAM.
pub const CHECKSUM: u16 = 0xbaba;
/// Bytes of the shadow RAM.
pub const SHADOW_RAM_LEN: usize = 0x1_0000;
/// Unit of bank pointers and sizes, bytes.
pub const SECTOR_LEN: usize = 4096;

/// Type of the preserved field that holds the part number of the board.
pub const TLV_PART_NUMBER: u16 = 0x16;

/// Where the length of the signed header of a bank is: low word, high word.
pub const CSS_HEADER_LEN: [usize; 2] = [2, 3];
/// Bytes that follow the signed header, before the copy of the shadow RAM.
pub const AUTHENTICATION_WORDS: usize = 8;
/// The copy begins at a multiple of so many words.
pub const COPY_ALIGNMENT_WORDS: usize = 32;

/// Begins the version block of the option ROM, at a multiple of 512 bytes.
pub const OPTION_ROM_SIGNATURE: [u8; 4] = *b"$CIV";

/// First word of the netlist.
pub const NETLIST_TYPE: u16 = 0x011b;
/// Length that the netlist says it has, in its third word; at least 0x30.
pub const NETLIST_LEN: u16 = 0x34;
/// Word with the number of nodes.
pub const NETLIST_NODES: usize = 3;
/// Word of the identification block, behind two words for each node.
pub const NETLIST_ID: usize = 6;
/// Word of the version in the identification block: major, minor, type and revision, two words each.
pub const NETLIST_VERSION: usize = 2;

/// What a pointer to an area is that begins at `sector`.
pub const fn sector_pointer(sector: u16) -> u16 {
    POINTER_IN_SECTORS | sector
}
