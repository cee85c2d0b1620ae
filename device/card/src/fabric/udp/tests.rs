use std::sync::LazyLock;

use super::super::padding::tests::roce;
use super::*;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);
const C: MacAddr = MacAddr([2, 0, 0, 0, 0, 3]);
/// MAC of every HCA in tests that do not depend on it.
const OWN: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);

fn localhost() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

/// Creates fabrics that are all peers of each other.
fn mesh<const N: usize>() -> [UdpFabric; N] {
    let mut fabrics: [UdpFabric; N] =
        std::array::from_fn(|_| UdpFabric::bind(localhost(), OWN, &[]).unwrap());
    let addrs = fabrics.each_ref().map(|fabric| fabric.local_addr().unwrap());
    for (own, fabric) in fabrics.iter_mut().enumerate() {
        stop_clock(fabric);
        for addr in addrs.iter().filter(|addr| **addr != addrs[own]) {
            fabric.switch.add(UdpPeer::at(*addr)).unwrap();
        }
    }
    fabrics
}

/// Time of every stopped clock.
static STOPPED_AT: LazyLock<Instant> = LazyLock::new(Instant::now);

/// From now on, the fabric's clock is changed only by [`pass`].
fn stop_clock(fabric: &mut UdpFabric) {
    fabric.started = *STOPPED_AT;
    fabric.elapsed = |started| STOPPED_AT.duration_since(*started);
}

fn push(batch: &mut TxBatch, dst: MacAddr, src: MacAddr, len: usize, tag: u8) {
    let buffer = batch.buffer();
    buffer.extend(dst.0);
    buffer.extend(src.0);
    buffer.extend(std::iter::repeat_n(tag, len - 12));
    batch.commit(dst);
}

/// Returns the frames in the socket's buffer. On loopback, frames arrive before `send` returns.
fn received(fabric: &mut UdpFabric) -> Vec<Vec<u8>> {
    let (mut batch, mut all) = (RxBatch::new(), Vec::new());
    loop {
        fabric.recv(&mut batch).unwrap();
        if batch.is_empty() {
            return all;
        }
        all.extend(batch.iter().map(|arrival| arrival.contents().to_vec()));
    }
}

#[test]
fn burst_arrives_in_order() {
    let [mut a, mut b] = mesh();
    let mut batch = TxBatch::default();
    let lengths: Vec<usize> = std::iter::once(4174).chain([4158; 20]).chain([77, 62]).collect();
    for (tag, len) in lengths.iter().enumerate() {
        push(&mut batch, B, A, *len, u8::try_from(tag).unwrap());
    }
    assert_eq!(a.send(&mut batch), Sent::All);
    assert!(batch.is_empty());

    let frames = received(&mut b);
    assert_eq!(frames.iter().map(Vec::len).collect::<Vec<_>>(), lengths);
    assert!(frames.iter().enumerate().all(|(tag, frame)| frame[12..].iter().all(|b| usize::from(*b) == tag)));
    assert_eq!(a.stats().tx_frames, 23);
    assert!(a.stats().tx_calls < 23 || a.max_run == 1, "frames of equal length share a system call");
}

/// More segments than any kernel accepts in one send.
const TOO_LONG_RUN: usize = 300;

/// Sends frames of 62 bytes from A to `dst`. Returns the number of system calls.
fn send_many(fabric: &mut UdpFabric, dst: MacAddr, frames: usize) -> u64 {
    let mut batch = TxBatch::default();
    (0..frames).for_each(|_| push(&mut batch, dst, A, 62, 1));
    let before = fabric.stats().tx_calls;
    assert_eq!(fabric.send(&mut batch), Sent::All);
    fabric.stats().tx_calls - before
}

#[test]
fn rejected_run_is_sent_frame_by_frame() {
    let [mut a, mut b] = mesh();
    a.max_run = TOO_LONG_RUN;
    assert_eq!(send_many(&mut a, B, TOO_LONG_RUN), 1 + TOO_LONG_RUN as u64);
    assert_eq!(received(&mut b).len(), TOO_LONG_RUN);
    assert_eq!((a.stats().tx_frames, a.stats().tx_refused), (TOO_LONG_RUN as u64, 0));
}

#[test]
fn rejected_run_limits_peer_for_minute() {
    let [mut a, mut b, mut c] = mesh();
    if a.max_run == 1 {
        return;
    }
    for (fabric, mac) in [(&mut b, B), (&mut c, C)] {
        let mut batch = TxBatch::default();
        push(&mut batch, A, mac, 62, 0);
        fabric.send(&mut batch);
    }
    assert_eq!(received(&mut a).len(), 2, "A learns the MACs of its peers");

    let usual = std::mem::replace(&mut a.max_run, TOO_LONG_RUN);
    send_many(&mut a, B, TOO_LONG_RUN);
    a.max_run = usual;
    assert_eq!((send_many(&mut a, B, 8), send_many(&mut a, C, 8)), (8, 1));
    pass(&mut a, 61);
    assert_eq!(send_many(&mut a, B, 8), 1);
}

#[test]
fn datagram_over_ipv6_may_be_fragmented() {
    // Some hosts have no IPv6.
    let Ok(peer) = UdpSocket::bind("[::1]:0") else { return };
    peer.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let peers = [UdpPeer::at(peer.local_addr().unwrap())];
    let mut fabric = UdpFabric::bind("[::1]:0".parse().unwrap(), A, &peers).unwrap();
    // With its headers, the datagram exceeds the loopback interface's MTU of 65,536 bytes.
    let mut batch = TxBatch::default();
    push(&mut batch, B, A, 65_500, 7);
    assert_eq!(fabric.send(&mut batch), Sent::All);
    assert_eq!((fabric.stats().tx_frames, fabric.stats().tx_refused), (1, 0));
    assert_eq!(peer.recv(&mut vec![0; 1 << 16]).unwrap(), 65_500);
}

#[test]
fn frames_to_learned_mac_are_not_flooded() {
    let [mut a, mut b, mut c] = mesh();
    let mut batch = TxBatch::default();
    push(&mut batch, B, A, 64, 1);
    a.send(&mut batch);
    assert_eq!(
        (received(&mut b).len(), received(&mut c).len()),
        (1, 1),
        "a frame to an unknown MAC is flooded"
    );

    push(&mut batch, A, B, 64, 2);
    b.send(&mut batch);
    assert_eq!(
        (received(&mut a).len(), received(&mut c).len()),
        (1, 0),
        "A's MAC was learned from its frame"
    );

    push(&mut batch, MacAddr::BROADCAST, A, 64, 3);
    a.send(&mut batch);
    assert_eq!((received(&mut b).len(), received(&mut c).len()), (1, 1));
}

#[test]
fn frames_with_unknown_sender_or_bad_length_are_dropped() {
    let [a, mut b] = mesh();
    let stranger = UdpSocket::bind(localhost()).unwrap();
    stranger.send_to(&[0; 64], b.local_addr().unwrap()).unwrap();
    a.socket.send_to(&[0; 13], b.local_addr().unwrap()).unwrap();
    a.socket.send_to(&[0; MAX_FRAME_LEN + 1], b.local_addr().unwrap()).unwrap();
    assert_eq!(received(&mut b).len(), 0);
    assert_eq!((b.stats().rx_stranger, b.stats().rx_bad_length), (1, 2));
}

/// A peer can use more source addresses than the switch can learn. Replies to such a peer must not be flooded to other
/// peers.
#[test]
fn reply_to_unknown_mac_is_not_flooded() {
    let [mut a, mut b, mut c] = mesh();
    let mut batch = TxBatch::default();
    push(&mut batch, B, A, 64, 1);
    batch.mark_answer();
    assert_eq!(a.send(&mut batch), Sent::All);
    assert_eq!((received(&mut b).len(), received(&mut c).len()), (0, 0));
    assert_eq!((a.stats().tx_no_peer, a.stats().tx_frames), (1, 0));

    let mut polled = TxBatch::default();
    push(&mut polled, A, B, 64, 2);
    b.send(&mut polled);
    assert_eq!((received(&mut a).len(), received(&mut c).len()), (1, 1));
    push(&mut batch, B, A, 64, 3);
    batch.mark_answer();
    a.send(&mut batch);
    assert_eq!(
        (received(&mut b).len(), received(&mut c).len()),
        (1, 0),
        "only the requester receives the reply"
    );
}

#[test]
fn frame_with_foreign_source_mac_is_dropped() {
    let [mut a, mut b, mut c] = mesh();
    let mut batch = TxBatch::default();
    push(&mut batch, A, B, 64, 1);
    b.send(&mut batch);
    push(&mut batch, A, B, 64, 2);
    c.send(&mut batch);
    assert_eq!(received(&mut a).len(), 1);
    assert_eq!((a.stats().rx_frames, a.stats().rx_foreign_mac), (1, 1));
}

#[test]
fn socket_overflow_is_counted() {
    let [a, mut b] = mesh();
    let to = b.local_addr().unwrap();
    let sent = 20_000;
    for _ in 0..sent {
        a.socket.send_to(&[0; 1400], to).unwrap();
    }
    let arrived = received(&mut b).len();
    assert!(arrived < sent, "the burst must overflow the buffer");
    let lost = usize::try_from(b.stats().rx_overflow).unwrap();
    assert_eq!(arrived + lost, sent);
    assert_eq!(usize::try_from(b.stats().rx_overflow).unwrap(), lost, "each loss must be counted only once");
}

#[test]
fn absent_peer_does_not_block_sender() {
    let [mut a, mut b] = mesh();
    // A connected socket accepts datagrams only from its peer. The kernel rejects A's datagrams as if the port were
    // closed, but no other program can bind the port.
    let other = UdpSocket::bind(localhost()).unwrap();
    b.socket.connect(other.local_addr().unwrap()).unwrap();
    let mut batch = TxBatch::default();
    for tag in 0..3 {
        push(&mut batch, B, A, 64, tag);
        assert_eq!(a.send(&mut batch), Sent::All);
    }
    assert_eq!(received(&mut a).len(), 0);

    assert_eq!(received(&mut b).len(), 0);
    b.socket.connect(a.local_addr().unwrap()).unwrap();
    push(&mut batch, B, A, 64, 9);
    push(&mut batch, B, A, 64, 9);
    a.send(&mut batch);
    assert!(!received(&mut b).is_empty());
}

#[test]
fn hub_forwards_frames_for_its_leaf_nics() {
    let [mut hub, mut other] = mesh();
    let nic = |fabric: &mut UdpFabric| {
        let socket = UdpSocket::bind(localhost()).unwrap();
        socket.connect(fabric.local_addr().unwrap()).unwrap();
        socket.set_nonblocking(true).unwrap();
        let addr = socket.local_addr().unwrap();
        fabric.switch().unwrap().add(UdpPeer { leaf: true, ..UdpPeer::at(addr) }).unwrap();
        socket
    };
    let (a, b) = (nic(&mut hub), nic(&mut hub));
    let frame = |dst: MacAddr, src: MacAddr| [&dst.0[..], &src.0, &[0x88; 48]].concat();
    let arrived = |socket: &UdpSocket| std::iter::from_fn(|| socket.recv(&mut [0; 100]).ok()).count();

    a.send(&frame(MacAddr::BROADCAST, A)).unwrap();
    assert_eq!(received(&mut hub).len(), 1, "the hub's HCA also receives the broadcast");
    assert_eq!((arrived(&a), arrived(&b), received(&mut other).len()), (0, 1, 1));

    b.send(&frame(A, B)).unwrap();
    assert_eq!(received(&mut hub).len(), 0, "the frame is only for the NIC");
    assert_eq!((arrived(&a), arrived(&b), received(&mut other).len()), (1, 0, 0));

    let mut batch = TxBatch::default();
    push(&mut batch, B, OWN, 64, 1);
    push(&mut batch, MacAddr::BROADCAST, OWN, 64, 1);
    other.send(&mut batch);
    assert_eq!(received(&mut hub).len(), 1, "the hub's HCA receives only the broadcast");
    assert_eq!((arrived(&a), arrived(&b)), (1, 2));

    a.send(&frame(OWN, A)).unwrap();
    assert_eq!(received(&mut hub).len(), 1);
    assert_eq!(received(&mut other).len(), 0);
    assert_eq!(hub.stats().passed_on, 6);
}

fn push_plain(batch: &mut TxBatch, dst: MacAddr, src: MacAddr) {
    batch.buffer().extend([&dst.0[..], &src.0, &[0x88; 48]].concat());
    assert!(batch.commit_nic());
}

#[test]
fn macs_behind_own_nic_are_learned() {
    const BEHIND: MacAddr = MacAddr([0x52, 0x54, 0, 0, 0, 1]);
    let [mut hub, mut other] = mesh();
    let leaf = UdpSocket::bind(localhost()).unwrap();
    leaf.set_nonblocking(true).unwrap();
    let entry = UdpPeer { leaf: true, mac: Some(A), ..UdpPeer::at(leaf.local_addr().unwrap()) };
    hub.switch().unwrap().add(entry).unwrap();
    let to = hub.local_addr().unwrap();
    let from_leaf = |dst: MacAddr| leaf.send_to(&[&dst.0[..], &A.0, &[0x88; 48]].concat(), to).unwrap();
    from_leaf(BEHIND);
    assert_eq!(
        (received(&mut hub).len(), received(&mut other).len()),
        (1, 1),
        "a frame to an unknown MAC is flooded"
    );

    let mut batch = TxBatch::of_nic();
    push_plain(&mut batch, MacAddr::BROADCAST, BEHIND);
    push_plain(&mut batch, BEHIND, OWN);
    hub.send(&mut batch);
    assert_eq!(received(&mut other).len(), 1);
    assert_eq!(
        (hub.stats().tx_no_peer, hub.stats().tx_foreign_mac),
        (1, 0),
        "frames are not sent back to the NIC"
    );
    from_leaf(BEHIND);
    assert_eq!((received(&mut hub).len(), received(&mut other).len()), (1, 0));

    let mut peers = TxBatch::default();
    push(&mut peers, OWN, BEHIND, 64, 1);
    other.send(&mut peers);
    assert_eq!(
        (received(&mut hub).len(), hub.stats().rx_foreign_mac),
        (0, 1),
        "a peer cannot use one of the NIC's MACs"
    );

    // A run ends where the source address changes.
    push_plain(&mut batch, B, BEHIND);
    push_plain(&mut batch, B, A);
    push_plain(&mut batch, B, BEHIND);
    hub.send(&mut batch);
    assert_eq!(
        (received(&mut other).len(), hub.stats().tx_foreign_mac),
        (2, 1),
        "the NIC cannot use a peer's MAC"
    );
}

/// Frame lengths of two WRITEs.
const WRITES: [u16; 8] = [4174, 4158, 4158, 4158, 4174, 4158, 4158, 4158];

/// Sends two WRITEs from A to B. Returns the frames and the number of system calls.
fn send_writes(fabric: &mut UdpFabric) -> (Vec<Vec<u8>>, u64) {
    let frames: Vec<_> = (1..).zip(WRITES).map(|(tag, len)| roce(B, A, len, tag)).collect();
    let mut batch = TxBatch::default();
    frames.iter().for_each(|frame| batch.push(frame));
    let before = fabric.stats().tx_calls;
    assert_eq!(fabric.send(&mut batch), Sent::All);
    (frames, fabric.stats().tx_calls - before)
}

/// Makes `to` accept padded frames from `from`.
fn agree(from: &mut UdpFabric, to: &mut UdpFabric) {
    send_writes(from);
    received(to);
    assert!(received(from).is_empty(), "the device does not receive messages about padding");
}

fn pass(fabric: &mut UdpFabric, seconds: u64) {
    fabric.started = fabric.started.checked_sub(Duration::from_secs(seconds)).unwrap();
}

#[test]
fn padded_writes_take_one_system_call() {
    let [mut a, mut b] = mesh();
    if a.max_run == 1 {
        return;
    }
    let (frames, calls) = send_writes(&mut a);
    assert_eq!((received(&mut b), calls), (frames, 4), "no padding before the peer has accepted it");
    assert!(received(&mut a).is_empty());

    let (frames, calls) = send_writes(&mut a);
    assert_eq!((received(&mut b), calls), (frames, 1), "the receiver removes the padding");
    assert_eq!((a.stats().tx_frames, b.stats().rx_frames), (16, 16));
}

/// Peers other than HCAs, such as QEMU, ignore padding requests.
#[test]
fn frames_to_silent_peer_are_not_padded() {
    let peer = UdpSocket::bind(localhost()).unwrap();
    peer.set_nonblocking(true).unwrap();
    let mut a = UdpFabric::bind(localhost(), A, &[UdpPeer::at(peer.local_addr().unwrap())]).unwrap();
    stop_clock(&mut a);
    let arrived = || -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        std::iter::from_fn(|| {
            let mut bytes = vec![0; MAX_FRAME_LEN];
            let len = peer.recv(&mut bytes).ok()?;
            bytes.truncate(len);
            Some(bytes)
        })
        .partition(|frame| Message::parse(frame).is_some())
    };
    for _ in 0..4 {
        let (frames, _) = send_writes(&mut a);
        let (messages, others) = arrived();
        assert_eq!(others, frames);
        assert!(messages.len() == 1 || a.max_run == 1);
        pass(&mut a, 100);
    }
}

#[test]
fn padding_agreement_is_renewed_while_in_use() {
    let [mut a, mut b] = mesh();
    if a.max_run == 1 {
        return;
    }
    agree(&mut a, &mut b);
    for _ in 0..4 {
        pass(&mut a, 1);
        assert_eq!(send_writes(&mut a).1, 1);
        received(&mut b);
        received(&mut a);
    }
}

#[test]
fn padding_stops_when_another_program_replaces_peer() {
    let [mut a, mut b] = mesh();
    if a.max_run == 1 {
        return;
    }
    agree(&mut a, &mut b);
    let addr = b.local_addr().unwrap();
    drop(b);
    let other = UdpSocket::bind(addr).unwrap();
    other.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    pass(&mut a, 3);
    send_writes(&mut a);
    let mut bytes = vec![0; MAX_FRAME_LEN];
    let lengths: Vec<_> = (0..9).map(|_| other.recv(&mut bytes).unwrap()).collect();
    let expected: Vec<usize> = WRITES.iter().map(|len| usize::from(*len)).collect();
    assert_eq!(lengths.into_iter().filter(|len| *len > 100).collect::<Vec<_>>(), expected);
}

#[test]
fn forged_acceptance_is_ignored() {
    let [mut a, b, mut c] = mesh();
    if a.max_run == 1 {
        return;
    }
    for (fabric, own) in [(&mut a, A), (&mut c, C)] {
        fabric.own = own;
    }
    // Learn B's MAC, so that the frames are not flooded to C.
    let now = a.now();
    a.switch.admit(now, B, b.local_addr().unwrap()).unwrap();
    send_writes(&mut a);
    let number = a.random.hash_one(a.requests);
    let stranger = UdpSocket::bind(localhost()).unwrap();
    let to = a.local_addr().unwrap();
    stranger.send_to(&Message::Accept(number).frame(B), to).unwrap();
    c.socket.send_to(&Message::Accept(number).frame(C), to).unwrap();
    b.socket.send_to(&Message::Accept(number + 1).frame(B), to).unwrap();
    received(&mut a);
    assert_eq!(send_writes(&mut a).1, 4);

    b.socket.send_to(&Message::Accept(number).frame(B), to).unwrap();
    received(&mut a);
    assert_eq!(send_writes(&mut a).1, 1);
}

#[test]
fn forwarded_frames_are_unpadded() {
    let [mut hub, mut a] = mesh();
    let leaf = UdpSocket::bind(localhost()).unwrap();
    leaf.set_nonblocking(true).unwrap();
    let addr = leaf.local_addr().unwrap();
    hub.switch.add(UdpPeer { leaf: true, mac: Some(B), ..UdpPeer::at(addr) }).unwrap();
    let lengths = || {
        let mut bytes = vec![0; MAX_FRAME_LEN];
        std::iter::from_fn(|| leaf.recv(&mut bytes).ok()).collect::<Vec<_>>()
    };
    let expected: Vec<usize> = WRITES.iter().map(|len| usize::from(*len)).collect();
    for _ in 0..2 {
        send_writes(&mut a);
        assert!(received(&mut hub).is_empty());
        received(&mut a);
        assert_eq!(lengths(), expected, "the leaf receives neither padding nor messages");
    }
    assert!(a.stats().tx_calls == 5 || a.max_run == 1);

    let before = hub.stats().passed_on;
    leaf.send_to(&Message::Request(1).frame(B), hub.local_addr().unwrap()).unwrap();
    assert!(received(&mut hub).is_empty() && received(&mut a).is_empty());
    assert_eq!((lengths().len(), hub.stats().passed_on), (1, before));
}

#[test]
fn leaf_does_not_receive_padding_requests() {
    let leaf = UdpSocket::bind(localhost()).unwrap();
    leaf.set_nonblocking(true).unwrap();
    let peer = UdpPeer { leaf: true, ..UdpPeer::at(leaf.local_addr().unwrap()) };
    let mut a = UdpFabric::bind(localhost(), A, &[peer]).unwrap();
    send_writes(&mut a);
    let mut bytes = vec![0; MAX_FRAME_LEN];
    let lengths = std::iter::from_fn(|| leaf.recv(&mut bytes).ok());
    assert!(lengths.map(|len| u16::try_from(len).unwrap()).eq(WRITES));
}
