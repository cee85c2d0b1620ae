//! Accesses of any width to registers that are 32-bit words.

/// The words a write means, as (offset, bytes), lower address first: one for four aligned bytes, two for eight, none
/// for anything else, which the device ignores.
pub fn writes(offset: u64, data: &[u8]) -> impl Iterator<Item = (u64, [u8; 4])> {
    let whole = offset.is_multiple_of(4) && matches!(data.len(), 4 | 8);
    let words = if whole { data } else { &[] };
    let (words, _) = words.as_chunks::<4>();
    (offset..).step_by(4).zip(words).map(|(offset, word)| (offset, *word))
}

/// Serves a read of any width and alignment out of the words it touches: `word` is called once for each, lower
/// address first, with the word's offset.
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
    fn eight_byte_writes_are_two_words_and_narrow_writes_are_none() {
        let eight: Vec<_> = writes(0x10, &[1, 2, 3, 4, 5, 6, 7, 8]).collect();
        assert_eq!(eight, [(0x10, [1, 2, 3, 4]), (0x14, [5, 6, 7, 8])]);
        assert_eq!(writes(0x18, &[0, 0, 0x80, 0]).collect::<Vec<_>>(), [(0x18, [0, 0, 0x80, 0])]);
        assert_eq!(writes(0x18, &[1, 0]).count(), 0);
        assert_eq!(writes(0x18, &[1]).count(), 0);
        assert_eq!(writes(0x1a, &[0, 0, 0x80, 0]).count(), 0);
    }

    #[test]
    fn narrow_and_straddling_reads_are_served_from_the_words() {
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
