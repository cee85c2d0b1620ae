//! Tests the management module. Requests have the same bytes as those of the kernel and infiniband-diags. Responses are
//! checked byte by byte, at the offsets given in the mthca interface.

mod administration;
mod fabric;
mod port;

use protocol::mad::MAD_LEN;

use super::*;
use crate::identity::Identity;

const SINAI: NodeProfile = NodeProfile {
    vendor_id: 0x0002c9,
    device_id: 0x6274,
    revision: 0xa0,
    gids: 32,
    pkeys: 64,
    mtu: 4,
    capabilities: 0x0251_0a68,
    opened_by_software: true,
    always_answers_perf: false,
};

/// fe80::ff:fe00:1, the GID of LID 1.
const GID_1: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 1];
const GID_2: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe, 0, 0, 2];

fn at(millis: u64) -> View {
    View { now: Instant::from_nanos(millis * 1_000_000), counters: Counters::default() }
}

/// Returns the addresses of an HCA that has no configured peers.
fn alone(lid: Lid) -> Addresses {
    Identity::from_lid(lid).into()
}

/// Returns the [`Management`] of an HCA with an open port.
fn open(lid: u16) -> Management {
    let mut management = Management::new(Identity::from_lid(Lid::new(lid)), SINAI);
    management.open_port(&at(0));
    while management.poll_output().is_some() {}
    management
}

/// Builds a request from its class, class version, method, attribute and modifier.
fn request(class: u8, class_version: u8, method: u8, attribute: u16, modifier: u32) -> Mad {
    let mut mad = [0; MAD_LEN];
    mad[..4].copy_from_slice(&[1, class, class_version, method]);
    mad[8..16].copy_from_slice(&[0, 0, 0, 7, 1, 2, 3, 4]);
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[20..24].copy_from_slice(&modifier.to_be_bytes());
    mad
}

fn status(mad: &Mad) -> u16 {
    u16::from_be_bytes([mad[4], mad[5]])
}

fn outputs(management: &mut Management) -> Vec<Output> {
    std::iter::from_fn(|| management.poll_output()).collect()
}

/// Sends a MAD to the subnet manager's LID. Returns the MADs that the guest receives. Ignores the frames of a sweep and
/// panics on any other output.
fn ask(management: &mut Management, qp: Qpn, mad: Mad) -> Vec<Mad> {
    let addresses = alone(management.lid());
    ask_with_addresses(&addresses, management, qp, mad)
}

/// Like `ask`, but for an HCA that has configured peers.
fn ask_with_addresses(addresses: &Addresses, management: &mut Management, qp: Qpn, mad: Mad) -> Vec<Mad> {
    let sent =
        Datagram { source: management.lid(), source_qp: qp, destination: SM_LID, destination_qp: qp, mad };
    management.handle_guest(&at(10), addresses, &sent);
    outputs(management)
        .into_iter()
        .filter_map(|output| match output {
            Output::ToGuest(answer) => {
                assert_eq!((answer.source, answer.source_qp, answer.destination_qp), (SM_LID, qp, qp));
                Some(answer.mad)
            }
            // The frames of a sweep are ignored.
            Output::ToFabric(question) if question.destination == PERMISSIVE_LID => None,
            other => panic!("{other:?}"),
        })
        .collect()
}
