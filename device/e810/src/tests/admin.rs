//! Tests of the admin queue and of device commands (E810 interface, sections 4, 5.2, 5.3 and 6).

use card::frontend::testing::logged;
use card::vfio::server::Device as _;
use protocol::hca::e810::admin::capability::{Capability, id};
use protocol::hca::e810::admin::descriptor::Flags;
use protocol::hca::e810::admin::{Descriptor, Opcode};
use protocol::hca::e810::regs::Register;

use super::*;
use crate::Options;
use crate::testing::MAC;
use crate::testing::{BUFFER, ENTRIES, SEND_RING};

const EPERM: u16 = 1;
const ENOSYS: u16 = 17;
const EINVAL: u16 = 14;
const ENOSPC: u16 = 16;
const EIO: u16 = 5;
const CRITICAL: u32 = 1 << 30;

#[test]
fn version_matches_published_firmware() {
    let reply = started().succeed(&AdminCommand::direct(Opcode::GetVersion, [0; 16]));
    assert_eq!(reply.parameters, [0, 0, 0, 0, 0x40, 0x40, 0x01, 0x80, 0, 6, 1, 0, 0, 1, 5, 0]);
}

#[test]
fn unknown_commands_return_not_implemented() {
    let mut driver = started();
    for opcode in [0x0c41, 0x020d, 0x020c, 0x06e0, 0x0a00, 0xff32, 0xffff, 0] {
        let command =
            AdminCommand { opcode, ..AdminCommand::with_input(Opcode::GetVersion, [7; 16], &[1, 2, 3]) };
        let reply = driver.execute(&command);
        assert_eq!((reply.status, reply.buffer), (ENOSYS, vec![1, 2, 3]), "{opcode:#06x}");
        assert_eq!(reply.parameters[..8], [7; 8]);
    }
}

#[test]
fn executes_all_commands_before_tail() {
    let mut driver = started();
    let command = Descriptor { opcode: Opcode::GetVersion.code(), ..Descriptor::default() };
    for slot in 0..u64::from(ENTRIES) - 1 {
        driver.bus.poke(SEND_RING + slot * 32, &command.emit());
    }
    driver.write(Register::PfFwAtqt, u32::from(ENTRIES) - 1);
    assert_eq!(driver.read(Register::PfFwAtqh), u32::from(ENTRIES) - 1);
    let last = driver.bus.peek(SEND_RING + (u64::from(ENTRIES) - 2) * 32, 2);
    assert_eq!(last, [0b11, 0], "the last command is done and complete");
    driver.write(Register::PfFwAtqt, 3);
    assert_eq!(driver.read(Register::PfFwAtqh), 3, "execution wraps around at the end of the ring");
}

#[test]
fn disabled_ring_does_not_execute_commands() {
    let mut driver = started();
    driver.write(Register::PfFwAtqlen, ENTRIES.into());
    driver.write(Register::PfFwAtqt, 1);
    assert_eq!(driver.read(Register::PfFwAtqh), 0);
}

#[test]
fn invalid_ring_sets_critical_error() {
    let cases: [(&str, Register, u32); 4] = [
        ("tail outside the ring", Register::PfFwAtqt, 192),
        ("ring outside memory", Register::PfFwAtqbah, 0x7fff_ffff),
        ("ring at the end of the address space", Register::PfFwAtqbah, 0xffff_ffff),
        ("ring without entries", Register::PfFwAtqlen, 1 << 31),
    ];
    for (name, register, value) in cases {
        let mut driver = started();
        driver.write(register, value);
        if register != Register::PfFwAtqt {
            driver.write(Register::PfFwAtqt, 1);
        }
        assert_eq!(driver.read(Register::PfFwAtqh), 0, "{name}");
        let stopped = driver.read(Register::PfFwAtqlen) & CRITICAL != 0;
        assert_eq!(stopped, value != 1 << 31, "{name}");
        driver.open_admin_queue();
        driver.succeed(&AdminCommand::direct(Opcode::GetVersion, [0; 16]));
    }
}

#[test]
fn rejects_unmapped_and_oversized_buffers() {
    let mut driver = started();
    let run = |driver: &mut Driver, flags: Flags, len: u16, address: u64| {
        let mut parameters = [0; 16];
        // The descriptor stores the high half of the address first.
        parameters[8..].copy_from_slice(&address.rotate_left(32).to_le_bytes());
        let opcode = if flags.contains(Flags::READ) { Opcode::DownloadPackage } else { Opcode::ReadMac };
        let command =
            Descriptor { flags, opcode: opcode.code(), buffer_len: len, parameters, ..Descriptor::default() };
        let slot = driver.read(Register::PfFwAtqh);
        let at = SEND_RING + u64::from(slot) * 32;
        driver.bus.poke(at, &command.emit());
        driver.write(Register::PfFwAtqt, slot + 1);
        let bytes: [u8; 32] = driver.bus.peek(at, 32).try_into().unwrap();
        Descriptor::parse(&bytes).status
    };
    let output = Flags::BUFFER;
    let input = Flags::BUFFER | Flags::READ;
    assert_eq!(run(&mut driver, output, 4096, BUFFER), 0);
    assert_eq!(run(&mut driver, output, 4097, BUFFER), EINVAL);
    assert_eq!(run(&mut driver, input, u16::MAX, BUFFER), EINVAL);
    assert_eq!(run(&mut driver, output, 16, 1 << 50), EIO);
    assert_eq!(run(&mut driver, input, 16, u64::MAX - 3), EIO);
    assert_eq!(run(&mut driver, output, 7, BUFFER), EINVAL, "the buffer is too short for a MAC address");
    assert_eq!(run(&mut driver, Flags::empty(), 16, BUFFER), EINVAL, "the command requires a buffer");
}

#[test]
fn only_known_resource_locks_are_granted() {
    let mut driver = started();
    let command = |id: u8, access: u8| {
        let mut parameters = [0; 16];
        (parameters[0], parameters[2]) = (id, access);
        AdminCommand::direct(Opcode::RequestResource, parameters)
    };
    for id in [1, 3, 4] {
        let reply = driver.succeed(&command(id, 2));
        assert_eq!(reply.parameters[4..8], 3000_u32.to_le_bytes());
    }
    assert_eq!(driver.execute(&command(2, 1)).status, EINVAL);
    assert_eq!(driver.execute(&command(1, 3)).status, EINVAL);
    assert_eq!(driver.execute(&AdminCommand::direct(Opcode::ReleaseResource, [9; 16])).status, EINVAL);
}

#[test]
fn read_past_end_of_flash_returns_einval() {
    let mut driver = started();
    let mut read = |offset: u32, len: u16, module: u8| {
        let mut parameters = [0; 16];
        parameters[..4].copy_from_slice(&(offset | 0x81 << 24).to_le_bytes());
        parameters[4] = module;
        parameters[6..8].copy_from_slice(&len.to_le_bytes());
        driver.execute(&AdminCommand::with_output(Opcode::ReadNvm, parameters, len.into())).status
    };
    assert_eq!(read(0x1_ffff, 1, 0), 0);
    assert_eq!(read(0x2_0000, 1, 0), EINVAL);
    assert_eq!(read(0x1_f000, 4096, 0), 0);
    assert_eq!(read(0x1_f001, 4096, 0), EINVAL);
    assert_eq!(read(0, 2, 1), EINVAL, "only module 0 can be read");
}

#[test]
fn checksum_command_verifies_but_never_writes_flash() {
    let mut driver = started();
    let command = |flags| {
        let mut parameters = [0; 16];
        parameters[0] = flags;
        AdminCommand::direct(Opcode::NvmChecksum, parameters)
    };
    // `ice` expects the words of the shadow RAM to sum to 0xBABA.
    assert_eq!(driver.succeed(&command(1)).parameters[..4], [1, 0, 0xba, 0xba]);
    assert_eq!(driver.execute(&command(2)).status, EPERM);
}

#[test]
fn rejected_filter_allocation_is_logged() {
    let mut driver = started();
    let allocate = |count: u16| {
        let [low, high] = count.to_le_bytes();
        AdminCommand::with_input(Opcode::AllocateResources, [1; 16], &[0x22, 0, low, high, 0, 0, 0, 0])
    };
    driver.succeed(&allocate(512));
    let text = logged(|| assert_eq!(driver.execute(&allocate(1)).status, ENOSPC));
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.contains("allocate_resources") && text.contains("resources of type"), "{text}");
}

/// DPDK issues "get allocated resource descriptors" when it starts. Linux drivers do not use this command.
#[test]
fn allocated_resources_are_listed_by_type() {
    let mut driver = started();
    let command = |kind: u8| {
        let mut parameters = [0; 16];
        (parameters[0], parameters[2]) = (0x80 | kind, 1);
        AdminCommand::with_output(Opcode::AllocatedResources, parameters, 8)
    };
    assert_eq!(driver.succeed(&command(0x60)).parameters[..8], [0xe0, 0, 0, 0, 0, 0, 0, 0]);
    driver.succeed(&AdminCommand::with_input(
        Opcode::AllocateResources,
        [1; 16],
        &[0x60, 0, 2, 0, 0, 0, 0, 0],
    ));
    let reply = driver.succeed(&command(0x60));
    assert_eq!(
        (&reply.parameters[..8], &reply.buffer[..4]),
        (&[0xe0, 0, 0, 0, 2, 0, 0, 0][..], &[1, 0, 2, 0][..])
    );
    assert_eq!(driver.execute(&command(0x7f)).status, EINVAL);
}

/// As for `ethtool --set-priv-flags … fw-lldp-agent on`, for which `ice` logs whether the agents have started.
#[test]
fn lldp_agents_can_be_stopped_but_not_started() {
    let mut driver = started();
    let mut start_dcbx = [0; 16];
    start_dcbx[0] = 1;
    driver.succeed(&AdminCommand::direct(Opcode::StopLldp, [0; 16]));
    assert_eq!(driver.execute(&AdminCommand::direct(Opcode::StartLldp, [0; 16])).status, ENOSYS);
    assert_eq!(driver.execute(&AdminCommand::direct(Opcode::LldpAgent, start_dcbx)).status, ENOSYS);
}

/// As for `dcb ets set … prio-tc 3:1`. Without an element for each class that it has configured, `ice` cannot add its
/// transmit queues again.
#[test]
fn local_mib_enables_traffic_classes() {
    let mut driver = started();
    let mut mib = vec![0xfe, 25, 0x00, 0x80, 0xc2, 9, 0, 0x00, 0x01, 0x00, 0x00, 50, 50];
    mib.resize(27, 0);
    driver.succeed(&AdminCommand::with_input(Opcode::SetLldpMib, [0; 16], &mib));
    let mut parameters = [0; 16];
    parameters[0] = 1;
    let reply = driver.succeed(&AdminCommand::with_output(Opcode::QueryPortEts, parameters, 64));
    assert_eq!(reply.buffer[0], 0b11);
    let (teids, _) = reply.buffer[32..].as_chunks();
    let teids: Vec<u32> = teids.iter().map(|teid| u32::from_le_bytes(*teid)).collect();
    assert!(teids[1] != u32::MAX && teids[2..].iter().all(|teid| *teid == u32::MAX), "{teids:x?}");
    let mut element = [0; 24];
    element[4..8].copy_from_slice(&teids[1].to_le_bytes());
    let mut count = [0; 16];
    count[0] = 1;
    let reply = driver.succeed(&AdminCommand::with_input(Opcode::GetElements, count, &element));
    assert_eq!((reply.buffer[0], reply.buffer[8]), (1, 2), "the element is a traffic class of the port");
}

fn capabilities(driver: &mut Driver, opcode: Opcode) -> Vec<Capability> {
    let reply = driver.succeed(&AdminCommand::with_output(opcode, [0; 16], 4096));
    let (records, rest) = reply.buffer.as_chunks::<32>();
    assert!(rest.is_empty());
    assert_eq!(reply.parameters[4..8], u32::try_from(records.len()).unwrap().to_le_bytes());
    records.iter().map(Capability::parse).collect()
}

#[test]
fn capabilities_match_configuration() {
    let options =
        Options { queues: 5.try_into().unwrap(), vectors: 24.try_into().unwrap(), ..Options::default() };
    let mut driver = powered_on(options);
    driver.open_admin_queue();
    let function = capabilities(&mut driver, Opcode::FunctionCapabilities);
    let number =
        |list: &[Capability], id| list.iter().find(|record| record.id == id).map(|record| record.number);
    assert_eq!(number(&function, id::RX_QUEUES), Some(5));
    assert_eq!(number(&function, id::TX_QUEUES), Some(5));
    assert_eq!(number(&function, id::MSIX), Some(24));
    assert_eq!(number(&function, id::RSS), Some(2048), "drivers reject any other table size");
    assert_eq!(number(&function, id::VSI), Some(384));
    assert_eq!(number(&function, id::RDMA), Some(1));
    let device = capabilities(&mut driver, Opcode::DeviceCapabilities);
    assert_eq!(number(&device, id::VSI), Some(768));
    assert_eq!(number(&device, id::FLOW_DIRECTOR), Some(1024));
}

#[test]
fn disabled_rdma_is_not_advertised() {
    let mut driver = powered_on(Options { rdma: false, ..Options::default() });
    driver.open_admin_queue();
    let function = capabilities(&mut driver, Opcode::FunctionCapabilities);
    assert!(function.iter().all(|record| record.id != id::RDMA));
}

#[test]
fn written_mac_persists_until_reset() {
    let mut driver = started();
    let read = |driver: &mut Driver| driver.succeed(&AdminCommand::with_output(Opcode::ReadMac, [0; 16], 16));
    assert_eq!(read(&mut driver).buffer, [0, 0, 0x02, 0xe8, 0x10, 0, 0, 1]);
    let write = |first| [0, 0, first, 0x22, 0x33, 0x44, 0x55, 0x66, 0, 0, 0, 0, 0, 0, 0, 0];
    driver.succeed(&AdminCommand::direct(Opcode::WriteMac, write(0x12)));
    assert_eq!(
        driver.execute(&AdminCommand::direct(Opcode::WriteMac, write(0x13))).status,
        EINVAL,
        "a multicast address is rejected"
    );
    assert_eq!(read(&mut driver).buffer, [0, 0, 0x12, 0x22, 0x33, 0x44, 0x55, 0x66]);
    driver.write(Register::PfgenCtrl, 1);
    driver.open_admin_queue();
    assert_eq!(read(&mut driver).buffer, [0, 0, 0x02, 0xe8, 0x10, 0, 0, 1]);
    driver.succeed(&AdminCommand::direct(Opcode::WriteMac, write(0x12)));
    driver.write(Register::PfgenCtrl, 1);
    driver.open_admin_queue();
    driver.succeed(&AdminCommand::direct(Opcode::WriteMac, write(0x22)));
    assert_eq!(
        read(&mut driver).buffer,
        [0, 0, 0x22, 0x22, 0x33, 0x44, 0x55, 0x66],
        "a MAC written after the reset is not replaced"
    );
    driver.bus.hca.reset();
    assert_eq!(driver.bus.hca.mac(), MAC, "a device reset also restores the MAC address");
}

#[test]
fn rejects_frame_size_above_maximum() {
    let mut driver = started();
    let command = |len: u16| {
        let mut parameters = [0; 16];
        parameters[..2].copy_from_slice(&len.to_le_bytes());
        AdminCommand::direct(Opcode::SetMacConfig, parameters)
    };
    driver.succeed(&command(9728));
    assert_eq!(driver.execute(&command(9729)).status, EINVAL);
}
