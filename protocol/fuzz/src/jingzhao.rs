//! Fuzzes JingZhao queue entries, doorbells and mailboxes.

use protocol::hca::jingzhao::caps::{Adapter, DevLim};
use protocol::hca::jingzhao::cmd::{COMMANDS, Op};
use protocol::hca::jingzhao::cqc::{Cqc, ResizeCq};
use protocol::hca::jingzhao::cqe::Cqe;
use protocol::hca::jingzhao::doorbell::{PositionUnit, SendDoorbell};
use protocol::hca::jingzhao::eqc::Eqc;
use protocol::hca::jingzhao::eqe::Eqe;
use protocol::hca::jingzhao::init::InitHca;
use protocol::hca::jingzhao::modify::StoredQpc;
use protocol::hca::jingzhao::mpt::Mpt;
use protocol::hca::jingzhao::mtt::WriteMtt;
use protocol::hca::jingzhao::qpc::{self, Qpc, ServiceType};
use protocol::hca::jingzhao::transition::Transition;
use protocol::hca::jingzhao::wqe::{NextUnit, RecvWqe, SendWqe};
use protocol::hca::jingzhao::{PAGE, icm};

/// Decodes queue entries and a doorbell. The first byte is the opcode of a send WQE, the second its QP's service type,
/// and the entry follows. Accepted input must round-trip.
pub fn decode_wqe(input: &[u8]) {
    let [opcode, service, entry @ ..] = input else { return };
    let service = ServiceType::from_code(service & 3).unwrap_or(ServiceType::Rc);
    if let Ok(wqe) = SendWqe::parse(entry, *opcode, service) {
        assert_eq!(SendWqe::parse(&wqe.emit(), *opcode, service), Ok(wqe));
    }
    for first_pass in [false, true] {
        let _ = RecvWqe::is_posted_without_valid_bit(entry, first_pass);
    }
    assert!(RecvWqe::extent(entry, |_| false).units <= entry.len() / 16);
    if let Ok(wqe) = RecvWqe::parse(entry) {
        let len = 16 * (wqe.data.len() + 2);
        assert_eq!(RecvWqe::parse(&wqe.emit(len)), Ok(wqe));
    }
    if let Some(unit) = entry.first_chunk().map(NextUnit::parse) {
        assert_eq!(NextUnit::parse(&unit.emit()), unit);
        if let Some(link) = unit.link {
            assert!(link.position(PositionUnit::Granule, 640).is_some_and(|at| at < 640));
        }
    }
    if let Some([a, b, c, d, e, f, g, h]) = entry.first_chunk() {
        let doorbell =
            SendDoorbell::parse(u32::from_le_bytes([*a, *b, *c, *d]), u32::from_le_bytes([*e, *f, *g, *h]));
        let [low, high] = doorbell.emit();
        assert_eq!(SendDoorbell::parse(low, high), doorbell);
        assert!(doorbell.position(PositionUnit::Slot, *opcode, 640).is_none_or(|at| at < 640));
    }
    if let Some(entry) = entry.first_chunk() {
        if let Some(cqe) = Cqe::parse(entry) {
            assert_eq!(Cqe::parse(&cqe.emit()), Some(cqe));
        }
        if let Some(eqe) = Eqe::parse(entry) {
            assert_eq!(Eqe::parse(&eqe.emit()), Some(eqe));
        }
    }
}

/// Parses a command sequence's mailboxes as a device would. A command consists of a byte that selects it, a four-byte
/// in_modifier, a one-byte mailbox length in units of 32 bytes, and the mailbox. All QP commands operate on the same
/// QP.
pub fn decode_mailbox(input: &[u8]) {
    let mut rest = input;
    let mut qp = StoredQpc::default();
    while let [command, a, b, c, d, units, mailbox @ ..] = rest {
        let len = mailbox.len().min(usize::from(*units) * 32);
        let (mailbox, later) = mailbox.split_at(len);
        rest = later;
        let op = COMMANDS[usize::from(*command) % COMMANDS.len()].op;
        let in_modifier = u32::from_be_bytes([*a, *b, *c, *d]);
        if let Some(transition) = Transition::from_op(op) {
            modify(&mut qp, transition, mailbox);
        } else {
            read(op, in_modifier, mailbox);
        }
    }
}

fn modify(qp: &mut StoredQpc, transition: Transition, mailbox: &[u8]) {
    let mailbox = Qpc::parse(&padded::<{ qpc::LEN }>(mailbox));
    assert_eq!(Qpc::parse(&mailbox.emit()), mailbox);
    if let Ok(next) = qp.modify(transition, &mailbox) {
        assert_eq!(next.image.state(), Some(transition.target()));
        let _ = (next.ack_timeout(), next.rnr_retry(), next.retry_count(), next.query());
        *qp = next;
    }
}

fn read(op: Op, in_modifier: u32, mailbox: &[u8]) {
    let small = padded::<0x40>(mailbox);
    match op {
        Op::QueryDevLim => {
            let limits = DevLim::parse(&small);
            assert_eq!(DevLim::parse(&limits.emit()), limits);
        }
        Op::QueryAdapter => {
            let adapter = Adapter::parse(&padded(mailbox));
            assert_eq!(Adapter::parse(&adapter.emit()), adapter);
        }
        Op::InitHca => {
            if let Ok(init) = InitHca::parse(&small) {
                assert_eq!(InitHca::parse(&init.emit()), Ok(init));
                assert!(u64::from(init.mpt.index(in_modifier)) < init.mpt.entries());
            }
        }
        Op::MapIcm => {
            if let Ok(entries) = icm::parse(&padded::<PAGE>(mailbox), in_modifier) {
                assert_eq!(icm::parse(&icm::emit(&entries), in_modifier), Ok(entries));
            }
        }
        Op::WriteMtt => {
            if let Ok(write) = WriteMtt::parse(&padded::<PAGE>(mailbox), in_modifier) {
                assert_eq!(WriteMtt::parse(&write.emit(), in_modifier), Ok(write));
            }
        }
        Op::Sw2HwMpt => {
            if let Ok(mpt) = Mpt::parse(&small) {
                assert_eq!(Mpt::parse(&mpt.emit()), Ok(mpt));
            }
        }
        Op::Sw2HwEq => {
            if let Ok(eqc) = Eqc::parse(&small) {
                assert_eq!(Eqc::parse(&eqc.emit()), Ok(eqc));
            }
        }
        Op::Sw2HwCq => {
            if let Ok(cqc) = Cqc::parse(&small, 16) {
                assert_eq!(Cqc::parse(&cqc.emit(), 16), Ok(cqc));
            }
        }
        Op::ResizeCq => {
            if let Ok(resize) = ResizeCq::parse(&padded(mailbox), 16) {
                assert_eq!(ResizeCq::parse(&resize.emit(), 16), Ok(resize));
            }
        }
        _ => {}
    }
}

/// Returns the content of a mailbox as a device reads it, padded with zeros.
pub(crate) fn padded<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut padded = [0; N];
    let len = bytes.len().min(N);
    padded[..len].copy_from_slice(&bytes[..len]);
    padded
}
