//! Tests the output of `hcactl` (counters, lists, `top`) and the Prometheus metrics for several devices in one process.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::common::{Daemon, TIMEOUT, hcactl, hcactl_command, hcactl_program, hcad, until};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Starts a daemon with HCAs 1 and 2 on a local network. Also returns the path of its control socket.
fn start() -> (Daemon, PathBuf) {
    let (command, folder) = command(&[]);
    let (socket, control) = (folder.path().join("1.sock"), folder.path().join("control.sock"));
    (Daemon::ready(command, folder, socket), control)
}

/// Returns a command that starts a daemon with HCAs 1 and 2 and the extra configuration keys in `more`.
fn command(more: &[(&str, Value)]) -> (Command, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let device = |id: u16, interface: &str| {
        json!({
            "id": id, "frontend": { interface: {} }, "fabric": { "local": { "network": "n" } },
            "socket_path": path(&format!("{id}.sock")),
        })
    };
    let mut config = json!({
        "devices": [device(1, "jingzhao"), device(2, "mthca")],
        "control_socket": path("control.sock"),
    });
    for (key, value) in more {
        config[key] = value.clone();
    }
    std::fs::write(path("hcad.json"), config.to_string()).unwrap();
    let mut command = hcad();
    command.arg("--config").arg(path("hcad.json"));
    (command, folder)
}

/// Starts a daemon that serves metrics on a free TCP port.
fn start_with_metrics() -> (Daemon, SocketAddr) {
    let (mut command, folder) = command(&[("metrics", json!("127.0.0.1:0"))]);
    let socket = folder.path().join("1.sock");
    let mut daemon = Daemon::of(command.spawn().unwrap(), folder, socket);
    let line = daemon.wait_for_line("serving metrics");
    let address = line.trim().rsplit_once("address=").unwrap().1.parse().unwrap();
    let confined = daemon.wait_for_line("sandbox active: ");
    assert!(confined.contains("seccomp"), "{confined}");
    daemon.wait_for_line("ready");
    (daemon, address)
}

/// Sends a request and returns the head and body of the response.
fn exchange(mut stream: impl Read + Write, request: &str) -> (String, String) {
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

const GET: &str = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: text/plain\r\n\r\n";

/// Returns the value of a sample in the text format.
fn sample(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

#[test]
fn commands_without_device_option_show_all_devices() {
    let (_daemon, control) = start();
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&hcactl(&control, &[&["--json"], arguments].concat()).unwrap()).unwrap()
    };
    let all = json(&["counters"]);
    assert_eq!(all.as_object().unwrap().keys().collect::<Vec<_>>(), ["1", "2"]);
    assert_eq!(
        json(&["counters", "--device", "2"]),
        all["2"],
        "the output for one device is not keyed by ID"
    );
    assert_eq!(json(&["--device", "2", "--device", "1", "--device", "2", "counters"]), all);

    let text = hcactl(&control, &["counters"]).unwrap();
    assert!(text.starts_with("COUNTER "), "{text}");
    let line = |name: &str| {
        text.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().collect::<Vec<_>>()
    };
    assert_eq!(line("COUNTER"), ["COUNTER", "DEVICE-1", "DEVICE-2"]);
    assert_eq!(line("engine.sent_packets"), ["engine.sent_packets", "0", "0"]);
    assert_eq!(
        line("frontend.jingzhao.ctxmgt.ceu_parser.maps")[1..],
        ["0", "-"],
        "device 2 has no such counter"
    );

    assert_eq!(json(&["qps"]), json!([]));
    assert!(hcactl(&control, &["qps"]).unwrap().starts_with("DEVICE  QPN "));
    assert!(hcactl(&control, &["--device", "1", "qps"]).unwrap().starts_with("QPN "));
    assert_eq!(
        hcactl(&control, &["--device", "1", "--device", "7", "counters"]).unwrap_err(),
        "hcactl: cannot read the counters of device 7: device 7 does not exist\n"
    );
    let error = hcactl(&control, &["--device", "1", "--device", "2", "port", "down"]).unwrap_err();
    assert_eq!(error, "hcactl: hcad is serving several devices; select one of these with --device: 1, 2\n");
}

#[test]
fn counter_watch_ends_when_output_closes() {
    let (_daemon, control) = start();
    let mut command = hcactl_command(&control);
    command.args(["--json", "counters", "--watch", "0.1"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    for _ in 0..3 {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let sample: Value = serde_json::from_str(&line).unwrap();
        assert!(sample["seconds"].as_f64().unwrap() >= 0.1, "{sample}");
        for device in ["1", "2"] {
            assert_eq!(sample["counters"][device]["engine"]["sent_packets"], 0);
            assert_eq!(sample["per_second"][device]["engine"]["sent_packets"], 0.0);
        }
    }
    drop(output);
    assert!(child.wait().unwrap().success());

    let mut error = String::new();
    let mut command = Command::new(hcactl_program());
    let mut child = command.args(["counters", "--watch", "0"]).stderr(Stdio::piped()).spawn().unwrap();
    child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert!(!child.wait().unwrap().success() && error.contains("must be at least 0.1 s"), "{error}");
}

#[test]
fn prometheus_scrape_returns_all_devices() {
    let (daemon, address) = start_with_metrics();
    // On a loaded host, a device may not respond in time and is then reported down.
    let (head, text) = until("a response from both devices", || {
        let (head, text) = exchange(TcpStream::connect(address).unwrap(), GET);
        let is_up = |line: &&str| line.starts_with("hcad_device_up{") && line.ends_with(" 1");
        (text.lines().filter(is_up).count() == 2).then_some((head, text))
    });
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    assert!(head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", text.len())), "{head}");
    let is = |name: &str, value: f64| assert_eq!(sample(&text, name), Some(value), "{name}\n{text}");
    is(r#"hcad_device_up{device="1",interface="jingzhao"}"#, 1.0);
    is(r#"hcad_device_up{device="2",interface="mthca"}"#, 1.0);
    is(r#"hcad_port_up{device="1"}"#, 1.0);
    is(r#"hcad_vmm_connected{device="1"}"#, 0.0);
    is(r#"hcad_queue_pairs{device="2",state="rts"}"#, 0.0);
    is(r#"hcad_send_request_duration_seconds_count{device="2"}"#, 0.0);
    is(r#"hcad_command_duration_seconds_bucket{device="1",le="+Inf"}"#, 0.0);
    let is_some = |name: &str, least: f64| assert!(sample(&text, name).unwrap() >= least, "{name}\n{text}");
    is_some("process_resident_memory_bytes", 500_000.0);
    is_some("process_open_fds", 8.0);
    is_some("process_max_fds", 64.0);
    is_some("process_start_time_seconds", 1e9);

    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: a\r\n\r\n", "404 Not Found"),
        ("DELETE /metrics HTTP/1.1\r\nHost: a\r\n\r\n", "405 Method Not Allowed"),
        ("{\"devices\":{}}\n\r\n\r\n", "400 Bad Request"),
        (
            &*format!("GET /metrics HTTP/1.1\r\nA: {}", "a".repeat(4096 - 26)),
            "431 Request Header Fields Too Large",
        ),
    ] {
        let (head, _) = exchange(TcpStream::connect(address).unwrap(), request);
        assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{head}");
    }
    let head_only = GET.replace("GET", "HEAD");
    assert_eq!(exchange(TcpStream::connect(address).unwrap(), &head_only).1, "");
    drop(daemon);
}

#[test]
fn metrics_are_served_on_unix_socket() {
    let apart = tempfile::tempdir().unwrap();
    let metrics = apart.path().join("metrics.sock");
    let (command, folder) = command(&[("metrics", json!(metrics))]);
    let socket = folder.path().join("1.sock");
    let daemon = Daemon::ready(command, folder, socket);
    let (_, text) = exchange(UnixStream::connect(&metrics).unwrap(), GET);
    assert!(text.contains("\nhcad_device_up{device=\"1\","), "{text}");
    drop(daemon);
}

#[test]
fn silent_metrics_clients_time_out() {
    let (_daemon, address) = start_with_metrics();
    let mut silent: Vec<_> = (0..32).map(|_| TcpStream::connect(address).unwrap()).collect();
    for stream in &mut silent {
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\nX: ");
    }
    let (head, _) = exchange(TcpStream::connect(address).unwrap(), GET);
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    for mut stream in silent {
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        // The daemon must close or reset the connection before the read times out.
        match stream.read(&mut [0]) {
            Ok(len) => assert_eq!(len, 0),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn top_prints_all_or_selected_devices() {
    let (_daemon, control) = start();
    let text = hcactl(&control, &["top", "--once", "--every", "0.1"]).unwrap();
    let lines: Vec<_> = text.lines().collect();
    assert!(lines[0].starts_with("hcad at ") && lines[0].ends_with("every 0.1 s"), "{text}");
    assert!(lines[1].starts_with("DEVICE INTERFACE STATE "), "{text}");
    assert!(lines[2].starts_with("1      jingzhao  no VMM "), "{text}");
    assert!(lines[3].starts_with("2      mthca     no VMM "), "{text}");
    assert_eq!(lines[4], "0 queue pairs, sorted by SENDS/s");
    let text = hcactl(&control, &["top", "--once", "--every", "0.1", "--device", "2"]).unwrap();
    assert!(text.lines().nth(2).unwrap().starts_with("2 "), "{text}");
    let error = hcactl(&control, &["top"]).unwrap_err();
    assert_eq!(error, "hcactl: standard output is not a terminal; use --once\n");
}
