//! Contexts for new objects, all in the same protection domain.
//!
//! # Spec
//! JingZhao interface, section 4.

use protocol::hca::jingzhao::cqc::Cqc;
use protocol::hca::jingzhao::eqc::Eqc;
use protocol::hca::jingzhao::mpt::{Mpt, MptFlags};
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::{Cqn, Lkey, Pdn, Va};

/// Protection domain of all objects.
pub const PD: u32 = 3;

/// Returns the MPT entry for a region of 4 KiB pages. `mtt` is the index of the region's first MTT entry.
pub fn region(key: u32, mtt: u64, start: u64, length: u64, flags: MptFlags) -> Mpt {
    let blank = Mpt::parse(&[0; Mpt::LEN]).expect("an all-zero entry is a valid region");
    let (key, pd, start) = (Lkey::new(key), Pdn::new(PD), Va::new(start));
    Mpt { flags, key, pd, start, length, mtt, ..blank }
}

/// Returns the context for a CQ whose ring is in region `key`.
pub fn cqc(cqn: u32, key: u32, log_entries: u8) -> Cqc {
    let blank = Cqc::parse(&[0; Cqc::LEN], 0).expect("an all-zero context is a valid CQ");
    Cqc { log_entries, pd: Pdn::new(PD), lkey: Lkey::new(key), cqn: Cqn::new(cqn), ..blank }
}

/// Returns the context for an unarmed EQ whose ring is in region `key`.
pub fn eqc(msix_vector: u16, key: u32, log_entries: u8) -> Eqc {
    let blank = Eqc::parse(&[0; Eqc::LEN]).expect("an all-zero context is a valid EQ");
    Eqc { log_entries, msix_vector, pd: Pdn::new(PD), lkey: Lkey::new(key), ..blank }
}

/// Returns the context for an RC QP with MTU 256 and one CQ for both queues. Each queue starts at the beginning of its
/// region and is `len` bytes long, divided into slots of [`SLOT`](super::SLOT) bytes.
pub fn qpc(cqn: u32, [sq, rq]: [u32; 2], len: u32) -> Qpc {
    Qpc {
        mtu: 1,
        log_max_msg: 31,
        log_rq_slot: 7,
        log_sq_slot: 7,
        usr_page: 1,
        port: 1,
        pd: Pdn::new(PD),
        send_cqn: Cqn::new(cqn),
        sq_lkey: Lkey::new(sq),
        sq_len: len,
        recv_cqn: Cqn::new(cqn),
        rq_lkey: Lkey::new(rq),
        rq_len: len,
        ..Qpc::default()
    }
}
