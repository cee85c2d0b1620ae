//! Directed routes: how a switch and a channel adapter forward an SMP.
//!
//! # Spec
//! IBTA volume 1, section 14.2.2.2 (C14-9 and C14-13).

use protocol::mad::Mad;
use protocol::mad::smp::{MAX_HOPS, Smp};

use super::PERMISSIVE_LID;

/// Next hop of an SMP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hop {
    /// The SMP is for this node.
    Here(Mad),
    /// The SMP leaves through this port.
    Port(u8, Mad),
    /// The SMP is discarded.
    Nowhere,
}

/// Handles an SMP that arrives at a switch.
pub(super) fn at_switch(mut mad: Mad, ingress: u8) -> Hop {
    let smp = Smp::of_mut(&mut mad);
    let route = smp.route();
    if !is_directed_all_the_way(smp) {
        return Hop::Nowhere;
    }
    let (at, count) = (route.hop_pointer, route.hop_count);
    match route.returning {
        // C14-9:2: an intermediate hop.
        false if at != 0 && at < count => {
            smp.set_return_port(at, ingress);
            smp.set_hop_pointer(at + 1);
            Hop::Port(smp.initial_port(at + 1), mad)
        }
        // C14-9:3: the end of the path.
        false if at != 0 && at == count => {
            smp.set_return_port(at, ingress);
            smp.set_hop_pointer(at + 1);
            Hop::Here(mad)
        }
        // C14-13:2: an intermediate hop on the way back.
        true if (2..=count).contains(&at) => {
            smp.set_hop_pointer(at - 1);
            Hop::Port(smp.return_port(at - 1), mad)
        }
        _ => Hop::Nowhere,
    }
}

/// Handles an SMP that arrives at the only port of a channel adapter. If the path ends here, returns the SMP for the
/// adapter's agent.
pub(super) fn at_end(mut mad: Mad) -> Option<Mad> {
    let smp = Smp::of_mut(&mut mad);
    let route = smp.route();
    let (at, count) = (route.hop_pointer, route.hop_count);
    let ends = !route.returning && at != 0 && at == count;
    if !ends || !is_directed_all_the_way(smp) {
        return None;
    }
    smp.set_return_port(at, 1);
    smp.set_hop_pointer(at + 1);
    Some(mad)
}

/// Sets the direction and the hop pointer of a response for its return path (C14-13:1). Returns false if the SMP is not
/// at the end of its path.
pub(super) fn turn(answer: &mut Mad) -> bool {
    let smp = Smp::of_mut(answer);
    let route = smp.route();
    if route.hop_count == 0 || route.hop_pointer != route.hop_count + 1 {
        return false;
    }
    smp.set_returning(true);
    smp.set_hop_pointer(route.hop_count);
    true
}

/// Returns whether the route is directed throughout, without a LID-routed part, and has at most [`MAX_HOPS`] hops.
fn is_directed_all_the_way(smp: &Smp) -> bool {
    let route = smp.route();
    route.source == PERMISSIVE_LID && route.destination == PERMISSIVE_LID && route.hop_count <= MAX_HOPS
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::mad::header::{Class, Header};

    /// Returns a request as sent by the kernel, with the path 0, 1, `ports`… and the hop pointer at the first hop.
    fn request(ports: &[u8]) -> Mad {
        let mut mad = [0; 256];
        let header = Header { class: Class::SUBN_DIRECTED, ..Header::default() };
        protocol::mad::set_header(&mut mad, &header);
        mad[6] = 1;
        mad[7] = u8::try_from(1 + ports.len()).unwrap();
        mad[32..36].fill(0xff);
        mad[129] = 1;
        mad[130..130 + ports.len()].copy_from_slice(ports);
        mad
    }

    #[test]
    fn one_hop_path_ends_at_switch() {
        let Hop::Here(mut mad) = at_switch(request(&[]), 7) else { panic!("the SMP must be for the switch") };
        assert_eq!((mad[6], mad[193]), (2, 7));
        assert!(turn(&mut mad));
        assert_eq!((mad[4], mad[6]), (0x80, 1), "the hop pointer of a returned response is 1 (C14-13:3)");
    }

    #[test]
    fn two_hop_path_ends_at_other_adapter() {
        let Hop::Port(9, mad) = at_switch(request(&[9]), 7) else {
            panic!("the switch must forward the SMP")
        };
        assert_eq!((mad[6], mad[193]), (2, 7));
        let mut mad = at_end(mad).expect("the path ends here");
        assert_eq!((mad[6], mad[194]), (3, 1));
        assert!(turn(&mut mad));
        assert_eq!((mad[4], mad[6]), (0x80, 2));
        let Hop::Port(7, mad) = at_switch(mad, 9) else { panic!("the switch must return the response") };
        assert_eq!(mad[6], 1);
    }

    #[test]
    fn smp_with_invalid_hop_pointer_is_discarded() {
        for (pointer, count) in [(0, 1), (3, 2), (2, 1), (1, 64), (0, 0), (255, 255)] {
            let mut mad = request(&[9]);
            (mad[6], mad[7]) = (pointer, count);
            assert_eq!(at_switch(mad, 1), Hop::Nowhere, "{pointer} of {count}");
            if (pointer, count) != (1, 64) {
                assert_eq!(at_end(mad), None, "{pointer} of {count}");
            }
            mad[4] = 0x80;
            assert_eq!(at_switch(mad, 1), Hop::Nowhere, "{pointer} of {count}, returning");
        }
        let mut by_lid = request(&[9]);
        by_lid[35] = 1;
        assert_eq!(at_switch(by_lid, 1), Hop::Nowhere);
    }
}
