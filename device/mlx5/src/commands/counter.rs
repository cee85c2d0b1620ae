//! Commands for Q counter sets and port counters.
//!
//! # Spec
//! mlx5 interface, sections 5.2 and 17.

use protocol::hca::mlx5::counter::{
    QCounters, QueryQCounter, QueryVportCounter, TrafficCounter, VportCounters,
};
use protocol::hca::mlx5::resource::CounterSetNumber;
use protocol::ids::CounterSet;

use super::{Call, Output, nothing};
use crate::check::{Check, Rejection};

pub(super) fn alloc(call: Call<'_, '_>) -> Result<Output, Rejection> {
    let sets = &mut call.resources.counter_sets;
    let number = sets.insert(QCounters::default()).and_then(|number| u8::try_from(number).ok());
    let set = number.ok_or_else(|| Check::CounterLimit.rejects(sets.count() as u64))?;
    Ok(CounterSetNumber { set: CounterSet::new(set) }.emit().to_vec())
}

pub(super) fn dealloc(call: Call<'_, '_>, set: CounterSet) -> Result<Output, Rejection> {
    let removed = call.resources.counter_sets.remove(set.get().into());
    removed.map(|_| nothing()).ok_or_else(|| Check::CounterSet.rejects(set.get()))
}

/// Returns the counters in a set and clears them if the command requests it.
pub(super) fn query(call: Call<'_, '_>, query: &QueryQCounter) -> Result<Output, Rejection> {
    let counters = call.resources.counter_sets.get_mut(query.set.get().into());
    let counters = counters.ok_or_else(|| Check::CounterSet.rejects(query.set.get()))?;
    let output = counters.emit().to_vec();
    if query.clear {
        *counters = QCounters::default();
    }
    Ok(output)
}

/// Returns the counts since the port was created. The command's `clear` flag has no effect, because clearing would also
/// change the counters that MADs report.
pub(super) fn query_port(call: Call<'_, '_>, _: &QueryVportCounter) -> Output {
    let frames = call.resources.port.ethernet().map(|port| &port.frames);
    let (received, sent) = frames.map_or_else(Default::default, |frames| (frames.received, frames.sent));
    let counters = call.cx.view().counters;
    let packets = |packets, bytes| TrafficCounter { packets, bytes };
    // Report all octets as unicast, since the port has a single octet counter for unicast and multicast packets.
    let vport = VportCounters {
        rx_errors: packets(counters.receive_errors, 0),
        tx_errors: packets(counters.transmit_discards, 0),
        rx_ib_unicast: packets(counters.receive_unicast_packets, counters.receive_octets),
        tx_ib_unicast: packets(counters.transmit_unicast_packets, counters.transmit_octets),
        rx_ib_multicast: packets(counters.receive_multicast_packets, 0),
        tx_ib_multicast: packets(counters.transmit_multicast_packets, 0),
        rx_eth_broadcast: received.broadcast,
        tx_eth_broadcast: sent.broadcast,
        rx_eth_unicast: received.unicast,
        tx_eth_unicast: sent.unicast,
        rx_eth_multicast: received.multicast,
        tx_eth_multicast: sent.multicast,
        local_loopback: call.resources.netdev.counters.loopback,
    };
    vport.emit().to_vec()
}
