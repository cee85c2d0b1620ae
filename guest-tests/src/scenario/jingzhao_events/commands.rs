//! Command and port events, and the mapping of events to queues.

use agent::wire::{CreateEq, DestroyEq, OutParam, RawCommand};
use anyhow::{Result, ensure};

use super::watch::{Event, Watch, kind};
use crate::report::Report;
use crate::scenario::driver::Driver;
use crate::scenario::pair::Pair;

const NOP: u16 = 0x031;
/// An opcode that the interface does not define.
const UNKNOWN: u16 = 0x055;
/// Status returned for an undefined opcode.
const BAD_OP: u8 = 0x02;
/// Port states reported by port events (JingZhao interface, section 8.3).
const DOWN: u8 = 1;
const ACTIVE: u8 = 4;

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    report.case("port change: down and up by hcactl", hint, port(pair)).await?;
    let vm = &mut pair.a.vm;
    report.case("command completion: token, status and output parameter", hint, command(vm)).await?;
    report.case("local catastrophic: a queue that cannot be written", hint, unwritable(vm)).await?;
    report.case("events not in any mask are dropped", hint, masked_types(vm)).await?;
    report.case("an event goes to the lowest-numbered EQ whose mask includes it", hint, lowest(vm)).await?;
    report.case("a new EQ receives no events of its predecessor", hint, cleared_mask(vm)).await?;
    report.case("EQ overflow: reported when there is room", hint, overflow(vm)).await?;
    report.case("EQ overflow: not detected in an EQ that is not initialised", hint, unprepared(vm)).await
}

async fn port(pair: &mut Pair) -> Result<()> {
    let eq = Watch::create(&mut pair.a.vm, 7, &[kind::PORT_CHANGE]).await?;
    for (state, subtype) in [("down", DOWN), ("up", ACTIVE)] {
        // The second request changes nothing and must not raise an event.
        for _ in 0..2 {
            pair.a.daemon.control(&["port", state]).await?;
        }
        eq.expect(&mut pair.a.vm, Event { subtype, ..Event::of(kind::PORT_CHANGE, 1) }).await?;
    }
    eq.destroy(&mut pair.a.vm).await
}

async fn command(driver: &mut impl Driver) -> Result<()> {
    const OUT_PARAM: u64 = 0x1122_3344_5566_7788;
    let eq = Watch::create(driver, 8, &[kind::COMMAND]).await?;
    for (op, status) in [(NOP, 0), (UNKNOWN, BAD_OP)] {
        let output = OutParam::Immediate(OUT_PARAM);
        let command = RawCommand { op, output, event: Some(0xbeef), ..RawCommand::default() };
        let result = driver.call(command).await?;
        ensure!(result.status == status, "{result:?}");
        eq.expect(driver, Event::command(0xbeef, status, OUT_PARAM)).await?;
    }
    let quiet = driver.call(RawCommand { op: NOP, ..RawCommand::default() }).await?;
    ensure!(quiet.status == 0, "{quiet:?}");
    eq.destroy(driver).await
}

/// Issues a NOP that reports its completion through an event.
pub(super) async fn nop(driver: &mut impl Driver, token: u16) -> Result<Event> {
    let result = driver.call(RawCommand { op: NOP, event: Some(token), ..RawCommand::default() }).await?;
    ensure!(result.status == 0, "{result:?}");
    Ok(Event::command(token, 0, 0))
}

/// Checks that an event for an unwritable queue is lost and that an event in another queue reports the loss.
async fn unwritable(driver: &mut impl Driver) -> Result<()> {
    let shape = CreateEq { vector: 21, buffer_pd: Some(77), ..CreateEq::default() };
    let unwritable = Watch::create_as(driver, shape, &[kind::COMMAND]).await?;
    let eq = Watch::create(driver, 22, &[kind::COMMAND, kind::LOCAL_CATASTROPHIC]).await?;
    ensure!(
        unwritable.eq.eqn < eq.eq.eqn,
        "the unwritable EQ must have the lower number: {unwritable:?}, {eq:?}"
    );
    nop(driver, 1).await?;
    eq.expect(driver, Event::of(kind::LOCAL_CATASTROPHIC, 0)).await?;
    unwritable.destroy(driver).await?;
    let event = nop(driver, 2).await?;
    eq.expect(driver, event).await?;
    eq.destroy(driver).await
}

/// Checks that event types are mapped and unmapped individually (section 3.9).
async fn masked_types(driver: &mut impl Driver) -> Result<()> {
    let eq = Watch::create(driver, 9, &[kind::PORT_CHANGE]).await?;
    nop(driver, 1).await?;
    let other = Watch::create(driver, 10, &[kind::COMMAND, kind::CQ_ERROR]).await?;
    let event = nop(driver, 2).await?;
    // No queue was mapped for command events when the first command was executed, so it must not raise an event.
    other.expect(driver, event).await?;
    other.unmap(driver, &[kind::COMMAND]).await?;
    nop(driver, 3).await?;
    other.expect_no_interrupt(driver).await?;
    eq.destroy(driver).await?;
    other.destroy(driver).await
}

async fn lowest(driver: &mut impl Driver) -> Result<()> {
    let mut queues = Vec::new();
    for vector in [12, 11, 13] {
        queues.push(Watch::create(driver, vector, &[kind::COMMAND]).await?);
    }
    queues.sort_by_key(|queue| queue.eq.eqn);
    for (token, queue) in (1..).zip(&queues) {
        let event = nop(driver, token).await?;
        queue.expect(driver, event).await?;
        // Events now go to the next queue, since the device selects the lowest-numbered queue whose mask includes them.
        queue.unmap(driver, &[kind::COMMAND]).await?;
    }
    for queue in queues {
        queue.destroy(driver).await?;
    }
    Ok(())
}

/// Checks that HW2SW_EQ clears the queue's event mask (section 3.10).
async fn cleared_mask(driver: &mut impl Driver) -> Result<()> {
    let before = Watch::create(driver, 14, &[kind::COMMAND]).await?;
    driver.call(DestroyEq { eq: before.eq.id }).await?;
    let after = Watch::create(driver, 14, &[]).await?;
    ensure!(after.eq.eqn == before.eq.eqn, "the numbers differ: {} and {}", before.eq.eqn, after.eq.eqn);
    nop(driver, 1).await?;
    after.expect_no_interrupt(driver).await?;
    after.destroy(driver).await
}

/// Checks the overflow of a queue with two entries (section 8.2).
async fn overflow(driver: &mut impl Driver) -> Result<()> {
    let shape = CreateEq { log_entries: 1, vector: 15, ..CreateEq::default() };
    let eq = Watch::create_as(driver, shape, &[kind::COMMAND]).await?;
    let first = nop(driver, 1).await?;
    eq.expect_interrupt(driver).await?;
    let second = nop(driver, 2).await?;
    eq.expect_interrupt(driver).await?;
    for token in 3..5 {
        nop(driver, token).await?;
    }
    eq.expect_no_interrupt(driver).await?;
    eq.expect_entries(driver, &[first, second]).await?;
    let fifth = nop(driver, 5).await?;
    eq.expect_interrupt(driver).await?;
    eq.expect_entries(driver, &[Event::of(kind::EQ_OVERFLOW, 0), fifth]).await?;
    let sixth = nop(driver, 6).await?;
    eq.expect(driver, sixth).await?;
    eq.destroy(driver).await
}

/// Checks that the device overwrites unread entries without detecting the overflow if software has not initialised the
/// queue's entries (sections 7 and 8.2).
async fn unprepared(driver: &mut impl Driver) -> Result<()> {
    let shape = CreateEq { log_entries: 1, vector: 16, prepared: false, ..CreateEq::default() };
    let eq = Watch::create_as(driver, shape, &[kind::COMMAND]).await?;
    let mut events = Vec::new();
    for token in 1..4 {
        events.push(nop(driver, token).await?);
        eq.expect_interrupt(driver).await?;
    }
    let [_, second, third] = events[..] else { anyhow::bail!("expected three events") };
    eq.expect_entries(driver, &[third, second]).await?;
    eq.destroy(driver).await
}
