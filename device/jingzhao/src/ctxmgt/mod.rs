//! The context manager: access rights to contexts, their location in guest memory, and the write-back of changes. Its
//! structure follows the CtxMgt document:
//!
//! | document | module |
//! |---|---|
//! | 2, 3.2: messages of the RDMA engine's units | [`message`] |
//! | 4.2, 5.4 key_qpc_data: the device's copy of contexts | [`key_qpc_data`] |
//! | 5.1 ceu_parser: requests of the command unit | `ceu_parser` |
//! | 5.2 request controller: scheduling | [`request_controller`] |
//! | 5.3 ctxmdata: ICM pages | [`ctxmdata`] |
//! | 5.6 writectx: writes to guest memory | `writectx` |
//!
//! Each message type has exactly the fields that its unit may read ([`CtxMgt::read`]). Messages are the only way for a
//! unit to read key data, so a read that the document forbids does not compile. A unit's write changes the key data
//! immediately and is queued for write-back to guest memory ([`CtxMgt::observe`], [`CtxMgt::serve`]). A write-back
//! always writes the latest value. A turn is one pass of the device's event loop.
//!
//! ```text
//!   command ---------------------------> key data, guest memory      immediately
//!   engine  -- observe: WR_QP_* -------> key data                    at the end of a turn, or before a command reads
//!                       request controller --serve--> guest memory   at the end of a turn, in bounded batches
//! ```
//!
//! # Differences
//! - Units exchange typed values instead of words. For comparison with RTL, [`protocol::hca::jingzhao::ctxmgt`] defines
//!   bit layouts. It covers all request headers, the responses to Doorbell Processing, WQE Parser, Requester Trans
//!   Control (RTC) and Frame Encap, and the writes of RTC. It does not cover payloads that the document leaves open:
//!   those of Requester Recv Control (RRC) and Execution Engine (EE), and the EQ's PD, key and vector in RTC's payload.
//!   It also omits messages between submodules and to the DMA engine (J-51).
//! - Key data of a CQ and its EQ is read when a queue entry is written; see [`message`].
//! - In RD_QP_SST and RD_QP_RST, PKey is an index into the P_Key table. DstQPN is 24 bits wide, but only 16 in the
//!   payload of RD_QP_SST.
//! - Channels have no queue depth: commands and reads are answered immediately; see [`request_controller`].
//! - The device keeps a QP's whole context, not only its key data, because QUERY_QP must return the values that
//!   commands have set, and MODIFY_QP must merge with them, even if the guest has since written other values to ICM.
//!   The device never reads ICM back, so there is no readctx module.
//! - Table sizes come from INIT_HCA, not from the size of a RAM (J-09).
//! - A write-back changes the state and one PSN. Other fields in the same words keep their values (J-19). MAP_EQ
//!   changes a mask in the device, not the context (J-37).
//! - The MPT and the MTT are handled by VirtToPhys, which is not part of the context manager.
//!
//! # Spec
//! CtxMgt document V3.0; JingZhao interface, sections 4 and 5.

mod ceu_parser;
pub mod ctxmdata;
pub mod key_qpc_data;
pub mod message;
pub mod request_controller;
pub mod stats;
#[cfg(test)]
mod tests;
mod writectx;

use card::memory::GuestMemory;
use engine::QpSnapshot;
use hcr::verbs::state_of;
use protocol::hca::jingzhao::init::InitHca;
use protocol::ids::{Cqn, Qpn};

use self::ctxmdata::CtxMdata;
use self::key_qpc_data::{KeyData, KeyQpc};
use self::message::{ReadQp, WrQpEpst, WrQpNpst, WrQpUapst, WriteQp};
use self::request_controller::{Channel, RequestController, Writer};
use self::stats::CtxStats;

/// The context manager of an initialised device.
#[derive(Debug)]
pub struct CtxMgt {
    ctxmdata: CtxMdata,
    controller: RequestController,
    stats: CtxStats,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    pub writer: Writer,
    pub index: u32,
}

impl CtxMgt {
    /// WR_ICMMAP_EN: creates the tables, with none of their pages mapped. The counters start at the values in `stats`.
    pub fn new(layout: &InitHca, stats: CtxStats) -> Self {
        Self { ctxmdata: CtxMdata::new(layout), controller: RequestController::default(), stats }
    }

    pub fn ctxmdata(&self) -> &CtxMdata {
        &self.ctxmdata
    }

    pub fn stats(&self) -> &CtxStats {
        &self.stats
    }

    pub fn qp_index(&self, qpn: Qpn) -> u32 {
        self.ctxmdata.qpc.index(qpn.get())
    }

    pub fn cq_index(&self, cqn: Cqn) -> u32 {
        self.ctxmdata.cqc.index(cqn.get())
    }

    /// Answers a read request from a unit. A QP in RESET has no key data.
    pub fn read<M: ReadQp>(&mut self, key: Option<&KeyQpc>) -> Option<M> {
        let Some(key) = key else {
            self.miss(M::CHANNEL);
            return None;
        };
        Some(self.read_of(key))
    }

    /// Answers a unit's read request for a QP that is not in RESET.
    pub fn read_of<M: ReadQp>(&mut self, key: &KeyQpc) -> M {
        self.stats.reads(M::CHANNEL).hits += 1;
        key.read()
    }

    /// Counts a failed lookup: a request for a QP in RESET or for a QP whose CQ does not exist.
    pub fn miss(&mut self, channel: Channel) {
        self.stats.reads(channel).misses += 1;
    }

    /// Copies a QP's state and PSNs from the engine, as if the units had written them. If only the state has changed,
    /// the write is attributed to RTC. The document has a separate message for state changes, but marks it as reserved.
    pub fn observe(&mut self, index: u32, key: &mut KeyQpc, live: &QpSnapshot) {
        let state = state_of(live);
        let context = key.context();
        if context.image.unacked_psn != live.unacked_psn {
            self.write(index, key, WrQpUapst { state, unacked_psn: live.unacked_psn });
        }
        if key.context().image.recv_psn != live.recv_psn {
            self.write(index, key, WrQpEpst { state, expected_psn: live.recv_psn });
        }
        // This has no effect if the state was already written above and the PSN has not changed.
        self.write(index, key, WrQpNpst { state, next_psn: live.send_psn });
    }

    /// Applies a write request from a unit. Queues a write-back unless one is already queued for this unit and QP.
    fn write<M: WriteQp>(&mut self, index: u32, key: &mut KeyQpc, message: M) {
        if !key.write(message) {
            return;
        }
        self.stats.writer(M::WRITER).writes += 1;
        if key.mark_dirty(M::WRITER) {
            self.controller.post(M::WRITER, index);
        }
    }

    pub fn is_idle(&self) -> bool {
        self.controller.is_empty()
    }

    /// Executes the next write-back. Returns `None` if no write-back is queued. Skips a write-back if its QP has been
    /// destroyed or if a command has since written the whole context.
    pub fn serve(&mut self, dma: &GuestMemory, keys: &mut impl KeyData) -> Option<Served> {
        loop {
            let (writer, index) = self.controller.select()?;
            if let Some(key) = keys.key(index)
                && key.take_dirty(writer)
            {
                self.write_back(dma, index, key, writer);
                return Some(Served { writer, index });
            }
        }
    }

    fn write_back(&mut self, dma: &GuestMemory, index: u32, key: &KeyQpc, writer: Writer) {
        let written = writectx::write_back(&self.ctxmdata, dma, index, &key.context().image, writer);
        let stats = self.stats.writer(writer);
        match written {
            Ok(()) => stats.write_backs += 1,
            // Section 5.2: a write-back to an unmapped page is skipped silently.
            Err(_) => stats.unmapped += 1,
        }
    }
}
