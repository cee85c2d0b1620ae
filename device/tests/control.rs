//! Tests the control socket and `hcactl` with a daemon whose client has initialised a QP.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::common::{Daemon, Guest, hcactl, hcad, until, with_control};
use device::interfaces;
use drivers::Bus;
use drivers::hcr;
use drivers::jingzhao::{
    Driver, LOG_CQS, LOG_MPTS, LOG_QPS, TABLES, cqc, doorbell, eqc, layout, qpc, region,
};
use protocol::Psn;
use protocol::hca::jingzhao::cmd::Op;
use protocol::hca::jingzhao::icm::IcmTable;
use protocol::hca::jingzhao::mpt::MptFlags;
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::{Lid, Qpn};
use serde_json::{Value, json};

/// Size of guest memory, in bytes. Guest memory starts at bus address 0.
const MEMORY: u64 = 1 << 20;
/// Bus address of the page covered by the only memory region.
const BUFFER: u64 = 0x3000;
const ICM: u64 = 0x10_000;

const QPN: u32 = 0x1_0005;

fn start() -> (Daemon, PathBuf) {
    start_with(&[])
}

/// Starts a daemon with a control socket and extra configuration keys for its device.
fn start_with(more: &[(&str, Value)]) -> (Daemon, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (path, socket, control) = with_control(folder.path(), &[]);
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (key, value) in more {
        config["devices"][0][key] = value.clone();
    }
    std::fs::write(&path, config.to_string()).unwrap();
    let mut command = hcad();
    command.arg("--config").arg(path);
    (Daemon::ready(command, folder, socket), control)
}

/// Connects a new guest and returns its driver.
fn connect(daemon: &Daemon) -> Driver<Guest> {
    let mut guest = Guest::attach(&daemon.socket, MEMORY);
    guest.enable();
    Driver::new(guest)
}

/// Creates a memory region, a CQ, and QP [`QPN`] in RTS, connected to QP 9 at LID 2.
fn bring_up(driver: &mut Driver<Guest>) {
    driver.ok(Op::InitHca, 0, 0, &layout(LOG_QPS, LOG_CQS, LOG_MPTS).emit());
    for (bus, (table, virt, _)) in (ICM..).step_by(0x1000).zip(TABLES) {
        driver.map(table, virt, bus, 1);
    }
    driver.write_mtt(0, [BUFFER]);
    driver.register(&region(1, 0, 0x7000, 0x1000, MptFlags::LOCAL_WRITE | MptFlags::REMOTE_READ));
    driver.create_cq(&cqc(6, 1, 4));
    driver.ok(Op::Sw2HwEq, 0, 4, &eqc(2, 1, 3).emit());
    let image = Qpc {
        usr_page: 0,
        local_qpn: Qpn::new(5),
        remote_qpn: Qpn::new(9),
        dlid: Lid::new(2),
        next_send_psn: Psn::new(0xff_fffe),
        sq_len: 0x800,
        recv_psn: Psn::new(0x123),
        ..qpc(6, [1, 1], 0x400)
    };
    driver.connect(QPN, &image);
}

/// Sends a request line and returns the response.
fn ask(stream: &mut UnixStream, line: &[u8]) -> Value {
    stream.write_all(line).unwrap();
    stream.write_all(b"\n").unwrap();
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

fn hcactl_json(control: &Path, command: &str) -> Value {
    serde_json::from_str(&hcactl(control, &["--json", command]).unwrap()).unwrap()
}

#[test]
fn guest_objects_are_listed() {
    let (daemon, control) = start();
    assert_eq!(hcactl_json(&control, "qps"), json!([]), "no QPs exist before INIT_HCA");
    let mut guest = connect(&daemon);
    bring_up(&mut guest);

    let devices = hcactl_json(&control, "devices");
    assert_eq!(
        devices,
        json!([{
            "id": 1, "interface": "jingzhao", "mac": "02:00:00:00:00:01", "ipv4": "10.77.0.1",
            "ipv6": "fe80::ff:fe00:1",
            "socket": daemon.socket, "connected": true, "port": "up", "capture": null,
            "trace": null, "record": null, "state": "running", "restarts": 0, "problem": null, "port_disabled": false,
        }])
    );
    assert_eq!(
        hcactl_json(&control, "qps"),
        json!([{
            "qpn": QPN, "state": "rts", "service": "rc", "pd": 3,
            "send_psn": 0xff_fffe, "unacked_psn": 0xff_fffe, "expected_psn": 0x123,
            "peer": { "qpn": 9, "mac": "02:00:00:00:00:02", "ip": "10.77.0.2" },
            "send_cqn": 6, "recv_cqn": 6, "send_slots": 16, "send_waiting": 0, "recv_slots": 8,
            "remote_rights": ["remote_write", "remote_read", "remote_atomic"],
            "max_rd_atomic": 16, "max_dest_rd_atomic": 16,
            "ignored": null,
            "counters": {
                "doorbells": 0, "sends": 0, "receives": 0, "sends_completed": 0, "receives_completed": 0, "failed": 0,
            },
        }])
    );
    assert_eq!(
        hcactl_json(&control, "cqs"),
        json!([{ "cqn": 6, "entries": 16, "producer": 0, "armed": "no", "eqn": 0, "fault": null }])
    );
    assert_eq!(
        hcactl_json(&control, "mrs"),
        json!([{
            "key": 1, "pd": 3, "start": 0x7000, "length": 0x1000,
            "rights": ["local_write", "remote_read"], "page_bytes": 4096,
        }])
    );
    assert_eq!(
        hcactl_json(&control, "eqs"),
        json!([{
            "eqn": 4, "entries": 8, "producer": 0, "armed": false, "vector": 2, "mask": 0, "overflowed": false,
        }])
    );
    assert_eq!(
        hcactl_json(&control, "icm"),
        json!([
            { "table": "context", "start": 0, "length": 0x1000, "bus": ICM },
            { "table": "context", "start": 0x200_0000, "length": 0x1000, "bus": ICM + 0x1000 },
            { "table": "context", "start": 0x240_0000, "length": 0x1000, "bus": ICM + 0x2000 },
            { "table": "tpt", "start": 0x100_0000, "length": 0x1000, "bus": ICM + 0x3000 },
            { "table": "tpt", "start": 0x180_0000, "length": 0x1000, "bus": ICM + 0x4000 },
        ])
    );

    for (command, lines, heads, cells) in [
        ("devices", 2, ["ID", "INTERFACE", "MAC"], ["1", "jingzhao", "02:00:00:00:00:01"]),
        ("qps", 2, ["QPN", "STATE", "SERVICE"], ["0x10005", "RTS", "RC"]),
        ("cqs", 2, ["CQN", "ENTRIES", "PRODUCER"], ["0x6", "16", "0"]),
        ("eqs", 2, ["EQN", "ENTRIES", "PRODUCER"], ["0x4", "8", "0"]),
        ("mrs", 2, ["KEY", "PD", "START"], ["0x1", "0x3", "0x7000"]),
        ("icm", 6, ["TABLE", "START", "LENGTH"], ["context", "0x0", "0x1000"]),
    ] {
        let text = hcactl(&control, &[command]).unwrap();
        let words: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!((words.len(), &words[0][..3], &words[1][..3]), (lines, &heads[..], &cells[..]), "{text}");
    }

    guest.ok(Op::ToErr, 2, QPN, &[]);
    assert_eq!(hcactl_json(&control, "qps")[0]["state"], "err", "the list shows the current state");
}

#[test]
fn every_table_can_be_listed_by_name() {
    let (daemon, control) = start();
    // The objects exist only while the client is connected.
    let mut guest = connect(&daemon);
    bring_up(&mut guest);
    for table in interfaces::tables() {
        let by_name = |json: &[&str]| hcactl(&control, &[json, &["list", table.name]].concat()).unwrap();
        let text = by_name(&[]);
        assert_eq!(text.lines().next().unwrap().split_whitespace().collect::<Vec<_>>(), table.columns);
        let rows: Value = serde_json::from_str(&by_name(&["--json"])).unwrap();
        assert_eq!(rows.as_array().unwrap().len(), text.lines().count() - 1, "{text}");
        let command = match table.name {
            "handles" => "ahs",
            "control" => "cqp",
            // These tables have no dedicated command.
            "sqs" | "rqs" | "tirs" | "rqts" | "flow-tables" | "flow-groups" | "flow-entries" => continue,
            same => same,
        };
        assert_eq!(hcactl(&control, &[command]).unwrap(), text);
        assert_eq!(hcactl_json(&control, command), rows);
    }
    let names = hcactl(&control, &["list"]).unwrap();
    assert!(names.starts_with("TABLE         CONTENTS\nqps           queue pairs: "), "{names}");

    let error = hcactl(&control, &["list", "srqs"]).unwrap_err();
    assert!(error.starts_with("hcactl: unknown table \"srqs\"; available tables: qps, cqs, "), "{error}");
}

#[test]
fn table_pages_have_256_rows() {
    let (daemon, control) = start();
    let mut guest = connect(&daemon);
    bring_up(&mut guest);
    // The ICM page that is already mapped holds only entries 0 to 63.
    guest.map(IcmTable::Tpt, 0x100_1000, 0x40_000, 8);
    for key in 2..=300 {
        guest.register(&region(key, 0, 0, 8, MptFlags::empty()));
    }
    let keys = |rows: &Value| -> Vec<_> {
        rows.as_array().unwrap().iter().map(|row| row["key"].as_u64().unwrap()).collect()
    };
    assert_eq!(keys(&hcactl_json(&control, "mrs")), (1..=300).collect::<Vec<_>>());

    let mut stream = UnixStream::connect(&control).unwrap();
    let page = ask(&mut stream, br#"{"list":{"device":1,"table":"mrs"}}"#);
    assert_eq!(keys(&page["page"]["rows"]["mrs"]), (1..=256).collect::<Vec<_>>());
    assert_eq!(page["page"]["next"], 257);
    for from in [301, u64::from(u32::MAX) + 1, u64::MAX] {
        let request = json!({ "list": { "device": 1, "table": "mrs", "from": from } });
        let page = ask(&mut stream, request.to_string().as_bytes());
        assert_eq!(page, json!({ "page": { "rows": { "mrs": [] }, "next": null } }));
    }
}

#[test]
fn port_command_sets_link_up_and_down() {
    let (_daemon, control) = start();
    for state in ["down", "down", "up"] {
        assert_eq!(hcactl(&control, &["port", state]).unwrap(), "");
        assert_eq!(hcactl_json(&control, "devices")[0]["port"], state);
    }
}

#[test]
fn counter_names_start_with_layer() {
    let (daemon, control) = start();
    let mut guest = connect(&daemon);
    bring_up(&mut guest);
    let counters = hcactl_json(&control, "counters");
    let ctxmgt = &counters["frontend"]["jingzhao"]["ctxmgt"];
    // One write for the CQ, one for the EQ, and four for the QP: its initial entry and one per command.
    assert_eq!(ctxmgt["ceu_parser"], json!({"reads": 0, "writes": 6, "maps": 3}));
    let idle = json!({"hits": 0, "misses": 0, "writes": 0, "write_backs": 0, "unmapped": 0});
    assert_eq!(ctxmgt["requester_trans_control"], idle);
    assert_eq!(counters["engine"]["drops"]["unknown_qp"], 0);
    assert_eq!(counters["port"]["dropped"]["icrc"], 0);
    assert_eq!(counters["fabric"]["rx_frames"], 0);
    assert_eq!(counters["log"], json!({ "lines_lost": 0 }));
    let text = hcactl(&control, &["counters"]).unwrap();
    assert!(text.lines().any(|line| line.starts_with("engine.naks_sent.rnr ")), "{text}");
    let hits = "frontend.jingzhao.ctxmgt.execution_engine.hits ";
    assert!(text.lines().any(|line| line.starts_with(hits)), "{text}");
}

#[test]
fn vmm_and_driver_requests_are_counted() {
    let (daemon, control) = start();
    let mut guest = connect(&daemon);
    bring_up(&mut guest);
    // Post an empty SEND (a zeroed WQE) on the QP and ring the doorbell of a nonexistent QP.
    for qpn in [QPN, 9] {
        guest.ring_doorbell(0, doorbell(qpn, 0, 0x0a, 1));
    }
    guest.ok(Op::ToErr, 2, QPN, &[]);
    guest.client.dma_unmap(0, MEMORY).unwrap();

    let counters = hcactl_json(&control, "counters");
    let vfio = &counters["vfio"];
    assert_eq!((&vfio["clients"], &vfio["dma_ranges"]), (&1.into(), &0.into()));
    let messages = &vfio["messages"];
    assert_eq!((&messages["dma_map"], &messages["dma_unmap"]), (&1.into(), &1.into()));
    // Two writes to configuration space, seven words per command, two doorbells.
    let commands = 14;
    assert_eq!(messages["region_write"], 2 + commands * 7 + 2);
    assert_eq!(messages["region_read"], commands);
    assert_eq!(vfio["interrupts"], json!({ "sent": 0, "pending": 0, "nowhere": 0 }));
    let interface = &counters["interface"];
    assert_eq!(interface["commands"]["MAP_ICM"], json!({ "OK": 5 }));
    assert_eq!(interface["doorbells"], json!({ "send": 1 }));
    assert_eq!(interface["ignored"], json!({ "qp_reset": 1 }));
    assert_eq!(interface["violations"], json!({}));
    let qp = &hcactl_json(&control, "qps")[0]["counters"];
    // In ERR, the device also polls the receive queue, where each zeroed slot counts as a posted receive. The number of
    // failed requests depends on how many slots it polls before the memory is unmapped.
    assert_eq!((&qp["doorbells"], &qp["sends"], &qp["sends_completed"]), (&1.into(), &1.into(), &1.into()));
    assert!(qp["failed"].as_u64() >= Some(1), "{qp}");

    let text = hcactl(&control, &["counters"]).unwrap();
    assert!(text.lines().any(|line| line.starts_with("interface.commands.MAP_ICM.OK ")), "{text}");

    // `explain` describes the first QP in full and reports the ignored doorbell of the nonexistent one.
    let text = hcactl(&control, &["explain", "qp", &format!("{QPN:#x}")]).unwrap();
    let said: Vec<_> = text.lines().collect();
    assert_eq!(said[0], format!("QP {QPN:#x}: RC, ERR"));
    assert!(
        said[1].starts_with("stopped ") && said[1].ends_with(": software modified the QP to ERR"),
        "{text}"
    );
    let unknown = "hcactl: QP 0x9 does not exist or is in RESET; ignored doorbells and packets: 1, most recent reason: qp_reset\n";
    for options in [&[][..], &["--json"]] {
        let arguments = [options, &["explain", "qp", "9"]].concat();
        assert_eq!(hcactl(&control, &arguments).unwrap_err(), unknown, "{options:?}");
    }
}

#[test]
fn each_strict_violation_logs_one_line() {
    let (mut daemon, control) = start_with(&[("strict", json!(true))]);
    let mut guest = connect(&daemon);
    bring_up(&mut guest);
    // Ring the doorbell of a QP in INIT.
    guest.ok(Op::ToRst, 3, QPN, &[]);
    guest.ok(Op::Rst2Init, 0, QPN, &Qpc { local_qpn: Qpn::new(5), port: 1, ..Qpc::default() }.emit());
    guest.ring_doorbell(0, doorbell(QPN, 0, 0x0a, 1));
    // Register the key again.
    let region = region(2, 0, 0, 8, MptFlags::empty());
    for op in [Op::Sw2HwMpt, Op::Hw2SwMpt, Op::Sw2HwMpt] {
        guest.ok(op, 0, 2, &region.emit());
    }
    // Write to the HCR while it may be busy.
    guest.issue(0, 0x1f, 0, hcr::word(Op::Nop.spec().code, 0));
    guest.ok(Op::Nop, 0, 0x1f, &[]);
    // Unmap the page of the CQ's context.
    guest.command_at(0x200_0000, Op::UnmapIcm, 1, 1);

    let violations = hcactl_json(&control, "counters")["interface"]["violations"].clone();
    daemon.child.kill().unwrap();
    let mut log = String::new();
    daemon.log.read_to_string(&mut log).unwrap();
    for (rule, what) in [
        ("doorbell_state", "doorbell for QP 0x10005, which is in INIT"),
        ("key_reuse", "key 0x2"),
        ("hcr_not_polled", "written before software polled the previous command to completion"),
        ("unmap_in_use", "CQ 0x6"),
    ] {
        assert_eq!(violations[rule], 1, "{rule}: {violations}");
        let lines: Vec<_> = log.lines().filter(|line| line.contains(rule)).collect();
        assert!(matches!(lines[..], [line] if line.contains(what)), "{rule}: {what}: {lines:#?}\n{log}");
    }
}

#[test]
fn capture_starts_and_stops_without_overwriting_files() {
    let (daemon, control) = start();
    let file = daemon.folder.path().join("x.pcapng");
    let name = file.to_str().unwrap();
    assert_eq!(hcactl(&control, &["capture", "off"]).unwrap_err(), "hcactl: no capture is running\n");
    hcactl(&control, &["capture", "on", name]).unwrap();
    assert_eq!(hcactl_json(&control, "devices")[0]["capture"], name);
    let error = hcactl(&control, &["capture", "on", name]).unwrap_err();
    assert_eq!(error, format!("hcactl: a capture to {name} is already running\n"));
    hcactl(&control, &["capture", "off"]).unwrap();
    assert_eq!(hcactl_json(&control, "devices")[0]["capture"], Value::Null);
    // The file begins with a section header block.
    assert_eq!(std::fs::read(&file).unwrap()[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    let error = hcactl(&control, &["capture", "on", name]).unwrap_err();
    assert!(error.starts_with(&format!("hcactl: cannot create {name}: ")), "{error}");
}

#[test]
fn trace_and_capture_rings_survive_dump() {
    let (daemon, control) = start();
    let mut guest = connect(&daemon);
    let file = |name: &str| daemon.folder.path().join(name).to_str().unwrap().to_owned();
    let error = hcactl(&control, &["trace", "dump", &file("none")]).unwrap_err();
    assert_eq!(error, "hcactl: no in-memory trace is running; start one with `hcactl trace ring`\n");
    assert!(
        hcactl(&control, &["trace", "ring", "1K"]).unwrap_err().contains("1024 is not between 65536 and ")
    );
    hcactl(&control, &["trace", "ring", "64K", "--kind", "command", "--kind", "wqe"]).unwrap();
    assert_eq!(hcactl_json(&control, "devices")[0]["trace"], "memory");
    for dumped in ["first", "second"] {
        guest.ok(Op::Nop, 0, 0x1f, &[]);
        hcactl(&control, &["trace", "dump", &file(dumped)]).unwrap();
    }
    let error = hcactl(&control, &["trace", "dump", &file("first")]).unwrap_err();
    assert!(error.starts_with("hcactl: cannot create "), "{error}");
    for (dumped, commands) in [("first", 1), ("second", 2)] {
        let text = std::fs::read_to_string(file(dumped)).unwrap();
        assert!(text.lines().all(|line| line.contains(" command NOP ")), "{text}");
        assert_eq!(text.lines().count(), commands);
    }
    hcactl(&control, &["trace", "off"]).unwrap();

    hcactl(&control, &["capture", "ring", "1M", "--kind", "roce"]).unwrap();
    hcactl(&control, &["capture", "dump", &file("x.pcapng")]).unwrap();
    assert_eq!(std::fs::read(file("x.pcapng")).unwrap()[..4], [0x0a, 0x0d, 0x0d, 0x0a]);
    hcactl(&control, &["capture", "off"]).unwrap();
}

#[test]
fn trace_files_rotate_without_overwriting() {
    let (daemon, control) = start();
    let mut guest = connect(&daemon);
    let name = daemon.folder.path().join("x.trace");
    let name = name.to_str().unwrap();
    let second = format!("{name}.1");
    std::fs::write(&second, "mine").unwrap();
    let on = ["trace", "on", name, "--max", "1K", "--files", "2"];
    assert!(hcactl(&control, &on).unwrap_err().starts_with("hcactl: cannot create "));
    assert!(!Path::new(name).exists(), "no file is left behind");
    std::fs::remove_file(&second).unwrap();
    hcactl(&control, &on).unwrap();
    for _ in 0..50 {
        guest.ok(Op::Nop, 0, 0x1f, &[]);
    }
    hcactl(&control, &["trace", "off"]).unwrap();
    for file in [name, &second] {
        let len = std::fs::metadata(file).unwrap().len();
        assert!((1..2048).contains(&len), "{file}: {len}");
    }
}

#[test]
fn trace_starts_and_stops_without_overwriting_files() {
    let (daemon, control) = start();
    let mut guest = connect(&daemon);
    let file = daemon.folder.path().join("x.trace");
    let name = file.to_str().unwrap();
    assert_eq!(hcactl(&control, &["trace", "off"]).unwrap_err(), "hcactl: no trace is running\n");
    hcactl(&control, &["trace", "on", name]).unwrap();
    assert_eq!(hcactl_json(&control, "devices")[0]["trace"], name);
    let error = hcactl(&control, &["trace", "on", name]).unwrap_err();
    assert_eq!(error, format!("hcactl: a trace to {name} is already running\n"));
    guest.ok(Op::Nop, 0, 0x1f, &[]);
    hcactl(&control, &["trace", "off"]).unwrap();
    guest.ok(Op::Nop, 0, 0x1f, &[]);

    let text = std::fs::read_to_string(&file).unwrap();
    let kinds: Vec<_> = text.lines().map(|line| line.split(' ').nth(2).unwrap()).collect();
    let expected = ["write"; 7].into_iter().chain(["command", "read"]).collect::<Vec<_>>();
    assert_eq!(kinds, expected);
    assert!(text.lines().nth(7).unwrap().contains(" hca1 command NOP status=OK us="), "{text}");
    let error = hcactl(&control, &["trace", "on", name]).unwrap_err();
    assert!(error.starts_with(&format!("hcactl: cannot create {name}: ")), "{error}");

    let json = daemon.folder.path().join("x.json");
    hcactl(&control, &["--json", "trace", "on", json.to_str().unwrap()]).unwrap();
    guest.ok(Op::QueryAdapter, 0, 0, &[]);
    hcactl(&control, &["trace", "off"]).unwrap();
    let text = std::fs::read_to_string(&json).unwrap();
    let command: Value = serde_json::from_str(text.lines().nth(7).unwrap()).unwrap();
    assert_eq!(command["out"]["board_id"], 0x0123_4567_89ab_cdef_u64);
}

/// A recording must start from the device's initial state, so it cannot start while a VMM is connected.
#[test]
fn recording_can_start_only_before_client_connects() {
    let (mut daemon, control) = start();
    let file = daemon.folder.path().join("x.record");
    let name = file.to_str().unwrap();
    assert_eq!(hcactl(&control, &["record", "off"]).unwrap_err(), "hcactl: no recording is in progress\n");
    let mut guest = connect(&daemon);
    let error = hcactl(&control, &["record", "on", name]).unwrap_err();
    assert!(
        error.starts_with("hcactl: a VMM is connected; start recording before the VMM connects"),
        "{error}"
    );
    assert!(!file.exists(), "the unused file is removed");
    guest.ok(Op::Nop, 0, 0x1f, &[]);
    drop(guest);
    daemon.wait_for_line("device reset");

    // The recording must also contain the changes that are made before it starts.
    hcactl(&control, &["impair", "add", "tx", "--probability", "0.5", "--seed", "3", "drop"]).unwrap();
    hcactl(&control, &["port", "down"]).unwrap();
    hcactl(&control, &["record", "on", name]).unwrap();
    assert_eq!(hcactl_json(&control, "devices")[0]["record"], name);
    assert_eq!(hcactl_json(&control, "devices")[0]["port"], "down");
    let error = hcactl(&control, &["record", "on", name]).unwrap_err();
    assert_eq!(error, format!("hcactl: already recording to {name}\n"));
    let mut guest = connect(&daemon);
    guest.ok(Op::QueryAdapter, 0, 0, &[]);
    hcactl(&control, &["port", "up"]).unwrap();
    hcactl(&control, &["record", "off"]).unwrap();
    assert_eq!(hcactl_json(&control, "devices")[0]["record"], Value::Null);
    guest.ok(Op::QueryAdapter, 0, 0, &[]);
    let error = hcactl(&control, &["record", "on", name]).unwrap_err();
    assert!(error.starts_with(&format!("hcactl: cannot create {name}: ")), "{error}");

    let replay = |arguments: &[&str]| {
        let output = hcad().args(["replay", name]).args(arguments).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = replay(&["--steps"]);
    assert!(text.ends_with("no differences; recording ended: closed by hcad\n"), "{text}");
    for step in ["link goes down", "impairment {", "link goes up"] {
        assert!(text.contains(step), "{step} is missing from\n{text}");
    }
    let trace = file.with_extension("trace");
    replay(&["--trace", trace.to_str().unwrap()]);
    let trace = std::fs::read_to_string(trace).unwrap();
    // Only the first QUERY_ADAPTER precedes the end of the recording.
    assert_eq!(trace.matches(" command QUERY_ADAPTER status=OK ").count(), 1, "{trace}");
}

#[test]
fn recording_stops_at_size_limit() {
    let (mut daemon, control) = start_with(&[("record_max_bytes", json!(5000))]);
    let file = daemon.folder.path().join("x.record");
    let name = file.to_str().unwrap();
    hcactl(&control, &["record", "on", name]).unwrap();
    let mut guest = connect(&daemon);
    (0..100).for_each(|_| guest.ok(Op::QueryAdapter, 0, 0, &[]));
    daemon.wait_for_line("recording stopped: size limit reached");
    guest.ok(Op::QueryAdapter, 0, 0, &[]);
    let error = hcactl(&control, &["record", "off"]).unwrap_err();
    assert_eq!(error, format!("hcactl: the recording to {name} has already stopped: size limit reached\n"));
    assert!(file.metadata().unwrap().len() <= 5000);
}

#[test]
fn stopping_reports_earlier_disk_full_error() {
    let full = "to /dev/full has already stopped: No space left on device (os error 28)";
    let (daemon, control) = start_with(&[("trace", json!({ "file": "/dev/full" }))]);
    connect(&daemon).ok(Op::Nop, 0, 0x1f, &[]);
    until("the end of the trace", || hcactl_json(&control, "devices")[0]["trace"].is_null().then_some(()));
    assert_eq!(hcactl(&control, &["trace", "off"]).unwrap_err(), format!("hcactl: the trace {full}\n"));
    assert_eq!(hcactl(&control, &["trace", "off"]).unwrap_err(), "hcactl: no trace is running\n");

    let (_daemon, control) = start_with(&[("capture", json!("/dev/full"))]);
    until("the end of the capture", || {
        hcactl_json(&control, "devices")[0]["capture"].is_null().then_some(())
    });
    assert_eq!(hcactl(&control, &["capture", "off"]).unwrap_err(), format!("hcactl: the capture {full}\n"));
}

#[test]
fn trace_stops_at_size_limit() {
    let (mut daemon, control) = start_with(&[("trace_max_bytes", json!(1000))]);
    let mut guest = connect(&daemon);
    let file = daemon.folder.path().join("x.trace");
    let name = file.to_str().unwrap();
    hcactl(&control, &["trace", "on", name]).unwrap();
    (0..100).for_each(|_| guest.ok(Op::Nop, 0, 0x1f, &[]));
    let line = daemon.wait_for_line("trace stopped");
    assert!(line.contains("size limit of 1000 bytes"), "{line}");
    let error = hcactl(&control, &["trace", "off"]).unwrap_err();
    assert_eq!(
        error,
        format!("hcactl: the trace to {name} has already stopped: size limit of 1000 bytes reached\n")
    );
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.ends_with('\n') && (1000..1300).contains(&text.len()), "{}", text.len());
}

#[test]
fn impairments_can_be_changed_at_run_time() {
    let (_daemon, control) = start();
    let add =
        ["impair", "add", "tx", "--qpn", "0x12", "--opcode", "READ response middle", "--nth", "3", "drop"];
    assert_eq!(hcactl(&control, &add).unwrap(), "1\n");
    let add =
        ["impair", "add", "rx", "--probability", "0.01", "--seed", "7", "delay", "500", "--jitter-us", "100"];
    assert_eq!(hcactl(&control, &add).unwrap(), "2\n");
    let rules: Value =
        serde_json::from_str(&hcactl(&control, &["--json", "impair", "list"]).unwrap()).unwrap();
    assert_eq!(
        rules,
        json!([
            {
                "id": 1, "matched": 0, "hits": 0,
                "rule": {
                    "direction": "tx", "action": "drop", "qpn": 18, "opcode": "READ response middle", "nth": 3
                },
            },
            {
                "id": 2, "matched": 0, "hits": 0,
                "rule": {
                    "direction": "rx", "action": { "delay": { "us": 500, "jitter_us": 100 } },
                    "probability": 0.01, "seed": 7
                },
            },
        ])
    );
    let text = hcactl(&control, &["impair", "list"]).unwrap();
    assert!(text.contains("QP 0x12, READ response middle  #3") && text.contains("p=0.01 seed 7"), "{text}");

    let error = hcactl(&control, &["impair", "add", "tx", "--opcode", "SEND", "drop"]).unwrap_err();
    assert_eq!(error, "hcactl: opcode: is not an opcode name from IBTA volume 1, table 38\n");
    hcactl(&control, &["impair", "clear", "1"]).unwrap();
    let error = hcactl(&control, &["impair", "clear", "1"]).unwrap_err();
    assert_eq!(error, "hcactl: impairment 1 does not exist\n");
    hcactl(&control, &["impair", "clear"]).unwrap();
    assert_eq!(hcactl(&control, &["--json", "impair", "list"]).unwrap(), "[]\n");
}

#[test]
fn peers_can_be_changed_at_run_time() {
    let (_daemon, control) = start();
    let peers = || -> Value {
        serde_json::from_str(&hcactl(&control, &["--json", "peer", "list"]).unwrap()).unwrap()
    };
    assert_eq!(peers(), json!([]));
    let nic = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let addr = nic.local_addr().unwrap().to_string();
    let mac = "52:54:00:00:00:07";
    let add = ["peer", "add", &addr, "--mac", mac, "--leaf", "--max-frames-per-second", "100"];
    assert_eq!(hcactl(&control, &add).unwrap(), "");
    assert_eq!(
        peers(),
        json!([{
            "addr": addr, "leaf": true, "macs": [mac], "rx_frames": 0, "rx_over_rate": 0, "rx_foreign_mac": 0,
            "tx_frames": 0
        }])
    );
    assert_eq!(hcactl(&control, &add).unwrap_err(), format!("hcactl: {addr} is already a peer\n"));
    let wrong = ["peer", "add", "127.0.0.1:9", "--mac", "01:00:00:00:00:00"];
    let error = hcactl(&control, &wrong).unwrap_err();
    assert_eq!(error, "hcactl: mac: 01:00:00:00:00:00 is not a unicast address\n");

    hcactl(&control, &["peer", "remove", &addr]).unwrap();
    assert_eq!(peers(), json!([]));
    let error = hcactl(&control, &["peer", "remove", &addr]).unwrap_err();
    assert_eq!(error, format!("hcactl: {addr} is not a peer\n"));
    let text = hcactl(&control, &["peer", "list"]).unwrap();
    assert!(text.starts_with("ADDRESS"), "{text}");
}

#[test]
fn connection_survives_invalid_request() {
    let (_daemon, control) = start();
    let mut stream = UnixStream::connect(&control).unwrap();
    let nested = [b'['; 4000];
    for line in [
        &b""[..],
        b"{",
        b"{}",
        b"\xff\xfe",
        b"\0",
        b"devices",
        br#"{"reboot":{}}"#,
        br#"{"devices":{"x":1}}"#,
        br#"{"list":{"device":1,"table":"qps","from":1e99}}"#,
        br#"{"counters":{"device":2}}"#,
        &nested,
    ] {
        assert!(ask(&mut stream, line)["error"].is_string(), "{}", line.escape_ascii());
    }
    assert!(ask(&mut stream, br#"{"devices":{}}"#)["devices"].is_array());
}

#[test]
fn oversized_request_closes_only_its_connection() {
    let (_daemon, control) = start();
    let mut stream = UnixStream::connect(&control).unwrap();
    // The write fails if the daemon has already closed the connection.
    let _ = stream.write_all(&vec![b'x'; 8 << 20]);
    let mut answer = Vec::new();
    // The daemon closes the connection with unread bytes pending, so the read may fail after the response.
    let _ = stream.read_to_end(&mut answer);
    assert!(answer.starts_with(br#"{"error":"request exceeds"#));
    assert!(hcactl(&control, &["devices"]).is_ok());
}

#[test]
fn silent_clients_do_not_block_others() {
    let (_daemon, control) = start();
    let mut silent: Vec<_> = (0..16).map(|_| UnixStream::connect(&control).unwrap()).collect();
    until("a free slot", || hcactl(&control, &["devices"]).ok());
    assert_eq!(
        silent[0].read(&mut [0]).unwrap(),
        0,
        "the client that has been silent the longest is disconnected"
    );
}

#[test]
fn unreachable_daemon_error_mentions_socket() {
    let error = hcactl("/nonexistent/control.sock".as_ref(), &["devices"]).unwrap_err();
    assert!(error.starts_with("hcactl: cannot connect to /nonexistent/control.sock: "), "{error}");
}
