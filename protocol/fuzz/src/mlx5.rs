//! Fuzzes the layouts of the ConnectX interface: commands, contexts, queue entries, work requests, and QP state
//! changes.

use protocol::hca::mlx5::capability::{AtomicCaps, GeneralCaps};
use protocol::hca::mlx5::command::{Block, OutputHeader, Slot};
use protocol::hca::mlx5::cq::CqContext;
use protocol::hca::mlx5::cqe::Cqe;
use protocol::hca::mlx5::doorbell::{ArmCq, CqRecord, EqDoorbell, QueueRecord, SendDoorbell, UarRegister};
use protocol::hca::mlx5::eq::EqContext;
use protocol::hca::mlx5::eqe::Eqe;
use protocol::hca::mlx5::input::Command;
use protocol::hca::mlx5::mkey::{Klm, MkeyContext};
use protocol::hca::mlx5::qp::{QpContext, Service};
use protocol::hca::mlx5::regs::{QueueWord, Register};
use protocol::hca::mlx5::srq::{RmpContext, SrqContext};
use protocol::hca::mlx5::strided::{RepeatBlock, StridedEntry, StridedList};
use protocol::hca::mlx5::transition::{QpAttributes, Transition};
use protocol::hca::mlx5::umr::MkeyMask;
use protocol::hca::mlx5::wqe::{ControlSegment, Operation, RecvWqe, SendWqe, SrqEntry};

use super::context::Fields;
use super::jingzhao::padded;

/// Checks that each layout round-trips.
macro_rules! round_trip {
    ($bytes:expr, $seen:expr, $($layout:ty),* $(,)?) => {$({
        let object = <$layout>::parse(&padded($bytes));
        assert_eq!(<$layout>::parse(&object.emit()), object);
        $seen.of(&object);
    })*};
}

/// Parses the input as a command, as the output of that command, as a command slot, and as a mailbox block.
pub fn decode_mlx5_command(input: &[u8]) {
    let seen = Fields::default();
    round_trip!(input, seen, Slot, Block, OutputHeader);
    let _ = Slot::parse(&padded(input)).lengths();
    let Ok(command) = Command::parse(input) else { return };
    seen.of(&command);
    command.describe_output(input, &mut &seen);
    command.describe_output(&[], &mut &seen);
    let emitted = command.emit(0);
    assert_eq!(Command::parse(&emitted), Ok(command));
    let _ = (command.output_len(), command.transition());
    if let Command::SetDriverVersion(version) = command {
        assert!(version.text().len() <= 64);
    }
}

/// Parses the input as each kind of context and doorbell, and executes it as a sequence of QP state changes.
///
/// The sequence consists of two contexts followed by four-byte operations. Each operation changes one byte of the
/// second context, then performs a state change that applies the second context to the first.
pub fn decode_mlx5_context(input: &[u8]) {
    let seen = Fields::default();
    round_trip!(
        input,
        seen,
        EqContext,
        CqContext,
        QpContext,
        MkeyContext,
        SrqContext,
        RmpContext,
        GeneralCaps,
        AtomicCaps,
        Klm,
        RepeatBlock,
        StridedEntry,
        ArmCq,
        CqRecord,
        EqDoorbell,
        QueueRecord,
        SendDoorbell,
    );
    if let Some(strided) = StridedList::parse(input) {
        assert!(strided.entries().count() <= usize::from(strided.header.entries));
        seen.of(&strided);
    }
    let qp = QpContext::parse(&padded(input));
    let _ = (qp.rq_len(), qp.sq_len());
    let [a, b, c, d, e, f, g, h] = padded(input);
    let word = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    let _ = (
        Register::at(word),
        Register::at(word & 0x1fff),
        UarRegister::at(word & 0xfff),
        UarRegister::at(word),
    );
    let _ = QueueWord::parse(u32::from_be_bytes([a, b, c, d]));
    let (old, new) =
        (MkeyContext::parse(&padded(input)), MkeyContext::parse(&padded(input.get(8..).unwrap_or_default())));
    let mask = MkeyMask::from_bits_retain(word);
    let updated = old.updated(mask, &new);
    assert_eq!(updated.updated(mask, &new), updated);
    run_qp_commands(input, qp);
}

fn run_qp_commands(input: &[u8], mut qp: QpContext) {
    let rest = input.get(QpContext::LEN..).unwrap_or_default();
    let mut image: [u8; QpContext::LEN] = padded(rest);
    for operation in rest.get(QpContext::LEN..).unwrap_or_default().chunks_exact(4) {
        let &[what, at, value, mask] = operation else { continue };
        if let Some(byte) = image.get_mut(usize::from(at)) {
            *byte = value;
        }
        let transition = Transition::ALL[usize::from(what) % Transition::ALL.len()];
        let new = QpContext::parse(&image);
        let mask = QpAttributes::from(u32::from(mask) << (what / 16));
        let Ok(next) = qp.modified(transition, mask, &new) else { continue };
        assert_eq!(next.state(), Some(transition.target()));
        assert_eq!((next.service, next.uar, next.user_index), (qp.service, qp.uar, qp.user_index));
        assert_eq!((next.rq_len(), next.sq_len()), (qp.rq_len(), qp.sq_len()));
        qp = next;
    }
}

/// Parses the input as work requests and queue entries. The first byte is a service type. The rest is parsed as a send
/// WQE, a receive WQE, an SRQ entry, a CQE and an EQE.
pub fn decode_mlx5_wqe(input: &[u8]) {
    let [service, bytes @ ..] = input else { return };
    let seen = Fields::default();
    let entry = padded(bytes);
    if let Ok((cqe, owner)) = Cqe::parse(&entry) {
        assert_eq!(Cqe::parse(&cqe.emit(owner)), Ok((cqe, owner)));
        seen.of(&cqe);
    }
    if let Ok((event, owner)) = Eqe::parse(&entry) {
        assert_eq!(Eqe::parse(&event.emit(owner)), Ok((event, owner)));
        seen.of(&event);
    }
    let receive = RecvWqe::parse(bytes);
    assert_eq!(RecvWqe::parse(&receive.emit(bytes.len() + 16)), receive);
    seen.of(&receive);
    if let Some(entry) = SrqEntry::parse(bytes) {
        assert_eq!(SrqEntry::parse(&entry.emit(bytes.len() + 16)), Some(entry));
    }
    let service = Service::from_code(service & 0xf).unwrap_or(Service::Rc);
    let Some(control) = ControlSegment::parse_prefix(bytes) else { return };
    let emitted;
    if let Ok(wqe) = SendWqe::parse(bytes, service, control.qpn) {
        seen.of(&wqe);
        emitted = wqe.emit();
        let again = SendWqe::parse(&emitted, service, control.qpn).expect("an emitted WQE must parse");
        assert_eq!((&again.operation, &again.data), (&wqe.operation, &wqe.data));
        if let Operation::Datagram(to) = &wqe.operation {
            let _ = to.effective_qkey(to.qkey);
        }
        assert!(wqe.data.len() < 63);
        let _ = wqe.data_len();
    }
}
