//! MSI-X vectors, signalled through the client's eventfds.
//!
//! Vectors are masked by the function's MSI-X capability (enable and function mask bits) and by the client's SET_IRQS.
//! A VMM keeps its own MSI-X table and never forwards the guest's mask bits. The initial mask bit of a table entry in
//! this module is therefore ignored until the client writes the entry.

use std::os::fd::OwnedFd;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde::{Deserialize, Serialize};

use crate::record::{Input, RecordSink};

/// Length of a table entry: address, data, vector control.
const ENTRY_LEN: usize = 16;

/// Offset of vector control in an entry.
const VECTOR_CONTROL: usize = 12;

/// Vector control bit 0: masked.
const MASKED: u8 = 1;

/// The vectors of one function.
#[derive(Debug, Default)]
pub struct Interrupts {
    vectors: Vec<Vector>,
    gate: Gate,
    table: Vec<u8>,
    stats: Stats,
    /// Set while the device is being recorded or replayed.
    sink: Option<RecordSink>,
}

/// Result of raising an interrupt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The client was signalled.
    Sent,
    /// The interrupt is pending because it is masked, its vector has no eventfd, or bus mastering is disabled.
    Pending,
    /// The interrupt was discarded because MSI-X is disabled or the vector does not exist.
    Nowhere,
}

impl Delivery {
    /// Returns the name of the result in traces.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Pending => "pending",
            Self::Nowhere => "nowhere",
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stats {
    pub sent: u64,
    /// Number of interrupts that became pending. They are not counted again when they are sent.
    pub pending: u64,
    pub nowhere: u64,
}

#[derive(Debug, Default)]
struct Vector {
    eventfd: Option<OwnedFd>,
    masked_by_client: bool,
    masked_in_table: bool,
    pending: bool,
}

/// Config space bits that control interrupts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gate {
    pub enabled: bool,
    pub function_masked: bool,
    /// Whether the function may write to memory, which requires bus master enable and full power.
    pub bus_master: bool,
}

impl Interrupts {
    /// Creates `vectors` vectors, with MSI-X disabled.
    pub fn new(vectors: u16) -> Self {
        let count = usize::from(vectors);
        Self {
            vectors: (0..count).map(|_| Vector::default()).collect(),
            gate: Gate::default(),
            table: initial_table(count),
            stats: Stats::default(),
            sink: None,
        }
    }

    /// Starts recording the client's changes to vectors and the signals sent to the client. In a replay, starts
    /// comparing these signals with the recording. `None` ends either mode.
    pub fn set_record_sink(&mut self, sink: Option<RecordSink>) {
        self.sink = sink;
    }

    fn input(&self, input: Input<'_>) {
        if let Some(sink) = &self.sink {
            sink.input(input);
        }
    }

    pub fn count(&self) -> usize {
        self.vectors.len()
    }

    /// Returns whether MSI-X is enabled. While MSI-X is disabled, raised interrupts are discarded.
    pub fn is_enabled(&self) -> bool {
        self.gate.enabled
    }

    /// Raises `vector`. The interrupt becomes pending if it cannot be sent yet, and is discarded if MSI-X is disabled
    /// or the vector is unknown.
    pub fn raise(&mut self, vector: u16) -> Delivery {
        let number = usize::from(vector);
        let vector = self.vectors.get_mut(number).filter(|_| self.gate.enabled);
        let delivery = match vector {
            None => Delivery::Nowhere,
            Some(vector) => {
                vector.pending = true;
                vector.deliver(self.gate, number, self.sink.as_ref());
                if vector.pending { Delivery::Pending } else { Delivery::Sent }
            }
        };
        let Stats { sent, pending, nowhere } = &mut self.stats;
        *match delivery {
            Delivery::Sent => sent,
            Delivery::Pending => pending,
            Delivery::Nowhere => nowhere,
        } += 1;
        delivery
    }

    /// Returns the number of interrupts raised since the device was created, by result.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Applies the config space bits and sends pending interrupts. Disabling MSI-X clears all pending
    /// interrupts.
    pub fn set_gate(&mut self, gate: Gate) {
        if gate == self.gate {
            return;
        }
        self.gate = gate;
        if !gate.enabled {
            self.vectors.iter_mut().for_each(|vector| vector.pending = false);
        }
        self.deliver_all();
    }

    /// Sets or removes the eventfd of a vector. Signals a new eventfd immediately if the vector is pending.
    pub fn set_eventfd(&mut self, vector: usize, eventfd: Option<OwnedFd>) {
        self.input(Input::Eventfd { vector, present: eventfd.is_some() });
        let number = vector;
        if let Some(vector) = self.vectors.get_mut(vector) {
            if let Some(fd) = &eventfd {
                // With a blocking descriptor, the client could block this thread. If this call fails, the
                // descriptor is unchanged.
                let _ = fcntl_getfl(fd).and_then(|flags| fcntl_setfl(fd, flags | OFlags::NONBLOCK));
            }
            vector.eventfd = eventfd;
            vector.deliver(self.gate, number, self.sink.as_ref());
        }
    }

    /// Masks or unmasks a vector on behalf of the client.
    pub fn set_masked(&mut self, vector: usize, masked: bool) {
        self.input(Input::Mask { vector, masked });
        let number = vector;
        if let Some(vector) = self.vectors.get_mut(vector) {
            vector.masked_by_client = masked;
            vector.deliver(self.gate, number, self.sink.as_ref());
        }
    }

    /// Signals a vector's eventfd at the client's request, even if the vector is masked.
    pub fn trigger(&mut self, vector: usize) {
        self.input(Input::Trigger { vector });
        let number = vector;
        if let Some(vector) = self.vectors.get_mut(vector) {
            vector.signal(number, self.sink.as_ref());
        }
    }

    /// Closes all eventfds and clears the client's masks. Called when the client has disabled MSI-X. Pending bits stay
    /// set because QEMU closes all eventfds and sets them again whenever the driver starts to use another vector.
    pub fn disconnect(&mut self) {
        self.input(Input::Unwire);
        self.unwire();
    }

    /// Like [`Self::disconnect`], but does not add to the recording, for use in a step that has already been recorded.
    pub(crate) fn unwire(&mut self) {
        for vector in &mut self.vectors {
            vector.eventfd = None;
            vector.masked_by_client = false;
        }
    }

    /// Performs a function-level reset. The table, pending bits and gate return to their power-on state. The
    /// client's eventfds and masks are not part of the function.
    pub fn reset(&mut self) {
        self.gate = Gate::default();
        self.table = initial_table(self.vectors.len());
        for vector in &mut self.vectors {
            vector.pending = false;
            vector.masked_in_table = false;
        }
    }

    pub fn table_len(&self) -> u64 {
        self.table.len() as u64
    }

    /// Returns the length of the pending bit array in bytes. The array consists of whole 64-bit words.
    pub fn pba_len(&self) -> u64 {
        (self.vectors.len().div_ceil(64) * 8) as u64
    }

    /// Reads bytes from the table. Bytes beyond the table read as 0.
    pub fn read_table(&self, offset: usize, out: &mut [u8]) {
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = self.table.get(offset.saturating_add(at)).copied().unwrap_or(0);
        }
    }

    /// Writes bytes to the table. Bytes beyond the table are ignored.
    pub fn write_table(&mut self, offset: usize, data: &[u8]) {
        for (at, byte) in data.iter().enumerate() {
            let at = offset.saturating_add(at);
            let Some(stored) = self.table.get_mut(at) else { return };
            *stored = *byte;
            if at % ENTRY_LEN == VECTOR_CONTROL
                && let Some(vector) = self.vectors.get_mut(at / ENTRY_LEN)
            {
                vector.masked_in_table = byte & MASKED != 0;
                vector.deliver(self.gate, at / ENTRY_LEN, self.sink.as_ref());
            }
        }
    }

    /// Reads bytes from the pending bit array.
    pub fn read_pba(&self, offset: usize, out: &mut [u8]) {
        for (at, byte) in out.iter_mut().enumerate() {
            let first = offset.saturating_add(at).saturating_mul(8);
            *byte = self
                .vectors
                .iter()
                .skip(first)
                .take(8)
                .enumerate()
                .fold(0, |bits, (bit, vector)| bits | u8::from(vector.pending) << bit);
        }
    }

    fn deliver_all(&mut self) {
        for (number, vector) in self.vectors.iter_mut().enumerate() {
            vector.deliver(self.gate, number, self.sink.as_ref());
        }
    }
}

impl Vector {
    /// Sends a pending interrupt unless it is masked.
    fn deliver(&mut self, gate: Gate, number: usize, sink: Option<&RecordSink>) {
        let masked = !gate.enabled
            || gate.function_masked
            || !gate.bus_master
            || self.masked_by_client
            || self.masked_in_table
            || self.eventfd.is_none();
        if self.pending && !masked {
            self.pending = false;
            self.signal(number, sink);
        }
    }

    /// Signals the eventfd. Errors are harmless and ignored. A full counter means that an earlier signal is still
    /// unread, and a descriptor that is not an eventfd affects only the client.
    fn signal(&self, number: usize, sink: Option<&RecordSink>) {
        if let Some(fd) = &self.eventfd {
            if let Some(sink) = sink {
                sink.interrupt(number);
            }
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        }
    }
}

/// Returns the initial table. All entries are masked, and all other bits are zero.
fn initial_table(vectors: usize) -> Vec<u8> {
    let mut table = vec![0; vectors * ENTRY_LEN];
    for entry in table.chunks_exact_mut(ENTRY_LEN) {
        entry[VECTOR_CONTROL] = MASKED;
    }
    table
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    const OPEN: Gate = Gate { enabled: true, function_masked: false, bus_master: true };

    fn wired(vectors: u16) -> (Interrupts, Vec<OwnedFd>) {
        let mut interrupts = Interrupts::new(vectors);
        interrupts.set_gate(OPEN);
        let fds: Vec<_> = (0..vectors).map(|_| eventfd(0, EventfdFlags::NONBLOCK).unwrap()).collect();
        for (vector, fd) in fds.iter().enumerate() {
            interrupts.set_eventfd(vector, Some(fd.as_fd().try_clone_to_owned().unwrap()));
        }
        (interrupts, fds)
    }

    /// Returns the number of signals since the last call.
    fn signals(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        match rustix::io::read(fd, &mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(error) => {
                assert_eq!(error, rustix::io::Errno::AGAIN);
                0
            }
        }
    }

    fn pending(interrupts: &Interrupts) -> u64 {
        let mut bits = [0; 8];
        interrupts.read_pba(0, &mut bits);
        u64::from_le_bytes(bits)
    }

    #[test]
    fn raised_vector_signals_its_eventfd() {
        let (mut interrupts, fds) = wired(3);
        interrupts.raise(1);
        interrupts.raise(1);
        interrupts.raise(7);
        assert_eq!(fds.iter().map(signals).collect::<Vec<_>>(), [0, 2, 0]);
        assert_eq!(pending(&interrupts), 0);
    }

    #[test]
    fn interrupts_are_discarded_while_msix_is_disabled() {
        let (mut interrupts, fds) = wired(1);
        interrupts.set_gate(Gate { enabled: false, ..OPEN });
        interrupts.raise(0);
        interrupts.set_gate(OPEN);
        assert_eq!(signals(&fds[0]), 0);
    }

    #[test]
    fn disabling_msix_clears_pending_bits() {
        let (mut interrupts, fds) = wired(1);
        interrupts.set_masked(0, true);
        interrupts.raise(0);
        interrupts.set_gate(Gate { enabled: false, ..OPEN });
        assert_eq!(pending(&interrupts), 0);
        interrupts.set_gate(OPEN);
        interrupts.set_masked(0, false);
        assert_eq!(signals(&fds[0]), 0);
    }

    #[test]
    fn pending_interrupt_is_sent_after_reconnection() {
        let (mut interrupts, fds) = wired(1);
        interrupts.set_masked(0, true);
        interrupts.raise(0);
        interrupts.disconnect();
        assert_eq!(signals(&fds[0]), 0);
        interrupts.set_eventfd(0, Some(fds[0].as_fd().try_clone_to_owned().unwrap()));
        assert_eq!(signals(&fds[0]), 1);
    }

    #[test]
    fn masked_interrupt_is_sent_when_unmasked() {
        type Toggle = fn(&mut Interrupts, bool);
        let ways: [(&str, Toggle); 4] = [
            ("client", |interrupts, masked| interrupts.set_masked(2, masked)),
            ("function", |interrupts, masked| {
                interrupts.set_gate(Gate { function_masked: masked, ..OPEN });
            }),
            ("bus master", |interrupts, masked| {
                interrupts.set_gate(Gate { bus_master: !masked, ..OPEN });
            }),
            ("table", |interrupts, masked| {
                interrupts.write_table(2 * 16 + 12, &u32::from(masked).to_le_bytes());
            }),
        ];
        for (name, mask) in ways {
            let (mut interrupts, fds) = wired(3);
            mask(&mut interrupts, true);
            interrupts.raise(2);
            interrupts.raise(2);
            assert_eq!((signals(&fds[2]), pending(&interrupts)), (0, 0b100), "{name}");
            mask(&mut interrupts, false);
            assert_eq!((signals(&fds[2]), pending(&interrupts)), (1, 0), "{name}");
        }
    }

    #[test]
    fn raised_vector_without_eventfd_stays_pending() {
        let mut interrupts = Interrupts::new(70);
        interrupts.set_gate(OPEN);
        interrupts.raise(69);
        let mut pba = [0; 16];
        interrupts.read_pba(0, &mut pba);
        assert_eq!(u128::from_le_bytes(pba), 1 << 69);
        assert_eq!(interrupts.pba_len(), 16);
        let fd = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        interrupts.set_eventfd(69, Some(fd.as_fd().try_clone_to_owned().unwrap()));
        assert_eq!(signals(&fd), 1);
    }

    #[test]
    fn reset_masks_vectors_and_keeps_eventfds() {
        let (mut interrupts, fds) = wired(1);
        interrupts.write_table(0, &[0xff; 16]);
        interrupts.raise(0);
        interrupts.reset();
        assert_eq!(pending(&interrupts), 0);
        let mut entry = [0xa5; 16];
        interrupts.read_table(0, &mut entry);
        assert_eq!(entry, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
        interrupts.set_gate(OPEN);
        interrupts.raise(0);
        assert_eq!(signals(&fds[0]), 1);
    }

    #[test]
    fn blocking_eventfd_does_not_block_device() {
        let full = eventfd(u32::MAX, EventfdFlags::empty()).unwrap();
        rustix::io::write(&full, &(u64::MAX - 1 - u64::from(u32::MAX)).to_ne_bytes()).unwrap();
        let (mut interrupts, _fds) = wired(1);
        interrupts.set_eventfd(0, Some(full));
        interrupts.raise(0);
    }

    #[test]
    fn msix_accesses_outside_tables_have_no_effect() {
        let mut interrupts = Interrupts::new(1);
        interrupts.write_table(12, &[0xff; 64]);
        interrupts.write_table(usize::MAX, &[0xff; 2]);
        let mut out = [0xa5; 8];
        interrupts.read_table(usize::MAX - 2, &mut out);
        interrupts.read_pba(usize::MAX, &mut out);
        assert_eq!(out, [0; 8]);
    }
}
