//! Tests of strict mode. Each violation is reported only under the name of its rule, and a correct driver triggers no
//! reports.

use card::telemetry::monitor::Rule;
use card::vfio::Bar;
use protocol::hca::e810::admin::descriptor::Flags;
use protocol::hca::e810::admin::{Descriptor, Opcode};
use protocol::hca::e810::rdma::Operation;
use protocol::hca::e810::rdma::completion_queue::DestroyCq;
use protocol::hca::e810::rdma::event_queue::DestroyCeq;
use protocol::hca::e810::rdma::hmc::SegmentDescriptor;
use protocol::hca::e810::rdma::operation::Acknowledged;
use protocol::hca::e810::rdma::queue_pair::{DestroyQp, FlushQp};
use protocol::hca::e810::rdma::region::StagRights;
use protocol::hca::e810::regs::Register;

use super::lan::{Nic, PEER, RECEIVE_RING_LAN, frame};
use super::rdma::{Pair, QPN, SEND_CQ, SOURCE, register};
use super::*;
use crate::strict::rules::{self, *};
use crate::testing::{BUFFER, MAC, SEND_RING, segment};

fn strict() -> Driver {
    let mut driver = powered_on(Default::default());
    driver.bus.hca.set_strict(true);
    driver.open_admin_queue();
    driver
}

fn violations(driver: &Driver) -> Vec<(&'static str, u64)> {
    driver.bus.hca.monitor().violations().collect()
}

/// Parameters of the commands that request and release the flash read lock.
const NVM: [u8; 16] = [1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Executes a descriptor that may have invalid fields.
fn raw(driver: &mut Driver, descriptor: Descriptor) {
    let slot = driver.read(Register::PfFwAtqh);
    let mut parameters = descriptor.parameters;
    if descriptor.flags.contains(Flags::BUFFER) {
        parameters[8..].copy_from_slice(&BUFFER.rotate_left(32).to_le_bytes());
    }
    driver.bus.poke(SEND_RING + u64::from(slot) * 32, &Descriptor { parameters, ..descriptor }.emit());
    driver.write(Register::PfFwAtqt, slot + 1);
    driver.read(Register::PfFwAtqh);
}

fn descriptor(opcode: Opcode, flags: Flags, buffer_len: u16) -> Descriptor {
    Descriptor { opcode: opcode.code(), flags, buffer_len, ..Descriptor::default() }
}

/// Sets up NIC queues, which `breach` then uses to violate a rule.
fn with_nic(driver: &mut Driver, breach: impl FnOnce(&mut Nic)) {
    let mut nic = Nic::with(std::mem::replace(driver, started()));
    breach(&mut nic);
    *driver = nic.driver;
}

/// Sets up RDMA with a queue pair in RTS, which `breach` then uses to violate a rule.
fn with_rdma(driver: &mut Driver, breach: impl FnOnce(&mut Driver)) {
    let Pair { mut a, .. } = Pair::connected();
    a.bus.hca.set_strict(true);
    breach(&mut a);
    *driver = a;
}

type Breach = fn(&mut Driver);

/// Each rule, with a function that violates it.
const BREACHES: &[(&Rule, Breach)] = &[
    (&NARROW_WRITE, |driver| driver.bus.store(Bar::Bar0, 0x16_0000, &[1, 0])),
    (&READ_ONLY_WRITE, |driver| driver.write(Register::GlnvmFla, 0)),
    (&NO_SUCH_QUEUE, |driver| driver.write(Register::QtxCommDbell(64), 1)),
    (&RING_MOVED, |driver| {
        driver.write(Register::PfFwAtqbah, 1 << 20);
        driver.write(Register::PfFwAtqt, 1);
        driver.write(Register::PfFwAtqbah, 0);
    }),
    (&RING_INDEX, |driver| driver.write(Register::PfFwArqt, 192)),
    (&HEAD_NOT_POLLED, |driver| {
        let command = descriptor(Opcode::GetVersion, Flags::INTERRUPT, 0).emit();
        driver.bus.poke(SEND_RING, &[command, command].concat());
        driver.write(Register::PfFwAtqt, 1);
        driver.write(Register::PfFwAtqt, 2);
    }),
    (&ROUTE_NO_VECTOR, |driver| driver.write(Register::QintRqctl(0), 1 << 30 | 64)),
    (&CLEAR_WITHOUT_ENABLE, |driver| driver.write(Register::GlintDynCtl(1), 1 << 1)),
    (&COMMAND_FLAGS, |driver| raw(driver, descriptor(Opcode::GetVersion, Flags::DONE, 0))),
    (&BUFFER_LARGE, |driver| raw(driver, descriptor(Opcode::DeviceCapabilities, Flags::BUFFER, 4096))),
    (&BUFFER_MISSING, |driver| raw(driver, descriptor(Opcode::GetVersion, Flags::BUFFER, 16))),
    (&BUFFER_DIRECTION, |driver| raw(driver, descriptor(Opcode::DriverVersion, Flags::BUFFER, 16))),
    (&LOCK_TWICE, |driver| {
        driver.succeed(&AdminCommand::direct(Opcode::RequestResource, NVM));
        driver.succeed(&AdminCommand::direct(Opcode::RequestResource, NVM));
    }),
    (&LOCK_NOT_TAKEN, |driver| {
        driver.succeed(&AdminCommand::direct(Opcode::ReleaseResource, NVM));
    }),
    (&LOCK_MISSING, |driver| {
        driver.succeed(&AdminCommand::with_input(Opcode::UpdatePackage, [0; 16], &[0; 12]));
    }),
    (&DOORBELL_NO_QUEUE, |driver| driver.write(Register::QtxCommDbell(3), 1)),
    (&FRAME_COMMANDS, |driver| {
        with_nic(driver, |nic| {
            // Only the first of the two data descriptors requests a VLAN tag.
            nic.put(0x100_0000, 1 << 4 << 3 | 64 << 34);
            nic.send(&[0; 64], 0);
            nic.driver.bus.settle();
        });
    }),
    (&RECEIVE_CONTEXT, |driver| driver.write(Register::QrxCtrl(3), 1)),
    (&CONTEXT_IN_USE, |driver| with_nic(driver, |nic| nic.driver.write(Register::QrxContext(0, 0), 0))),
    (&RECEIVE_ENTRY, |driver| {
        with_nic(driver, |nic| {
            nic.driver.bus.poke(RECEIVE_RING_LAN + 8, &[1]);
            nic.receive_frame(&frame(MAC.0, PEER, 60));
        });
    }),
    (&SHUTDOWN_IN_USE, |driver| {
        let mut add = [0; 16];
        add[6] = 2;
        driver.succeed(&AdminCommand::with_input(Opcode::AddVsi, add, &[0; 128]));
        let mut unloading = [0; 16];
        driver.succeed(&AdminCommand::direct(Opcode::QueueShutdown, unloading));
        unloading[0] = 1;
        driver.succeed(&AdminCommand::direct(Opcode::QueueShutdown, unloading));
    }),
    (&CQP_RUNNING, |driver| with_rdma(driver, |driver| driver.write(Register::PfpeCcqplow, 0x40_0000))),
    (&CQP_IN_USE, |driver| with_rdma(driver, Driver::end_cqp)),
    (&CQP_POLARITY, |driver| {
        with_rdma(driver, |driver| {
            driver.perform_raw(&Operation::Nop(Acknowledged::default()).emit(false));
        });
    }),
    (&SEND_NO_QP, |driver| with_rdma(driver, |driver| driver.write(Register::PfpeWqealloc, 77))),
    (&ARM_NO_CQ, |driver| with_rdma(driver, |driver| driver.write(Register::PfpeCqarm, 77))),
    (&AEQ_CREDITS, |driver| with_rdma(driver, |driver| driver.write(Register::PfpeAeqalloc, 1))),
    (&CQ_IN_USE, |driver| {
        with_rdma(driver, |driver| {
            let command = DestroyCq { cqn: SEND_CQ };
            driver.perform_well(&Operation::DestroyCq(command));
        });
    }),
    (&CEQ_IN_USE, |driver| {
        with_rdma(driver, |driver| {
            driver.perform_well(&Operation::DestroyCeq(DestroyCeq::default()));
        });
    }),
    (&QP_RUNNING, |driver| {
        with_rdma(driver, |driver| {
            let command = DestroyQp { qpn: QPN, ..DestroyQp::default() };
            driver.perform_well(&Operation::DestroyQp(command));
        });
    }),
    (&FLUSH_STATE, |driver| {
        with_rdma(driver, |driver| {
            let command = FlushQp { qpn: QPN, sq: true, ..FlushQp::default() };
            driver.perform_well(&Operation::FlushQp(command));
        });
    }),
    (&SEGMENT_IN_USE, |driver| {
        with_rdma(driver, |driver| {
            driver.perform_well(&segment(5, SegmentDescriptor::default()));
        });
    }),
    (&REGION_REMOTE, |driver| {
        with_rdma(driver, |driver| register(driver, 0x1234_5601, SOURCE, 64, StagRights::LOCAL_WRITE));
    }),
];

#[test]
fn each_violation_is_reported_only_under_its_rule() {
    for (rule, breach) in BREACHES {
        let mut driver = strict();
        breach(&mut driver);
        assert_eq!(violations(&driver), [(rule.name, 1)]);
    }
    let broken: Vec<_> = BREACHES.iter().map(|(rule, _)| rule.name).collect();
    let all: Vec<_> = rules::ALL.iter().map(|rule| rule.name).collect();
    assert_eq!(broken, all);
}

#[test]
fn reset_releases_locks() {
    let mut driver = strict();
    driver.succeed(&AdminCommand::direct(Opcode::RequestResource, NVM));
    driver.write(Register::PfgenCtrl, 1);
    driver.open_admin_queue();
    driver.succeed(&AdminCommand::direct(Opcode::RequestResource, NVM));
    driver.succeed(&AdminCommand::direct(Opcode::ReleaseResource, NVM));
    assert_eq!(violations(&driver), []);
}

#[test]
fn strict_mode_is_off_by_default() {
    let mut driver = strict();
    driver.bus.hca.set_strict(false);
    BREACHES.iter().take(2).for_each(|(_, breach)| breach(&mut driver));
    assert_eq!(violations(&driver), []);
}
