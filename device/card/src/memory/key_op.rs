//! Key operations executed by work requests: fast registration, invalidation and window binding.
//!
//! # Spec
//! IBTA volume 1, sections 10.6.5 (fast registration, local invalidate), 10.6.7 (memory windows).

use std::fmt;

use engine::{LocalOp, LocalToken, Rights};
use protocol::ids::{Iova, Lkey, Rkey, Va};

/// log2 of a region's page size in bytes, 12 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageShift(u8);

impl PageShift {
    /// Pages of 4096 bytes.
    pub const MIN: Self = Self(12);

    /// Creates a page size. Returns `None` if `shift` is outside 12..=31.
    pub const fn new(shift: u8) -> Option<Self> {
        if matches!(shift, 12..=31) { Some(Self(shift)) } else { None }
    }

    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the page size minus one.
    pub const fn offset_mask(self) -> u64 {
        (1 << self.0) - 1
    }
}

/// Formats without spaces, for use in trace lines.
impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Contiguous { base, page_shift } => {
                write!(f, "contiguous,base={base},page={}", page_shift.get())
            }
            Self::List { first, page_shift } => write!(f, "list,first={first:#x},page={}", page_shift.get()),
            Self::TwoLevel { first, page_shift } => {
                write!(f, "two_level,first={first:#x},page={}", page_shift.get())
            }
        }
    }
}

/// Page layout of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    Contiguous {
        /// Bus address of the page that contains the region's first byte.
        base: Iova,
        page_shift: PageShift,
    },
    /// Consecutive page table (MTT) entries, each of which refers to a page.
    List {
        /// Entry for the page that contains the region's first byte.
        first: u64,
        page_shift: PageShift,
    },
    /// Consecutive page table (MTT) entries, each of which refers to a list of 512 pages.
    TwoLevel {
        /// Entry for the list whose first page contains the region's first byte.
        first: u64,
        page_shift: PageShift,
    },
}

/// Maps an allocated region and makes its key valid (fast registration).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegister {
    /// The complete new key. It differs from the allocated key only in the bits that software can choose.
    pub key: Lkey,
    /// Virtual address of the first byte. The low bits are also the byte's offset in its page, even if the region is
    /// zero-based.
    pub start: Va,
    pub len: u64,
    pub rights: Rights,
    /// Whether addresses are offsets from the region's first byte.
    pub zero_based: bool,
    pub pages: Pages,
}

/// Type of a memory window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Type 1: all QPs of the PD can use the window, and it can be rebound at any time.
    Type1,
    /// Type 2B: only the QP that bound the window can use it. It must be invalidated before it is bound
    /// again.
    Type2B,
}

/// Binds a memory window to a range of a region or unbinds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The window's complete new key. It differs from the previous key only in the bits that software can choose.
    pub window: Rkey,
    /// L_Key of the region.
    pub parent: Lkey,
    /// Virtual address of the window's first byte in the region.
    pub va: Va,
    /// Length in bytes; 0 unbinds the window.
    pub len: u64,
    /// Access that the window grants to peers.
    pub rights: Rights,
    /// Whether remote addresses are offsets from the window's first byte.
    pub zero_based: bool,
    /// Window type expected by software. Binding fails if the window has the other type.
    pub kind: WindowKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOp {
    /// Invalidates the key of a fast-registered region or type 2 window.
    Invalidate(Lkey),
    FastRegister(FastRegister),
    Bind(Bind),
}

// Positions and flags in the first word of a token. The operation is in bits 7:0.
const RIGHTS: u32 = 8;
const ZERO_BASED: u64 = 1 << 16;
const TYPE_2B: u64 = 1 << 17;
const LAYOUT: u32 = 18;
const SHIFT: u32 = 20;
const KEY: u32 = 32;

impl From<KeyOp> for LocalOp {
    fn from(op: KeyOp) -> Self {
        let flag = |set, flag| if set { flag } else { 0 };
        let key = |key: u32| u64::from(key) << KEY;
        let token = match op {
            KeyOp::Invalidate(of) => [key(of.get()), 0, 0, 0],
            KeyOp::FastRegister(of) => {
                let (layout, page_shift, pages) = match of.pages {
                    Pages::Contiguous { base, page_shift } => (0, page_shift, base.get()),
                    Pages::List { first, page_shift } => (1, page_shift, first),
                    Pages::TwoLevel { first, page_shift } => (2, page_shift, first),
                };
                let head = 1
                    | u64::from(of.rights.bits()) << RIGHTS
                    | flag(of.zero_based, ZERO_BASED)
                    | layout << LAYOUT
                    | u64::from(page_shift.get()) << SHIFT
                    | key(of.key.get());
                [head, of.start.get(), of.len, pages]
            }
            KeyOp::Bind(of) => {
                let head = 2
                    | u64::from(of.rights.bits()) << RIGHTS
                    | flag(of.zero_based, ZERO_BASED)
                    | flag(of.kind == WindowKind::Type2B, TYPE_2B)
                    | key(of.window.get());
                [head, of.va.get(), of.len, of.parent.get().into()]
            }
        };
        // An invalidation must wait: earlier requests may still gather data through the key.
        Self { wait_for_older: matches!(op, KeyOp::Invalidate(_)), token: LocalToken(token) }
    }
}

impl KeyOp {
    /// Decodes a token. Returns `None` if the token does not describe a [`KeyOp`].
    pub fn of(token: &LocalToken) -> Option<Self> {
        let LocalToken([head, start, len, last]) = *token;
        let [operation, rights, ..] = head.to_le_bytes();
        let (_, key) = halves(head);
        let rights = Rights::from_bits_truncate(rights);
        let zero_based = head & ZERO_BASED != 0;
        match operation {
            0 => Some(Self::Invalidate(Lkey::new(key))),
            1 => {
                let page_shift = PageShift::new((head >> SHIFT).to_le_bytes()[0])?;
                let pages = match head >> LAYOUT & 3 {
                    0 => Pages::Contiguous { base: Iova::new(last), page_shift },
                    1 => Pages::List { first: last, page_shift },
                    2 => Pages::TwoLevel { first: last, page_shift },
                    _ => return None,
                };
                let (key, start) = (Lkey::new(key), Va::new(start));
                Some(Self::FastRegister(FastRegister { key, start, len, rights, zero_based, pages }))
            }
            2 => Some(Self::Bind(Bind {
                window: Rkey::new(key),
                parent: Lkey::new(halves(last).0),
                va: Va::new(start),
                len,
                rights,
                zero_based,
                kind: if head & TYPE_2B == 0 { WindowKind::Type1 } else { WindowKind::Type2B },
            })),
            _ => None,
        }
    }
}

/// Returns the low and high halves of a word.
const fn halves(word: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = word.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHIFT_31: PageShift = PageShift::new(31).unwrap();

    #[test]
    fn key_operation_token_round_trips() {
        let region = FastRegister {
            key: Lkey::new(0xfedc_ba98),
            start: Va::new(u64::MAX),
            len: u64::MAX - 1,
            rights: Rights::all(),
            zero_based: true,
            pages: Pages::Contiguous { base: Iova::new(u64::MAX - 2), page_shift: SHIFT_31 },
        };
        let list = Pages::List { first: 1 << 63, page_shift: PageShift::MIN };
        let lists = Pages::TwoLevel { first: 7, page_shift: SHIFT_31 };
        let window = Bind {
            window: Rkey::new(0xffff_fffe),
            parent: Lkey::new(0xffff_fffd),
            va: Va::new(u64::MAX),
            len: u64::MAX,
            rights: Rights::REMOTE_ATOMIC,
            zero_based: false,
            kind: WindowKind::Type2B,
        };
        for op in [
            KeyOp::Invalidate(Lkey::new(u32::MAX)),
            KeyOp::FastRegister(region),
            KeyOp::FastRegister(FastRegister { pages: list, rights: Rights::empty(), ..region }),
            KeyOp::FastRegister(FastRegister { pages: lists, zero_based: false, ..region }),
            KeyOp::Bind(window),
            KeyOp::Bind(Bind { kind: WindowKind::Type1, zero_based: true, ..window }),
        ] {
            let LocalOp { wait_for_older, token } = op.into();
            assert_eq!((KeyOp::of(&token), wait_for_older), (Some(op), matches!(op, KeyOp::Invalidate(_))));
        }
        for head in [3, 1, 12 << SHIFT | 3 << LAYOUT | 1] {
            assert_eq!(KeyOp::of(&LocalToken([head, 0, 0, 0])), None, "{head:#x}");
        }
    }
}
