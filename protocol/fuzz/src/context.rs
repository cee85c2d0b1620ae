//! Fuzzes JingZhao contexts, and state changes of a QP context.

use std::cell::Cell;

use protocol::Psn;
use protocol::describe::{Describe, Value, Visitor};
use protocol::hca::jingzhao::cqc::Cqc;
use protocol::hca::jingzhao::eqc::Eqc;
use protocol::hca::jingzhao::modify::StoredQpc;
use protocol::hca::jingzhao::mpt::Mpt;
use protocol::hca::jingzhao::qpc::{self, QpState, Qpc, ServiceType};
use protocol::hca::jingzhao::transition::Transition;

/// Commands that change the QP state.
const TRANSITIONS: [Transition; 11] = [
    Transition::Rst2Init,
    Transition::Init2Init,
    Transition::Init2Rtr,
    Transition::Rtr2Rts,
    Transition::Rts2Rts,
    Transition::SqErr2Rts,
    Transition::ToErr,
    Transition::Rts2Sqd,
    Transition::Sqd2Sqd,
    Transition::Sqd2Rts,
    Transition::ToRst,
];

/// Parses the input as each kind of context and executes it as a sequence of QP state changes.
///
/// The sequence is a 192-byte QP context followed by four-byte operations. An operation either changes one byte of this
/// context image and passes the image to a command, or makes a change that the engine could make.
pub fn decode_context(input: &[u8]) {
    parse_contexts(input);
    let (image, operations) = input.split_at(input.len().min(qpc::LEN));
    let mut image: [u8; qpc::LEN] = super::jingzhao::padded(image);
    let mut qp = StoredQpc::default();
    for operation in operations.chunks_exact(4) {
        let &[what, at, value, psn] = operation else { continue };
        match what % 16 {
            choice @ 0..11 => {
                if let Some(byte) = image.get_mut(usize::from(at)) {
                    *byte = value;
                }
                command(&mut qp, TRANSITIONS[usize::from(choice)], &Qpc::parse(&image));
            }
            11 => qp.image.next_send_psn = Psn::new(psn.into()),
            12 => qp.image.unacked_psn = Psn::new(psn.into()),
            13 => qp.image.recv_psn = Psn::new(psn.into()),
            14 if qp.image.state() == Some(QpState::Rts) && qp.image.service() != Some(ServiceType::Rc) => {
                qp.image.state = QpState::Sqe.code();
            }
            15 if qp.image.state() != Some(QpState::Reset) => qp.image.state = QpState::Err.code(),
            _ => {}
        }
    }
}

fn parse_contexts(input: &[u8]) {
    let seen = Fields::default();
    let qpc = Qpc::parse(&super::jingzhao::padded(input));
    assert_eq!(Qpc::parse(&qpc.emit()), qpc);
    seen.of(&qpc);
    let context = super::jingzhao::padded(input);
    for most in [0, 16, 24] {
        if let Ok(cqc) = Cqc::parse(&context, most) {
            assert!(u16::from(cqc.log_entries) <= most);
            assert_eq!(Cqc::parse(&cqc.emit(), most), Ok(cqc));
            seen.of(&cqc);
        }
    }
    if let Ok(eqc) = Eqc::parse(&context) {
        assert_eq!(Eqc::parse(&eqc.emit()), Ok(eqc));
        seen.of(&eqc);
    }
    if let Ok(mpt) = Mpt::parse(&context) {
        assert_eq!(Mpt::parse(&mpt.emit()), Ok(mpt));
        seen.of(&mpt);
    }
    assert!(seen.0.get() > 0);
}

/// Runs a command and checks which context fields it changes (JingZhao interface, section 10.3).
fn command(qp: &mut StoredQpc, transition: Transition, mailbox: &Qpc) {
    use Transition::{
        Init2Init, Init2Rtr, Rst2Init, Rtr2Rts, Rts2Rts, SqErr2Rts, Sqd2Rts, Sqd2Sqd, ToErr, ToRst,
    };
    let before = qp.image;
    let Ok(next) = qp.modify(transition, mailbox) else { return };
    let after = next.image;
    assert_eq!(after.state(), Some(transition.target()));
    match transition {
        ToRst => assert_eq!(next, StoredQpc::default()),
        ToErr => assert_eq!(Qpc { state: before.state, ..after }, before, "2ERR changes only the state"),
        _ => {
            let early = matches!(transition, Rst2Init | Init2Init | Init2Rtr);
            let received = if early { mailbox.recv_psn } else { before.recv_psn };
            assert_eq!(after.recv_psn, received, "the expected PSN is taken from the mailbox only up to RTR");
            let (sent, acked) = if early || transition == Rtr2Rts {
                (mailbox.next_send_psn, mailbox.next_send_psn)
            } else {
                (before.next_send_psn, before.unacked_psn)
            };
            assert_eq!(
                (after.next_send_psn, after.unacked_psn),
                (sent, acked),
                "the requester's PSNs are taken from the mailbox only up to RTS"
            );
            let service = if transition == Rst2Init { mailbox.service } else { before.service };
            assert_eq!(after.service, service, "only RST2INIT sets the service type");
        }
    }
    if matches!(transition, Rts2Rts | Sqd2Sqd | Sqd2Rts | SqErr2Rts) && qp.named(mailbox).is_empty() {
        assert_eq!(Qpc { state: before.state, ..after }, before, "an empty mask changes only the state");
    }
    assert!(next.rnr_retry() <= 7 && next.retry_count() <= 7 && next.min_rnr_timer() < 32);
    let _ = next.ack_timeout();
    assert_eq!(next.query().opt_param_mask, 0);
    *qp = next;
}

/// Counts the fields that objects report through [`Describe`].
#[derive(Default)]
pub(crate) struct Fields(Cell<usize>);

impl Fields {
    pub(crate) fn of(&self, object: &dyn Describe) {
        object.describe(&mut &*self);
    }
}

impl Visitor for &Fields {
    fn value(&mut self, _: &str, value: Value<'_>) {
        let _ = value.is_zero();
        self.0.set(self.0.get() + 1);
    }

    fn object(&mut self, _: &str, object: &dyn Describe) {
        object.describe(self);
    }

    fn objects(&mut self, _: &str, objects: &mut dyn Iterator<Item = &dyn Describe>) {
        objects.for_each(|object| object.describe(self));
    }

    fn addresses(&mut self, _: &str, addresses: &mut dyn Iterator<Item = u64>) {
        self.0.set(self.0.get() + addresses.count());
    }
}
