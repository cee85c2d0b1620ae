//! Tests two HCAs that share an in-process network with a NIC.

use card::fabric::local::{LocalFabric, Networks};
use card::fabric::ring::RingFabric;
use card::fabric::{Fabric as _, RxBatch, Sent, TxBatch};
use card::hca::WorkLeft;
use card::identity::Identity;
use protocol::hca::qp::ServiceType;
use protocol::ids::MacAddr;
use tempfile::TempDir;

use super::*;

fn received(fabric: &mut LocalFabric) -> Vec<Vec<u8>> {
    let mut batch = RxBatch::new();
    fabric.recv(&mut batch).unwrap();
    batch.iter().map(|arrival| arrival.contents().to_vec()).collect()
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

/// Attaches two machines to a ring network, on which frames leave their payload in guest memory until they are sent.
fn on_ring(machines: [Machine; 2]) -> (TempDir, [Machine; 2], [RingFabric; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let mut ends =
        [1, 2].map(|lid| RingFabric::join(folder.path(), &Identity::from_lid(Lid::new(lid))).unwrap());
    for _ in 0..8 {
        ends.iter_mut().for_each(|end| end.handle_ready().unwrap());
    }
    let machines = machines.map(|mut machine| {
        machine.bus.hca = machine.bus.hca.with_icrc_needed(false).with_detached_payload(true);
        machine
    });
    (folder, machines, ends)
}

/// Handles the frames that have arrived and ends the turn.
fn turn(machine: &mut Machine, end: &mut RingFabric) -> WorkLeft {
    let mut batch = RxBatch::new();
    end.recv(&mut batch).unwrap();
    batch.iter().for_each(|arrival| machine.hca.handle_arrival(arrival));
    end.release(&mut batch);
    machine.hca.drain()
}

/// Runs turns until both machines are idle.
fn exchange_on_ring(machines: &mut [Machine; 2], ends: &mut [RingFabric; 2]) {
    loop {
        let mut is_idle = true;
        for (machine, end) in machines.iter_mut().zip(&mut *ends) {
            let left = turn(machine, end);
            is_idle &= !left.frames && !left.other && machine.hca.outbound().is_empty();
            assert_eq!(end.send(machine.hca.outbound()), Sent::All);
        }
        if is_idle && ends.iter().all(|end| !end.has_frames()) {
            return;
        }
    }
}

/// Results and counters are the same as on a network that carries one packet per frame.
#[test]
fn ring_carries_long_messages_between_guest_memories() {
    let data = pattern(0x1900, 7);
    let post = |a: &mut Machine, b: &mut Machine| {
        put_data(a, 0x10, &data);
        post_recv(b, 0, 0x701, 0x2000);
        send(a, 1, 0x0a, &[data_unit(0x10, 0x1900)]);
        send(a, 2, 0x08, &[remote(0x2100, DATA_KEY), data_unit(0x10, 0x900)]);
        send(a, 3, 0x10, &[remote(0x701, DATA_KEY), data_unit(0x1a00, 0x1500)]);
    };
    let (mut c, mut d) = pair();
    post(&mut c, &mut d);
    exchange(&mut c, &mut d);

    let (a, b) = pair();
    let (_folder, mut machines, mut ends) = on_ring([a, b]);
    let [a, b] = &mut machines;
    post(a, b);
    exchange_on_ring(&mut machines, &mut ends);
    let [mut a, mut b] = machines;
    assert!(get_data(&mut b, 0x701, 0x1900) == data);
    for (on_ring, plain) in [(&mut a, &mut c), (&mut b, &mut d)] {
        assert!(get_data(on_ring, 0, DATA_LEN) == get_data(plain, 0, DATA_LEN));
        assert_eq!(
            (0..4).map(|slot| cqe(on_ring, slot)).collect::<Vec<_>>(),
            (0..4).map(|slot| cqe(plain, slot)).collect::<Vec<_>>()
        );
        assert_eq!(on_ring.hca.engine_stats(), plain.hca.engine_stats());
        assert_eq!(on_ring.hca.port_stats(), plain.hca.port_stats());
    }
}

/// Software may reuse the memory of a message as soon as it can see the completion, even if the frame has not been sent
/// yet.
#[test]
fn completed_unreliable_message_keeps_its_content_on_ring() {
    let uc = |lid| {
        connected(initialised_as(lid, Options::default()), &Qpc { service: ServiceType::Uc.code(), ..qpc() })
    };
    let (_folder, [mut a, mut b], mut ends) = on_ring([uc(1), uc(2)]);
    let data = pattern(0x1900, 7);
    put_data(&mut a, 0x10, &data);
    post_recv(&mut b, 0, 0x701, 0x2000);
    send(&mut a, 1, 0x0a, &[data_unit(0x10, 0x1900)]);
    turn(&mut a, &mut ends[0]);
    assert_ne!(cqe(&mut a, 0), [0x80; 32], "the message has completed");
    put_data(&mut a, 0x10, &[0; 0x1900]);
    assert_eq!(ends[0].send(a.hca.outbound()), Sent::All);
    turn(&mut b, &mut ends[1]);
    assert!(get_data(&mut b, 0x701, 0x1900) == data);
}
