//! Verifies CMP_SWAP and FETCH_ADD. Section numbers refer to the JingZhao interface.

use std::collections::BTreeSet;

use agent::wire::{Access, Cqe, CreateMr, Data, Hex, MrInfo, Peek, Poke, Remote, SendOp, SendRequest};
use anyhow::{Context as _, Result, ensure};

use super::SOON_MS;
use crate::report::Report;
use crate::scenario::codes::{state, syndrome};
use crate::scenario::connection::{Attributes, Connection, destroy_region, region};
use crate::scenario::pair::{Direction, Pair};
use crate::vm::Vm;

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    report.case("atomics: results and memory", hint, results(pair)).await?;
    report.case("atomics: result that crosses a page boundary", hint, result_across_a_page(pair)).await?;
    report.case("atomics: scatter list other than one 8-byte element", hint, malformed(pair)).await?;
    report.case("atomics: two QPs add to the same word", hint, counting(pair)).await?;
    for fault in [Fault::Misaligned, Fault::Right, Fault::Key, Fault::Bounds] {
        for op in [SendOp::FetchAdd { add: 1 }, SendOp::CmpSwap { compare: 0, swap: 1 }] {
            let name = format!("atomics: {op:?} {}", fault.name());
            report.case(&name, hint, refused(pair, op, fault)).await?;
        }
    }
    report.case("atomics: result buffer that cannot be written", hint, unwritable_result(pair)).await
}

/// A connection, an 8-byte aligned word in guest `b` that atomics operate on, and memory in guest `a` for the results.
pub(super) struct Counter {
    pub(super) connection: Connection,
    pub(super) word: MrInfo,
    pub(super) results: MrInfo,
}

impl Counter {
    pub(super) async fn create(pair: &mut Pair, attributes: &Attributes) -> Result<Self> {
        let connection = Connection::create(pair, attributes).await?;
        let word = region(&mut pair.b.vm, 24, 4072).await?;
        let results = region(&mut pair.a.vm, 4096, 8).await?;
        Ok(Self { connection, word, results })
    }

    /// Returns an atomic operation on the word. Its result is stored in slot `i` of guest `a`'s memory.
    pub(super) fn request(&self, op: SendOp, i: u32) -> SendRequest {
        SendRequest {
            op,
            data: Data::Sges(vec![self.results.sge(u64::from(i) * 8, 8)]),
            remote: Some(self.word.remote(8)),
            ..SendRequest::default()
        }
    }

    /// Executes requests, all of which must succeed.
    pub(super) async fn execute(&self, pair: &mut Pair, requests: Vec<SendRequest>) -> Result<Vec<Cqe>> {
        let (at_a, _) = self.connection.towards(Direction::AToB);
        let expected = vec![None; requests.len()];
        at_a.post(&mut pair.a.vm, requests).await?;
        at_a.expect_completions(&mut pair.a.vm, &expected, SOON_MS).await
    }

    pub(super) async fn result(&self, pair: &mut Pair, i: u32) -> Result<u64> {
        peek(&mut pair.a.vm, &self.results, u64::from(i) * 8).await
    }

    /// Returns the value of the word and checks that the neighbouring words are unchanged.
    pub(super) async fn value(&self, pair: &mut Pair) -> Result<u64> {
        for at in [0, 16] {
            let neighbour = peek(&mut pair.b.vm, &self.word, at).await?;
            ensure!(neighbour == 0, "the neighbouring word was written: {neighbour:#x}");
        }
        peek(&mut pair.b.vm, &self.word, 8).await
    }

    pub(super) async fn set(&self, pair: &mut Pair, value: u64) -> Result<()> {
        let bytes = Hex(value.to_le_bytes().to_vec());
        pair.b.vm.call(Poke { mr: self.word.id, off: 8, bytes }).await.map(drop)
    }

    pub(super) async fn destroy(self, pair: &mut Pair) -> Result<()> {
        self.connection.destroy(pair).await?;
        destroy_region(&mut pair.a.vm, &self.results).await?;
        destroy_region(&mut pair.b.vm, &self.word).await
    }
}

/// Returns the number at byte `off`. Guests are little-endian.
async fn peek(vm: &mut Vm, mr: &MrInfo, off: u64) -> Result<u64> {
    let Hex(bytes) = vm.call(Peek { mr: mr.id, off, len: 8 }).await?;
    Ok(u64::from_le_bytes(bytes.as_slice().try_into().context("the reply is too short")?))
}

/// Checks the results of atomics (sections 6.4 and 7.1).
async fn results(pair: &mut Pair) -> Result<()> {
    const START: u64 = 0x1122_3344_5566_7788;
    let counter = Counter::create(pair, &Attributes::default()).await?;
    counter.set(pair, START).await?;
    let mut value = START;
    for (op, opcode, next) in [
        (SendOp::FetchAdd { add: 1 }, 0x12, START + 1),
        // Addition wraps around, and an all-ones result has no special meaning.
        (SendOp::FetchAdd { add: u64::MAX - START - 1 }, 0x12, u64::MAX),
        (SendOp::FetchAdd { add: 6 }, 0x12, 5),
        (SendOp::FetchAdd { add: 0 }, 0x12, 5),
        (SendOp::CmpSwap { compare: 5, swap: START }, 0x11, START),
        (SendOp::CmpSwap { compare: START ^ 1 << 63, swap: 7 }, 0x11, START),
        (SendOp::CmpSwap { compare: START ^ 1, swap: 7 }, 0x11, START),
        (SendOp::CmpSwap { compare: START, swap: 0 }, 0x11, 0),
    ] {
        let cqes = counter.execute(pair, vec![counter.request(op, 0)]).await?;
        let cqe = cqes.first().context("a completion is missing")?;
        ensure!((cqe.opcode, cqe.byte_count) == (opcode, 8), "{cqe:?}");
        let result = counter.result(pair, 0).await?;
        ensure!(result == value, "{op:?} returned {result:#x}, expected {value:#x}");
        value = next;
        let stored = counter.value(pair).await?;
        ensure!(stored == value, "{op:?} stored {stored:#x}, expected {value:#x}");
    }
    counter.destroy(pair).await
}

async fn result_across_a_page(pair: &mut Pair) -> Result<()> {
    let counter = Counter::create(pair, &Attributes::default()).await?;
    counter.set(pair, 0x0102_0304_0506_0708).await?;
    // The region starts at byte 8 of a page, so its byte 4088 is the first of the next page.
    let across = Data::Sges(vec![counter.results.sge(4085, 8)]);
    let add = SendRequest { data: across, ..counter.request(SendOp::FetchAdd { add: 1 }, 0) };
    counter.execute(pair, vec![add]).await?;
    let result = peek(&mut pair.a.vm, &counter.results, 4085).await?;
    ensure!(result == 0x0102_0304_0506_0708, "result {result:#x}");
    counter.destroy(pair).await
}

/// Checks that an atomic requires exactly one 8-byte data segment (section 6.1).
async fn malformed(pair: &mut Pair) -> Result<()> {
    for (name, lengths) in
        [("two elements", &[4, 4][..]), ("no element", &[]), ("four bytes", &[4]), ("sixteen bytes", &[16])]
    {
        let counter = Counter::create(pair, &Attributes::default()).await?;
        let data = Data::Sges(lengths.iter().map(|&len| counter.results.sge(0, len)).collect());
        let bad = SendRequest { data, ..counter.request(SendOp::FetchAdd { add: 1 }, 0) };
        let at_a = *counter.connection.towards(Direction::AToB).0;
        at_a.post(&mut pair.a.vm, vec![bad]).await?;
        let expected = [Some(syndrome::LOCAL_QP_OPERATION)];
        at_a.expect_completions(&mut pair.a.vm, &expected, SOON_MS).await.context(name)?;
        at_a.expect_state(&mut pair.a.vm, state::ERR).await?;
        let value = counter.value(pair).await?;
        ensure!(value == 0, "{name}: counted to {value}");
        counter.destroy(pair).await?;
    }
    Ok(())
}

/// Checks that atomics are atomic: each counter value is returned exactly once. More atomics are posted than may be
/// outstanding (section 10.4).
async fn counting(pair: &mut Pair) -> Result<()> {
    const EACH: u32 = 60;
    let first = Counter::create(pair, &Attributes::default()).await?;
    let other = Connection::create(pair, &Attributes::default()).await?;
    let ends = [*first.connection.towards(Direction::AToB).0, *other.towards(Direction::AToB).0];
    let add = |i| first.request(SendOp::FetchAdd { add: 1 }, i);
    for (queue, end) in (0..).zip(ends) {
        end.post(&mut pair.a.vm, (queue * EACH..(queue + 1) * EACH).map(add).collect()).await?;
    }
    for end in ends {
        end.expect_completions(&mut pair.a.vm, &[None; EACH as usize], SOON_MS).await?;
    }
    let mut seen = BTreeSet::new();
    for i in 0..2 * EACH {
        seen.insert(first.result(pair, i).await?);
    }
    let (value, all) = (first.value(pair).await?, u64::from(2 * EACH));
    ensure!(value == all && seen.iter().copied().eq(0..all), "counted to {value} of {all}; results {seen:?}");
    other.destroy(pair).await?;
    first.destroy(pair).await
}

/// Why an atomic is rejected.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Misaligned,
    Right,
    Key,
    Bounds,
}

impl Fault {
    const fn name(self) -> &'static str {
        match self {
            Self::Misaligned => "at an address that is not a multiple of 8: invalid request",
            Self::Right => "without the access right: remote access error",
            Self::Key => "with a wrong R_Key: remote access error",
            Self::Bounds => "beyond the region: remote access error",
        }
    }

    fn remote(self, word: &MrInfo) -> Remote {
        match self {
            Self::Misaligned => word.remote(12),
            Self::Right => word.remote(8),
            Self::Key => Remote { rkey: word.key ^ 0x8000_0101, ..word.remote(8) },
            Self::Bounds => word.remote(24),
        }
    }
}

/// Checks that an atomic is rejected and changes nothing (sections 9.2 and 9.5).
async fn refused(pair: &mut Pair, op: SendOp, fault: Fault) -> Result<()> {
    let mut counter = Counter::create(pair, &Attributes::default()).await?;
    if let Fault::Right = fault {
        destroy_region(&mut pair.b.vm, &counter.word).await?;
        let access = Access { remote_atomic: false, ..Access::ALL };
        let word = CreateMr { len: 24, page_offset: 4072, access, ..CreateMr::default() };
        counter.word = pair.b.vm.call(word).await?;
    }
    let cause = match fault {
        Fault::Misaligned => syndrome::REMOTE_INVALID_REQUEST,
        _ => syndrome::REMOTE_ACCESS,
    };
    let (at_a, at_b) = counter.connection.towards(Direction::AToB);
    let (at_a, at_b) = (*at_a, *at_b);
    let bad = SendRequest { remote: Some(fault.remote(&counter.word)), ..counter.request(op, 0) };
    at_a.post(&mut pair.a.vm, vec![bad]).await?;
    at_a.expect_completions(&mut pair.a.vm, &[Some(cause)], SOON_MS).await?;
    for (vm, end) in [(&mut pair.a.vm, at_a), (&mut pair.b.vm, at_b)] {
        end.expect_state(vm, state::ERR).await?;
    }
    let (value, result) = (counter.value(pair).await?, counter.result(pair, 0).await?);
    ensure!((value, result) == (0, 0), "word {value:#x}, result {result:#x}");
    counter.destroy(pair).await
}

/// Checks an atomic whose result cannot be written (section 9.5).
async fn unwritable_result(pair: &mut Pair) -> Result<()> {
    let counter = Counter::create(pair, &Attributes::default()).await?;
    let access = Access { local_write: false, ..Access::ALL };
    let read_only = pair.a.vm.call(CreateMr { access, ..CreateMr::default() }).await?;
    let add = counter.request(SendOp::FetchAdd { add: 1 }, 0);
    let bad = SendRequest { data: Data::Sges(vec![read_only.sge(0, 8)]), ..add.clone() };
    let at_a = *counter.connection.towards(Direction::AToB).0;
    at_a.post(&mut pair.a.vm, vec![bad, add]).await?;
    let expected = [Some(syndrome::LOCAL_PROTECTION), Some(syndrome::FLUSHED)];
    at_a.expect_completions(&mut pair.a.vm, &expected, SOON_MS).await?;
    at_a.expect_state(&mut pair.a.vm, state::ERR).await?;
    let result = peek(&mut pair.a.vm, &read_only, 0).await?;
    ensure!(result == 0, "result {result:#x} in memory that cannot be written");
    destroy_region(&mut pair.a.vm, &read_only).await?;
    counter.destroy(pair).await
}
