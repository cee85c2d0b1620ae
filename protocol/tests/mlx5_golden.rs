//! Tests with the traces in `data/mlx5`: commands and queue entries from Linux 7.3.4 guests with an InfiniBand or
//! Ethernet port.
//!
//! A command consists of a heading and the words of its input and output. The heading contains the command's name, the
//! lengths, and some decoded fields. Doorbells and queue entries are single lines between commands. `<n*00>` means n
//! zero bytes.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use protocol::describe::{Describe, Value, Visitor};
use protocol::hca::mlx5::access_register::{Direction, HostEndianness, NodeDescription, Pcap, PortRegister};
use protocol::hca::mlx5::capability::{AtomicCaps, CapType, GeneralCaps, PortType};
use protocol::hca::mlx5::command::{InputHeader, OutputHeader};
use protocol::hca::mlx5::counter::{QCounters, VportCounters};
use protocol::hca::mlx5::cqe::{self, Content, Cqe, CqeOpcode};
use protocol::hca::mlx5::device::{AdapterInfo, Issi, TeardownState};
use protocol::hca::mlx5::doorbell::{ArmCq, EqDoorbell, SendDoorbell, UarRegister};
use protocol::hca::mlx5::eqe::{self, Eqe};
use protocol::hca::mlx5::input::Command;
use protocol::hca::mlx5::mad_ifc::MadAnswer;
use protocol::hca::mlx5::mkey::{AccessMode, Klm};
use protocol::hca::mlx5::nic_vport::QueriedNicVport;
use protocol::hca::mlx5::opcode::Opcode;
use protocol::hca::mlx5::page_offset;
use protocol::hca::mlx5::pages::{ManagedPages, RequestedPages};
use protocol::hca::mlx5::port_register::{Paos, Pddr, Pfcc, Pmlp, Pmtu, PortCounters, Ptys};
use protocol::hca::mlx5::qp::{QpContext, QpState, QueriedQp, Service};
use protocol::hca::mlx5::resource::{
    CounterSetNumber, CqNumber, EqNumber, MkeyNumber, PdNumber, QpNumber, SrqNumber, TransportDomainNumber,
    UarNumber, XrcDomainNumber,
};
use protocol::hca::mlx5::status::Status;
use protocol::hca::mlx5::syndrome::Syndrome;
use protocol::hca::mlx5::user_context::UserRights;
use protocol::hca::mlx5::vport::{QueriedVport, QueriedVportPkey};
use protocol::hca::mlx5::wqe::{self, DataItem, Operation, RecvWqe, SendWqe, Translation};
use protocol::ids::{Lid, MkeyIndex, Qpn, UserIndex};

/// Traces from a guest with an InfiniBand port, in recording order.
const TRACES: [&str; 6] = [
    include_str!("data/mlx5/ib-1-core-probe.txt"),
    include_str!("data/mlx5/ib-2-mlx5_ib-probe.txt"),
    include_str!("data/mlx5/ib-3-rc-pingpong-2-rounds.txt"),
    include_str!("data/mlx5/ib-4-write-bw-mr-umr.txt"),
    include_str!("data/mlx5/ib-5-memory-windows-resize-errors.txt"),
    include_str!("data/mlx5/ib-6-unload.txt"),
];

/// Traces from a guest with an Ethernet port.
const ETHERNET: [&str; 2] = [
    include_str!("data/mlx5/eth-1-core-and-netdev-probe.txt"),
    include_str!("data/mlx5/eth-2-mlx5_ib-probe.txt"),
];

/// A doorbell, a queue entry or a command in a trace.
struct Record {
    /// Name of the command, or kind of the doorbell or queue entry.
    name: &'static str,
    fields: BTreeMap<&'static str, &'static str>,
    /// Input of the command, or bytes of the doorbell or queue entry.
    bytes: Vec<u8>,
    /// Output of the command; empty for other records.
    output: Vec<u8>,
}

impl Record {
    fn hex(&self, field: &str) -> u64 {
        let text = self.fields.get(field).unwrap_or_else(|| panic!("{} has no {field}", self.name));
        u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap()
    }

    fn decimal(&self, field: &str) -> u64 {
        self.fields[field].parse().unwrap()
    }

    fn is_command(&self) -> bool {
        !["DB", "WQE", "RECV", "CQE", "EQE"].contains(&self.name)
    }

    fn command(&self) -> Command<'_> {
        Command::parse(&self.bytes).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    fn parse_output<const LEN: usize, T>(&self, parse: fn(&[u8; LEN]) -> T) -> T {
        let mut padded = [0; LEN];
        padded.iter_mut().zip(&self.output).for_each(|(to, from)| *to = *from);
        parse(&padded)
    }
}

fn bytes(words: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in words.split_whitespace() {
        if let Some(count) = word.strip_prefix('<').and_then(|word| word.strip_suffix("*00>")) {
            bytes.resize(bytes.len() + count.parse::<usize>().unwrap(), 0);
        } else {
            let pairs = word.as_bytes().as_chunks::<2>().0.iter();
            bytes.extend(pairs.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()));
        }
    }
    bytes
}

fn records() -> Vec<Record> {
    records_of(&TRACES)
}

fn records_of(traces: &[&'static str]) -> Vec<Record> {
    let mut records: Vec<Record> = Vec::new();
    for line in traces.iter().flat_map(|trace| trace.lines()) {
        if let Some(words) = line.strip_prefix("  in ") {
            records.last_mut().unwrap().bytes = bytes(words);
            continue;
        }
        if let Some(words) = line.strip_prefix("  out ") {
            records.last_mut().unwrap().output = bytes(words);
            continue;
        }
        let mut words = line.split(' ').skip_while(|word| word.parse::<u32>().is_ok());
        let name = words.next().unwrap();
        let rest = line.split_once(name).unwrap().1;
        let is_field = |word: &&str| word.contains('=');
        let data = rest.split(' ').filter(|word| !is_field(word)).collect::<Vec<_>>().join(" ");
        let is_entry = ["DB", "WQE", "RECV", "CQE", "EQE"].contains(&name);
        records.push(Record {
            name,
            fields: rest.split(' ').filter_map(|word| word.split_once('=')).collect(),
            bytes: if is_entry { bytes(&data) } else { Vec::new() },
            output: Vec::new(),
        });
    }
    records
}

fn commands() -> Vec<Record> {
    records().into_iter().filter(Record::is_command).collect()
}

/// Collects the names of all fields that an object describes.
#[derive(Default)]
struct Names(Vec<String>);

impl Visitor for Names {
    fn value(&mut self, name: &str, _: Value<'_>) {
        self.0.push(name.to_owned());
    }

    fn object(&mut self, name: &str, object: &dyn Describe) {
        self.0.push(name.to_owned());
        object.describe(self);
    }

    fn objects(&mut self, name: &str, objects: &mut dyn Iterator<Item = &dyn Describe>) {
        self.0.push(name.to_owned());
        objects.for_each(|object| object.describe(self));
    }

    fn addresses(&mut self, name: &str, addresses: &mut dyn Iterator<Item = u64>) {
        self.0.extend(addresses.map(|_| name.to_owned()));
    }
}

#[test]
fn every_traced_command_is_emitted_unchanged() {
    let commands = commands();
    assert_eq!(commands.len(), 359);
    for record in &commands {
        assert_eq!(record.bytes.len() as u64, record.decimal("inlen"), "{}", record.name);
        let command = record.command();
        assert_eq!(command.opcode().name(), record.name);
        assert_eq!(command.emit(0), record.bytes, "{}", record.name);
        let header = InputHeader::parse_prefix(&record.bytes).unwrap();
        assert_eq!(u64::from(header.op_mod), record.hex("opmod"));
        let mut names = Names::default();
        command.describe(&mut names);
        assert!(!names.0.is_empty(), "{}", record.name);
    }
}

/// Commands that have no layout yet are skipped.
#[test]
fn ethernet_commands_are_emitted_unchanged() {
    let records = records_of(&ETHERNET).into_iter().filter(Record::is_command);
    for record in records {
        let Ok(command) = Command::parse(&record.bytes) else { continue };
        assert_eq!(command.opcode().name(), record.name);
        assert_eq!(command.emit(0), record.bytes, "{}", record.name);
        let mut names = Names::default();
        command.describe(&mut names);
        command.describe_output(&record.output, &mut names);
        assert!(!names.0.is_empty(), "{}", record.name);
        let emitted = match command {
            Command::QueryNicVportContext(_) => record.parse_output(QueriedNicVport::parse).emit().to_vec(),
            Command::QueryHcaVportPkey(_) => record.parse_output(QueriedVportPkey::parse).emit().to_vec(),
            Command::QueryVportCounter(_) => record.parse_output(VportCounters::parse).emit().to_vec(),
            Command::AccessReg(access, _) => register(access.register, &record.output),
            _ => continue,
        };
        assert_eq!(emitted, record.output, "{}", record.name);
    }
}

/// Parses the register in an ACCESS_REG output, emits it again, and returns the resulting output.
fn register(register: u16, output: &[u8]) -> Vec<u8> {
    let (header, data) = output.split_at(OutputHeader::LEN);
    macro_rules! emitted {
        ($layout:ident) => {
            $layout::parse(data.try_into().unwrap()).emit().to_vec()
        };
    }
    let data = match PortRegister::from_code(register).unwrap() {
        PortRegister::Pcap => emitted!(Pcap),
        PortRegister::Pmlp => emitted!(Pmlp),
        PortRegister::Pmtu => emitted!(Pmtu),
        PortRegister::Ptys => emitted!(Ptys),
        PortRegister::Paos => emitted!(Paos),
        PortRegister::Pfcc => emitted!(Pfcc),
        PortRegister::Ppcnt => emitted!(PortCounters),
        PortRegister::Pddr => emitted!(Pddr),
        PortRegister::NodeDescription => emitted!(NodeDescription),
        PortRegister::HostEndianness => emitted!(HostEndianness),
        // The traces contain no access to these registers.
        PortRegister::Mcia
        | PortRegister::Mnvda
        | PortRegister::Mfrl
        | PortRegister::Mcqs
        | PortRegister::Mcqi
        | PortRegister::Mcam => panic!("register {register:#x}"),
    };
    [header, &data].concat()
}

#[test]
fn every_traced_output_is_emitted_unchanged() {
    for record in &commands() {
        assert_eq!(record.output.len() as u64, record.decimal("outlen"), "{}", record.name);
        let command = record.command();
        let mut names = Names::default();
        command.describe_output(&record.output, &mut names);
        assert!(!names.0.is_empty(), "{}", record.name);
        let status = record.parse_output(OutputHeader::parse).status();
        assert_eq!(status, Some(Status::Ok), "{}", record.name);
        macro_rules! emitted {
            ($layout:ident) => {
                record.parse_output($layout::parse).emit().to_vec()
            };
        }
        let emitted = match command {
            Command::QueryIssi(_) => emitted!(Issi),
            Command::QueryPages(_) => emitted!(RequestedPages),
            Command::ManagePages(..) => emitted!(ManagedPages),
            Command::TeardownHca(_) => emitted!(TeardownState),
            Command::QueryAdapter(_) => emitted!(AdapterInfo),
            Command::AllocPd(_) => emitted!(PdNumber),
            Command::AllocUar(_) => emitted!(UarNumber),
            Command::AllocXrcd(_) => emitted!(XrcDomainNumber),
            Command::AllocTransportDomain(_) => emitted!(TransportDomainNumber),
            Command::AllocQCounter(_) => emitted!(CounterSetNumber),
            Command::QueryQCounter(_) => emitted!(QCounters),
            Command::CreateEq(..) => emitted!(EqNumber),
            Command::CreateCq(..) => emitted!(CqNumber),
            Command::CreateMkey(..) => emitted!(MkeyNumber),
            Command::CreateQp(..) => emitted!(QpNumber),
            Command::CreateRmp(..) | Command::CreateXrcSrq(..) => emitted!(SrqNumber),
            Command::QueryQp(_) => emitted!(QueriedQp),
            Command::MadIfc(_) => emitted!(MadAnswer),
            Command::QueryHcaVportContext(_) => emitted!(QueriedVport),
            // Other tests check the outputs of these commands.
            Command::QueryHcaCap(_) | Command::AccessReg(..) => continue,
            _ => {
                assert_eq!(command.output_len(), OutputHeader::LEN, "{}", record.name);
                emitted!(OutputHeader)
            }
        };
        assert_eq!(emitted[..record.output.len()], record.output, "{}", record.name);
    }
}

#[test]
fn parsed_fields_match_trace_headings() {
    for record in &commands() {
        match record.command() {
            Command::CreateEq(create, pages) => {
                assert_eq!(u64::from(create.context.log_entries), record.decimal("log"));
                assert_eq!(u64::from(create.context.vector), record.decimal("intr"));
                assert_eq!(create.mask().bits(), record.hex("mask"));
                assert_eq!(pages.len() as u64, record.decimal("npas"));
                assert_eq!(u64::from(record.parse_output(EqNumber::parse).eqn.get()), record.hex("eqn"));
            }
            Command::CreateCq(create, pages) => {
                let context = create.context;
                assert_eq!(u64::from(context.log_entries), record.decimal("log"));
                assert_eq!(u64::from(context.uar.get()), record.hex("uar"));
                assert_eq!(u64::from(context.eqn.get()), record.hex("eq"));
                assert_eq!(context.record.get(), record.hex("dbr"));
                assert_eq!(context.cqe_size().unwrap().stride() as u64, record.decimal("sz"));
                assert_eq!(u64::from(context.ignore_overrun), record.decimal("oi"));
                assert_eq!(pages.len() as u64, record.decimal("npas"));
            }
            Command::CreateQp(create, pages) => {
                check_qp(record, &create.context);
                assert_eq!(pages.len() as u64, record.decimal("npas"));
                let context = create.context;
                let offset = page_offset(context.log_page_size, context.page_offset);
                assert_eq!(offset, record.decimal("off"));
                let queues = offset + (context.rq_len() + context.sq_len()) as u64;
                assert_eq!(queues.div_ceil(1 << record.decimal("ps")), pages.len() as u64);
            }
            Command::CreateMkey(create, _) => {
                let context = create.context;
                let key = record.parse_output(MkeyNumber::parse).index.key(context.key);
                assert_eq!(u64::from(key), record.hex("key"));
                let mode = context.access_mode().map(AccessMode::code);
                assert_eq!(mode.map(u64::from), Some(record.decimal("mode")));
                assert_eq!(u64::from(context.free), record.decimal("free"));
                assert_eq!(u64::from(context.umr_enabled), record.decimal("umr"));
                let rights = u64::from(context.local_read) | u64::from(context.local_write) << 1;
                assert_eq!(rights, record.hex("acc"));
                assert_eq!(u64::from(context.pd.get()), record.hex("pd"));
                assert_eq!(u64::from(context.length64), record.decimal("l64"));
                assert_eq!(u64::from(context.log_page), record.decimal("ps"));
                assert_eq!(u64::from(context.qpn.get()), record.hex("qpn"));
                assert_eq!(create.translation_units, 0);
            }
            Command::Init2RtrQp(modify) => {
                let context = modify.context;
                assert_eq!(u64::from(modify.optional.bits()), record.hex("mask"));
                assert_eq!(u64::from(context.remote_qpn.get()), record.hex("rqpn"));
                assert_eq!(u64::from(context.primary.lid.get()), record.hex("rlid"));
                assert_eq!(u64::from(context.mtu), record.decimal("mtu"));
                assert_eq!(u64::from(context.recv_psn.get()), record.hex("psn"));
                assert_eq!(u64::from(context.primary.grh), record.decimal("grh"));
            }
            Command::Rtr2RtsQp(modify) => {
                let context = modify.context;
                assert_eq!(u64::from(context.retry_count), record.decimal("retry"));
                assert_eq!(u64::from(context.rnr_retry), record.decimal("rnr"));
                assert_eq!(u64::from(context.log_requester_depth), record.decimal("sra"));
                assert_eq!(u64::from(context.next_send_psn.get()), record.hex("psn"));
            }
            Command::MadIfc(command) => {
                assert!(command.ignore_mkey && command.ignore_bkey);
                assert_eq!(u64::from(command.port), record.decimal("port"));
                assert_eq!(u64::from(command.mad[1]), record.hex("class"));
                assert_eq!(command.mad[16..18], u16::try_from(record.hex("attr")).unwrap().to_be_bytes());
            }
            Command::AccessReg(access, data) => {
                assert_eq!(u64::from(access.register), record.hex("reg"));
                assert_eq!(PortRegister::from_code(access.register), Some(PortRegister::HostEndianness));
                assert_eq!(Direction::from_code(access.direction), Some(Direction::Write));
                assert_eq!(data.bytes().len(), HostEndianness::LEN);
            }
            _ => {}
        }
    }
}

fn check_qp(record: &Record, context: &QpContext) {
    assert_eq!(u64::from(context.service), record.decimal("st"));
    assert_eq!(u64::from(context.uar.get()), record.hex("uar"));
    assert_eq!(u64::from(context.pd.get()), record.hex("pd"));
    let rq = format!("{}/{}", context.log_rq_entries, context.log_rq_stride + 4);
    assert_eq!(rq, record.fields["rq"]);
    assert_eq!(u64::from(context.receive_kind), record.decimal("type"));
    assert_eq!(u64::from(context.log_sq_blocks), record.decimal("sq"));
    assert_eq!(u64::from(context.no_sq), record.decimal("nosq"));
    assert_eq!(u64::from(context.srqn.get()), record.hex("srqn"));
    assert_eq!(u64::from(context.send_cqn.get()), record.hex("scq"));
    assert_eq!(u64::from(context.recv_cqn.get()), record.hex("rcq"));
    assert_eq!(u64::from(context.user_index.get()), record.hex("uidx"));
    assert_eq!(u64::from(context.log_page_size) + 12, record.decimal("ps"));
    assert_eq!(u64::from(context.reserved_lkey), record.decimal("rlky"));
    assert_eq!(u64::from(context.xrcd.get()), record.hex("xrcd"));
    assert_eq!(u64::from(context.fast_registration), record.decimal("fre"));
    assert_eq!(u64::from(context.latency_sensitive), record.decimal("ls"));
    let inline = format!("{:x}/{:x}", context.inline_request, context.inline_response);
    assert_eq!(inline, record.fields["cs"]);
}

#[test]
fn capabilities_match_traces() {
    let (mut general, mut atomic) = (0, 0);
    for record in &commands() {
        let Command::QueryHcaCap(query) = record.command() else { continue };
        let area = &record.output[OutputHeader::LEN..];
        match query.cap_type() {
            Some(CapType::General) => {
                // The recorded device supported BlueFlame. It did not support fast teardown, DevX, the MCAM register,
                // changing the moderation mode, reporting the repeat key, counting CQEs with errors or changing the
                // counter set of a QP in RTS (mlx5 interface, section 6.1).
                let caps = GeneralCaps {
                    blue_flame: true,
                    cq_period_mode: false,
                    fast_teardown: false,
                    mcam: false,
                    repeated_key: false,
                    error_counters: false,
                    rts2rts_counter_set: false,
                    log_max_user_contexts: 0,
                    log_max_user_memories: 0,
                    user_rights: UserRights::empty(),
                    ..GeneralCaps::infiniband()
                };
                assert_eq!(caps.area(), *area);
                assert_eq!(GeneralCaps::parse_prefix(area), Some(caps));
                assert_eq!(PortType::from_code(caps.port_type), Some(PortType::InfiniBand));
                general += 1;
            }
            Some(CapType::Atomic) => {
                let set = AtomicCaps { endianness_mode: 1, ..AtomicCaps::default() };
                let largest = AtomicCaps::largest();
                let caps = if query.current { largest.with_endianness(&set) } else { largest };
                // The recorded device reported mode 1 even before the driver set it.
                assert_eq!(caps.area(), *area);
                atomic += 1;
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!((general, atomic), (3, 3));
    let set = commands().into_iter().filter(|record| record.name == "SET_HCA_CAP");
    let types: Vec<_> = set
        .map(|record| match record.command() {
            Command::SetHcaCap(set, area) if area.bytes().len() == 4096 => set.cap_type(),
            _ => None,
        })
        .collect();
    assert_eq!(types, [Some(CapType::General), Some(CapType::Atomic)]);
}

/// Section 14.2 describes the port that the recorded device reported.
#[test]
fn vport_context_matches_trace() {
    let commands = commands();
    let record = commands.iter().find(|record| record.name == "QUERY_HCA_VPORT_CONTEXT").unwrap();
    let context = record.parse_output(QueriedVport::parse).context;
    assert!(context.has_smi && !context.grh_required);
    assert_eq!((context.physical_state, context.vport_state, context.port_state), (5, 0, 4));
    assert_eq!((context.lid, context.sm_lid, context.subnet_timeout), (Lid::new(0x11), Lid::new(1), 18));
}

/// Replays the QP commands and compares the contexts with the outputs of QUERY_QP.
#[test]
fn replayed_qp_commands_yield_traced_contexts() {
    let mut qps: BTreeMap<Qpn, QpContext> = BTreeMap::new();
    let mut queried = 0;
    for record in &commands() {
        let command = record.command();
        if let Some((transition, modify)) = command.transition() {
            let qp = qps.get_mut(&modify.qpn).unwrap();
            let next = qp.modified(transition, modify.optional, &modify.context).unwrap();
            assert_eq!(next.log_sq_blocks, qp.log_sq_blocks);
            assert_eq!((next.user_index, next.record), (qp.user_index, qp.record));
            *qp = next;
        }
        match command {
            Command::CreateQp(create, _) => {
                assert_eq!(create.context.state(), Some(QpState::Reset));
                qps.insert(record.parse_output(QpNumber::parse).qpn, create.context);
            }
            Command::DestroyQp(number) => {
                let qp = qps.remove(&number.qpn).unwrap();
                assert_eq!(qp.state(), Some(QpState::Reset), "drivers reset a QP before they destroy it");
            }
            Command::QueryQp(query) => {
                let context = record.parse_output(QueriedQp::parse).context;
                let replayed = &qps[&query.qpn];
                assert_eq!((context.pd, context.remote_qpn), (replayed.pd, replayed.remote_qpn));
                assert_eq!((context.send_cqn, context.recv_cqn), (replayed.send_cqn, replayed.recv_cqn));
                assert_eq!((context.mtu, context.log_max_message), (replayed.mtu, replayed.log_max_message));
                assert_eq!(context.primary, replayed.primary);
                assert_eq!(
                    (context.retry_count, context.rnr_retry),
                    (replayed.retry_count, replayed.rnr_retry)
                );
                assert_eq!(
                    (context.remote_read, context.remote_write),
                    (replayed.remote_read, replayed.remote_write)
                );
                assert_eq!(context.min_rnr_timer, replayed.min_rnr_timer);
                // Before the last query, the QP went from RTS (3) to the error state (6) without a command.
                let errors = u8::from(context.state() == Some(QpState::Error)) * 3;
                assert_eq!(context.state, replayed.state + errors);
                queried += 1;
            }
            _ => {}
        }
    }
    assert_eq!((queried, qps.len()), (4, 0));
}

/// Example from section 22: INIT2RTR and RTR2RTS of an RC QP.
#[test]
fn rc_connection_commands_match_published_example() {
    let commands = commands();
    let find = |name, qpn| {
        let is = |record: &&Record| record.name == name && record.hex("qpn") == qpn;
        commands.iter().find(is).unwrap().command().transition().unwrap().1
    };
    let rtr = find("INIT2RTR_QP", 0x83);
    assert_eq!(rtr.optional.bits(), 0xe);
    assert_eq!(rtr.context.service(), Some(Service::Rc));
    assert_eq!((rtr.context.mtu, rtr.context.log_max_message, rtr.context.migration), (3, 30, 3));
    assert_eq!(rtr.context.primary.port, 1);
    assert_eq!((rtr.context.min_rnr_timer, rtr.context.recv_psn.get()), (12, 0xf9_ab06));
    let rts = find("RTR2RTS_QP", 0x84);
    assert_eq!((rts.context.log_ack_frequency, rts.context.primary.ack_timeout), (8, 14));
    assert_eq!(rts.context.next_send_psn.get(), 0xf9_ab06);
}

#[test]
fn every_traced_wqe_is_emitted_unchanged() {
    let mut services: BTreeMap<u64, Service> = BTreeMap::new();
    let (mut sends, mut receives) = (BTreeMap::new(), 0);
    for record in &records() {
        match record.name {
            "CREATE_QP" => {
                let Command::CreateQp(create, _) = record.command() else { panic!() };
                services.insert(record.hex("qpn"), create.context.service().unwrap());
            }
            "WQE" => {
                let number = record.hex("qpn");
                let qpn = Qpn::new(u32::try_from(number).unwrap());
                let wqe = SendWqe::parse(&record.bytes, services[&number], qpn).unwrap();
                assert_eq!(wqe.emit(), record.bytes);
                assert_eq!(u64::from(wqe.control.index), record.decimal("index"));
                *sends.entry(wqe.opcode.name()).or_insert(0) += 1;
                check_umr(&wqe);
            }
            "RECV" => {
                let wqe = RecvWqe::parse(&record.bytes);
                assert_eq!(wqe.emit(record.bytes.len()), record.bytes);
                assert_eq!(wqe.capacity(), 0x200);
                receives += 1;
            }
            _ => {}
        }
    }
    let expected = [("RDMA_READ", 2), ("RDMA_WRITE", 7), ("SEND", 4), ("UMR", 17)];
    assert_eq!(sends.into_iter().collect::<Vec<_>>(), expected);
    assert_eq!(receives, 4);
}

/// Checks that a UMR is one of those listed in section 13.3.
fn check_umr(wqe: &SendWqe<'_>) {
    let Operation::Umr(umr) = &wqe.operation else { return };
    let flags = umr.control.emit()[0];
    match (flags, umr.control.mask.bits()) {
        (0x30, 0x203e_20c3) => {
            let Translation::Pointer(list) = umr.translation else { panic!("{umr:?}") };
            assert_eq!(list.byte_count, u32::from(umr.control.units) * 16);
            // The driver pads the list to a multiple of 64 bytes.
            let pages = umr.mkey.length.div_ceil(4096) * 8;
            assert_eq!(pages.next_multiple_of(64), u64::from(list.byte_count));
            assert!(!umr.mkey.free);
        }
        (0x80, 0x2000_0080) | (0x98, 0x2000_6000) => {
            assert!(umr.mkey.free && umr.translation == Translation::None);
        }
        (0xb0, 0x203c_6041) | (0x90, 0x203c_2041) => {
            let Translation::Inline(list) = umr.translation else { panic!("{umr:?}") };
            let klm = Klm::parse(list.first_chunk().unwrap());
            assert_eq!((klm.len(), klm.va), (umr.mkey.length, umr.mkey.start));
        }
        other => panic!("{other:x?}"),
    }
}

#[test]
fn every_traced_cqe_is_emitted_unchanged() {
    let mut log_entries: BTreeMap<u64, u8> = BTreeMap::new();
    let mut opcodes = BTreeMap::new();
    for record in &records() {
        match record.name {
            "CREATE_CQ" => {
                let Command::CreateCq(create, _) = record.command() else { panic!() };
                log_entries.insert(record.hex("cqn"), create.context.log_entries);
            }
            "CQE" => {
                let entry: &[u8; cqe::LEN] = record.bytes.as_slice().try_into().unwrap();
                let (cqe, owner) = Cqe::parse(entry).unwrap();
                assert_eq!(cqe.emit(owner), *entry);
                // The driver resized CQ 48h from 128 to 512 entries before the CQ wrapped around, so the owner bits are
                // the same as without the resize.
                let index = u32::try_from(record.decimal("index")).unwrap();
                assert_eq!(owner, cqe::owner(index, log_entries[&record.hex("cqn")]));
                *opcodes.entry(cqe.opcode().name()).or_insert(0) += 1;
                match cqe {
                    Cqe::Received(receipt) => {
                        assert_eq!((receipt.content, receipt.byte_count), (Content::Send { pkey: 0 }, 0x200));
                    }
                    Cqe::Sent(sent) => {
                        assert_eq!(sent.wqe_opcode == wqe::Opcode::Umr.code(), sent.byte_count == 0);
                    }
                    Cqe::Failed(failure) if failure.send => {
                        assert_eq!(failure.syndrome(), Some(Syndrome::RemoteAccess));
                        assert_eq!((failure.wqe_counter, failure.user_index), (3, UserIndex::new(0)));
                    }
                    Cqe::Failed(failure) => assert_eq!(failure.syndrome(), Some(Syndrome::Flushed)),
                    Cqe::Resize | Cqe::Frame(_) => panic!(),
                }
            }
            _ => {}
        }
    }
    assert_eq!(opcodes[CqeOpcode::RequesterError.name()], 1);
    assert_eq!(opcodes[CqeOpcode::ResponderError.name()], 1);
    assert_eq!(opcodes[CqeOpcode::Send.name()], 4);
}

#[test]
fn every_traced_eqe_is_emitted_unchanged() {
    let records = records();
    let events: Vec<_> = records.iter().filter(|record| record.name == "EQE").collect();
    assert!(!events.is_empty());
    for record in events {
        let entry: &[u8; eqe::LEN] = record.bytes.as_slice().try_into().unwrap();
        let (event, owner) = Eqe::parse(entry).unwrap();
        assert_eq!(event.emit(owner), *entry);
        assert!(matches!(event, Eqe::Completion(cqn) if cqn.get() == 0x43), "{event:?}");
        assert!(!owner, "the EQ with 2048 entries did not wrap around");
    }
}

#[test]
fn every_traced_doorbell_names_existing_queue() {
    let mut kinds = BTreeMap::new();
    for record in records().iter().filter(|record| record.name == "DB") {
        assert_eq!(record.bytes.len() as u64, record.decimal("width"));
        let register = UarRegister::at(record.hex("offset")).unwrap();
        let kind = match register {
            UarRegister::ArmCq(false) => {
                let arm = ArmCq::parse_prefix(&record.bytes).unwrap();
                assert_eq!(arm.emit(), *record.bytes);
                assert!((0x40..0x49).contains(&arm.cqn.get()));
                "cq"
            }
            UarRegister::ArmEq => {
                let doorbell = EqDoorbell::parse_prefix(&record.bytes).unwrap();
                assert_eq!(doorbell.emit(), *record.bytes);
                assert!((1..5).contains(&doorbell.eqn.get()));
                "eq"
            }
            UarRegister::Send { register, offset: 0, .. } => {
                let qpn = SendDoorbell::parse_prefix(&record.bytes).unwrap().qpn;
                // Only the UMR QP uses the fast-path register.
                assert_eq!(register == 2, qpn == Qpn::new(0x82));
                "send"
            }
            other => panic!("{other:?}"),
        };
        *kinds.entry(kind).or_insert(0) += 1;
    }
    assert_eq!(kinds.len(), 3);
}

#[test]
fn wqe_data_segments_refer_to_created_keys() {
    let mut keys: Vec<MkeyIndex> = Vec::new();
    for record in &records() {
        if record.name == "CREATE_MKEY" {
            keys.push(record.parse_output(MkeyNumber::parse).index);
        } else if record.name == "WQE" && record.hex("qpn") != 0x82 {
            let qpn = Qpn::new(u32::try_from(record.hex("qpn")).unwrap());
            let wqe = SendWqe::parse(&record.bytes, Service::Rc, qpn).unwrap();
            for item in &wqe.data {
                let DataItem::Pointer(segment) = item else { panic!("{item:?}") };
                assert!(keys.contains(&MkeyIndex::of(segment.lkey.get())), "{segment:?}");
            }
        }
    }
    assert_eq!(keys.len(), 12);
}

#[test]
fn opcode_names_match_traces() {
    let commands = commands();
    let mut names: Vec<_> = commands.iter().map(|record| record.name).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        assert!(Opcode::ALL.iter().any(|opcode| opcode.name() == name), "{name}");
    }
}
