//! Not more on the way than the way takes: a window against loss, a rate against ECN marks.
//!
//! What we send is marked as ECN-capable. A switch that is congested marks data on its way (CE); whoever receives marked
//! data tells its sender by a congestion notification packet ([`Notifier`]), and the sender slows down ([`Pace`]).
//!
//! # Spec
//! IBTA annex A17, section A17.9 (RoCEv2 congestion management); RFC 3168 for the bits.

mod notifier;
mod pace;
mod window;

pub(crate) use notifier::Notifier;
pub(crate) use pace::Pace;
pub(crate) use window::Window;

/// ECN bits of the IP traffic class.
const ECN: u8 = 0b11;
/// ECN-capable transport, ECT(0).
const ECT: u8 = 0b10;
/// Congestion experienced.
const CE: u8 = 0b11;

/// `traffic_class` with its code point for differentiated services, on packets of an ECN-capable transport.
pub(crate) fn ecn_capable(traffic_class: u8) -> u8 {
    traffic_class & !ECN | ECT
}

/// `traffic_class` with its code point for differentiated services, on packets that no switch shall mark.
pub(crate) fn not_ecn_capable(traffic_class: u8) -> u8 {
    traffic_class & !ECN
}

/// Whether a switch on the way was congested.
pub(crate) fn is_marked(traffic_class: u8) -> bool {
    traffic_class & ECN == CE
}
