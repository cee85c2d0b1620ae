//! Key operations carried by simulated work requests.

use engine::{LocalOp, LocalToken, Rights};
use protocol::ids::{Iova, Lkey, Rkey, Va};

/// Fast registration, which makes a key valid for part of an ordinary region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastRegister {
    /// The new key, which differs from the allocated key only in the bits that software chooses.
    pub key: Lkey,
    /// Virtual address of the first byte. It must have the same page offset as `base`, even for a zero-based region.
    pub start: Va,
    pub len: u64,
    pub rights: Rights,
    /// Whether addresses are offsets from the first byte.
    pub zero_based: bool,
    /// Simulated DMA address of the first byte. It consists of the L_Key of an ordinary region and an offset in that
    /// region.
    pub base: Iova,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowKind {
    /// Type 1: all QPs of the PD can use the window, and it can be rebound at any time.
    Type1,
    /// Type 2B: only the QP that bound the window can use it. It must be invalidated before it can be rebound.
    Type2B,
}

/// Binds a memory window to a range of a region or unbinds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// The new key of the window, which differs from the previous key only in the bits that software chooses.
    pub window: Rkey,
    pub parent: Lkey,
    /// Virtual address of the first byte in the region.
    pub va: Va,
    /// Length in bytes; 0 unbinds the window.
    pub len: u64,
    /// Permissions granted to the peer.
    pub rights: Rights,
    /// Whether remote addresses are offsets from the first byte of the window.
    pub zero_based: bool,
    /// Window type that software expects.
    pub kind: WindowKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOp {
    /// Invalidates the key of a fast-registered region or type 2 window.
    Invalidate(Lkey),
    FastRegister(FastRegister),
    Bind(Bind),
}

impl From<KeyOp> for LocalOp {
    fn from(op: KeyOp) -> Self {
        let head = |tag: u8, rights: Rights, zero_based: bool, type1: bool, key: u32| {
            let [a, b, c, d] = key.to_le_bytes();
            u64::from_le_bytes([tag, rights.bits(), zero_based.into(), type1.into(), a, b, c, d])
        };
        let token = match op {
            KeyOp::Invalidate(key) => [head(0, Rights::empty(), false, false, key.get()), 0, 0, 0],
            KeyOp::FastRegister(of) => {
                let head = head(1, of.rights, of.zero_based, false, of.key.get());
                [head, of.start.get(), of.len, of.base.get()]
            }
            KeyOp::Bind(of) => {
                let type1 = of.kind == WindowKind::Type1;
                let head = head(2, of.rights, of.zero_based, type1, of.window.get());
                [head, of.va.get(), of.len, of.parent.get().into()]
            }
        };
        Self { wait_for_older: matches!(op, KeyOp::Invalidate(_)), token: LocalToken(token) }
    }
}

impl KeyOp {
    /// Decodes a token. Returns `None` if the token does not describe a [`KeyOp`].
    pub fn of(token: &LocalToken) -> Option<Self> {
        let LocalToken([head, start, len, last]) = *token;
        let [tag, rights, zero_based, type1, a, b, c, d] = head.to_le_bytes();
        let (key, rights) = (u32::from_le_bytes([a, b, c, d]), Rights::from_bits_truncate(rights));
        let (start, zero_based) = (Va::new(start), zero_based != 0);
        match tag {
            0 => Some(Self::Invalidate(Lkey::new(key))),
            1 => {
                let (key, base) = (Lkey::new(key), Iova::new(last));
                Some(Self::FastRegister(FastRegister { key, start, len, rights, zero_based, base }))
            }
            2 => Some(Self::Bind(Bind {
                window: Rkey::new(key),
                parent: Lkey::new(u32::try_from(last).ok()?),
                va: start,
                len,
                rights,
                zero_based,
                kind: if type1 == 0 { WindowKind::Type2B } else { WindowKind::Type1 },
            })),
            _ => None,
        }
    }
}
