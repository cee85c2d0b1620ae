//! A driver for the RDMA control queue (CQP) that behaves like `irdma`.

use protocol::hca::e810::rdma::completion_queue::CqCommand;
use protocol::hca::e810::rdma::control::{Completion, ErrorCodes, HostContext, Status, Tail};
use protocol::hca::e810::rdma::event_queue::{AsyncEvent, CompletionEvent, CreateAeq, CreateCeq};
use protocol::hca::e810::rdma::hmc::{
    FpmCommand, Placement, SegmentDescriptor, SegmentEntry, UpdateSegments,
};
use protocol::hca::e810::rdma::page_list::ListLevel;
use protocol::hca::e810::rdma::{Operation, WQE_LEN};
use protocol::hca::e810::regs::Register;
use protocol::ids::{Cqn, Iova};

use super::Driver;
use super::admin::halves;
use crate::Bus;

pub const CQP_ENTRIES: u16 = 2048;
/// Cookie in the host context. Every completion must return it.
pub const CQP_COOKIE: u64 = 0xff25_5227_06e1_6f60;
const HOST_CONTEXT: u64 = 0x40_0000;
/// Bus address of the buffer shared by all operations.
pub const RDMA_BUFFER: u64 = 0x40_1000;
/// Bus address of the control queue's ring.
pub const CQP_RING: u64 = 0x41_0000;
/// Bus address of CQ 0's ring.
pub const CCQ_RING: u64 = 0x44_0000;
pub const CCQ_ENTRIES: u32 = 2050;
/// Bus address of CQ 0's shadow area.
pub const CCQ_SHADOW: u64 = 0x40_3000;
/// Bus address of CEQ 0's ring.
pub const CEQ_RING: u64 = 0x46_0000;
pub const CEQ_ENTRIES: u32 = 2048;
/// Bus address of the AEQ's ring.
pub const AEQ_RING: u64 = 0x47_0000;
pub const AEQ_ENTRIES: u32 = 3072;
/// Bus address of the first PBLE segment.
pub const PBLE_SEGMENT: u64 = 0x60_0000;
pub const AEQ_VECTOR: u16 = 3;
pub const CEQ_VECTOR: u16 = 4;

const CAUSE_ENABLE: u32 = 1 << 30;
/// Length of the "commit FPM" buffer, in bytes.
const COMMIT_LEN: u32 = 0xd0;

/// Driver state of the RDMA control queue.
#[derive(Debug, Default)]
pub struct Rdma {
    /// Ring index of the next operation.
    next: u16,
    polarity: bool,
    /// Number of entries read from CQ 0.
    completions: u32,
    has_ccq: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Performed {
    /// Error codes from the registers, if the operation failed.
    pub error: Option<ErrorCodes>,
    /// Completion in CQ 0, if CQ 0 exists.
    pub completion: Option<Completion>,
}

impl<B: Bus> Driver<B> {
    /// Starts the control queue.
    ///
    /// # Panics
    /// Panics if the queue does not start.
    #[track_caller]
    pub fn start_cqp(&mut self) {
        let context = HostContext {
            size: 10,
            protocol: 2,
            ring: Iova::new(CQP_RING),
            profile: 1,
            cookie: CQP_COOKIE,
            hardware_major: 1,
            ..HostContext::default()
        };
        self.bus.poke(HOST_CONTEXT, &context.emit());
        self.bus.poke(CQP_RING, &vec![0; usize::from(CQP_ENTRIES) * WQE_LEN]);
        self.interface.rdma = Rdma { polarity: true, ..Rdma::default() };
        let [low, high] = halves(HOST_CONTEXT);
        for (register, value) in [
            (Register::PfpeCqptail, 0),
            (Register::PfpeCqpdb, 0),
            (Register::PfpeCcqpstatus, 0),
            (Register::PfpeCcqphigh, high),
            (Register::PfpeCcqplow, low),
        ] {
            self.write(register, value);
        }
        assert_eq!(self.cqp_status(), Status { done: true, error: false });
    }

    pub fn end_cqp(&mut self) {
        self.write(Register::PfpeCcqphigh, 0);
        self.write(Register::PfpeCcqplow, 0);
        self.interface.rdma = Rdma::default();
    }

    pub fn cqp_status(&mut self) -> Status {
        Status::parse(&self.read(Register::PfpeCcqpstatus).to_le_bytes())
    }

    pub fn cqp_tail(&mut self) -> Tail {
        Tail::parse(&self.read(Register::PfpeCqptail).to_le_bytes())
    }

    /// Executes an operation.
    ///
    /// # Panics
    /// Panics if the doorbell write does not complete the operation. Once CQ 0 exists, also panics if its next entry is
    /// not the operation's completion.
    #[track_caller]
    pub fn perform(&mut self, operation: &Operation) -> Performed {
        let wqe = operation.emit(self.interface.rdma.polarity);
        self.perform_raw(&wqe)
    }

    /// Executes an operation given as a raw 64-byte WQE.
    ///
    /// # Panics
    /// Panics under the same conditions as [`Driver::perform`].
    #[track_caller]
    pub fn perform_raw(&mut self, wqe: &[u8; WQE_LEN]) -> Performed {
        let index = self.interface.rdma.next;
        let next = (index + 1) % CQP_ENTRIES;
        self.bus.poke(CQP_RING + u64::from(index) * WQE_LEN as u64, wqe);
        self.interface.rdma.next = next;
        self.interface.rdma.polarity ^= next == 0;
        self.write(Register::PfpeCqpdb, next.into());
        let tail = self.cqp_tail();
        assert_eq!(tail.next, next, "the operation must complete before the doorbell write returns");
        let error =
            tail.error.then(|| ErrorCodes::parse(&self.read(Register::PfpeCqperrcodes).to_le_bytes()));
        let completion = self.interface.rdma.has_ccq.then(|| self.completion(index));
        Performed { error, completion }
    }

    /// Executes an operation that must succeed and returns its result.
    ///
    /// # Panics
    /// Panics if the operation fails.
    #[track_caller]
    pub fn perform_well(&mut self, operation: &Operation) -> u32 {
        let performed = self.perform(operation);
        assert_eq!(performed.error, None, "{operation:?}");
        performed.completion.map_or(0, |completion| completion.value)
    }

    /// Consumes the next entry of CQ 0, which must complete the operation at `index`.
    #[track_caller]
    fn completion(&mut self, index: u16) -> Completion {
        let read = self.interface.rdma.completions;
        let at = CCQ_RING + u64::from(read % CCQ_ENTRIES) * Completion::LEN as u64;
        let bytes = self.bus.peek(at, Completion::LEN);
        let completion =
            Completion::parse(bytes.first_chunk().expect("`peek` returns the requested number of bytes"));
        assert_eq!(
            completion.valid,
            (read / CCQ_ENTRIES).is_multiple_of(2),
            "{completion:?} has the wrong polarity"
        );
        assert_eq!((completion.cookie, completion.index), (CQP_COOKIE, index));
        self.interface.rdma.completions = read + 1;
        let head = (read + 1) % CCQ_ENTRIES;
        self.bus.poke(CCQ_SHADOW, &u64::from(head).to_le_bytes());
        completion
    }

    /// Sets up context memory, CEQ 0, CQ 0 and the AEQ, as `irdma` does (E810 interface, section 9.2).
    ///
    /// # Panics
    /// Panics if any step fails.
    #[track_caller]
    pub fn bring_up_rdma(&mut self) {
        self.start_cqp();
        let pbles = self.commit_fpm();
        self.perform_well(&segment(
            0,
            SegmentDescriptor { valid: true, direct: true, entries: 512, page: 0x300 },
        ));
        self.create_ccq();
        let ceq = CreateCeq { entries: CEQ_ENTRIES, ring: Iova::new(CEQ_RING), ..CreateCeq::default() };
        self.perform_well(&Operation::CreateCeq(ceq));
        self.write(Register::GlintCeqctl(0), CAUSE_ENABLE | u32::from(CEQ_VECTOR));
        self.enable_vector(CEQ_VECTOR);
        self.perform_well(&segment(
            pbles,
            SegmentDescriptor { valid: true, direct: true, entries: 512, page: PBLE_SEGMENT >> 12 },
        ));
        let aeq = CreateAeq { entries: AEQ_ENTRIES, ring: Iova::new(AEQ_RING), ..CreateAeq::default() };
        self.perform_well(&Operation::CreateAeq(aeq));
        self.write(Register::PfintAeqctl, CAUSE_ENABLE | u32::from(AEQ_VECTOR));
        self.enable_vector(AEQ_VECTOR);
    }

    /// Creates CQ 0, which reports its events to CEQ 0.
    ///
    /// # Panics
    /// Panics if the operation fails.
    #[track_caller]
    pub fn create_ccq(&mut self) {
        let cq = CqCommand {
            entries: CCQ_ENTRIES,
            cqn: Cqn::new(0),
            ceq_valid: true,
            check_overflow: true,
            level: ListLevel::Contiguous,
            ring: Iova::new(CCQ_RING),
            shadow: Iova::new(CCQ_SHADOW),
            ..CqCommand::default()
        };
        self.interface.rdma.has_ccq = true;
        let performed = self.perform(&Operation::CreateCq(cq));
        assert_eq!(performed.error, None);
    }

    /// Commits the object counts that `irdma` committed in a recorded session. Returns the index of the segment where
    /// the PBLEs start.
    ///
    /// # Panics
    /// Panics if the operation fails or if the PBLEs do not start at a segment boundary.
    #[track_caller]
    pub fn commit_fpm(&mut self) -> u16 {
        /// Offset in the buffer and object count, per object type.
        const COUNTS: &[(u64, u32)] =
            &[(0, 1024), (8, 2048), (32, 256), (48, 16384), (104, 4096), (112, 1 << 18)];
        self.bus.poke(RDMA_BUFFER, &[0; COMMIT_LEN as usize]);
        for (offset, count) in COUNTS {
            self.bus.poke(RDMA_BUFFER + offset, &count.to_le_bytes());
        }
        let commit = FpmCommand { len: COMMIT_LEN, buffer: Iova::new(RDMA_BUFFER), ..FpmCommand::default() };
        self.perform_well(&Operation::CommitFpm(commit));
        let word = self.bus.peek(RDMA_BUFFER + 112, Placement::LEN);
        let Placement { base, .. } =
            Placement::parse(word.first_chunk().expect("`peek` returns the requested number of bytes"));
        assert_eq!(base % 4096, 0, "PBLEs must begin at a segment boundary, not at 512 * {base:#x}");
        u16::try_from(base / 4096).expect("the PBLEs begin within 64 segments")
    }

    /// Reads an entry of CEQ 0.
    pub fn completion_event(&mut self, index: u64) -> CompletionEvent {
        let bytes = self.bus.peek(CEQ_RING + index * CompletionEvent::LEN as u64, CompletionEvent::LEN);
        CompletionEvent::parse(bytes.first_chunk().expect("`peek` returns the requested number of bytes"))
    }

    /// Reads an entry of the AEQ.
    pub fn async_event(&mut self, index: u64) -> AsyncEvent {
        let bytes = self.bus.peek(AEQ_RING + index * AsyncEvent::LEN as u64, AsyncEvent::LEN);
        AsyncEvent::parse(bytes.first_chunk().expect("`peek` returns the requested number of bytes"))
    }

    /// Writes the arm word of a completion queue and rings the arm doorbell.
    pub fn arm(&mut self, cqn: u32, shadow: u64, word: u64) {
        self.bus.poke(shadow + 32, &word.to_le_bytes());
        self.write(Register::PfpeCqarm, cqn);
    }
}

/// Returns an "Update SDs" operation with one segment descriptor.
pub fn segment(index: u16, descriptor: SegmentDescriptor) -> Operation {
    let first = SegmentEntry { index, physical: true, write: true, descriptor, ..SegmentEntry::default() };
    Operation::UpdateSegments(UpdateSegments { first, ..UpdateSegments::default() })
}
