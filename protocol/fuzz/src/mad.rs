//! Fuzzes the layouts of MADs and their attributes.

use protocol::mad::class_port_info::ClassPortInfo;
use protocol::mad::node::NodeInfo;
use protocol::mad::perf::{PortCounters, PortCountersExtended};
use protocol::mad::port::PortInfo;
use protocol::mad::sa::SaMad;
use protocol::mad::sm::SmInfo;
use protocol::mad::smp::Smp;
use protocol::mad::switch::SwitchInfo;
use protocol::mad::{MAD_LEN, Mad, header, set_header};

/// Checks that each attribute round-trips through emit and parse.
macro_rules! check_round_trip {
    ($mad:ident: $($layout:ty),*) => {$({
        if let Some(bytes) = $mad.get(64..).and_then(|data| data.first_chunk::<{ <$layout>::LEN }>()) {
            let first = <$layout>::parse(bytes);
            let written = first.emit();
            assert_eq!(<$layout>::parse(&written), first);
            assert_eq!(<$layout>::parse(&written).emit(), written);
        }
    })*};
}

/// Decodes a MAD in every way that the management agents do.
pub fn decode_mad(input: &[u8]) {
    let mut mad: Mad = [0; MAD_LEN];
    mad.iter_mut().zip(input).for_each(|(to, from)| *to = *from);
    let first = header(&mad);
    let mut again = mad;
    set_header(&mut again, &first);
    assert_eq!(header(&again), first);
    let smp = Smp::of(&mad);
    let route = smp.route();
    for hop in [0, 1, route.hop_pointer, route.hop_count] {
        let _ = (smp.initial_port(hop), smp.return_port(hop));
    }
    let mut moved = mad;
    Smp::of_mut(&mut moved).set_hop_pointer(route.hop_pointer.wrapping_add(1));
    Smp::of_mut(&mut moved).set_return_port(route.hop_pointer, 1);
    let _ = (SaMad::of(&mad).rmpp(), SaMad::of(&mad).component_mask());
    check_round_trip!(mad: NodeInfo, PortInfo, SwitchInfo, SmInfo, PortCounters, PortCountersExtended, ClassPortInfo);
}
