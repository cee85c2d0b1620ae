//! The flash image: the shadow RAM and the areas it points to. Each area has two banks, the first of which is active.
//!
//! # Spec
//! E810 interface, section 5.3.

use protocol::hca::e810::nvm::{
    AUTHENTICATION_WORDS, CHECKSUM, CONTROL_VALID, COPY_ALIGNMENT_WORDS, CSS_HEADER_LEN, NETLIST_ID,
    NETLIST_LEN, NETLIST_NODES, NETLIST_TYPE, NETLIST_VERSION, OPTION_ROM_SIGNATURE, SECTOR_LEN,
    SHADOW_RAM_LEN, TLV_PART_NUMBER, sector_pointer, word,
};

/// Size of the image, in bytes. `ice` discovers the size by probing single bytes.
const LEN: usize = 32 * SECTOR_LEN;

/// An area outside the shadow RAM: its first sector and the number of sectors per bank.
type Area = (u16, u16);

const NVM_BANK: Area = (0x10, 2);
const OPTION_ROM_BANK: Area = (0x14, 1);
const NETLIST_BANK: Area = (0x16, 1);

/// Word offset of the preserved field area (PFA).
const PRESERVED_FIELDS: u16 = 0x400;
/// Part number of the board (PBA), two characters per word.
const PART_NUMBER: &[u8; 10] = b"HCADE8-100";

/// NVM version 4.40. The digits of the minor number are hexadecimal.
const NVM_VERSION: u16 = 0x4040;
const EETRACK: u32 = 0x8001_1234;
/// The device cannot wake a guest, so no function supports wake on LAN.
const NO_WAKE_ON_LAN: u16 = u16::MAX;
/// Length of the NVM bank's CSS header in dwords.
const CSS_HEADER: u16 = 0x30;
/// Byte offset of the version block (CIVD) in the option ROM bank. It must be a multiple of 512.
const OPTION_ROM_BLOCK: usize = 512;
/// Option ROM version 1.3000.0.
const OPTION_ROM_VERSION: u32 = 1 << 24 | 3000 << 8;
/// Length of the version block in bytes: signature, checksum, version, length and two names.
const OPTION_ROM_BLOCK_LEN: usize = 4 + 1 + 4 + 1 + 2 * 32;
/// Netlist version: major, minor, type, revision.
const NETLIST: [u16; 4] = [4, 4, 1, 1];

#[derive(Debug)]
pub struct Nvm {
    image: Vec<u8>,
}

impl Default for Nvm {
    fn default() -> Self {
        let mut nvm = Self { image: vec![0; LEN] };
        nvm.put_shadow_ram();
        nvm.put_bank();
        nvm.put_option_rom();
        nvm.put_netlist();
        nvm.put_word(0, word::CHECKSUM, CHECKSUM.wrapping_sub(nvm.checksum()));
        nvm
    }
}

impl Nvm {
    /// Returns `len` bytes at `offset`, or `None` if the range extends past the end of the image.
    pub fn get(&self, offset: u32, len: u16) -> Option<&[u8]> {
        let first = usize::try_from(offset).ok()?;
        self.image.get(first..first + usize::from(len))
    }

    /// Returns the sum of all words in the shadow RAM.
    pub fn checksum(&self) -> u16 {
        let (words, _) = self.image[..SHADOW_RAM_LEN].as_chunks::<2>();
        words.iter().fold(0, |sum: u16, word| sum.wrapping_add(u16::from_le_bytes(*word)))
    }

    fn put_shadow_ram(&mut self) {
        self.put_word(0, word::CONTROL, CONTROL_VALID);
        self.put_word(0, word::WAKE_ON_LAN, NO_WAKE_ON_LAN);
        self.put_versions(0);
        let areas = [
            (word::NVM_BANK, word::NVM_BANK_SIZE, NVM_BANK),
            (word::OPTION_ROM_BANK, word::OPTION_ROM_BANK_SIZE, OPTION_ROM_BANK),
            (word::NETLIST_BANK, word::NETLIST_BANK_SIZE, NETLIST_BANK),
        ];
        for (pointer, size, (first, sectors)) in areas {
            self.put_word(0, pointer, sector_pointer(first));
            self.put_word(0, size, sectors);
        }
        self.put_word(0, word::PRESERVED_FIELDS, PRESERVED_FIELDS);
        self.put_preserved_fields();
    }

    /// Writes the preserved field area. Its only field is the part number, whose value starts with its length in words,
    /// including the length word itself.
    fn put_preserved_fields(&mut self) {
        let (characters, _) = PART_NUMBER.as_chunks::<2>();
        let part_number = characters.iter().map(|pair| u16::from_be_bytes(*pair));
        let words = len_u16(characters.len()) + 1;
        let field = [TLV_PART_NUMBER, words, words].into_iter().chain(part_number);
        let field: Vec<u16> = field.collect();
        // The total length includes the length word itself and a trailer word.
        let all = std::iter::once(len_u16(field.len()) + 2).chain(field);
        for (at, value) in all.enumerate() {
            self.put_word(0, usize::from(PRESERVED_FIELDS) + at, value);
        }
    }

    /// Writes the NVM banks. In each bank's CSS header, only the header length is set. The first bank's header is
    /// followed by a copy of the shadow RAM in which only the versions are set.
    fn put_bank(&mut self) {
        let (first, sectors) = NVM_BANK;
        let copy =
            (2 * usize::from(CSS_HEADER) + AUTHENTICATION_WORDS).next_multiple_of(COPY_ALIGNMENT_WORDS);
        for bank in [first, first + sectors] {
            let base = usize::from(bank) * SECTOR_LEN;
            self.put_word(base, CSS_HEADER_LEN[0], CSS_HEADER);
            self.put_word(base, CSS_HEADER_LEN[1], 0);
        }
        self.put_versions(usize::from(first) * SECTOR_LEN + 2 * copy);
    }

    fn put_versions(&mut self, base: usize) {
        let [a, b, c, d] = EETRACK.to_le_bytes();
        self.put_word(base, word::VERSION, NVM_VERSION);
        self.put_word(base, word::EETRACK_LOW, u16::from_le_bytes([a, b]));
        self.put_word(base, word::EETRACK_HIGH, u16::from_le_bytes([c, d]));
    }

    fn put_option_rom(&mut self) {
        let mut block = [0; OPTION_ROM_BLOCK_LEN];
        block[..4].copy_from_slice(&OPTION_ROM_SIGNATURE);
        block[5..9].copy_from_slice(&OPTION_ROM_VERSION.to_le_bytes());
        // The bytes of the block must sum to 0.
        block[4] = block.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
        let at = usize::from(OPTION_ROM_BANK.0) * SECTOR_LEN + OPTION_ROM_BLOCK;
        self.image[at..at + OPTION_ROM_BLOCK_LEN].copy_from_slice(&block);
    }

    fn put_netlist(&mut self) {
        let base = usize::from(NETLIST_BANK.0) * SECTOR_LEN;
        self.put_word(base, 0, NETLIST_TYPE);
        self.put_word(base, 2, NETLIST_LEN);
        self.put_word(base, NETLIST_NODES, 0);
        for (at, part) in NETLIST.into_iter().enumerate() {
            // Each part occupies two words, low half first. Only the high half is set.
            self.put_word(base, NETLIST_ID + NETLIST_VERSION + 2 * at + 1, part);
        }
    }

    fn put_word(&mut self, base: usize, word: usize, value: u16) {
        let at = base + 2 * word;
        self.image[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
}

/// Returns the length of constant data, which always fits in 16 bits.
fn len_u16(len: usize) -> u16 {
    u16::try_from(len).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flash reads recorded in `probe-synth-fd.aq.gz`, as (offset, word) pairs.
    const RECORDED: [(u32, u16); 19] = [
        (0x00, 0x0040),
        (0x84, 0x8010),
        (0x86, 2),
        (0x88, 0x8014),
        (0x8a, 1),
        (0x8c, 0x8016),
        (0x8e, 1),
        (0x1_0004, 0x30),
        (0x1_0006, 0),
        (0x1_2004, 0x30),
        (0x1_2006, 0),
        (0x1_0130, 0x4040),
        (0x1_015a, 0x1234),
        (0x1_015c, 0x8001),
        (0x1_6000, 0x011b),
        (0x1_6004, 0x34),
        (0x1_6006, 0),
        (0x80, 0x400),
        (0x800, 0x0a),
    ];

    #[test]
    fn flash_reads_match_recording() {
        let nvm = Nvm::default();
        for (offset, word) in RECORDED {
            assert_eq!(nvm.get(offset, 2), Some(&word.to_le_bytes()[..]), "{offset:#x}");
        }
        let field = [0x16, 0, 6, 0, 6, 0, b'C', b'H', b'D', b'A', b'8', b'E', b'1', b'-', b'0', b'0'];
        assert_eq!(nvm.get(0x802, 16), Some(&field[..]));
        let netlist = [0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 1, 0];
        assert_eq!(nvm.get(0x1_600c, 20), Some(&netlist[..]));
    }

    #[test]
    fn no_function_supports_wake_on_lan() {
        let nvm = Nvm::default();
        assert_eq!(nvm.get(0x32, 2), Some(&[0xff; 2][..]));
        assert_eq!(nvm.checksum(), 0xbaba);
    }

    #[test]
    fn image_has_recorded_length() {
        let nvm = Nvm::default();
        assert_eq!(nvm.get(0x1_ffff, 1), Some(&[0][..]));
        assert_eq!(nvm.get(0x2_0000, 1), None);
        assert_eq!(nvm.get(0x1_ffff, 2), None);
        assert_eq!(nvm.get(0xff_ffff, u16::MAX), None);
    }

    #[test]
    fn option_rom_block_sums_to_zero() {
        let nvm = Nvm::default();
        let bank = nvm.get(0x1_4000, 4096).unwrap();
        let at = bank.chunks(512).position(|block| block.starts_with(b"$CIV")).unwrap() * 512;
        let block = &bank[at..at + 74];
        assert_eq!(block.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)), 0);
        assert_eq!(block[5..9], [0x00, 0xb8, 0x0b, 0x01]);
    }
}
