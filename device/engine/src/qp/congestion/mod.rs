//! Congestion control: a window that reacts to loss, and a rate that reacts to ECN marks.
//!
//! Outgoing packets are marked ECN-capable. When a congested switch marks data packets (CE), the receiver returns a
//! congestion notification packet ([`Notifier`]), and the sender reduces its rate ([`Pace`]).
//!
//! # Spec
//! IBTA annex A17, section A17.9 (RoCEv2 congestion management); RFC 3168 (ECN bits).

mod notifier;
mod pace;
mod window;

pub(crate) use notifier::Notifier;
pub(crate) use pace::Pace;
pub(crate) use window::Window;

/// ECN bits of the IP traffic class.
const ECN: u8 = 0b11;
const ECT: u8 = 0b10;
const CE: u8 = 0b11;

/// Returns `traffic_class` with ECN set to ECT(0) and the DSCP unchanged.
pub(crate) fn ecn_capable(traffic_class: u8) -> u8 {
    traffic_class & !ECN | ECT
}

/// Returns `traffic_class` with ECN cleared and the DSCP unchanged, so that switches do not mark the packet.
pub(crate) fn not_ecn_capable(traffic_class: u8) -> u8 {
    traffic_class & !ECN
}

/// Returns whether a switch on the path has marked the packet (CE) to report congestion.
pub(crate) fn is_marked(traffic_class: u8) -> bool {
    traffic_class & ECN == CE
}
