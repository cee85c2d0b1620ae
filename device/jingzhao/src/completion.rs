//! Converts completions to completion queue entries.
//!
//! # Spec
//! JingZhao interface, sections 7.1 to 7.4.

use card::net::address::Addresses;
use engine::{Completion, Queue, Success};
use hcr::verbs::{WorkTag, syndrome, vendor_code};
use protocol::hca::jingzhao::cqe::{Cqe, CqeQueue, Outcome};
use protocol::ids::{Lid, Qpn};
use protocol::roce::{Imm, Transport};

/// Returns the CQE for a completion. `qpn` includes the high bits that software sets, `connected_lid` is the
/// destination LID in the QP context, and `ud_grh` is true if received datagrams are preceded by a GRH.
pub fn cqe(
    completion: &Completion,
    qpn: Qpn,
    connected_lid: Lid,
    addresses: &Addresses,
    ud_grh: bool,
) -> Cqe {
    let tag = WorkTag::from_bits(completion.wr_id);
    let queue = match completion.queue {
        Queue::Send => CqeQueue::Send,
        Queue::Recv => CqeQueue::Recv,
    };
    let outcome = match completion.result {
        Ok(Success::Send(done)) => Outcome::Success {
            opcode: tag.opcode(),
            remote_qpn: done.remote_qpn,
            remote_lid: tag.remote_lid(),
            grh: false,
            imm: Imm::default(),
            byte_len: done.byte_len,
        },
        Ok(Success::Recv(done)) => Outcome::Success {
            opcode: done.opcode.to_byte(),
            remote_qpn: done.remote_qpn,
            remote_lid: match connected_lid.get() {
                0 => addresses.lid_of(done.remote_mac),
                _ => connected_lid,
            },
            grh: ud_grh && done.opcode.transport == Transport::Ud,
            imm: done.imm.unwrap_or_default(),
            byte_len: done.byte_len,
        },
        Err(status) => Outcome::Error { syndrome: syndrome(status), vendor: vendor_code(status) },
    };
    // A receive's tag holds only the WQE offset, at the same bit position as in a send's tag.
    Cqe { qpn, queue, wqe: tag.wqe(), outcome }
}

#[cfg(test)]
mod tests {
    use card::identity::Identity;
    use engine::{AccessError, RecvDone, SendDone, SendOp, Status};
    use hcr::verbs::is_solicited;
    use protocol::ids::MacAddr;
    use protocol::roce::{Opcode, Operation};

    use super::*;

    /// QPN with the high bits that software sets. The QPN in the engine's completion may lack them.
    const QPN: Qpn = Qpn::new(0x9c_0005);

    fn addresses() -> Addresses {
        Addresses { own: Identity::from_lid(Lid::new(1)), peers: Vec::new(), default_peer: None }
    }

    fn sent(signalled: bool) -> Completion {
        let tag = WorkTag::new().with_wqe(0x80).with_opcode(0x0a).with_signalled(signalled);
        let done = SendDone {
            op: SendOp::Send { imm: None },
            byte_len: 64,
            remote_qpn: Qpn::new(9),
            remote_mac: MacAddr::from_lid(Lid::new(3)),
        };
        Completion {
            qpn: Qpn::new(5),
            queue: Queue::Send,
            srqn: None,
            wr_id: tag.with_remote_lid(Lid::new(2)).into_bits(),
            result: Ok(Success::Send(done)),
        }
    }

    fn received(solicited: bool) -> Completion {
        let done = RecvDone {
            opcode: Opcode::uc(Operation::WriteOnlyImm),
            byte_len: 4096,
            imm: Some(Imm([0x11, 0x22, 0x33, 0x44])),
            remote_qpn: Qpn::new(9),
            remote_mac: MacAddr::from_lid(Lid::new(3)),
            tag: None,
            solicited,
            traffic_class: 0,
            grh: false,
            pkey_index: 0,
            invalidated: None,
        };
        Completion { queue: Queue::Recv, wr_id: 0x100, result: Ok(Success::Recv(done)), ..sent(true) }
    }

    fn bytes(completion: &Completion, lid: u16) -> [u8; 32] {
        cqe(completion, QPN, Lid::new(lid), &addresses(), true).emit()
    }

    #[test]
    fn send_cqe_has_opcode_offset_and_full_qpn() {
        let expected = [
            0x05, 0x00, 0x9c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02,
            0x00, //
            0x00, 0x00, 0x00, 0x00, 0x40, 0x00, 0x00, 0x00, 0x80, 0x00, 0x00, 0x00, 0x0a, 0x01, 0x00, 0x00,
        ];
        assert_eq!(bytes(&sent(true), 2), expected);
    }

    #[test]
    fn receive_cqe_has_immediate_and_opcode_of_last_packet() {
        let expected = [
            0x05, 0x00, 0x9c, 0x00, 0x00, 0x00, 0x00, 0x00, 0x09, 0x00, 0x00, 0x00, 0x00, 0x00, 0x02,
            0x00, //
            0x11, 0x22, 0x33, 0x44, 0x00, 0x10, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x2b, 0x00, 0x00, 0x00,
        ];
        assert_eq!(bytes(&received(false), 2), expected);
    }

    #[test]
    fn lid_missing_from_context_is_derived_from_mac() {
        assert_eq!(bytes(&received(false), 0)[0x0e..0x10], [3, 0]);
    }

    #[test]
    fn error_cqe_has_syndrome_and_opcode_of_failed_queue() {
        let failed = |queue, status| Completion { queue, result: Err(status), ..sent(true) };
        for (status, code) in [
            (Status::LocalLength, 0x01),
            (Status::LocalQpOperation, 0x02),
            (Status::LocalProtection(AccessError::Key), 0x04),
            (Status::MemoryManagement(AccessError::Key), 0x06),
            (Status::Flushed, 0x05),
            (Status::BadResponse, 0x10),
            (Status::RemoteInvalidRequest, 0x12),
            (Status::RemoteAccess, 0x13),
            (Status::RemoteOperational, 0x14),
            (Status::RetryExceeded, 0x15),
            (Status::RnrRetryExceeded, 0x16),
            (Status::RemoteInvalidRdRequest, 0x21),
        ] {
            let entry = bytes(&failed(Queue::Send, status), 2);
            assert_eq!((entry[0x10], entry[0x18], entry[0x1c], entry[0x1d]), (code, 0x80, 0xff, 0));
        }
        assert_eq!(bytes(&failed(Queue::Recv, Status::Flushed), 2)[0x1c], 0xfe);
        for (status, vendor) in [
            (Status::RemoteAccess, 0),
            (Status::LocalProtection(AccessError::Key), 1),
            (Status::LocalProtection(AccessError::Pd), 4),
            (Status::LocalProtection(AccessError::Bounds), 7),
        ] {
            assert_eq!(bytes(&failed(Queue::Send, status), 2)[0x11], vendor, "{status:?}");
        }
    }

    #[test]
    fn failed_request_always_gets_cqe() {
        let failed = Completion { result: Err(Status::Flushed), ..sent(false) };
        assert!(is_solicited(&failed) && WorkTag::wants_entry(&failed));
        assert!(
            is_solicited(&received(true)) && !is_solicited(&received(false)) && !is_solicited(&sent(true))
        );
        assert!(
            WorkTag::wants_entry(&sent(true))
                && !WorkTag::wants_entry(&sent(false))
                && WorkTag::wants_entry(&received(false))
        );
    }
}
