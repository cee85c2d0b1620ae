//! Completion events, and the arming of completion queues and event queues (JingZhao interface, section 8.5).

use agent::wire::{
    ArmCq, ArmEq, CqArm, CreateCq, CreateEq, CreateQp, DestroyEq, MrInfo, PostRecv, SendRequest, Transition,
};
use anyhow::{Result, ensure};

use super::send;
use super::watch::{Event, Watch, kind};
use crate::report::Report;
use crate::scenario::codes::syndrome;
use crate::scenario::connection::{Attributes, Connection, End, destroy_region, region};
use crate::scenario::pair::{Direction, Pair};

/// Timeout for completions that are expected immediately.
const SOON_MS: u32 = 10_000;

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    report.case("completion: an armed CQ raises one event", hint, armed(pair)).await?;
    report.case("completion: a CQ that is not armed raises no event", hint, disarmed(pair)).await?;
    report.case("completion: a CQ armed for solicited events waits for one", hint, solicited(pair)).await?;
    report.case("completion: an error counts as solicited", hint, failed(pair)).await?;
    report.case("completion: sends raise events too", hint, of_sends(pair)).await?;
    report.case("completion: the EQ no longer exists", hint, without_eq(pair)).await?;
    report
        .case("EQ whose doorbell was never rung interrupts for every event", hint, never_rung(pair))
        .await?;
    report.case("EQ interrupts once per doorbell", hint, rung(pair)).await?;
    report.case("EQ with a pending event interrupts when it is armed", hint, armed_later(pair)).await
}

/// Two connected queue pairs. Guest `b`'s completion events go to an event queue.
struct Setup {
    connection: Connection,
    eq: Watch,
    source: MrInfo,
    /// Number of messages that guest `b` has received so far.
    received: u32,
}

impl Setup {
    async fn create(pair: &mut Pair, arm: CqArm, eq: CreateEq) -> Result<Self> {
        let eq = Watch::create_as(&mut pair.b.vm, eq, &[]).await?;
        let cqs =
            [CreateCq::default(), CreateCq { eq: Some(eq.eq.id), arm, high_bits: 9, ..CreateCq::default() }];
        let connection = Connection::create_unwired(pair, [CreateQp::default(); 2], cqs).await?;
        connection.wire(pair, &Attributes::default()).await?;
        let source = region(&mut pair.a.vm, 64, 0).await?;
        Ok(Self { connection, eq, source, received: 0 })
    }

    fn ends(&self) -> (&End, &End) {
        self.connection.towards(Direction::AToB)
    }

    /// Sends one message to guest `b` and waits until it has completed at both ends.
    async fn send(&mut self, pair: &mut Pair, solicited: bool) -> Result<()> {
        let (at_a, at_b) = self.ends();
        pair.b.vm.call(PostRecv { qp: at_b.qp.id, requests: vec![Vec::new()] }).await?;
        at_a.post(&mut pair.a.vm, vec![SendRequest { solicited, ..send(&self.source, 0) }]).await?;
        for (vm, end) in [(&mut pair.a.vm, at_a), (&mut pair.b.vm, at_b)] {
            let cqes = end.poll(vm, 1, SOON_MS).await?;
            ensure!(cqes[0].syndrome.is_none(), "{:?}", cqes[0]);
        }
        self.received += 1;
        Ok(())
    }

    async fn arm_cq(&self, pair: &mut Pair) -> Result<()> {
        pair.b.vm.call(ArmCq { cq: self.ends().1.cq.id }).await.map(drop)
    }

    async fn arm_eq(&self, pair: &mut Pair) -> Result<()> {
        pair.b.vm.call(ArmEq { eq: self.eq.eq.id }).await.map(drop)
    }

    /// Returns the completion event for guest `b`'s completion queue. The event contains the queue's full number.
    fn event(&self) -> Event {
        Event::of(kind::COMPLETION, self.ends().1.cq.cqn)
    }

    async fn destroy(self, pair: &mut Pair) -> Result<()> {
        self.connection.destroy(pair).await?;
        destroy_region(&mut pair.a.vm, &self.source).await?;
        self.eq.destroy(&mut pair.b.vm).await
    }
}

fn eq(vector: u16) -> CreateEq {
    CreateEq { vector, ..CreateEq::default() }
}

/// Checks a CQ that is armed first by its context and then by the doorbell (section 8.5).
async fn armed(pair: &mut Pair) -> Result<()> {
    let mut setup = Setup::create(pair, CqArm::Any, eq(3)).await?;
    setup.send(pair, false).await?;
    setup.eq.expect(&mut pair.b.vm, setup.event()).await?;
    setup.send(pair, true).await?;
    setup.arm_cq(pair).await?;
    setup.send(pair, false).await?;
    // If the second message had raised an event, two events would have arrived.
    setup.eq.expect(&mut pair.b.vm, setup.event()).await?;
    setup.destroy(pair).await
}

async fn disarmed(pair: &mut Pair) -> Result<()> {
    let mut setup = Setup::create(pair, CqArm::Disarmed, eq(63)).await?;
    setup.send(pair, true).await?;
    setup.arm_cq(pair).await?;
    setup.send(pair, false).await?;
    setup.eq.expect(&mut pair.b.vm, setup.event()).await?;
    setup.destroy(pair).await
}

async fn solicited(pair: &mut Pair) -> Result<()> {
    let mut setup = Setup::create(pair, CqArm::Solicited, eq(0)).await?;
    setup.send(pair, false).await?;
    setup.eq.expect_no_interrupt(&mut pair.b.vm).await?;
    setup.eq.expect_entries(&mut pair.b.vm, &[]).await?;
    setup.send(pair, true).await?;
    setup.eq.expect(&mut pair.b.vm, setup.event()).await?;
    setup.send(pair, true).await?;
    setup.destroy(pair).await
}

async fn failed(pair: &mut Pair) -> Result<()> {
    let setup = Setup::create(pair, CqArm::Solicited, eq(4)).await?;
    let at_b = setup.ends().1;
    pair.b.vm.call(PostRecv { qp: at_b.qp.id, requests: vec![Vec::new(); 2] }).await?;
    at_b.to(&mut pair.b.vm, Transition::ToErr).await?;
    setup.eq.expect(&mut pair.b.vm, setup.event()).await?;
    let cqes = at_b.poll(&mut pair.b.vm, 2, SOON_MS).await?;
    ensure!(cqes.iter().all(|cqe| cqe.syndrome == Some(syndrome::FLUSHED)), "{cqes:?}");
    setup.destroy(pair).await
}

/// Checks that send completions also raise events.
async fn of_sends(pair: &mut Pair) -> Result<()> {
    let setup = Setup::create(pair, CqArm::Any, eq(5)).await?;
    let (at_a, at_b) = setup.ends();
    pair.a.vm.call(PostRecv { qp: at_a.qp.id, requests: vec![Vec::new()] }).await?;
    at_b.post(&mut pair.b.vm, vec![SendRequest::default()]).await?;
    setup.eq.expect(&mut pair.b.vm, setup.event()).await?;
    at_b.poll(&mut pair.b.vm, 1, SOON_MS).await?;
    setup.destroy(pair).await
}

/// Checks that messages complete without an event queue and that no event is raised.
async fn without_eq(pair: &mut Pair) -> Result<()> {
    let mut setup = Setup::create(pair, CqArm::Any, eq(6)).await?;
    pair.b.vm.call(DestroyEq { eq: setup.eq.eq.id }).await?;
    for _ in 0..2 {
        setup.send(pair, true).await?;
    }
    setup.eq.expect_no_interrupt(&mut pair.b.vm).await?;
    setup.connection.destroy(pair).await?;
    destroy_region(&mut pair.a.vm, &setup.source).await
}

/// Checks that interrupts arrive even if software never arms the event queue through the doorbell (section 8.5).
async fn never_rung(pair: &mut Pair) -> Result<()> {
    let mut setup = Setup::create(pair, CqArm::Disarmed, eq(7)).await?;
    for _ in 0..3 {
        setup.arm_cq(pair).await?;
        setup.send(pair, false).await?;
        setup.eq.expect(&mut pair.b.vm, setup.event()).await?;
    }
    setup.destroy(pair).await
}

async fn rung(pair: &mut Pair) -> Result<()> {
    let mut setup = Setup::create(pair, CqArm::Disarmed, eq(8)).await?;
    for _ in 0..2 {
        setup.arm_eq(pair).await?;
        setup.arm_cq(pair).await?;
        setup.send(pair, false).await?;
        setup.eq.expect(&mut pair.b.vm, setup.event()).await?;
        setup.arm_cq(pair).await?;
        setup.send(pair, false).await?;
        setup.eq.expect_silently(&mut pair.b.vm, setup.event()).await?;
    }
    setup.destroy(pair).await
}

async fn armed_later(pair: &mut Pair) -> Result<()> {
    let mut setup = Setup::create(pair, CqArm::Any, CreateEq { armed: false, ..eq(9) }).await?;
    setup.send(pair, false).await?;
    setup.eq.expect_silently(&mut pair.b.vm, setup.event()).await?;
    setup.arm_eq(pair).await?;
    setup.arm_cq(pair).await?;
    setup.send(pair, false).await?;
    setup.eq.expect(&mut pair.b.vm, setup.event()).await?;
    setup.destroy(pair).await
}
