use std::io::Write as _;
use std::os::unix::net::UnixListener;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tempfile::TempDir;

use super::*;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const C: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn join(folder: &TempDir, mac: MacAddr) -> RingFabric {
    RingFabric::join(folder.path(), mac).unwrap()
}

/// Has all look at what came until nothing comes any more.
fn settle(fabrics: &mut [&mut RingFabric]) {
    for _ in 0..4 {
        fabrics.iter_mut().for_each(|fabric| fabric.attend().unwrap());
    }
}

fn batch(from: MacAddr, frames: &[(MacAddr, u8)]) -> TxBatch {
    let mut batch = TxBatch::default();
    for (dst, tag) in frames {
        batch.push(&[&dst.0[..], &from.0, &[*tag; 60]].concat());
    }
    batch
}

fn received(fabric: &mut RingFabric) -> Vec<u8> {
    let mut batch = RxBatch::new();
    fabric.recv(&mut batch).unwrap();
    batch.iter().map(|(frame, _)| frame[12]).collect()
}

fn is_ready(fabric: &RingFabric) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fabric.as_fd(), PollFlags::IN)], Some(&now)).unwrap() == 1
}

/// A stranger who speaks the protocol as far as a test wants it to.
fn hand_over(folder: &TempDir, to: MacAddr, from: MacAddr, memfd: &OwnedFd) -> UnixStream {
    let socket = connect(&socket_path(folder.path(), to)).unwrap();
    hello::send(&socket, from, RingLen::USUAL, Some(memfd.as_fd())).unwrap();
    socket
}

#[test]
fn members_find_each_other_whoever_comes_first() {
    for order in [[A, B, C], [C, B, A], [B, A, C]] {
        let folder = folder();
        let mut fabrics = order.map(|mac| join(&folder, mac));
        settle(&mut fabrics.iter_mut().collect::<Vec<_>>());
        fabrics.sort_by_key(|fabric| fabric.own.0);
        let [a, b, c] = &mut fabrics;
        a.send(&mut batch(A, &[(B, 1), (C, 2), (B, 3)]));
        c.send(&mut batch(C, &[(A, 4)]));
        b.send(&mut batch(B, &[(MacAddr::BROADCAST, 5)]));
        assert_eq!(received(c), [2, 5], "{order:?}");
        assert_eq!(received(b), [1, 3]);
        let mut at_a = received(a);
        at_a.sort_unstable();
        assert_eq!(at_a, [4, 5]);
        assert_eq!((a.stats().tx_frames, a.stats().rx_frames), (3, 2));
    }
}

#[test]
fn one_that_is_gone_comes_back_and_is_reached_again() {
    let folder = folder();
    let (mut a, mut b) = (join(&folder, A), join(&folder, B));
    settle(&mut [&mut a, &mut b]);
    drop(b);
    settle(&mut [&mut a]);
    assert_eq!(a.linked().count(), 0);
    a.send(&mut batch(A, &[(B, 1)]));
    assert_eq!(a.stats().tx_no_peer, 1);
    let mut b = join(&folder, B);
    settle(&mut [&mut a, &mut b]);
    a.send(&mut batch(A, &[(B, 2)]));
    assert_eq!(received(&mut b), [2]);
    drop(a);
    let mut a = join(&folder, A);
    settle(&mut [&mut a, &mut b]);
    b.send(&mut batch(B, &[(A, 3)]));
    assert_eq!(received(&mut a), [3]);
    assert_eq!((a.stats().rings_broken, b.stats().rings_broken), (0, 0));
}

#[test]
fn a_mac_has_one_member() {
    let folder = folder();
    let _a = join(&folder, A);
    let error = RingFabric::join(folder.path(), A).unwrap_err();
    assert!(error.to_string().contains("in use") || error.to_string().contains("020000000001"), "{error}");
}

#[test]
fn only_who_sleeps_is_woken() {
    let folder = folder();
    let (mut a, mut b) = (join(&folder, A), join(&folder, B));
    settle(&mut [&mut a, &mut b]);
    a.send(&mut batch(A, &[(B, 1)]));
    assert!(!is_ready(&b) && b.has_frames() && !b.doze());
    b.awake();
    received(&mut b);
    assert!(b.doze());
    assert!(a.members().unwrap()[0].asleep);
    a.send(&mut batch(A, &[(B, 2)]));
    assert!(is_ready(&b));
    b.attend().unwrap();
    assert!(!is_ready(&b));
    assert_eq!(received(&mut b), [2]);
    assert_eq!(a.stats().tx_calls, 1);
}

#[test]
fn the_only_member_is_waited_for_a_while_and_woken_when_there_is_room() {
    let folder = folder();
    let (mut a, mut b) = (join(&folder, A), join(&folder, B));
    settle(&mut [&mut a, &mut b]);
    let mut frames = TxBatch::default();
    let long = [&B.0[..], &A.0, &[9; 4000]].concat();
    (0..600).for_each(|_| frames.push(&long));
    assert_eq!(a.send(&mut frames), Sent::Blocked);
    assert!(a.patience().is_some_and(|patience| patience <= PATIENCE), "it does not wait without end");
    let left = frames.len();
    assert!(left > 0 && a.stats().tx_refused == 0);
    let mut arrived = RxBatch::new();
    while b.has_frames() {
        b.recv(&mut arrived).unwrap();
    }
    assert!(is_ready(&a), "there is room now");
    a.attend().unwrap();
    assert_eq!(a.send(&mut frames), Sent::All);
    assert_eq!(a.stats().tx_frames, 600);

    // It does not take them for so long that they are lost.
    (0..600).for_each(|_| frames.push(&long));
    a.send(&mut frames);
    a.full_since = Instant::now().checked_sub(PATIENCE);
    assert_eq!(a.send(&mut frames), Sent::All);
    assert!(frames.is_empty() && a.stats().tx_refused > 0);
}

#[test]
fn one_that_takes_nothing_keeps_nobody_else_waiting() {
    let folder = folder();
    let (mut a, mut b, mut c) = (join(&folder, A), join(&folder, B), join(&folder, C));
    settle(&mut [&mut a, &mut b, &mut c]);
    let mut frames = TxBatch::default();
    let long = [&B.0[..], &A.0, &[9; 4000]].concat();
    (0..600).for_each(|_| frames.push(&long));
    frames.push(&[&C.0[..], &A.0, &[7; 60]].concat());
    assert_eq!(a.send(&mut frames), Sent::All);
    assert_eq!(received(&mut c), [7]);
    let refused = a.stats().tx_refused;
    let rows = a.members().unwrap();
    assert_eq!([&rows[0].mac, &rows[1].mac], [&B.to_string(), &C.to_string()]);
    assert!(refused > 0 && rows[0].tx_refused == refused && rows[0].tx_waiting_bytes > 1 << 20, "{rows:?}");
    assert_eq!((rows[1].tx_refused, rows[1].tx_waiting_bytes, rows[1].tx_frames), (0, 0, 1));
    assert_eq!(rows[1].macs, [C.to_string()]);
}

#[test]
fn a_member_speaks_in_no_other_name() {
    let folder = folder();
    let (mut a, mut b, mut c) = (join(&folder, A), join(&folder, B), join(&folder, C));
    settle(&mut [&mut a, &mut b, &mut c]);
    b.send(&mut batch(C, &[(A, 1)]));
    b.send(&mut batch(A, &[(A, 2)]));
    b.send(&mut batch(B, &[(A, 3)]));
    assert_eq!(received(&mut a), [3]);
    assert_eq!(a.stats().rx_foreign_mac, 2);
    let rows = a.members().unwrap();
    assert_eq!((rows[0].rx_frames, rows[0].rx_foreign_mac), (1, 2));
}

#[test]
fn garbage_costs_its_author_the_link_and_nobody_else_anything() {
    let folder = folder();
    let (mut a, mut b) = (join(&folder, A), join(&folder, B));
    settle(&mut [&mut a, &mut b]);
    let (memfd, ..) = share::make(RingLen::USUAL).unwrap();
    let stranger = hand_over(&folder, A, C, &memfd);
    settle(&mut [&mut a, &mut b]);
    assert_eq!(a.linked().count(), 2);
    // A head that no ring has.
    rustix::io::pwrite(&memfd, &[0xff; 64], 0).unwrap();
    assert!(a.has_frames());
    assert_eq!(received(&mut a), Vec::<u8>::new());
    assert_eq!((a.linked().count(), a.stats().rings_broken), (1, 1));
    b.send(&mut batch(B, &[(A, 4)]));
    assert_eq!(received(&mut a), [4]);
    drop(stranger);
}

#[test]
fn memory_that_could_be_cut_short_is_refused_and_a_seal_holds() {
    let folder = folder();
    let mut a = join(&folder, A);
    let loose = memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&loose, RingLen::USUAL.memory_len() as u64).unwrap();
    let _stranger = hand_over(&folder, A, C, &loose);
    settle(&mut [&mut a]);
    assert_eq!((a.linked().count(), a.stats().rings_broken), (0, 1));
    let (memfd, ..) = share::make(RingLen::USUAL).unwrap();
    let _stranger = hand_over(&folder, A, C, &memfd);
    settle(&mut [&mut a]);
    assert_eq!(a.linked().count(), 1);
    assert!(ftruncate(&memfd, 0).is_err());
}

#[test]
fn callers_that_say_nothing_or_nonsense_are_forgotten() {
    let folder = folder();
    let mut a = join(&folder, A);
    let path = socket_path(folder.path(), A);
    let silent: Vec<_> = (0..3 * MAX_CALLERS).map(|_| connect(&path).unwrap()).collect();
    connect(&path).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    settle(&mut [&mut a]);
    settle(&mut [&mut a]);
    assert_eq!((a.linked().count(), a.stats().rings_broken), (0, 1));
    let mut b = join(&folder, B);
    settle(&mut [&mut a, &mut b]);
    assert_eq!(a.linked().count(), 1);
    drop(silent);
}

#[test]
fn nobody_takes_the_mac_of_a_member_or_one_that_does_not_call() {
    let folder = folder();
    let (mut b, mut c) = (join(&folder, B), join(&folder, C));
    settle(&mut [&mut b, &mut c]);
    let (memfd, ..) = share::make(RingLen::USUAL).unwrap();
    for mac in [C, B, A, MacAddr::BROADCAST] {
        let _stranger = hand_over(&folder, B, mac, &memfd);
        settle(&mut [&mut b]);
    }
    assert_eq!(b.linked().collect::<Vec<_>>(), [C]);
    c.send(&mut batch(C, &[(B, 1)]));
    assert_eq!(received(&mut b), [1]);
}

#[test]
fn other_files_of_the_folder_do_not_matter() {
    let folder = folder();
    std::fs::write(folder.path().join("020000000003.ring"), "no socket").unwrap();
    std::fs::write(folder.path().join("notes"), "").unwrap();
    drop(UnixListener::bind(socket_path(folder.path(), MacAddr([2, 0, 0, 0, 0, 9]))).unwrap());
    let mut a = join(&folder, A);
    let mut b = join(&folder, B);
    settle(&mut [&mut a, &mut b]);
    assert_eq!(a.linked().count(), 1);
    for wrong in
        ["020000000001", "0200000000.ring", "02000000000g.ring", "0200000000ABC.ring", "ff0000000000.ring"]
    {
        assert_eq!(member(wrong), None, "{wrong}");
    }
    assert_eq!(member("0200000000ab.ring"), Some(MacAddr([2, 0, 0, 0, 0, 0xab])));
}
