//! Fuzzes the layouts of the mthca interface (commands, mailboxes, WQEs and doorbells) and QP context state changes.

use protocol::hca::hcr::{CommandWord, PendingCommand};
use protocol::hca::mthca::caps::{Adapter, DevLim, QueryFw};
use protocol::hca::mthca::cmd::{Command, Op, describe_parameters};
use protocol::hca::mthca::cqc::{Cqc, ResizeCq};
use protocol::hca::mthca::doorbell::{ArmCq, SendDoorbell};
use protocol::hca::mthca::eqc::Eqc;
use protocol::hca::mthca::icm;
use protocol::hca::mthca::init::InitHca;
use protocol::hca::mthca::mailbox::Mailbox;
use protocol::hca::mthca::mgm::{self, Mgm};
use protocol::hca::mthca::modify::{ModifyQp, QpAttributes};
use protocol::hca::mthca::mpt::Mpt;
use protocol::hca::mthca::path::{AddressVector, Path};
use protocol::hca::mthca::qpc::Qpc;
use protocol::hca::mthca::srqc::Srqc;
use protocol::hca::mthca::wqe::{MlxWqe, NextSegment, PackedHeaders, RecvWqe, SendWqe, UdSegment};
use protocol::hca::qp::{ServiceType, Transition};

use super::context::Fields;
use super::jingzhao::padded;

/// Maximum number of mailbox bytes read by a command.
const PAGE: usize = 4096;

/// Maximum number of QPs in a multicast table entry.
const GROUP_QPS: usize = 56;

/// Parses the input in every way that a device does. The first byte is an HCR opcode, the second is a WQE opcode, and
/// the third is a service type. The rest is used as a mailbox, as a WQE, and as a sequence of QP state changes.
/// Accepted input must round-trip.
pub fn decode_mthca(input: &[u8]) {
    let [command, opcode, service, bytes @ ..] = input else { return };
    let service = ServiceType::from_code(service & 3).unwrap_or(ServiceType::Rc);
    read_command(*command, bytes);
    read_mailboxes(bytes);
    read_wqes(bytes, *opcode, service);
    run_qp_commands(bytes);
}

/// Maps a byte to an opcode near 0 or near 0xfff, where all valid opcodes are.
fn code(command: u8) -> u16 {
    if command >= 0xf0 { 0xf00 | u16::from(command) } else { command.into() }
}

fn read_command(command: u8, bytes: &[u8]) {
    let [a, b, c, d, e, f, g, h] = padded(bytes);
    let word = u64::from_be_bytes([a, b, c, d, e, f, g, h]);
    let latched = PendingCommand {
        in_param: word,
        in_modifier: u32::from_be_bytes([a, b, c, d]),
        out_param: !word,
        token: u16::from_be_bytes([e, f]),
        command: CommandWord::new().with_op(code(command)).with_op_modifier(g).with_event(h & 1 != 0),
    };
    let seen = Fields::default();
    describe_parameters(&latched, &mut &seen);
    for initialised in [false, true] {
        if let Ok(command) = Command::decode(&latched, initialised) {
            assert!(command.inbox_len <= PAGE);
            let _ = (command.qpn(), command.cqn(), command.eqn(), command.map_eq());
        }
    }
    let Some(op) = Op::from_code(code(command)) else { return };
    let page: [u8; PAGE] = padded(bytes);
    for bytes in [bytes, &page] {
        [Mailbox::inbox(op, bytes), Mailbox::outbox(op, bytes)].iter().flatten().for_each(|it| seen.of(it));
    }
}

fn read_mailboxes(bytes: &[u8]) {
    let firmware = QueryFw::parse(&padded(bytes));
    assert_eq!(QueryFw::parse(&firmware.emit()), firmware);
    let limits = DevLim::parse(&padded(bytes));
    assert_eq!(DevLim::parse(&limits.emit()), limits);
    let adapter = Adapter::parse(&padded(bytes));
    assert_eq!(Adapter::parse(&adapter.emit()), adapter);
    if let Ok(init) = InitHca::parse(&padded(bytes)) {
        assert_eq!(InitHca::parse(&init.emit()), Ok(init));
    }
    if let Ok(blocks) = icm::parse(&bytes[..bytes.len().min(PAGE) & !15]) {
        let again: Vec<u8> = blocks.iter().flat_map(|block| block.emit()).collect();
        assert_eq!(icm::parse(&again), Ok(blocks));
    }
    for most in [0, 16, 24] {
        assert!(Cqc::parse(&padded(bytes), most).ok().is_none_or(|cqc| cqc.log_entries <= most));
        assert!(ResizeCq::parse(&padded(bytes), most).ok().is_none_or(|cqc| cqc.log_entries <= most));
        if let Ok(srqc) = Srqc::parse(&padded(bytes), most) {
            assert!(srqc.log_slots <= most);
            let query = srqc.emit(1, 2);
            assert_eq!(query.first_chunk().map(|image| Srqc::parse(image, most)), Some(Ok(srqc)));
        }
    }
    assert!(Eqc::parse(&padded(bytes)).ok().is_none_or(|eqc| eqc.log_entries <= Eqc::MAX_LOG_ENTRIES));
    if let Ok(mpt) = Mpt::parse(&padded(bytes)) {
        assert!((12..=31).contains(&mpt.page_shift));
    }
    let entry = Mgm::new(padded(bytes));
    assert!(entry.qpns().count() <= GROUP_QPS && entry.next() != Some(0));
    for buckets in [0, 1, 4096, u16::MAX] {
        assert!(mgm::hash(&entry.gid(), buckets) < buckets.max(1));
    }
    let path = Path::parse(&padded(bytes));
    assert_eq!(Path::parse(&path.emit()), path);
    let vector = AddressVector::parse(&padded(bytes));
    assert_eq!(AddressVector::parse(&vector.emit()), vector);
}

fn read_wqes(bytes: &[u8], opcode: u8, service: ServiceType) {
    let next = NextSegment::parse(&padded(bytes));
    assert_eq!(NextSegment::parse(&next.emit()), next);
    let datagram = UdSegment::parse(&padded(bytes));
    assert_eq!(UdSegment::parse(&datagram.emit()), datagram);
    if let Ok(wqe) = SendWqe::parse(bytes, opcode, service) {
        assert_eq!(SendWqe::parse(&wqe.emit(), opcode, service), Ok(wqe));
    }
    if let Ok(wqe) = RecvWqe::parse(bytes) {
        assert_eq!(wqe.successor, RecvWqe::successor_of(bytes));
        let len = 16 * (wqe.data.len() + 2);
        assert_eq!(RecvWqe::parse(&wqe.emit(len)), Ok(wqe));
    }
    if let Ok(wqe) = MlxWqe::parse(bytes) {
        assert!(wqe.data.len() < bytes.len() / 16 && wqe.service_level < 16);
    }
    if let Ok((_, rest)) = PackedHeaders::parse(bytes) {
        assert!(bytes.ends_with(rest));
    }
    let doorbell = SendDoorbell::parse(padded(bytes));
    assert_eq!(SendDoorbell::parse(doorbell.emit()), doorbell);
    let arm = ArmCq::parse(padded(bytes));
    assert!(arm.cqn.get() <= 0xff_ffff);
}

/// Runs a sequence of QP commands. The input is the inbox of a QP command followed by four-byte operations. Each
/// operation changes one byte of the inbox and passes the inbox to a command.
fn run_qp_commands(bytes: &[u8]) {
    let (inbox, operations) = bytes.split_at(bytes.len().min(ModifyQp::LEN));
    let mut inbox: [u8; ModifyQp::LEN] = padded(inbox);
    let mut qp = Qpc::default();
    command(&mut qp, Transition::Rst2Init, &ModifyQp::parse(&inbox));
    for operation in operations.chunks_exact(4) {
        let &[what, high, low, value] = operation else { continue };
        if let Some(byte) = inbox.get_mut(usize::from(u16::from_be_bytes([high & 1, low]))) {
            *byte = value;
        }
        let transition = Transition::ALL[usize::from(what) % Transition::ALL.len()];
        command(&mut qp, transition, &ModifyQp::parse(&inbox));
    }
}

fn command(qp: &mut Qpc, transition: Transition, new: &ModifyQp) {
    use Transition::{Rts2Rts, Rts2Sqd, SqErr2Rts, Sqd2Rts, Sqd2Sqd, ToErr, ToRst};
    check_emitted(&new.qpc);
    let Ok(next) = qp.modify(transition, new) else { return };
    assert_eq!(next.state(), Some(transition.target()));
    let only_state = matches!(transition, ToErr | Rts2Sqd)
        || matches!(transition, Rts2Rts | Sqd2Sqd | Sqd2Rts | SqErr2Rts)
            && new.named == QpAttributes::empty();
    if transition == ToRst {
        assert_eq!(next, Qpc::default());
    } else if only_state {
        assert_eq!(Qpc { state: qp.state, ..next }, *qp, "an empty mask changes only the state");
    }
    assert!(next.requester_depth() <= 128 && next.responder_depth() <= 128);
    assert!(next.kind().is_some() || transition == ToRst);
    check_emitted(&next);
    let outbox = ModifyQp::outbox(&next);
    assert_eq!(outbox.first_chunk().map(|image| ModifyQp::parse(image).named), Some(QpAttributes::empty()));
    *qp = next;
}

/// Checks that a context round-trips. Two fields may differ: the SRQ number of a QP without an SRQ, and the slot size
/// of a queue that does not exist.
fn check_emitted(qpc: &Qpc) {
    let again = Qpc::parse(&qpc.emit());
    let mut expected = *qpc;
    for queue in [&mut expected.rq, &mut expected.sq] {
        queue.log_slot = queue.log_slot.max(4);
    }
    if !qpc.responder.srq() {
        expected.srqn = again.srqn;
        assert_eq!(again.srqn.get(), 0);
    }
    assert_eq!(again, expected);
}
