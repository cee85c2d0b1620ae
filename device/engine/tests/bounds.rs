//! Tests that a guest and its peers cannot make an engine use unbounded memory.
#![allow(clippy::unwrap_used, reason = "test code")]

use crate::common::{A, psn_a, psn_b};
use engine::*;
use protocol::ids::*;
use protocol::roce::*;

/// A host whose work queues are never empty and whose memory is always accessible.
#[derive(Default)]
struct EndlessHost {
    receives: bool,
    sends_fetched: Vec<u32>,
}

impl Host for EndlessHost {
    type Range = std::convert::Infallible;

    fn next_send(&mut self, qpn: Qpn) -> Fetch<SendRequest> {
        self.sends_fetched[qpn.get() as usize] += 1;
        Fetch::Ready(SendRequest {
            wr_id: 1,
            op: SendOp::Send { imm: None },
            payload: Payload::Inline([1, 2, 3, 4].into_iter().collect()),
            fence: Fence::None,
            solicited: false,
            ud: None,
            remote_srq: None,
        })
    }

    fn next_recv(&mut self, _: RecvSource) -> Fetch<RecvRequest> {
        match self.receives {
            true => Fetch::Ready(RecvRequest { wr_id: 2, sges: SgeList::new() }),
            false => Fetch::Empty,
        }
    }

    fn check(&self, _: Initiator, _: Lkey, _: Va, _: u64, _: engine::Access) -> Result<(), AccessError> {
        Ok(())
    }

    fn read(
        &self,
        _: Initiator,
        _: Lkey,
        _: Va,
        _: usize,
        _: &mut Vec<u8>,
        _: engine::Access,
    ) -> Result<(), AccessError> {
        Ok(())
    }

    fn write(
        &mut self,
        _: Initiator,
        _: Lkey,
        _: Va,
        _: PayloadRef<'_>,
        _: engine::Access,
    ) -> Result<(), AccessError> {
        Ok(())
    }

    fn atomic(&mut self, _: Initiator, _: Lkey, _: Va, _: AtomicOp) -> Result<u64, AccessError> {
        Ok(0)
    }
}

fn attrs() -> QpAttrs {
    QpAttrs {
        service: Service::Rc,
        pd: Pdn::new(1),
        mtu: Mtu::Mtu256,
        alias: None,
        max_message_len: 1 << 20,
        remote_qpn: Qpn::new(1),
        path: A.path(),
        own_address: false,
        pkey_index: 0,
        qkey: Qkey::new(0),
        any_qkey: true,
        ack_timeout: None,
        retry_count: 7,
        rnr_retry: RnrRetry::Infinite,
        min_rnr_timer: RnrTimer::new(1),
        max_rnr_timer: RnrTimer::new(1),
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        remote: RemoteAccess::ALL,
        grh_area: GrhArea::None,
        srq: false,
        reserved_lkey: false,
        flush: Flush::Each,
    }
}

fn modify(engine: &mut Engine, host: &mut EndlessHost, qpn: Qpn, to: State) {
    let modify = Modify {
        to,
        attrs: attrs(),
        send_psn: (to == State::Init).then(psn_a),
        recv_psn: (to == State::Init).then(psn_b),
        notify_drained: false,
    };
    engine.modify_qp(Instant::ZERO, qpn, &modify, host).unwrap();
}

fn in_rts(engine: &mut Engine, host: &mut EndlessHost, qpn: Qpn) {
    engine.create_qp(qpn, attrs()).unwrap();
    for state in [State::Init, State::Rtr, State::Rts] {
        modify(engine, host, qpn, state);
    }
}

fn frames(engine: &mut Engine, host: &mut EndlessHost) -> usize {
    let mut out = Vec::new();
    std::iter::from_fn(|| {
        out.clear();
        engine.poll_transmit(Instant::ZERO, host, &mut out)
    })
    .count()
}

#[test]
fn event_backlog_pauses_flushing() {
    let (mut engine, mut host) = (Engine::new(Config::default()), EndlessHost::default());
    host.receives = true;
    host.sends_fetched = vec![0; 512];
    for qpn in (0..512).map(Qpn::new) {
        in_rts(&mut engine, &mut host, qpn);
        modify(&mut engine, &mut host, qpn, State::Err);
    }
    for period in 1..50 {
        engine.handle_timeout(Instant::from_nanos(period * 20_000_000), &mut host);
        frames(&mut engine, &mut host);
    }
    let waiting = std::iter::from_fn(|| engine.poll_event()).count();
    assert!(waiting < 20_000, "{waiting} events are queued");
    assert!(
        engine.poll_timeout().is_some_and(|at| at <= Instant::from_nanos(1_000_000_000)),
        "flushing must continue later"
    );
    frames(&mut engine, &mut host);
    assert!(engine.poll_event().is_some(), "flushing must resume once the events have been polled");
}

/// The work done by each call must be bounded, because a host may write a trace line for each flushed request.
#[test]
fn flush_of_endless_queues_is_bounded_per_call() {
    let (mut engine, mut host) = (Engine::new(Config::default()), EndlessHost::default());
    host.receives = true;
    host.sends_fetched = vec![0; 64];
    let fetched = |host: &EndlessHost| host.sends_fetched.iter().sum::<u32>();
    for qpn in (0..64).map(Qpn::new) {
        in_rts(&mut engine, &mut host, qpn);
        modify(&mut engine, &mut host, qpn, State::Err);
    }
    while engine.poll_event().is_some() {}
    for period in 1..50 {
        let before = fetched(&host);
        frames(&mut engine, &mut host);
        assert!(
            (1..=1024).contains(&(fetched(&host) - before)),
            "one call fetched {} requests",
            fetched(&host) - before
        );
        while engine.poll_event().is_some() {}
        engine.handle_timeout(Instant::from_nanos(period * 20_000_000), &mut host);
        let events = std::iter::from_fn(|| engine.poll_event()).count();
        assert!(events <= 1024 + 512, "one call produced {events} events");
    }
}

#[test]
fn alternating_acks_and_rnr_naks_are_bounded() {
    let (mut engine, mut host) = (Engine::new(Config::default()), EndlessHost::default());
    let qpn = Qpn::new(1);
    in_rts(&mut engine, &mut host, qpn);
    let encap = A.peer().path();
    for round in 0..10_000 {
        let psn = if round % 2 == 0 { psn_b() } else { psn_b().retreat(5) };
        let bth = Bth {
            opcode: Opcode { transport: Transport::Rc, operation: Operation::SendOnly },
            solicited: false,
            mig_req: true,
            pkey: Pkey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp: qpn,
            ack_req: true,
            psn,
        };
        let packet = Packet { bth, srqn: None, ext: Ext::None, payload: &[1, 2, 3, 4][..] };
        engine.handle_packet(Instant::ZERO, &encap, &packet.convert(), &mut host);
    }
    let replies = frames(&mut engine, &mut host);
    assert!((1..=128).contains(&replies), "{replies} replies are pending");
}

#[test]
fn shared_request_pool_reserves_slots_for_each_qp() {
    const QPS: u32 = 2000;
    let (mut engine, mut host) = (Engine::new(Config::default()), EndlessHost::default());
    host.sends_fetched = vec![0; QPS as usize];
    for qpn in (0..QPS).map(Qpn::new) {
        in_rts(&mut engine, &mut host, qpn);
        engine.notify_send(Instant::ZERO, qpn, &mut host);
    }
    frames(&mut engine, &mut host);
    let fetched: u32 = host.sends_fetched.iter().sum();
    assert!(fetched < (1 << 16) + 4 * QPS + 128, "{fetched} requests were fetched");
    assert!(
        host.sends_fetched.iter().all(|fetched| *fetched >= 4),
        "every QP must be able to use its reserved slots"
    );

    // Destroying a QP returns its slots.
    for qpn in (0..QPS).map(Qpn::new) {
        engine.destroy_qp(qpn);
    }
    host.sends_fetched.fill(0);
    in_rts(&mut engine, &mut host, Qpn::new(7));
    engine.notify_send(Instant::ZERO, Qpn::new(7), &mut host);
    frames(&mut engine, &mut host);
    assert_eq!(host.sends_fetched[7], 128);
}

/// A burst that exhausts the pool ends where calls with room for one frame would also stop fetching requests.
#[test]
fn burst_ends_when_request_pool_is_exhausted() {
    const QPS: u32 = 2000;
    let [single, burst] = [1, 128].map(|frames| {
        let (mut engine, mut host) = (Engine::new(Config::default()), EndlessHost::default());
        host.sends_fetched = vec![0; QPS as usize];
        for qpn in (0..QPS).map(Qpn::new) {
            in_rts(&mut engine, &mut host, qpn);
            engine.notify_send(Instant::ZERO, qpn, &mut host);
        }
        let (mut out, room) = (Vec::new(), Room { frames, bytes: usize::MAX });
        while engine.poll_burst(Instant::ZERO, &mut host, &mut out, None, room).is_some() {
            out.clear();
        }
        host.sends_fetched
    });
    let different = (0..QPS as usize).find(|&qpn| single[qpn] != burst[qpn]);
    assert_eq!(different.map(|qpn| (qpn, single[qpn], burst[qpn])), None);
}
