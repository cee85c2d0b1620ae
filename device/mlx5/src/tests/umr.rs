//! Work requests that change memory keys (mlx5 interface, section 13).

use card::frontend::testing::{exchange, pattern};
use protocol::hca::mlx5::mkey::{AccessMode, Klm, MkeyContext};
use protocol::hca::mlx5::qp::{QpContext, Service};
use protocol::hca::mlx5::resource::PdNumber;
use protocol::hca::mlx5::syndrome::Syndrome;
use protocol::hca::mlx5::umr::{MkeyMask, UmrControl};
use protocol::hca::mlx5::wqe::{ControlSegment, DataSegment, Opcode, Operation, SendWqe, Translation, Umr};
use protocol::ids::{Lkey, Qpn, Rkey, Va};
use smallvec::smallvec;

use super::user::{DATA_VA, User, request, syndromes};
use super::*;

/// Bus address of the pages that the keys under test map to.
const PAGES: u64 = 0x60_0000;
const START: u64 = 0x1_0000;
const FAILED: u8 = Syndrome::WindowBind.code();

/// Returns the mask of fields that a fast registration sets (section 13.3).
pub(super) fn registration() -> MkeyMask {
    MkeyMask::from_bits_retain(0x209e_2143)
}

pub(super) fn umr(
    key: u32,
    control: UmrControl,
    mkey: MkeyContext,
    translation: Translation<'_>,
) -> SendWqe<'_> {
    SendWqe {
        control: ControlSegment {
            completion: 2,
            fence: 1,
            immediate: key.to_be_bytes(),
            ..ControlSegment::default()
        },
        opcode: Opcode::Umr,
        xrc_srqn: None,
        operation: Operation::Umr(Umr { control, mkey, translation }),
        data: smallvec![],
    }
}

/// Creates a free key that work requests may change. Returns the key and its context.
pub(super) fn free_key(user: &mut User, mode: AccessMode) -> (u32, MkeyContext) {
    let context =
        MkeyContext { free: true, umr_enabled: true, translation_units: 1, log_page: 12, ..user.mkey(mode) };
    (user.create_mkey(context, &[]), context)
}

/// Executes a work request on the QP of `a`. Returns the syndrome of its completion.
pub(super) fn execute(a: &mut User, b: &mut User, wqe: &SendWqe<'_>) -> u8 {
    a.post(wqe);
    exchange(&mut **a, &mut **b);
    syndromes(&a.reap())[0]
}

/// Returns the context of a registered key that covers two pages at [`START`] and grants all access rights.
pub(super) fn registered(context: MkeyContext) -> MkeyContext {
    MkeyContext {
        free: false,
        remote_write: true,
        remote_read: true,
        local_write: true,
        remote_invalidate: true,
        start: Va::new(START),
        length: 0x2000,
        ..context
    }
}

/// Registers two pages under a free key, using an inline list. Returns the new key.
fn fast_register(b: &mut User, a: &mut User, mode: AccessMode, list: &[u8]) -> u32 {
    let (key, context) = free_key(b, mode);
    let control = UmrControl {
        inline: true,
        check_free: true,
        units: u16::try_from(list.len() / 16).unwrap(),
        mask: registration(),
        ..UmrControl::default()
    };
    let mkey = MkeyContext { key: 9, ..registered(context) };
    let wqe = umr(key & !0xff | 9, control, mkey, Translation::Inline(list));
    assert_eq!(execute(b, a, &wqe), 0);
    key & !0xff | 9
}

pub(super) fn mtts() -> Vec<u8> {
    let mut list = pages(PAGES, 2);
    list.resize(64, 0);
    list
}

/// Writes the first `len` bytes of the data region to address `va` in a region of the peer. Returns the syndrome.
fn write(a: &mut User, b: &mut User, [key, len]: [u32; 2], va: u64) -> u8 {
    let mut remote = a.remote(0);
    (remote.va, remote.rkey) = (Va::new(va), Rkey::new(key));
    let wqe = request(Opcode::Write, Operation::Write(remote), a.data(0, len));
    execute(a, b, &wqe)
}

/// Section 23.3: without fast registration, a user program's QP can invalidate a key that has a page list, but cannot
/// change it in any other way. If it could, the program could map any guest page.
#[test]
fn umr_mapping_change_requires_fast_registration() {
    let change = |fast_registration, mask| {
        let (mut a, mut b) = (User::new(1), User::new(2));
        a.connect(&QpContext { fast_registration, ..a.context(Service::Rc) }, 2);
        b.connect(&b.context(Service::Rc), 1);
        let context =
            MkeyContext { free: false, umr_enabled: true, log_page: 12, ..a.mkey(AccessMode::Pages) };
        let list = pages(PAGES, 2);
        let key = a.create_mkey(MkeyContext { length: 0x1000, ..context }, &list);
        let control = UmrControl { inline: true, mask, ..UmrControl::default() };
        let mkey = MkeyContext { free: true, length: 0x2000, log_page: 20, ..context };
        execute(&mut a, &mut b, &umr(key, control, mkey, Translation::Inline(&[])))
    };
    for mask in [MkeyMask::LENGTH, MkeyMask::PAGE_SIZE, MkeyMask::FREE | MkeyMask::LENGTH] {
        assert_eq!((change(false, mask), change(true, mask)), (FAILED, 0), "{mask:?}");
    }
    assert_eq!(change(false, MkeyMask::FREE), 0, "a key may be invalidated");
}

#[test]
fn peer_can_access_registered_pages_until_invalidation() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let key = fast_register(&mut b, &mut a, AccessMode::Pages, &mtts());
    a.put(0, &pattern(6000, 4));
    assert_eq!(write(&mut a, &mut b, [key, 6000], START + 0x100), 0);
    assert_eq!(b.peek(PAGES + 0x100, 6000), pattern(6000, 4));
    // LOCAL_INV frees the key.
    let control = UmrControl { inline: true, mask: MkeyMask::FREE, ..UmrControl::default() };
    let free = MkeyContext { free: true, ..MkeyContext::default() };
    assert_eq!(execute(&mut b, &mut a, &umr(key, control, free, Translation::None)), 0);
    let refused = write(&mut a, &mut b, [key, 8], START);
    assert_eq!(refused, Syndrome::RemoteAccess.code());
}

#[test]
fn send_with_invalidate_frees_peer_key() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let key = fast_register(&mut b, &mut a, AccessMode::Pages, &mtts());
    b.post_recv(0, 8);
    let mut wqe = request(Opcode::SendInvalidate, Operation::Send, a.data(0, 8));
    wqe.control.immediate = key.to_be_bytes();
    assert_eq!(execute(&mut a, &mut b, &wqe), 0);
    let cqes = b.reap();
    let [protocol::hca::mlx5::cqe::Cqe::Received(receipt)] = cqes[..] else { panic!("{cqes:?}") };
    assert_eq!(receipt.content, protocol::hca::mlx5::cqe::Content::SendInvalidate(key));
    assert_eq!(write(&mut a, &mut b, [key, 8], START), Syndrome::RemoteAccess.code());
}

#[test]
fn indirect_key_joins_ranges_of_other_keys() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let klm = |byte_count, offset| Klm { byte_count, key: b.key, va: Va::new(DATA_VA + offset) };
    let (mut context, list) =
        (b.mkey(AccessMode::Ranges), [klm(0x300, 0x1000), klm(0x1d00, 0x40)].map(|klm| klm.emit()).concat());
    (context.free, context.umr_enabled, context.translation_units) = (true, true, 2);
    let key = b.create_mkey(context, &[]);
    // The list is in the program's data region instead of the WQE.
    b.put(0x2f00, &list);
    let control = UmrControl { check_free: true, units: 4, mask: registration(), ..UmrControl::default() };
    let place = DataSegment { byte_count: 32, ..b.data(0x2f00, 0) };
    let wqe = umr(key, control, MkeyContext { key: 1, ..registered(context) }, Translation::Pointer(place));
    assert_eq!(execute(&mut b, &mut a, &wqe), 0);
    a.put(0, &pattern(0x500, 6));
    assert_eq!(write(&mut a, &mut b, [key, 0x500], START), 0);
    let written = [b.get(0x1000, 0x300), b.get(0x40, 0x200)].concat();
    assert_eq!(written, pattern(0x500, 6));
}

/// Section 13.4: a program cannot use memory of another protection domain as the list of its own key.
#[test]
fn umr_list_key_must_be_in_pd_of_qp() {
    for is_own in [true, false] {
        let (mut a, mut b) = User::pair(Service::Rc);
        let (key, context) = free_key(&mut a, AccessMode::Ranges);
        let pd = if is_own { a.pd } else { a.alloc_pd() };
        let whole = MkeyContext { pd, ..a.mkey(AccessMode::Physical) };
        let whole = a.create_mkey(MkeyContext { length64: true, ..whole }, &[]);
        let control =
            UmrControl { check_free: true, units: 4, mask: registration(), ..UmrControl::default() };
        let list = DataSegment { byte_count: 64, lkey: Lkey::new(whole), va: Va::new(PAGES) };
        let wqe = umr(key, control, registered(context), Translation::Pointer(list));
        assert_eq!(execute(&mut a, &mut b, &wqe), if is_own { 0 } else { FAILED });
    }
}

/// The device reports a maximum nesting depth of four.
#[test]
fn keys_can_be_nested_four_levels_deep() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let (mut key, mut va) = (b.key, DATA_VA);
    for level in 1..=5 {
        let mut list = Klm { byte_count: 0x2000, key, va: Va::new(va) }.emit().to_vec();
        list.resize(64, 0);
        key = fast_register(&mut b, &mut a, AccessMode::Ranges, &list);
        va = START;
        let expected = if level <= 4 { 0 } else { Syndrome::RemoteAccess.code() };
        assert_eq!(write(&mut a, &mut b, [key, 8], START), expected, "{level} levels");
    }
}

/// A UMR that fails a check moves the QP to the error state. For the checks of free and in-use keys, see section 20,
/// M-5.
#[test]
fn failed_umr_check_reports_window_bind_error() {
    let valid = UmrControl { inline: true, mask: MkeyMask::FREE, ..UmrControl::default() };
    let free = MkeyContext { free: true, ..MkeyContext::default() };
    for (control, of_data, is_refused) in [
        (UmrControl { check_free: true, ..valid }, false, false),
        (UmrControl { check_used: true, ..valid }, false, true),
        (UmrControl { check_qpn: true, ..valid }, false, true),
        (valid, false, false),
        // UMRs cannot change the data region's key.
        (valid, true, true),
        (UmrControl { mask: MkeyMask::FREE | MkeyMask::PD, ..valid }, false, true),
        (UmrControl { offset_valid: true, offset_low: 2, units: 1, ..valid }, false, true),
    ] {
        let (mut a, mut b) = User::pair(Service::Rc);
        let (key, _) = free_key(&mut a, AccessMode::Pages);
        let key = if of_data { a.key } else { key };
        let list = vec![0; usize::from(control.units) * 16];
        let translation = if list.is_empty() { Translation::None } else { Translation::Inline(&list) };
        let found = execute(&mut a, &mut b, &umr(key, control, free, translation));
        assert_eq!(found, if is_refused { FAILED } else { 0 }, "{control:?}");
    }
}

/// Section 13.3: type 2 windows belong to the QP that bound them.
#[test]
fn window_grants_access_until_unbound() {
    let (mut a, mut b) = User::pair(Service::Rc);
    let (key, context) = free_key(&mut b, AccessMode::Ranges);
    let klm = Klm { byte_count: 0x100, key: b.key, va: Va::new(DATA_VA + 0x200) };
    let mut list = klm.emit().to_vec();
    list.resize(64, 0);
    let control = UmrControl {
        inline: true,
        check_free: true,
        offset_valid: true,
        units: 4,
        mask: MkeyMask::from_bits_retain(0x203c_6041),
        ..UmrControl::default()
    };
    let window = MkeyContext {
        qpn: b.qpn,
        length: 0x100,
        start: Va::new(DATA_VA + 0x200),
        key: 2,
        ..registered(context)
    };
    let key = key & !0xff | 2;
    assert_eq!(execute(&mut b, &mut a, &umr(key, control, window, Translation::Inline(&list))), 0);
    a.put(0, b"through a window");
    assert_eq!(write(&mut a, &mut b, [key, 16], DATA_VA + 0x200), 0);
    assert_eq!(b.get(0x200, 16), b"through a window");
    // Unbinding checks that the window belongs to the QP.
    let unbind = UmrControl {
        inline: true,
        offset_valid: true,
        check_qpn: true,
        mask: MkeyMask::from_bits_retain(0x2000_6000),
        ..UmrControl::default()
    };
    let free = MkeyContext { free: true, key: 2, qpn: Qpn::new(0xff_ffff), ..MkeyContext::default() };
    assert_eq!(execute(&mut b, &mut a, &umr(key, unbind, free, Translation::None)), 0);
    let refused = write(&mut a, &mut b, [key, 16], DATA_VA + 0x200);
    assert_eq!(refused, Syndrome::RemoteAccess.code());
}

/// The kernel's UMR QP moves a key to a program's PD. The page list is read through an mkey in the kernel's PD.
#[test]
fn umr_qp_moves_key_to_program_pd() {
    let (mut kernel, mut peer) = (User::new(1), User::new(2));
    let context = kernel.context(Service::Umr);
    kernel.connect(&QpContext { receive_kind: 3, ..context }, 0);
    let program = kernel.alloc_pd();
    let (key, context) = free_key(&mut kernel, AccessMode::Pages);
    kernel.put(0, &mtts());
    let control = UmrControl {
        check_free: true,
        offset_valid: true,
        units: 4,
        mask: MkeyMask::from_bits_retain(0x203e_20c3),
        ..UmrControl::default()
    };
    let mkey = MkeyContext { pd: program, ..registered(context) };
    let list = DataSegment { lkey: Lkey::new(kernel.key), ..kernel.data(0, 64) };
    let wqe = umr(key, control, mkey, Translation::Pointer(list));
    assert_eq!(execute(&mut kernel, &mut peer, &wqe), 0);
    let free = Command::DeallocPd(PdNumber { pd: program });
    assert_eq!(kernel.rejected(&free), Check::PdInUse);
    // The kernel revokes the key by moving it back to its own PD.
    let control = UmrControl { inline: true, mask: MkeyMask::FREE | MkeyMask::PD, ..UmrControl::default() };
    let mkey = MkeyContext { free: true, pd: kernel.pd, ..MkeyContext::default() };
    assert_eq!(execute(&mut kernel, &mut peer, &umr(key, control, mkey, Translation::None)), 0);
    kernel.ok(&free);
}
