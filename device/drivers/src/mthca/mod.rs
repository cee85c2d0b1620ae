//! A driver for mthca that behaves like `ib_mthca` and `libmthca`.
//!
//! # Spec
//! mthca interface, sections 2.2, 2.4, 4.5 and 13.3.

mod contexts;
mod work;

use protocol::hca::mthca::modify::QpAttributes;
use protocol::hca::mthca::qpc::Qpc;

pub use contexts::{Cq, Mpt, SMALL_LAYOUT, eq_context, modify, qpc, srq_context, words};
pub use work::WorkQueue;

pub use crate::hcr::{INBOX, OUTBOX};
use crate::{Bus, hcr};

/// Register addresses in BAR 0.
pub const HCR: u64 = 0x8_0680;
pub const EQ_ARM: u64 = 0x8_0a04;
pub const EQ_SET_CI: u64 = 0x8_0b00;
pub const RESET: u64 = 0xf_0010;

/// UAR page used by all queues.
pub const UAR: u32 = 2;

/// The EQ that reports command completions.
#[derive(Clone, Copy, Debug)]
pub struct CommandEvents {
    /// Bus address of the ring, which has 256 entries.
    pub buffer: u64,
    /// Token of the next command.
    pub token: u16,
    /// Number of entries read so far.
    pub read: u32,
}

impl CommandEvents {
    const EQN: u32 = 3;
    const VECTOR: usize = 2;
    const ENTRIES: u32 = 256;
}

/// Driver state specific to mthca.
pub struct Mthca {
    /// EQ for command completions. `None` if the driver polls for them.
    pub events: Option<CommandEvents>,
    /// Whether to set in_param and out_param to 0 if a command does not use them. If false, unused parameters contain
    /// the addresses of the inbox and outbox.
    pub exact: bool,
}

pub type Driver<B> = crate::Driver<Mthca, B>;

impl<B: Bus> Driver<B> {
    /// Creates a driver for a device that has just been powered on.
    pub const fn new(bus: B) -> Self {
        Self { bus, interface: Mthca { events: None, exact: false } }
    }

    pub fn write(&mut self, offset: u64, value: u32) {
        self.bus.store(0, offset, &value.to_be_bytes());
    }

    pub fn read(&mut self, offset: u64) -> u32 {
        u32::from_be_bytes(self.bus.load(0, offset))
    }

    /// Writes the seven words of a command without reading the status.
    pub fn issue(&mut self, in_param: u64, in_modifier: u32, out_param: u64, token: u16, word: u32) {
        let words = hcr::words(in_param, in_modifier, out_param, token, word);
        for (offset, word) in (HCR..).step_by(4).zip(words) {
            self.write(offset, word);
        }
    }

    /// Issues a command with arbitrary parameters and returns the status, which is valid only if the event bit is
    /// clear.
    #[track_caller]
    pub fn raw(&mut self, in_param: u64, in_modifier: u32, out_param: u64, token: u16, word: u32) -> u8 {
        self.issue(in_param, in_modifier, out_param, token, word);
        let word = self.read(HCR + 0x18);
        assert_eq!(word & hcr::GO, 0, "GO is clear after the command has completed");
        word.to_be_bytes()[0]
    }

    /// Issues a command, with the op_modifier in bits 15:12 of `op`. Returns the status and out_param.
    #[track_caller]
    pub fn command(&mut self, op: u32, in_param: u64, in_modifier: u32) -> (u8, u64) {
        let word = hcr::GO | op;
        let out_param = if self.interface.exact && !has_outbox(op) { 0 } else { OUTBOX };
        let Some(events) = self.interface.events else {
            let status = self.raw(in_param, in_modifier, out_param, 0xffff, word);
            let halves = [0xc, 0x10].map(|offset| u64::from(self.read(HCR + offset)));
            return (status, halves[0] << 32 | halves[1]);
        };
        let CommandEvents { buffer, token, read } = events;
        self.raw(in_param, in_modifier, out_param, token, word | hcr::EVENT);
        // Handle the completion interrupt.
        assert_eq!(self.bus.interrupts(CommandEvents::VECTOR), 1, "a command raises one interrupt");
        let at = buffer + u64::from(read % CommandEvents::ENTRIES) * 32;
        let entry = self.bus.peek(at, 32);
        assert_eq!((entry[1], &entry[6..8], entry[0x1f]), (0x0a, &token.to_be_bytes()[..], 0));
        self.bus.poke(at + 31, &[0x80]);
        self.write(EQ_SET_CI + 8 * u64::from(CommandEvents::EQN), read + 1);
        self.write(EQ_ARM, 1 << CommandEvents::EQN);
        // Section 2.2: the token advances by the number of command slots.
        let events = CommandEvents { token: token.wrapping_add(0x20), read: read + 1, ..events };
        self.interface.events = Some(events);
        let answer = entry[0x10..0x18].iter().fold(0, |answer, byte| answer << 8 | u64::from(*byte));
        (entry[0x0f], answer)
    }

    /// Issues a command with an inbox and returns its status. The result is at [`OUTBOX`].
    #[track_caller]
    pub fn with_inbox(&mut self, op: u32, inbox: &[u8], in_modifier: u32) -> u8 {
        self.bus.poke(INBOX, inbox);
        let in_param = if self.interface.exact && inbox.is_empty() { 0 } else { INBOX };
        self.command(op, in_param, in_modifier).0
    }

    /// Issues a command that must succeed.
    #[track_caller]
    pub fn ok(&mut self, op: u32, inbox: &[u8], in_modifier: u32) {
        assert_eq!(self.with_inbox(op, inbox, in_modifier), 0, "command {op:03x} must succeed");
    }

    /// Moves the QP described by `qpc` from RESET to RTS.
    pub fn connect(&mut self, qpc: &Qpc) {
        for op in [0x019, 0x01a, 0x01b] {
            self.ok(op, &modify(QpAttributes::all(), qpc), qpc.local_qpn.get());
        }
    }

    /// Writes page table entries directly to the memory mapped as ICM, starting at bus address `at`.
    pub fn write_mtt(&mut self, at: u64, pages: impl IntoIterator<Item = u64>) {
        let entries: Vec<u8> = pages.into_iter().flat_map(|page| (page | 1).to_be_bytes()).collect();
        self.bus.poke(at, &entries);
    }
}

/// Returns whether a command has an outbox (section 3.1). Bits 15:12 of `op` hold the op_modifier.
fn has_outbox(op: u32) -> bool {
    // These commands have an outbox: QUERY_DEV_LIM, QUERY_FW, QUERY_ADAPTER, HW2SW_EQ, HW2SW_CQ, QUERY_QP, MAD_IFC,
    // READ_MGM, HW2SW_SRQ, QUERY_SRQ and ENABLE_LAM. So does the variant of ERR2RST_QP that returns the context.
    matches!(
        op & 0xfff,
        0x003 | 0x004 | 0x006 | 0x014 | 0x017 | 0x022 | 0x024 | 0x025 | 0x036 | 0x037 | 0xff8
    ) || op == 0x2021
}
