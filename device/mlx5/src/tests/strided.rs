//! Strided layouts of memory keys, and invalidation of indirect keys, both as used by libmlx5 (mlx5 interface, sections
//! 13.2 and 13.3).

use card::frontend::testing::{exchange, pattern};
use card::telemetry::testing::Written;
use card::telemetry::trace::TraceFormat;
use protocol::hca::mlx5::mkey::{ANY_QP, AccessMode, Klm, MkeyContext, QueriedMkey};
use protocol::hca::mlx5::qp::Service;
use protocol::hca::mlx5::resource::MkeyNumber;
use protocol::hca::mlx5::strided::{REPEAT_KEY, RepeatBlock, StridedEntry};
use protocol::hca::mlx5::syndrome::Syndrome;
use protocol::hca::mlx5::umr::{MkeyMask, UmrControl};
use protocol::hca::mlx5::wqe::{DataItem, DataSegment, Opcode, Operation, SendWqe, Translation};
use protocol::ids::{Lkey, MkeyIndex, Qpn, Rkey, Va};
use smallvec::smallvec;

use super::umr::{execute, free_key, umr};
use super::user::{DATA_VA, User, request, syndromes};
use super::*;

const FAILED: u8 = Syndrome::WindowBind.code();
/// Size of the translation lists under test, in 16-byte units.
const UNITS: u32 = 4;

/// Creates a free indirect key, as `mlx5dv_create_mkey` does.
fn indirect_key(user: &mut User) -> u32 {
    let context = MkeyContext {
        free: true,
        umr_enabled: true,
        translation_units: UNITS,
        key: 0,
        local_read: true,
        ..user.mkey(AccessMode::Ranges)
    };
    user.create_mkey(context, &[])
}

/// Returns the UMR that `mlx5dv_wr_mr_interleaved` and `mlx5dv_wr_mr_list` post. It sets an inline list, the length and
/// the rights. The mask does not select the start address, which stays 0.
fn layout(key: u32, length: u64, list: &[u8]) -> SendWqe<'_> {
    let rights = MkeyMask::LOCAL_WRITE | MkeyMask::REMOTE_READ | MkeyMask::REMOTE_WRITE | MkeyMask::ATOMIC;
    let control = UmrControl {
        inline: true,
        units: u16::try_from(list.len() / 16).unwrap(),
        mask: MkeyMask::FREE | MkeyMask::KEY | MkeyMask::LENGTH | rights,
        ..UmrControl::default()
    };
    let mkey = MkeyContext {
        qpn: ANY_QP,
        local_write: true,
        remote_write: true,
        remote_read: true,
        length,
        ..MkeyContext::default()
    };
    umr(key, control, mkey, Translation::Inline(list))
}

/// Returns a strided list with one entry per offset in the user's data region. Each repetition of an entry covers 8
/// bytes and starts 10 bytes after the previous one.
fn interleaved(user: &User, repetitions: u32, offsets: &[u64]) -> Vec<u8> {
    let entries = u16::try_from(offsets.len()).unwrap();
    let byte_count = u32::from(entries) * 8;
    let mut list = RepeatBlock { byte_count, key: REPEAT_KEY, repetitions, entries }.emit().to_vec();
    for offset in offsets {
        let va = Va::new(DATA_VA + offset);
        list.extend(StridedEntry { stride: 10, byte_count: 8, key: user.key, va }.emit());
    }
    list.resize(list.len().next_multiple_of(64), 0);
    list
}

/// Returns the UMR that libmlx5 posts for `IBV_WR_LOCAL_INV`, whether or not the key is a window.
fn local_invalidate<'data>(key: u32) -> SendWqe<'data> {
    let control = UmrControl {
        inline: true,
        offset_valid: true,
        check_qpn: true,
        mask: MkeyMask::FREE | MkeyMask::KEY | MkeyMask::QPN,
        ..UmrControl::default()
    };
    let free = MkeyContext { free: true, qpn: ANY_QP, ..MkeyContext::default() };
    umr(key, control, free, Translation::None)
}

/// Returns a SEND through an indirect key. The scatter/gather element contains an offset into the zero-based key.
fn send_through<'data>(key: u32, offset: u64, len: u32) -> SendWqe<'data> {
    let data = DataSegment { byte_count: len, lkey: Lkey::new(key), va: Va::new(offset) };
    SendWqe { data: smallvec![DataItem::Pointer(data)], ..request(Opcode::Send, Operation::Send, data) }
}

/// As in rdma-core's test of interleaved layouts, the list has three repetitions of two ranges.
#[test]
fn send_gathers_strided_layout() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let key = indirect_key(&mut a);
    let list = interleaved(&a, 3, &[0, 64]);
    assert_eq!(execute(&mut a, &mut b, &layout(key, 48, &list)), 0);
    let bytes = pattern(100, 3);
    a.put(0, &bytes);
    b.post_recv(0x1000, 64);
    assert_eq!(execute(&mut a, &mut b, &send_through(key, 0, 48)), 0);
    let expected = [0, 64, 10, 74, 20, 84].map(|at| &bytes[at..at + 8]).concat();
    assert_eq!(b.get(0x1000, 48), expected);
}

#[test]
fn peer_writes_and_reads_strided_layout() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let key = indirect_key(&mut b);
    let list = interleaved(&b, 3, &[0, 64]);
    assert_eq!(execute(&mut b, &mut a, &layout(key, 48, &list)), 0);
    let mut remote = a.remote(0);
    (remote.va, remote.rkey) = (Va::new(4), Rkey::new(key));
    a.put(0, &pattern(16, 5));
    let write = request(Opcode::Write, Operation::Write(remote), a.data(0, 16));
    assert_eq!(execute(&mut a, &mut b, &write), 0);
    let written = [b.get(4, 4), b.get(64, 8), b.get(10, 4)].concat();
    assert_eq!(written, pattern(16, 5));
    assert_eq!((b.get(8, 2), b.get(14, 1)), (vec![0; 2], vec![0]), "skipped bytes are not written");
    let read = request(Opcode::Read, Operation::Read(remote), a.data(0x200, 16));
    assert_eq!(execute(&mut a, &mut b, &read), 0);
    assert_eq!(a.get(0x200, 16), pattern(16, 5));
}

/// The key's length exceeds the data covered by the list's three repetitions.
#[test]
fn access_past_last_repetition_fails() {
    let reach = |va| {
        let (mut a, mut b) = User::pair(Service::Rc);
        let key = indirect_key(&mut b);
        let list = interleaved(&b, 3, &[0, 64]);
        assert_eq!(execute(&mut b, &mut a, &layout(key, 0x1000, &list)), 0);
        let mut remote = a.remote(0);
        (remote.va, remote.rkey) = (Va::new(va), Rkey::new(key));
        let write = request(Opcode::Write, Operation::Write(remote), a.data(0, 8));
        execute(&mut a, &mut b, &write)
    };
    assert_eq!((reach(40), reach(41)), (0, Syndrome::RemoteAccess.code()));
}

#[test]
fn changed_key_in_strided_layout_affects_next_access() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let key = indirect_key(&mut b);
    let inner = indirect_key(&mut b);
    let klm = |user: &User, offset: u64| {
        let mut list =
            Klm { byte_count: 0x100, key: user.key, va: Va::new(DATA_VA + offset) }.emit().to_vec();
        list.resize(64, 0);
        list
    };
    let list = klm(&b, 0x400);
    assert_eq!(execute(&mut b, &mut a, &layout(inner, 0x100, &list)), 0);
    let header = RepeatBlock { byte_count: 4, key: REPEAT_KEY, repetitions: 2, entries: 1 };
    let entry = StridedEntry { stride: 16, byte_count: 4, key: inner, va: Va::new(0) };
    let mut outer = [header.emit(), entry.emit()].concat();
    outer.resize(64, 0);
    assert_eq!(execute(&mut b, &mut a, &layout(key, 8, &outer)), 0);
    let mut remote = a.remote(0);
    (remote.va, remote.rkey) = (Va::new(0), Rkey::new(key));
    let write = request(Opcode::Write, Operation::Write(remote), a.data(0, 8));
    a.put(0, b"firstday");
    assert_eq!(execute(&mut a, &mut b, &write), 0);
    assert_eq!((b.get(0x400, 4), b.get(0x410, 4)), (b"firs".to_vec(), b"tday".to_vec()));
    let list = klm(&b, 0x800);
    assert_eq!(execute(&mut b, &mut a, &layout(inner, 0x100, &list)), 0);
    assert_eq!(execute(&mut a, &mut b, &write), 0);
    assert_eq!((b.get(0x800, 4), b.get(0x810, 4)), (b"firs".to_vec(), b"tday".to_vec()));
    // The outer key changes from a strided layout to a plain list.
    let list = klm(&b, 0xc00);
    assert_eq!(execute(&mut b, &mut a, &layout(key, 8, &list)), 0);
    assert_eq!(execute(&mut a, &mut b, &write), 0);
    assert_eq!(b.get(0xc00, 8), b"firstday");
    assert_eq!(execute(&mut b, &mut a, &local_invalidate(inner)), 0);
    assert_eq!(execute(&mut b, &mut a, &layout(key, 8, &outer)), 0);
    assert_eq!(execute(&mut a, &mut b, &write), Syndrome::RemoteAccess.code());
}

/// Section 20, M-34: the WQE requests a check of the key's QPN, although no QP owns the key.
#[test]
fn local_invalidate_frees_indirect_key() {
    for strided in [false, true] {
        let (mut a, mut b) = User::pair(Service::Rc);
        let key = indirect_key(&mut a);
        let klm = Klm { byte_count: 16, key: a.key, va: Va::new(DATA_VA) };
        let list = if strided { interleaved(&a, 1, &[0, 64]) } else { [klm.emit(), [0; 16]].concat() };
        assert_eq!(execute(&mut a, &mut b, &layout(key, 16, &list)), 0);
        assert_eq!(execute(&mut a, &mut b, &local_invalidate(key)), 0);
        let query = Command::QueryMkey(MkeyNumber { index: MkeyIndex::of(key) });
        let context = QueriedMkey::parse(&output(&a.ok(&query))).context;
        assert!(context.free && context.qpn == ANY_QP);
        b.post_recv(0, 64);
        let sent = execute(&mut a, &mut b, &send_through(key, 0, 16));
        assert_eq!(sent, Syndrome::LocalProtection.code());
    }
}

#[test]
fn local_invalidate_requires_key_of_same_qp() {
    let outcome = |free, qpn| {
        let (mut a, mut b) = User::pair(Service::Rc);
        let (key, context) = free_key(&mut a, AccessMode::Ranges);
        let control = UmrControl {
            inline: true,
            mask: MkeyMask::FREE | MkeyMask::QPN | MkeyMask::LENGTH,
            ..UmrControl::default()
        };
        let mkey = MkeyContext { free, qpn, length: 8, ..context };
        assert_eq!(execute(&mut a, &mut b, &umr(key, control, mkey, Translation::None)), 0);
        execute(&mut a, &mut b, &local_invalidate(key))
    };
    let own = User::pair(Service::Rc).0.qpn;
    assert_eq!((outcome(false, own), outcome(false, ANY_QP)), (0, 0));
    assert_eq!(outcome(false, Qpn::new(own.get() + 1)), FAILED);
    assert_eq!(outcome(true, ANY_QP), FAILED, "an unbound window belongs to no QP");
}

#[test]
fn local_invalidate_of_unknown_key_fails() {
    let (mut a, mut b) = User::pair(Service::Rc);
    assert_eq!(execute(&mut a, &mut b, &local_invalidate(0x7700)), FAILED);
}

#[test]
fn trace_lists_fields_of_strided_layout() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let written = Written::default();
    a.hca.set_trace(Some(written.trace(TraceFormat::Text)));
    let key = indirect_key(&mut a);
    let list = interleaved(&a, 3, &[0]);
    assert_eq!(execute(&mut a, &mut b, &layout(key, 24, &list)), 0);
    assert_eq!(execute(&mut a, &mut b, &local_invalidate(0x7700)), FAILED);
    a.hca.flush();
    a.hca.set_trace(None);
    let text = written.text();
    let records: Vec<&str> = text.lines().filter(|line| line.contains(" wqe umr ")).collect();
    let [registered, failed] = records[..] else { panic!("{text}") };
    for field in [&format!("key={key:#x}"), "strided.byte_count=8", "strided.repetitions=3", "stride=10"] {
        assert!(registered.contains(field), "{field}: {registered}");
    }
    assert!(failed.contains("key=0x7700 refused=key"), "{failed}");
}

/// If an access through a list fails, strict mode reports which key in the list denied it.
#[test]
fn strict_mode_reports_listed_key_that_denied_access() {
    let (mut a, mut b) = User::pair(Service::Rc);
    a.hca.set_strict(true);
    let written = Written::default();
    let key = indirect_key(&mut a);
    let klm = Klm { byte_count: 16, key: 0x7700, va: Va::new(0) };
    let list = [klm.emit(), [0; 16]].concat();
    assert_eq!(execute(&mut a, &mut b, &layout(key, 16, &list)), 0);
    a.hca.set_trace(Some(written.trace(TraceFormat::Text)));
    b.post_recv(0, 64);
    a.post(&send_through(key, 0, 16));
    exchange(&mut *a, &mut *b);
    assert_eq!(syndromes(&a.reap()), [Syndrome::LocalProtection.code()]);
    a.hca.flush();
    a.hca.set_trace(None);
    let expected = format!(
        "local read of 16 bytes at 0x0 with key {key:#x}, through listed key 0x7700 in PD 0x1: no region or window \
         has the key"
    );
    assert!(written.text().contains(&expected), "{}", written.text());
}
