//! Tests two HCAs that share an in-process network with a NIC.

use card::fabric::local::{LocalFabric, Networks};
use card::fabric::{Fabric as _, RxBatch, TxBatch};
use card::identity::Identity;
use protocol::ids::MacAddr;

use super::*;

fn received(fabric: &mut LocalFabric) -> Vec<Vec<u8>> {
    let mut batch = RxBatch::new();
    fabric.recv(&mut batch).unwrap();
    batch.iter().map(|(frame, _)| frame.to_vec()).collect()
}

#[test]
fn rc_connection_is_undisturbed_by_nic_on_same_network() {
    let mut networks = Networks::default();
    let mut join = |lid| networks.network("a").join(&Identity::from_lid(Lid::new(lid))).unwrap();
    let (mut ends, mut nic) = ([join(1), join(2)], join(3));
    nic.set_promiscuous();
    let (mut a, mut b) = pair();
    let data = pattern(300, 7);
    put_data(&mut a, 0, &data);
    post_recv(&mut b, 0, 0x1000, 0x400);
    send(&mut a, 0, 0x0a, &[data_unit(0, 300)]);
    // Before the SEND completes, the NIC sends frames to one of the HCAs and to an unknown address.
    for dst in [MacAddr::from_lid(Lid::new(2)), MacAddr([0x52, 0x54, 0, 0, 0, 1])] {
        let mut batch = TxBatch::of_nic();
        batch.buffer().extend([&dst.0[..], &[2, 0, 0, 0, 0, 3], &[0x88; 48]].concat());
        assert!(batch.commit_nic());
        nic.send(&mut batch);
    }
    loop {
        let mut moved = false;
        for (machine, end) in [&mut a, &mut b].into_iter().zip(&mut ends) {
            received(end).iter().for_each(|frame| machine.hca.handle_frame(frame));
            let mut batch = TxBatch::default();
            machine.settle().iter().for_each(|frame| batch.push(frame));
            moved |= !batch.is_empty();
            end.send(&mut batch);
        }
        if !moved {
            break;
        }
    }
    assert_eq!(get_data(&mut b, 0x1000, 300), data);
    assert_eq!(received(&mut nic), Vec::<Vec<u8>>::new());
}
