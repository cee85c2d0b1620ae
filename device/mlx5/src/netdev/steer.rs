//! The interface between the flow tables and the receive path.

use protocol::ids::Tirn;
use protocol::net::layers::Layers;
use smallvec::SmallVec;

use crate::resources::Resources;

/// A copy of a frame for a TIR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub tirn: Tirn,
    /// Tag of the flow table entry that forwards the frame to the TIR.
    pub tag: u32,
    /// The frame, if the flow tables have changed its VLAN tags.
    pub edited: Option<Vec<u8>>,
}

/// TIRs that receive a frame. The frame is dropped if there are none.
pub type Deliveries = SmallVec<[Delivery; 1]>;

/// State of the port that affects frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub is_up: bool,
    /// Maximum length of a frame without its check sequence, as the MTU of the port permits.
    pub max_frame: usize,
}

impl Resources {
    /// Returns the TIRs that receive a frame.
    pub fn steer(&mut self, _frame: &[u8], _layers: &Layers) -> Deliveries {
        Deliveries::new()
    }
}
