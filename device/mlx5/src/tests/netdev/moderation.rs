//! Tests of completion events on moderated CQs.

use protocol::hca::mlx5::cq::{CqFields, ModifyCq};
use protocol::hca::mlx5::doorbell::ArmCq;
use protocol::hca::mlx5::eqe::{self, Eqe};

use super::*;

const EVENTS: u64 = 0x40_0000;

impl Net {
    /// Creates a device whose CQs are moderated. Both CQs are armed.
    fn moderated() -> Self {
        let mut net = Self::new();
        for cqn in net.cqs {
            let context = CqContext { moderation_period: 16, moderation_count: 32, ..CqContext::default() };
            let fields = CqFields::PERIOD | CqFields::COUNT;
            let modify = ModifyCq { cqn, fields, context, ..ModifyCq::default() };
            net.driver.ok(&Command::ModifyCq(modify, Pages::parse(&[])));
            net.arm(cqn, 0, 0);
        }
        net
    }

    fn arm(&mut self, cqn: Cqn, consumer: u32, sequence: u8) {
        let arm = ArmCq { sequence, solicited_only: false, consumer, cqn };
        self.driver.ring(self.uar, driver::ARM_CQ, &arm.emit());
    }

    /// Posts a send WQE and checks that its frame is sent.
    fn send(&mut self) {
        self.post(&self.wqe(EthernetSegment::default(), &plain(2, 60), 0));
        assert_eq!(self.driver.frames().len(), 1);
    }

    /// Posts a receive WQE and receives a frame into it.
    fn receive(&mut self) {
        self.post_receive(&[2048]);
        self.driver.receive(&plain(2, 60));
    }

    /// Returns the CQN of each completion event.
    fn events(&mut self) -> Vec<Cqn> {
        let entries = (0..16).map(|entry| self.driver.peek(EVENTS + entry * eqe::LEN as u64, eqe::LEN));
        let events: Vec<_> =
            entries.map(|bytes| Eqe::parse(&output(&bytes)).map(|(event, _)| event)).collect();
        let cqns = events.into_iter().map_while(|event| match event {
            Ok(Eqe::Completion(cqn)) if cqn != Cqn::default() => Some(cqn),
            _ => None,
        });
        cqns.collect()
    }
}

#[test]
fn send_event_is_delayed_until_next_received_frame() {
    let mut net = Net::moderated();
    net.create_direct_tir();
    let [send, recv] = net.cqs;
    net.send();
    assert_eq!(net.send_cqes().len(), 1, "the CQE itself is not delayed");
    assert!(net.events().is_empty());
    net.receive();
    assert_eq!(net.events(), [recv, send]);
    assert_eq!(net.driver.next_deadline(), None);
}

#[test]
fn delayed_send_event_is_written_after_timeout() {
    let mut net = Net::moderated();
    let [send, _] = net.cqs;
    net.send();
    net.driver.expire();
    assert_eq!(net.events(), [send]);
    net.arm(send, 1, 1);
    net.send();
    assert_eq!(
        net.events(),
        [send, send],
        "after a timeout, events are written immediately until one is urgent"
    );
}

#[test]
fn polled_send_cqe_does_not_raise_event() {
    let mut net = Net::moderated();
    let [send, _] = net.cqs;
    net.send();
    net.arm(send, 1, 0);
    assert_eq!(net.driver.next_deadline(), None);
    net.send();
    net.arm(send, 1, 0);
    net.driver.expire();
    assert_eq!(net.events(), [send], "the second CQE was unread when the CQ was armed");
}

#[test]
fn fourth_unread_cqe_ends_event_delay() {
    let mut net = Net::moderated();
    let [send, _] = net.cqs;
    for _ in 0..3 {
        net.send();
        assert!(net.events().is_empty());
    }
    net.send();
    assert_eq!(net.events(), [send]);
}

#[test]
fn no_event_is_written_for_destroyed_cq() {
    let mut net = Net::moderated();
    net.send();
    let (sqn, cqn) = (net.sqn, net.cqs[0]);
    net.driver.ok(&Command::DestroySq(SqNumber { sqn }));
    net.driver.ok(&Command::DestroyCq(CqNumber { cqn }));
    assert_eq!(net.driver.next_deadline(), None);
    assert!(net.events().is_empty());
}

#[test]
fn failed_wqe_on_moderated_cq_raises_immediate_event() {
    let mut net = Net::moderated();
    let [send, _] = net.cqs;
    let header = plain(2, 18);
    let mut wqe = net.wqe(EthernetSegment::default(), &header, 64);
    if let FrameOperation::Send { data, .. } = &mut wqe.operation {
        *data =
            vec![DataItem::Pointer(DataSegment { byte_count: 64, lkey: Lkey::new(0x55), va: Va::new(0) })]
                .into();
    }
    net.post(&wqe);
    net.driver.frames();
    assert_eq!(net.events(), [send]);
}
