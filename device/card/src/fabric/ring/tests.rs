use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;
use std::process::Command;

use engine::DetachedPayload;
use protocol::ids::Iova;
use protocol::roce::Offload;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tempfile::TempDir;

use super::discovery::{connect, member};
use super::hello::{self, Hello, Kind, Message};
use super::memory::RingLen;
use super::tokens::Token;
use super::*;
use crate::fabric::sources::tests::{frames_from, member as identity};
use crate::fabric::tx_batch::tests::memory;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const C: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);
const D: MacAddr = MacAddr([2, 0, 0, 0, 0, 4]);
const E: MacAddr = MacAddr([2, 0, 0, 0, 0, 5]);

fn folder() -> TempDir {
    tempfile::tempdir().unwrap()
}

fn of(mac: MacAddr) -> Identity {
    Identity::of_mac(mac).unwrap()
}

/// Joins the network with a timeout for full rings that does not expire during a test.
fn join(folder: &TempDir, mac: MacAddr) -> RingFabric {
    let mut fabric = RingFabric::join(folder.path(), &of(mac)).unwrap();
    fabric.full_timeout = Duration::from_secs(3600);
    fabric
}

/// Runs the event handlers of all members for enough rounds to complete every exchange.
fn settle(fabrics: &mut [&mut RingFabric]) {
    for _ in 0..8 {
        fabrics.iter_mut().for_each(|fabric| fabric.handle_ready().unwrap());
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
    let tags = batch.iter().map(|arrival| arrival.contents()[12]).collect();
    fabric.release(&mut batch);
    tags
}

fn is_ready(fabric: &RingFabric) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&fabric.as_fd(), PollFlags::IN)], Some(&now)).unwrap() == 1
}

/// A fake member that implements only the parts of the protocol that the tests need.
struct Stranger {
    own: Identity,
    folder: PathBuf,
    listener: UnixListener,
}

impl Stranger {
    fn new(folder: &TempDir, own: Identity) -> Self {
        let listener = UnixListener::bind(socket_path(folder.path(), own.mac)).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self { own, folder: folder.path().to_path_buf(), listener }
    }

    fn send(&self, to: MacAddr, message: Message<'_>, answered: Option<Token>) -> UnixStream {
        let socket = connect(&socket_path(&self.folder, to)).unwrap();
        hello::send(&socket, &self.own, message, [None, answered]).unwrap();
        socket
    }

    /// Returns the last message sent to this member's socket.
    fn last(&self) -> Option<(UnixStream, Hello)> {
        let callers = std::iter::from_fn(|| self.listener.accept().ok());
        callers.filter_map(|(socket, _)| hello::receive(&socket).unwrap().map(|hello| (socket, hello))).last()
    }

    /// Sends a `Call` message to a member and returns the token from its answer.
    fn call(&self, member: &mut RingFabric) -> Option<Token> {
        let _ = self.send(member.own.mac, Message::Call, None);
        settle(&mut [member]);
        self.last()?.1.token
    }

    /// Sends shared memory to a member, as a peer would.
    fn link(&self, member: &mut RingFabric, memfd: &OwnedFd) -> UnixStream {
        let token = self.call(member);
        let socket = self.send(member.own.mac, Message::Memory(memfd.as_fd()), token);
        settle(&mut [member]);
        socket
    }
}

#[test]
fn members_connect_in_any_join_order() {
    for order in [[A, B, C], [C, B, A], [B, A, C]] {
        let folder = folder();
        let mut fabrics = order.map(|mac| join(&folder, mac));
        settle(&mut fabrics.iter_mut().collect::<Vec<_>>());
        fabrics.sort_by_key(|fabric| fabric.own.mac.0);
        let [a, b, c] = &mut fabrics;
        a.send(&mut batch(A, &[(B, 1), (C, 2), (B, 3)]));
        c.send(&mut batch(C, &[(A, 4)]));
        b.send(&mut batch(B, &[(MacAddr::BROADCAST, 5)]));
        assert_eq!(received(b), [1, 3], "{order:?}");
        // Frames from different members may arrive in any order.
        for (member, tags) in [(&mut *a, [4, 5]), (c, [2, 5])] {
            let mut all = received(member);
            all.sort_unstable();
            assert_eq!(all, tags, "{order:?}");
        }
        assert_eq!((a.stats().tx_frames, a.stats().rx_frames), (3, 2));
    }
}

#[test]
fn rejoining_member_is_linked_again() {
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
fn second_member_with_same_mac_is_rejected() {
    let folder = folder();
    let _a = join(&folder, A);
    let error = RingFabric::join(folder.path(), &of(A)).unwrap_err();
    assert!(error.to_string().contains("in use") || error.to_string().contains("020000000001"), "{error}");
}

#[test]
fn only_sleeping_member_is_woken() {
    let folder = folder();
    let (mut a, mut b) = (join(&folder, A), join(&folder, B));
    settle(&mut [&mut a, &mut b]);
    a.send(&mut batch(A, &[(B, 1)]));
    assert!(!is_ready(&b) && b.has_frames() && !b.enable_wakeups());
    b.disable_wakeups();
    received(&mut b);
    assert!(b.enable_wakeups());
    assert!(a.members().unwrap()[0].asleep);
    a.send(&mut batch(A, &[(B, 2)]));
    assert!(is_ready(&b));
    b.handle_ready().unwrap();
    assert!(!is_ready(&b));
    assert_eq!(received(&mut b), [2]);
    assert_eq!(a.stats().tx_calls, 1);
}

#[test]
fn full_ring_drops_frames_after_timeout() {
    let folder = folder();
    let (mut a, mut b) = (join(&folder, A), join(&folder, B));
    settle(&mut [&mut a, &mut b]);
    let mut frames = TxBatch::default();
    let long = [&B.0[..], &A.0, &[9; 4000]].concat();
    (0..600).for_each(|_| frames.push(&long));
    assert_eq!(a.send(&mut frames), Sent::Blocked);
    assert!(
        a.retry_after().is_some_and(|retry_after| retry_after <= a.full_timeout),
        "the wait for ring space is limited"
    );
    let left = frames.len();
    assert!(left > 0 && a.stats().tx_refused == 0);
    let mut arrived = RxBatch::new();
    while b.has_frames() {
        b.recv(&mut arrived).unwrap();
    }
    assert!(is_ready(&a), "the ring has space again");
    a.handle_ready().unwrap();
    assert_eq!(a.send(&mut frames), Sent::All);
    assert_eq!(a.stats().tx_frames, 600);

    (0..600).for_each(|_| frames.push(&long));
    assert_eq!(a.send(&mut frames), Sent::Blocked);
    a.full_timeout = Duration::ZERO;
    assert_eq!(a.send(&mut frames), Sent::All);
    assert!(frames.is_empty() && a.stats().tx_refused > 0);
}

/// Each turn adds frames to those that the ring had no room for, so the batch never becomes empty.
#[test]
fn slow_member_does_not_grow_buffer_of_batch() {
    let folder = folder();
    let (mut a, mut b) = (join(&folder, A), join(&folder, B));
    settle(&mut [&mut a, &mut b]);
    let long = [&B.0[..], &A.0, &[9; 4000]].concat();
    let (mut frames, mut arrived) = (TxBatch::default(), RxBatch::new());
    for _ in 0..100 {
        while frames.len() < 128 {
            frames.push(&long);
        }
        a.send(&mut frames);
        b.recv(&mut arrived).unwrap();
    }
    assert!(a.stats().tx_frames > 5000 && !frames.is_empty());
    let len = frames.buffer().len();
    assert!(len < 4 * frames.bytes(), "{len} bytes for {} frames", frames.len());
}

/// While frames wait for space in the ring, software may reuse the memory of their payload.
#[test]
fn waiting_frames_keep_their_payload() {
    let folder = folder();
    let (mut a, mut b) = (join(&folder, A), join(&folder, B));
    settle(&mut [&mut a, &mut b]);
    let memory = memory();
    memory.write(Iova::new(0), &[7; 4000]).unwrap();
    let mut frames = TxBatch::default();
    for _ in 0..600 {
        let (frame, ranges) = frames.detached_buffer();
        frame.extend([&B.0[..], &A.0, &[0; 4]].concat());
        memory.locate(Iova::new(0), 4000, ranges).unwrap();
        let payload = DetachedPayload { at: 12, ranges: 1, len: 4000.try_into().unwrap() };
        frames.commit_detached(B, Origin::Own, Offload::Icrc, payload);
    }
    assert_eq!(a.send(&mut frames), Sent::Blocked);
    memory.write(Iova::new(0), &[9; 4000]).unwrap();
    let mut arrived = Vec::new();
    while arrived.len() < 600 {
        arrived.extend(received(&mut b));
        a.send(&mut frames);
    }
    assert_eq!(arrived, [7; 600]);
}

#[test]
fn slow_member_does_not_delay_others() {
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
fn frames_with_foreign_source_mac_are_dropped() {
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
fn invalid_ring_head_closes_only_that_link() {
    let folder = folder();
    let (mut a, mut b) = (join(&folder, A), join(&folder, B));
    settle(&mut [&mut a, &mut b]);
    let (memfd, ..) = share::make(RingLen::DEFAULT).unwrap();
    let stranger = Stranger::new(&folder, of(C)).link(&mut a, &memfd);
    assert_eq!(a.linked().count(), 2);
    // Write an invalid head counter.
    rustix::io::pwrite(&memfd, &[0xff; 64], 0).unwrap();
    assert!(a.has_frames());
    assert_eq!(received(&mut a), Vec::<u8>::new());
    assert_eq!((a.linked().count(), a.stats().rings_broken), (1, 1));
    b.send(&mut batch(B, &[(A, 4)]));
    assert_eq!(received(&mut a), [4]);
    drop(stranger);
}

#[test]
fn link_with_resizable_memory_is_rejected() {
    let folder = folder();
    let mut a = join(&folder, A);
    let loose = memfd_create("loose", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&loose, RingLen::DEFAULT.memory_len() as u64).unwrap();
    let stranger = Stranger::new(&folder, of(C));
    let _socket = stranger.link(&mut a, &loose);
    assert_eq!((a.linked().count(), a.stats().rings_broken), (0, 1));
    let (memfd, ..) = share::make(RingLen::DEFAULT).unwrap();
    let _socket = stranger.link(&mut a, &memfd);
    assert_eq!(a.linked().count(), 1);
    assert!(ftruncate(&memfd, 0).is_err());
}

#[test]
fn silent_and_invalid_connections_do_not_block_new_member() {
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

fn links(member: &RingFabric) -> Vec<MacAddr> {
    let mut linked: Vec<_> = member.linked().collect();
    linked.sort_unstable_by_key(|mac| mac.0);
    linked
}

#[test]
fn mac_claim_without_socket_is_rejected() {
    let folder = folder();
    let (mut b, mut c) = (join(&folder, B), join(&folder, C));
    settle(&mut [&mut b, &mut c]);
    let (memfd, ..) = share::make(RingLen::DEFAULT).unwrap();
    let stranger = Stranger::new(&folder, of(E));
    // Claim the MAC of a linked member, the receiver's own MAC, the MAC of an absent member, the broadcast MAC, and the
    // MAC of another absent member, in that order. The first absent member has a smaller MAC than the receiver, so a
    // genuine member with that MAC would never create the shared memory.
    for mac in [C, B, A, MacAddr::BROADCAST, D] {
        let own = Identity { mac, ..of(C) };
        let impostor = Stranger {
            own,
            folder: folder.path().to_path_buf(),
            listener: stranger.listener.try_clone().unwrap(),
        };
        for answered in [None, Token::new(7), stranger.call(&mut b)] {
            let _call = impostor.send(B, Message::Call, answered);
            let _memory = impostor.send(B, Message::Memory(memfd.as_fd()), answered);
            settle(&mut [&mut b, &mut c]);
            assert_eq!(links(&b), [C], "{mac}");
        }
    }
    c.send(&mut batch(C, &[(B, 1)]));
    b.send(&mut batch(B, &[(C, 2)]));
    assert_eq!((received(&mut b), received(&mut c)), (vec![1], vec![2]));
}

#[test]
fn socket_owner_replaces_impostor_link() {
    let folder = folder();
    let mut b = join(&folder, B);
    let (memfd, ..) = share::make(RingLen::DEFAULT).unwrap();
    // Each stranger initially owns the socket of an absent member. Once that socket is removed, the stranger has only
    // its link left. Of the two ends of a link, the one with the larger MAC creates the shared memory. The first
    // stranger (C) therefore creates the memory of its link to B, and the second (A) receives the memory that B
    // creates.
    let greater = Stranger::new(&folder, of(C));
    let mut spare = greater.call(&mut b);
    let kept_greater = greater.link(&mut b, &memfd);
    let lesser = Stranger::new(&folder, of(A));
    let proof = lesser.call(&mut b);
    let _call = lesser.send(B, Message::Call, proof);
    settle(&mut [&mut b]);
    let (kept_lesser, hello) = lesser.last().unwrap();
    assert!(matches!(hello.kind, Kind::Memory { .. }));
    assert_eq!(links(&b), [A, C]);

    for mac in [A, C] {
        std::fs::remove_file(socket_path(folder.path(), mac)).unwrap();
    }
    let (mut a, mut c) = (join(&folder, A), join(&folder, C));
    settle(&mut [&mut a, &mut b, &mut c]);
    a.send(&mut batch(A, &[(B, 1)]));
    c.send(&mut batch(C, &[(B, 2)]));
    let mut at_b = received(&mut b);
    at_b.sort_unstable();
    assert_eq!(at_b, [1, 2]);
    b.send(&mut batch(B, &[(A, 3), (C, 4)]));
    assert_eq!((received(&mut a), received(&mut c)), (vec![3], vec![4]));

    // Tokens that the strangers received earlier are no longer valid.
    for token in [spare.take(), proof] {
        let _late = greater.send(B, Message::Memory(memfd.as_fd()), token);
        let _late = lesser.send(B, Message::Call, token);
        settle(&mut [&mut a, &mut b, &mut c]);
    }
    c.send(&mut batch(C, &[(B, 5)]));
    a.send(&mut batch(A, &[(B, 5)]));
    assert_eq!(received(&mut b), [5, 5]);
    drop((kept_greater, kept_lesser));
}

#[test]
fn frames_with_source_ip_of_another_member_are_dropped() {
    let folder = folder();
    let own =
        |lid: u16| Identity { ipv6: Some(format!("2001:db8::{lid}").parse().unwrap()), ..identity(lid) };
    let elsewhere = Identity { ipv4: [192, 0, 2, 3].into(), ..own(3) };
    // A malicious process claims the addresses of other members before they join.
    let impostor = Identity { ipv4: own(1).ipv4, ipv6: Some(identity(3).link_local()), ..identity(2) };
    let mut b = RingFabric::join(folder.path(), &impostor).unwrap();
    let mut a = RingFabric::join(folder.path(), &own(1)).unwrap();
    let mut c = RingFabric::join(folder.path(), &elsewhere).unwrap();
    settle(&mut [&mut a, &mut b, &mut c]);
    let mut refused = 0;
    for victim in [own(1), elsewhere] {
        let mut frames = TxBatch::default();
        for frame in frames_from(B, A, &victim) {
            frames.push(&frame);
            refused += 1;
        }
        b.send(&mut frames);
        assert_eq!(received(&mut a), Vec::<u8>::new());
    }
    assert_eq!((a.stats().rx_foreign_ip, a.members().unwrap()[0].rx_foreign_ip), (refused, refused));

    // Frames from a member's NIC are checked before they are sent.
    let mut frames = TxBatch::of_nic();
    frames_from(C, A, &own(1)).iter().for_each(|frame| frames.push(frame));
    c.send(&mut frames);
    assert_eq!((c.stats().tx_foreign_ip, a.has_frames()), (6, false));

    // C may use its own addresses and addresses that no member owns. After C has left, B may use addresses that
    // belonged to C.
    for member in [elsewhere, identity(9)] {
        let mut frames = TxBatch::of_nic();
        frames_from(C, A, &member).iter().for_each(|frame| frames.push(frame));
        c.send(&mut frames);
        assert_eq!(received(&mut a).len(), 6);
    }
    drop(c);
    settle(&mut [&mut a]);
    let mut frames = TxBatch::default();
    frames_from(B, A, &elsewhere)[..1].iter().for_each(|frame| frames.push(frame));
    b.send(&mut frames);
    assert_eq!(received(&mut a).len(), 1);
}

#[test]
fn caller_is_rejected_without_free_descriptors() {
    const CHILD: &str = "HCAD_TEST_WITHOUT_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        // The limit applies to a whole process, so the test runs in a process of its own.
        let name = "fabric::ring::tests::caller_is_rejected_without_free_descriptors";
        let mut child = Command::new(std::env::current_exe().unwrap());
        assert!(child.args(["--exact", name]).env(CHILD, "1").status().unwrap().success());
        return;
    }
    let folder = folder();
    let mut a = join(&folder, A);
    let mut caller = connect(&socket_path(folder.path(), A)).unwrap();
    assert!(is_ready(&a));
    let limit = getrlimit(Resource::Nofile);
    // All descriptors below the lowest free one are in use.
    let lowest_free = u64::try_from(a.epoll.try_clone().unwrap().as_raw_fd()).unwrap();
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest_free), ..limit }).unwrap();
    for _ in 0..2 {
        a.handle_ready().unwrap();
        assert!(!is_ready(&a), "the thread can sleep");
        assert_eq!(caller.read(&mut [0]).unwrap(), 0, "the connection is closed");
    }
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut b = join(&folder, B);
    settle(&mut [&mut a, &mut b]);
    assert_eq!(a.linked().count(), 1);
}

#[test]
fn members_are_found_among_stale_sockets() {
    let folder = folder();
    let dead = |n: u16| {
        let [hi, lo] = n.to_be_bytes();
        MacAddr([2, 0, 0, 1, hi, lo])
    };
    (0..1000).for_each(|n| drop(UnixListener::bind(socket_path(folder.path(), dead(n))).unwrap()));
    let behind = Identity { mac: MacAddr([6, 0, 0, 0, 0, 1]), ..of(B) };
    let mut last = RingFabric::join(folder.path(), &behind).unwrap();
    let mut first = join(&folder, A);
    settle(&mut [&mut first, &mut last]);
    assert_eq!((first.linked().count(), last.linked().count()), (1, 1));

    // Repeated partial scans find a member that has started but does not connect to others.
    let silent = Stranger::new(&folder, Identity { mac: MacAddr([6, 0, 0, 0, 0, 2]), ..of(C) });
    let found = (0..=1000 / 128 + 1).any(|_| {
        first.scan(Scan::Partial);
        silent.last().is_some()
    });
    assert!(found);
}

#[test]
fn unrelated_files_are_ignored() {
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
