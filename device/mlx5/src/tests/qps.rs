//! QPs, their transitions, and multicast groups (mlx5 interface, sections 5.4 and 10).

use card::frontend::snapshot::{QpRow, QpState as RowState, Service as RowService};
use protocol::Psn;
use protocol::hca::mlx5::path::Path;
use protocol::hca::mlx5::qp::{CreateQp, ModifyQp, QpContext, QpState, QueriedQp, QueryQp, Service};
use protocol::hca::mlx5::resource::{Multicast, QpNumber, SrqNumber};
use protocol::hca::mlx5::srq::{CreateRmp, RmpContext, WorkQueue};
use protocol::hca::mlx5::transition::QpAttributes;
use protocol::ids::{Qkey, Qpn, Srqn, UserIndex};

use super::*;

/// Address of a QP's queues: sixty-four 16-byte receive entries, followed by 32 send queue blocks.
const QUEUES: u64 = 0x42_0000;

/// A driver, and a QP context that refers to the driver's objects.
struct Objects {
    driver: Driver,
    context: QpContext,
}

impl Objects {
    fn new() -> Self {
        let mut driver = initialised();
        let uar = driver.alloc_uar();
        let eqn = driver.create_eq(uar, 0, EventMask::empty(), 0x40_0000);
        let cqn = driver.create_cq(uar, eqn, 0x41_0000);
        let context = QpContext {
            pd: driver.alloc_pd(),
            log_rq_entries: 6,
            log_sq_blocks: 5,
            uar,
            user_index: UserIndex::NONE,
            send_cqn: cqn,
            recv_cqn: cqn,
            record: RECORD,
            ..QpContext::default()
        };
        Self { driver, context }
    }

    fn of(&self, service: Service) -> QpContext {
        QpContext { service: service.code(), ..self.context }
    }

    fn create(&mut self, context: QpContext) -> Qpn {
        let list = pages(QUEUES, 1);
        let command = Command::CreateQp(CreateQp { context, ..CreateQp::default() }, Pages::parse(&list));
        QpNumber::parse(&output(&self.driver.ok(&command))).qpn
    }

    fn refuse(&mut self, context: QpContext) -> Check {
        let list = pages(QUEUES, 1);
        self.driver
            .rejected(&Command::CreateQp(CreateQp { context, ..CreateQp::default() }, Pages::parse(&list)))
    }

    fn query(&mut self, qpn: Qpn) -> QpContext {
        let query = Command::QueryQp(QueryQp { extended: false, qpn });
        QueriedQp::parse(&output(&self.driver.ok(&query))).context
    }

    /// Brings a QP to RTS, connected to itself.
    fn connect(&mut self, qpn: Qpn, context: &QpContext) {
        let modify = |context| ModifyQp { qpn, optional: QpAttributes::RIGHTS, context };
        let init =
            QpContext { qkey: Qkey::new(0xb1b), primary: Path { port: 1, ..Path::default() }, ..*context };
        self.driver.ok(&Command::Rst2InitQp(modify(init)));
        let primary = Path { lid: Lid::new(1), ..Path::default() };
        let rtr = QpContext {
            mtu: 3,
            log_max_message: 30,
            remote_qpn: qpn,
            recv_psn: Psn::new(5),
            min_rnr_timer: 12,
            remote_write: true,
            primary,
            ..QpContext::default()
        };
        self.driver.ok(&Command::Init2RtrQp(modify(rtr)));
        let primary = Path { ack_timeout: 14, ..Path::default() };
        let rts = QpContext {
            next_send_psn: Psn::new(9),
            retry_count: 7,
            rnr_retry: 7,
            primary,
            ..QpContext::default()
        };
        self.driver.ok(&Command::Rtr2RtsQp(ModifyQp { optional: QpAttributes::empty(), ..modify(rts) }));
    }
}

#[test]
fn create_qp_rejects_invalid_context_fields() {
    let mut all = Objects::new();
    let rc = all.of(Service::Rc);
    assert_eq!(all.refuse(QpContext { no_sq: true, ..all.of(Service::Xrc) }), Check::QpXrcd);
    assert_eq!(all.refuse(all.of(Service::Dci)), Check::QpService);
    assert_eq!(all.refuse(all.of(Service::Raw)), Check::QpService);
    assert_eq!(all.refuse(QpContext { service: 0xff, ..rc }), Check::QpService);
    assert_eq!(all.refuse(QpContext { pd: Pdn::new(0), ..rc }), Check::QpPd);
    assert_eq!(all.refuse(QpContext { uar: UarIndex::new(9), ..rc }), Check::QpUar);
    assert_eq!(all.refuse(QpContext { send_cqn: Cqn::new(0), ..rc }), Check::QpSendCq);
    assert_eq!(all.refuse(QpContext { recv_cqn: Cqn::new(9), ..rc }), Check::QpRecvCq);
    assert_eq!(all.refuse(QpContext { receive_kind: 1, ..rc }), Check::QpSrq);
    assert_eq!(all.refuse(QpContext { receive_kind: 2, ..rc }), Check::QpReceiveKind);
    assert_eq!(all.refuse(QpContext { log_rq_stride: 6, ..rc }), Check::QpSize);
    assert_eq!(all.refuse(QpContext { log_sq_blocks: 15, ..rc }), Check::QpPages);
    assert_eq!(all.refuse(QpContext { record: Iova::new(4), ..rc }), Check::QpRecord);
    assert_eq!(all.create(rc), Qpn::new(0x80));
    assert_eq!(all.query(Qpn::new(0x80)), rc);
}

#[test]
fn qp_can_reconnect_after_error_and_reset() {
    let mut all = Objects::new();
    let rc = all.of(Service::Rc);
    let qpn = all.create(rc);
    all.connect(qpn, &rc);
    let context = all.query(qpn);
    assert_eq!(context.state(), Some(QpState::Rts));
    assert_eq!((context.next_send_psn, context.recv_psn), (Psn::new(9), Psn::new(5)));
    assert_eq!((context.retry_count, context.primary.ack_timeout, context.primary.lid), (7, 14, Lid::new(1)));
    assert_eq!(
        (context.log_rq_entries, context.log_sq_blocks),
        (6, 5),
        "no transition changes the queue sizes"
    );
    let rows = all.driver.hca.rows::<QpRow>(0);
    let row = &rows[0];
    assert_eq!((row.qpn, row.state, row.service), (0x80, RowState::Rts, RowService::Rc));
    assert_eq!(row.peer.as_ref().map(|peer| peer.qpn), Some(0x80));
    all.driver.ok(&Command::ToErrQp(QpNumber { qpn }));
    assert_eq!(all.query(qpn).state(), Some(QpState::Error));
    all.driver.ok(&Command::ToRstQp(QpNumber { qpn }));
    let reset = all.query(qpn);
    assert_eq!((reset.state(), reset.next_send_psn), (Some(QpState::Reset), Psn::new(0)));
    all.connect(qpn, &rc);
    all.driver.ok(&Command::DestroyQp(QpNumber { qpn }));
    assert_eq!(all.driver.rejected(&Command::DestroyQp(QpNumber { qpn })), Check::Qp);
}

/// Section 10.2: RTR2RTS also sets a datagram QP's next send PSN, which QUERY_QP must return.
#[test]
fn query_qp_returns_configured_send_psn_of_datagram_qp() {
    let mut all = Objects::new();
    for service in [Service::Ud, Service::Qp0, Service::Qp1] {
        let context = all.of(service);
        let qpn = all.create(context);
        all.connect(qpn, &context);
        let queried = all.query(qpn);
        assert_eq!((queried.state(), queried.next_send_psn), (Some(QpState::Rts), Psn::new(9)));
        assert_eq!((queried.qkey, queried.recv_psn), (Qkey::new(0xb1b), Psn::new(0)));
    }
}

#[test]
fn transition_from_wrong_state_is_rejected() {
    let mut all = Objects::new();
    let rc = all.of(Service::Rc);
    let qpn = all.create(rc);
    let modify = ModifyQp { qpn, optional: QpAttributes::empty(), context: rc };
    for command in [
        Command::Init2InitQp(modify),
        Command::Init2RtrQp(modify),
        Command::Rtr2RtsQp(modify),
        Command::Rts2RtsQp(modify),
        Command::SqErr2RtsQp(modify),
        Command::Sqd2RtsQp(modify),
    ] {
        let (header, _) = all.driver.command(&command);
        assert_eq!((header.status, header.syndrome), (0x10, Check::QpTransition.syndrome()));
    }
    all.driver.ok(&Command::Rst2InitQp(modify));
    assert_eq!(all.driver.rejected(&Command::Rst2InitQp(modify)), Check::QpTransition);
    assert_eq!(all.driver.rejected(&Command::Init2RtrQp(modify)), Check::QpMtu);
    assert_eq!(all.query(qpn).state(), Some(QpState::Init), "a rejected command changes nothing");
    let unknown = ModifyQp { qpn: Qpn::new(9), ..modify };
    assert_eq!(all.driver.rejected(&Command::Rst2InitQp(unknown)), Check::Qp);
}

/// Section 20, M-33: the UMR QP is created with PD 0, and RST2INIT sets its PD.
#[test]
fn rst2init_sets_pd_of_umr_qp() {
    let mut all = Objects::new();
    let pd = all.context.pd;
    let umr = QpContext { pd: Pdn::new(0), receive_kind: 3, ..all.of(Service::Umr) };
    let qpn = all.create(umr);
    let modify = ModifyQp { qpn, context: QpContext { pd, ..QpContext::default() }, ..ModifyQp::default() };
    let foreign = ModifyQp { context: QpContext { pd: Pdn::new(7), ..QpContext::default() }, ..modify };
    assert_eq!(all.driver.rejected(&Command::Rst2InitQp(foreign)), Check::QpPd);
    all.driver.ok(&Command::Rst2InitQp(modify));
    all.driver.ok(&Command::Init2RtrQp(modify));
    all.driver.ok(&Command::Rtr2RtsQp(modify));
    let queried = all.query(qpn);
    assert_eq!((queried.state(), queried.pd, queried.record), (Some(QpState::Rts), pd, RECORD));
    let free = Command::DeallocPd(PdNumber { pd });
    assert_eq!(all.driver.rejected(&free), Check::PdInUse);
    all.driver.ok(&Command::ToRstQp(QpNumber { qpn }));
    all.driver.ok(&Command::DestroyQp(QpNumber { qpn }));
    all.driver.ok(&free);
}

#[test]
fn second_management_qp_is_rejected() {
    let mut all = Objects::new();
    let (qp0, qp1) = (all.of(Service::Qp0), all.of(Service::Qp1));
    let numbers = [all.create(qp0), all.create(qp1)];
    assert_eq!(numbers, [Qpn::new(0x80), Qpn::new(0x81)], "management QPs have ordinary numbers");
    assert_eq!(all.refuse(qp1), Check::QpManagement);
    all.driver.ok(&Command::DestroyQp(QpNumber { qpn: numbers[1] }));
    all.create(qp1);
}

#[test]
fn objects_used_by_qp_cannot_be_destroyed() {
    let mut all = Objects::new();
    let list = pages(QUEUES, 1);
    let queue = WorkQueue { pd: all.context.pd, record: RECORD, log_stride: 5, ..WorkQueue::default() };
    let rmp = CreateRmp { context: RmpContext { queue, ..RmpContext::default() } };
    let created = all.driver.ok(&Command::CreateRmp(rmp, Pages::parse(&list)));
    let srq = SrqNumber::parse(&output(&created));
    // A QP with its own receive queue ignores the SRQN in its context, so the SRQ can be destroyed.
    let own = QpContext { srqn: srq.srqn, ..all.of(Service::Rc) };
    let other = all.create(own);
    all.driver.ok(&Command::DestroyRmp(srq));
    let created = all.driver.ok(&Command::CreateRmp(rmp, Pages::parse(&list)));
    let srq = SrqNumber::parse(&output(&created));
    let qpn = all.create(QpContext { receive_kind: 1, srqn: srq.srqn, ..all.of(Service::Rc) });
    let (uar, cqn) = (all.context.uar, all.context.send_cqn);
    for (command, check) in [
        (Command::DestroyRmp(srq), Check::SrqInUse),
        (Command::DestroyCq(CqNumber { cqn }), Check::CqInUse),
        (Command::DeallocUar(UarNumber { uar }), Check::UarInUse),
    ] {
        assert_eq!(all.driver.rejected(&command), check);
    }
    all.driver.ok(&Command::DestroyQp(QpNumber { qpn }));
    all.driver.ok(&Command::DestroyRmp(srq));
    assert_eq!(srq.srqn, Srqn::new(0x11));
    all.driver.ok(&Command::DestroyQp(QpNumber { qpn: other }));
    all.driver.ok(&Command::DestroyCq(CqNumber { cqn }));
}

#[test]
fn only_datagram_qps_can_join_multicast_groups() {
    const GID: [u8; 16] = [0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff];
    let mut all = Objects::new();
    let (ud, rc) = (all.of(Service::Ud), all.of(Service::Rc));
    let (ud, rc) = (all.create(ud), all.create(rc));
    let member = |qpn| Multicast { qpn, gid: GID };
    all.driver.ok(&Command::AttachToMcg(member(ud)));
    all.driver.ok(&Command::AttachToMcg(member(ud)));
    assert_eq!(all.driver.rejected(&Command::AttachToMcg(member(rc))), Check::GroupService);
    assert_eq!(all.driver.rejected(&Command::AttachToMcg(member(Qpn::new(9)))), Check::Qp);
    let unicast = Multicast { qpn: ud, gid: [0xfe; 16] };
    assert_eq!(all.driver.rejected(&Command::AttachToMcg(unicast)), Check::GroupGid);
    all.driver.ok(&Command::DetachFromMcg(member(ud)));
    assert_eq!(all.driver.rejected(&Command::DetachFromMcg(member(ud))), Check::GroupMember);
    all.driver.ok(&Command::AttachToMcg(member(ud)));
    all.driver.ok(&Command::DestroyQp(QpNumber { qpn: ud }));
    assert_eq!(all.driver.rejected(&Command::DetachFromMcg(member(ud))), Check::GroupMember);
}

#[test]
fn transition_is_checked_against_current_qp_state() {
    let mut all = Objects::new();
    let rc = all.of(Service::Rc);
    let qpn = all.create(rc);
    all.connect(qpn, &rc);
    all.driver.ok(&Command::ToErrQp(QpNumber { qpn }));
    let modify = ModifyQp { qpn, optional: QpAttributes::empty(), context: rc };
    assert_eq!(all.driver.rejected(&Command::Rts2RtsQp(modify)), Check::QpTransition);
}
