//! Tests with a queue pair on each of two devices. Requests are posted as a user-space provider would post them. By
//! default, the queue pairs are privileged, so L_Key 0 gives access to all memory.

mod addresses;
mod errors;
mod extremes;
mod hostile;
mod keys;
mod limits;
mod observation;
mod statistics;
mod transfers;

use std::net::IpAddr;

use card::frontend::testing::exchange;
use drivers::e810::queue_pair::{Polled, fragment};
use protocol::Psn;
use protocol::hca::e810::rdma::Operation;
use protocol::hca::e810::rdma::cqe::Cqe;
use protocol::hca::e810::rdma::event_queue::AsyncEvent;
use protocol::hca::e810::rdma::group::GroupCommand;
use protocol::hca::e810::rdma::index::{AhIndex, ArpIndex};
use protocol::hca::e810::rdma::number::{IpNumber, MacNumber};
use protocol::hca::e810::rdma::path::AddressHandleCommand;
use protocol::hca::e810::rdma::qp_context::QpContext;
use protocol::hca::e810::rdma::queue_pair::{QpKind, QpState};
use protocol::hca::e810::rdma::region::{RegisterMr, StagRights};
use protocol::ids::{Cqn, Iova, MacAddr, Pdn, Pkey, Qkey, Qpn, Va};

use super::super::options::Options;
use super::super::testing::{Driver, powered_on_as};

pub(super) const QPN: Qpn = Qpn::new(3);
pub(super) const SEND_CQ: Cqn = Cqn::new(4);
pub(super) const RECV_CQ: Cqn = Cqn::new(5);
pub(super) const PD: Pdn = Pdn::new(6);
pub(super) const CONTEXT: u64 = 0x55ec_bd10_d510;
/// Memory address of messages to send.
pub(super) const SOURCE: u64 = 0x800_0000;
/// Memory address of receive buffers.
pub(super) const TARGET: u64 = 0xa00_0000;
/// Bit of the control word that requests a completion.
pub(super) const SIGNALED: u64 = 1 << 62;
// WQE opcodes, shifted to their position in the control word.
pub(super) const SEND: u64 = 0x03 << 32;
pub(super) const SOLICITED: u64 = 0x05 << 32;
pub(super) const WRITE: u64 = 0;
pub(super) const READ: u64 = 0x01 << 32;

pub(super) fn mac(id: u8) -> MacAddr {
    MacAddr([2, 0xe8, 0x10, 0, 0, id])
}

fn ip(id: u8) -> IpNumber {
    IpAddr::from([10, 81, 0, id]).into()
}

/// Two devices, `a` and `b`, each with one queue pair.
pub(super) struct Pair {
    pub(super) a: Driver,
    pub(super) b: Driver,
}

/// Creates a device with RDMA enabled. ARP entry 2 contains the peer's MAC address.
fn opened(id: u8) -> Driver {
    opened_with(id, Options::default())
}

fn opened_with(id: u8, options: Options) -> Driver {
    let mut driver = powered_on_as(mac(id), options);
    driver.bring_up(mac(id));
    open_rdma(&mut driver, id, mac(id));
    driver
}

/// Enables RDMA for device `id`, whose MAC address is `own`.
fn open_rdma(driver: &mut Driver, id: u8, own: MacAddr) {
    driver.open_rdma(own);
    driver.set_neighbour(2, mac(3 - id));
    for cqn in [SEND_CQ, RECV_CQ] {
        driver.create_cq(cqn, 256);
    }
}

pub(super) fn context(id: u8) -> QpContext {
    QpContext {
        ipv4: true,
        log_receive_quanta: 3,
        hop_limit: 64,
        receive_size: 7,
        send_size: 7,
        source_port: 0xc009,
        destination_ip: ip(3 - id),
        local_ip: ip(id),
        mtu: 1024,
        arp_index: ArpIndex::new(2),
        pkey: Pkey::DEFAULT,
        pd_low: 6,
        remote_qpn: QPN,
        qkey: Qkey::new(0x1111_1111),
        send_psn: Psn::new(u32::from(id) * 0x1000),
        recv_psn: Psn::new(u32::from(3 - id) * 0x1000),
        retry_count: 7,
        rnr_retry: 7,
        send_cqn: SEND_CQ,
        recv_cqn: RECV_CQ,
        source_mac: MacNumber(mac(id)),
        ord: 4,
        remote_write: true,
        remote_read: true,
        bind: true,
        fast_register: true,
        privileged: true,
        completion_context: CONTEXT + u64::from(id),
        ..QpContext::default()
    }
}

/// Creates a queue pair and moves it to RTS.
#[track_caller]
fn start(driver: &mut Driver, qpn: Qpn, kind: QpKind, context: &QpContext) {
    driver.create_qp(qpn, kind, context);
    for state in [QpState::Idle, QpState::Rtr, QpState::Rts] {
        assert_eq!(driver.modify_qp(qpn, kind, state, context).error, None, "{state:?}");
    }
}

impl Pair {
    /// Creates a queue pair on each device and moves it to RTS. `change` adjusts the default context.
    pub(super) fn new(kind: QpKind, change: impl Fn(&mut QpContext)) -> Self {
        let [a, b] = [1, 2].map(|id| {
            let mut driver = opened(id);
            let mut context = context(id);
            change(&mut context);
            start(&mut driver, QPN, kind, &context);
            driver
        });
        Self { a, b }
    }

    pub(super) fn connected() -> Self {
        Self::new(QpKind::Rc, |_| {})
    }

    /// Exchanges frames between the devices until none are left.
    pub(super) fn settle(&mut self) {
        exchange(&mut self.a.bus, &mut self.b.bus);
    }

    /// Returns the only send completion of device `a`.
    #[track_caller]
    pub(super) fn sent(&mut self) -> Cqe {
        only(&mut self.a, SEND_CQ).cqe
    }

    /// Returns the only receive completion of device `b`.
    #[track_caller]
    pub(super) fn received(&mut self) -> Polled {
        only(&mut self.b, RECV_CQ)
    }
}

#[track_caller]
pub(super) fn only(driver: &mut Driver, cqn: Cqn) -> Polled {
    let polled = driver.poll_cq(cqn).expect("the CQ contains a completion");
    assert_eq!(driver.poll_cq(cqn), None);
    polled
}

/// Asserts that there are no completions and no events.
#[track_caller]
pub(super) fn nothing(driver: &mut Driver) {
    for cqn in [SEND_CQ, RECV_CQ] {
        assert_eq!(driver.poll_cq(cqn), None);
    }
    assert_eq!(driver.next_async_event(), None);
}

/// Returns the code, source and WQE index of the only asynchronous event. Asserts that it reports the error state.
#[track_caller]
pub(super) fn failure(driver: &mut Driver, id: u8) -> (u16, u8, u16) {
    failure_of(driver, QPN, id)
}

#[track_caller]
pub(super) fn failure_of(driver: &mut Driver, qpn: Qpn, id: u8) -> (u16, u8, u16) {
    let event = driver.next_async_event().expect("the AEQ contains an event");
    assert_eq!(driver.next_async_event(), None);
    let AsyncEvent { context, number_low, wqe, code, source, state, .. } = event;
    assert_eq!((context, number_low, state), (CONTEXT + u64::from(id), qpn.get(), QpState::Error));
    (code.into(), source.into(), wqe)
}

pub(super) fn register(driver: &mut Driver, stag: u32, at: u64, len: u64, rights: StagRights) {
    let command = RegisterMr {
        start: Va::new(at),
        len,
        pd: PD,
        stag,
        region: true,
        rights,
        remote: true,
        virtual_address: true,
        address: Iova::new(at & !0xfff),
        ..RegisterMr::default()
    };
    driver.perform_well(&Operation::RegisterMr(command));
}

/// Returns a command that creates an address handle for the peer of device `id`.
pub(super) fn handle(id: u8) -> AddressHandleCommand {
    AddressHandleCommand {
        source_mac: MacNumber(mac(id)),
        pd_low: 6,
        hop_limit: 64,
        arp: ArpIndex::new(2),
        index: AhIndex::new(1),
        ipv4: true,
        destination: ip(3 - id),
        source: ip(id),
        ..AddressHandleCommand::default()
    }
}

/// Creates group 1 with the given members.
fn join(driver: &mut Driver, group: IpAddr, mac: MacAddr, members: &[Qpn]) {
    const MEMBERS: u64 = 0xc00_0000;
    let member = |qpn: &Qpn| (4791_u64 << 32 | 1 << 31 | u64::from(qpn.get())).to_le_bytes();
    let mut places: Vec<u8> = members.iter().flat_map(member).collect();
    places.resize(64, 0);
    driver.poke(MEMBERS, &places);
    driver.perform_well(&Operation::CreateGroup(GroupCommand {
        mac: MacNumber(mac),
        group: 1,
        ipv4: group.is_ipv4(),
        members: Iova::new(MEMBERS),
        address: group.into(),
        ..GroupCommand::default()
    }));
}
