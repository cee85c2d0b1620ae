//! The interface between the flow tables and the receive path.

use protocol::ids::Tirn;
use protocol::net::layers::Layers;
use smallvec::SmallVec;

use crate::resources::Resources;
use crate::steering;

/// A copy of a frame for a TIR.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub tirn: Tirn,
    /// Tag that the flow tables gave this copy.
    pub tag: u32,
    /// The modified frame, if the flow tables changed its VLAN tags.
    pub edited: Option<Vec<u8>>,
}

/// TIRs that receive a frame. The frame is dropped if there are none.
pub type Deliveries = SmallVec<[Delivery; 1]>;

/// Port state that affects the handling of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub is_up: bool,
    /// Maximum frame length that the port's MTU permits, excluding the frame check sequence.
    pub max_frame: usize,
}

impl Resources {
    /// Returns the TIRs that receive a frame and counts the frame in the flow counters of the entries that it matched.
    pub fn steer(&mut self, frame: &[u8], layers: &Layers) -> Deliveries {
        let verdict = self.steering.evaluate(frame, layers);
        self.steering.count(&verdict, frame.len());
        let delivery = |found: steering::evaluate::Delivery| Delivery {
            tirn: found.tirn,
            tag: found.tag.get(),
            edited: (!found.edits.is_empty()).then(|| found.edits.apply(frame).into_owned()),
        };
        verdict.deliveries.into_iter().map(delivery).collect()
    }
}
