//! Finds registers in blocks of 32-bit words, and splits guest accesses into words.

/// A block of adjacent registers, as a tuple of offset, length in bytes, and first register.
pub type Block<R> = (u32, u32, R);

/// Returns whether the blocks are in ascending order and do not overlap.
pub const fn in_order<R>(map: &[Block<R>]) -> bool {
    let mut i = 1;
    while i < map.len() {
        if map[i - 1].0 + map[i - 1].1 > map[i].0 {
            return false;
        }
        i += 1;
    }
    true
}

/// Finds the block that contains the word at `offset`. Returns the block's first register and the offset within the
/// block.
pub fn find<R: Copy>(map: &[Block<R>], offset: u64) -> Option<(R, u32)> {
    let offset = u32::try_from(offset).ok().filter(|offset| offset.is_multiple_of(4))?;
    let (start, _, first) = map.iter().find(|(start, len, _)| (*start..start + len).contains(&offset))?;
    Some((*first, offset - start))
}

/// Returns whether a write consists of one or two aligned words. The device ignores all other writes.
pub const fn is_word_write(offset: u64, data: &[u8]) -> bool {
    offset.is_multiple_of(4) && matches!(data.len(), 4 | 8)
}

/// Splits a write into words and yields each of them with its offset, in ascending order. Yields nothing if the device
/// ignores the write; see [`is_word_write`].
pub fn writes(offset: u64, data: &[u8]) -> impl Iterator<Item = (u64, [u8; 4])> {
    let words = if is_word_write(offset, data) { data } else { &[] };
    let (words, _) = words.as_chunks::<4>();
    (offset..).step_by(4).zip(words).map(|(offset, word)| (offset, *word))
}

/// Performs a read of any width and alignment. Calls `word` with the offset of each word covered by the read, in
/// ascending order.
pub fn read(offset: u64, out: &mut [u8], mut word: impl FnMut(u64) -> [u8; 4]) {
    let mut at = offset;
    let mut rest = out;
    while !rest.is_empty() {
        let start = at & !3;
        let bytes = word(start);
        let skip = (at & 3) as usize;
        let (now, later) = rest.split_at_mut(rest.len().min(4 - skip));
        now.copy_from_slice(&bytes[skip..skip + now.len()]);
        rest = later;
        at = start.wrapping_add(4);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_aligned_word_writes_yield_words() {
        let eight: Vec<_> = writes(0x10, &[1, 2, 3, 4, 5, 6, 7, 8]).collect();
        assert_eq!(eight, [(0x10, [1, 2, 3, 4]), (0x14, [5, 6, 7, 8])]);
        assert_eq!(writes(0x18, &[0, 0, 0x80, 0]).collect::<Vec<_>>(), [(0x18, [0, 0, 0x80, 0])]);
        assert_eq!(writes(0x18, &[1, 0]).count(), 0);
        assert_eq!(writes(0x18, &[1]).count(), 0);
        assert_eq!(writes(0x1a, &[0, 0, 0x80, 0]).count(), 0);
    }

    #[test]
    fn reads_can_be_narrow_or_unaligned() {
        let word = |offset| if offset == 0x18 { [0x11, 0x22, 0x33, 0x44] } else { [0x55, 0x66, 0x77, 0x88] };
        let mut byte = [0];
        read(0x1a, &mut byte, word);
        assert_eq!(byte, [0x33]);
        let mut four = [0; 4];
        read(0x1a, &mut four, word);
        assert_eq!(four, [0x33, 0x44, 0x55, 0x66]);
        let mut eight = [0; 8];
        read(0x18, &mut eight, word);
        assert_eq!(eight, [0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88]);
    }
}
