//! Work that a frame's sender leaves to the code that moves the frame off-host.

/// Path MTU of a queue pair (IBTA 9.3.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Mtu {
    Mtu256,
    Mtu512,
    Mtu1024,
    Mtu2048,
    Mtu4096,
}

impl Mtu {
    /// Converts from the IBTA code: 1 (256 bytes) to 5 (4096 bytes).
    pub const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Mtu256,
            2 => Self::Mtu512,
            3 => Self::Mtu1024,
            4 => Self::Mtu2048,
            5 => Self::Mtu4096,
            _ => return None,
        })
    }

    /// All path MTUs, in ascending order.
    pub const ALL: [Self; 5] = [Self::Mtu256, Self::Mtu512, Self::Mtu1024, Self::Mtu2048, Self::Mtu4096];

    /// Returns the IBTA code.
    pub const fn code(self) -> u8 {
        match self {
            Self::Mtu256 => 1,
            Self::Mtu512 => 2,
            Self::Mtu1024 => 3,
            Self::Mtu2048 => 4,
            Self::Mtu4096 => 5,
        }
    }

    /// Returns the payload of a full packet in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Mtu256 => 256,
            Self::Mtu512 => 512,
            Self::Mtu1024 => 1024,
            Self::Mtu2048 => 2048,
            Self::Mtu4096 => 4096,
        }
    }
}

/// Work that a frame's sender has left to the code that moves the frame off-host. Between HCAs that share memory, the
/// work is usually skipped. Exceptions include frames that are captured, recorded, impaired, multicast or passed to a
/// NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Offload {
    /// No work is left. The frame is in wire format.
    #[default]
    None,
    /// The ICRC field is a placeholder. [`seal`](super::seal) computes the ICRC.
    Icrc,
    /// The payload spans several packets of this path MTU, and the ICRC field is a placeholder. The headers are those
    /// of a single packet that carries the same part of the message and has the PSN of the first packet.
    /// [`Packet::segments`](super::Packet::segments) returns the packets, and [`for_each_frame`](super::for_each_frame)
    /// builds their frames.
    Segmentation(Mtu),
}
