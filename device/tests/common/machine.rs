//! A daemon with one JingZhao HCA, and the HCA's driver, for tests that transfer data between processes.

use std::path::{Path, PathBuf};

use drivers::Bus as _;
use drivers::jingzhao::{self, Driver, Queues, cqc, data_unit, region, remote_unit, signalled};
use protocol::hca::jingzhao::mpt::MptFlags;
use protocol::hca::jingzhao::qpc::Qpc;
use protocol::ids::{Lid, Qpn};
use serde_json::{Value, json};

use super::{Daemon, Guest, hcactl, hcad, until};

/// Size of guest memory in bytes. Pages are allocated on first use.
const MEMORY: u64 = 0x2000_0000;
const PAGE: u64 = 0x1000;

/// Base address of the queues, one page per QP, and the offset of each queue within its page.
const QUEUES: u64 = 0x200_0000;
const SQ: u64 = 0;
const RQ: u64 = 0x400;
const CQ: u64 = 0x800;
const LOG_CQES: u8 = 5;
/// Number of work requests in the send queue.
const SLOTS: u32 = 8;
/// Number of QPs in each process.
const QPS: u32 = 20;
const FIRST_QPN: u32 = 16;

/// The memory region for messages: bus address, length, key, page table index and virtual address.
const DATA: u64 = 0x400_0000;
const DATA_LEN: u32 = 4 << 20;
const DATA_KEY: u32 = 0xf0;
const DATA_MTT: u64 = 64;
const VA: u64 = 0x7f00_0000_0000;

pub(crate) const WRITE: u8 = 0x08;
const SEND: u8 = 0x0a;

/// A daemon with one HCA, and the HCA's driver.
pub(crate) struct Machine {
    // The driver is declared before the daemon, so that it disconnects first.
    driver: Driver<Guest>,
    pub(crate) daemon: Daemon,
    pub(crate) control: PathBuf,
}

impl Machine {
    /// Starts a daemon with device `id` on the given fabric and with the extra top-level configuration keys in `more`.
    pub(crate) fn start(id: u16, fabric: &Value, more: &[(&str, Value)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (socket, control) = (folder.path().join("hca.sock"), folder.path().join("control.sock"));
        let device = json!({
            "id": id,
            "socket_path": socket,
            "frontend": { "jingzhao": {} },
            "fabric": fabric,
        });
        let config = folder.path().join("hcad.json");
        let mut text = json!({ "control_socket": control, "devices": [device] });
        for (key, value) in more {
            text[key] = value.clone();
        }
        std::fs::write(&config, text.to_string()).unwrap();
        let mut command = hcad();
        command.arg("--config").arg(config);
        let mut daemon = Daemon::of(command.spawn().unwrap(), folder, socket);
        let line = daemon.wait_for_line("sandbox active: ");
        assert!(line.contains("seccomp"), "{line}");
        daemon.wait_for_line("ready");
        let driver = drive(&daemon.socket);
        Self { driver, daemon, control }
    }

    /// Connects QP `n` to QP `n` of another process.
    pub(crate) fn connect(&mut self, n: u32, peer: u16) {
        let (sq, rq, cq) = (3 * n + 1, 3 * n + 2, 3 * n + 3);
        let driver = &mut self.driver;
        driver.poke(page(n) + CQ, &[0x80; 32 << LOG_CQES]);
        driver.register(&region(sq, n.into(), SQ, 0x400, MptFlags::empty()));
        driver.register(&region(rq, n.into(), RQ, 0x400, MptFlags::empty()));
        driver.register(&region(cq, n.into(), CQ, 0x400, MptFlags::LOCAL_WRITE));
        driver.create_cq(&cqc(n, cq, LOG_CQES));
        // The local ACK timeout is 8.6 s (IBTA volume 1, section 9.7.6.1.3). With seven retries, a QP fails only if its
        // peer does not run for more than a minute.
        let mut qpc = Qpc {
            mtu: 5,
            ack_timeout: 21,
            remote_qpn: Qpn::new(FIRST_QPN + n),
            dlid: Lid::new(peer),
            ..jingzhao::qpc(n, [sq, rq], 0x400)
        };
        qpc.set_retry_count(7);
        driver.connect(FIRST_QPN + n, &qpc);
    }

    pub(crate) fn send(&mut self, n: u32, slot: u32, opcode: u8, units: &[Vec<u8>]) {
        self.driver.post_send(&queues(n), slot, opcode, &signalled(&units.concat()));
    }

    fn post_recv(&mut self, n: u32, slot: u32, at: u64, len: u32) {
        self.driver.post_recv(&queues(n), slot, &data_unit(DATA_KEY, VA + at, len));
    }

    fn fill(&mut self, at: u64, bytes: &[u8]) {
        self.driver.poke(DATA + at, bytes);
    }

    fn data(&mut self, at: u64, len: usize) -> Vec<u8> {
        self.driver.peek(DATA + at, len)
    }

    /// Waits for a completion on QP `n` and returns its syndrome.
    fn completion(&mut self, n: u32, index: u64) -> u8 {
        until("a completion", || {
            let entry = self.driver.peek(page(n) + CQ + 32 * index, 32);
            (entry[0x1f] == 0).then(|| drivers::syndrome(&entry))
        })
    }

    /// Runs `hcactl` and returns its JSON output.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Value {
        let text = hcactl(&self.control, &[&["--json"], arguments].concat()).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn fabric(&self, counter: &str) -> u64 {
        self.ask(&["counters"])["fabric"][counter].as_u64().unwrap()
    }

    pub(crate) fn signal(&self, signal: libc::c_int) {
        let pid = libc::pid_t::try_from(self.daemon.child.id()).unwrap();
        // SAFETY: sends a signal to a child that has not been reaped, so its process ID is still valid.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    }
}

/// Returns the driver for an initialised device with a memory region for messages.
fn drive(socket: &Path) -> Driver<Guest> {
    let mut driver = Driver::new(Guest::attach(socket, MEMORY));
    driver.enable();
    driver.initialise(4);
    driver.write_mtt(0, (0..QPS).map(page));
    driver.write_mtt(DATA_MTT, (0..u64::from(DATA_LEN) / PAGE).map(|page| DATA + page * PAGE));
    let rights = MptFlags::LOCAL_WRITE | MptFlags::REMOTE_WRITE;
    driver.register(&region(DATA_KEY, DATA_MTT, VA, DATA_LEN.into(), rights));
    driver
}

fn page(n: u32) -> u64 {
    QUEUES + u64::from(n) * PAGE
}

fn queues(n: u32) -> Queues {
    Queues { qpn: FIRST_QPN + n, page: 1, sq: page(n) + SQ, rq: page(n) + RQ }
}

/// Returns the WQE segments of a WRITE from the start of the local region to offset `at` in the peer's region.
pub(crate) fn write_to(at: u64, len: u32) -> [Vec<u8>; 2] {
    [remote_unit(DATA_KEY, VA + at), data_unit(DATA_KEY, VA, len)]
}

/// Returns a byte pattern that depends on `seed`.
fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..).map(|at: u32| (at ^ seed).wrapping_mul(0x9e37_79b1).to_le_bytes()[3]).take(len).collect()
}

/// Transfers messages of several lengths by SEND and a 1 MiB message by WRITE. QP `n` must be unused.
pub(crate) fn exchange(from: &mut Machine, to: &mut Machine, n: u32) {
    const AT: u64 = 2 << 20;
    let lens = [1, 64, 4096, 4097, 100_000];
    for (slot, len) in (0..).zip(lens) {
        let bytes = pattern(n << 8 | slot, len);
        let len = u32::try_from(len).unwrap();
        from.fill(0, &bytes);
        to.post_recv(n, slot, AT, len);
        from.send(n, slot, SEND, &[data_unit(DATA_KEY, VA, len)]);
        assert_eq!(from.completion(n, slot.into()), 0, "the SEND of {len} bytes succeeds");
        assert_eq!(to.completion(n, slot.into()), 0);
        assert_eq!(to.data(AT, bytes.len()), bytes);
    }
    let bytes = pattern(n, 1 << 20);
    from.fill(0, &bytes);
    from.send(n, 5, WRITE, &write_to(AT, 1 << 20));
    assert_eq!(from.completion(n, 5), 0, "the WRITE succeeds");
    assert_eq!(to.data(AT, bytes.len()), bytes);
}

/// Writes message `number` of an endless series on QP `n` and verifies its contents.
pub(crate) fn write_message(from: &mut Machine, to: &mut Machine, n: u32, number: u32) {
    const AT: u64 = 3 << 20;
    const LEN: u32 = 10_000;
    let bytes = pattern(number, LEN as usize);
    from.fill(0, &bytes);
    from.send(n, number % SLOTS, WRITE, &write_to(AT, LEN));
    let index = u64::from(number % (1 << LOG_CQES));
    assert_eq!(from.completion(n, index), 0, "WRITE {number} succeeds");
    assert!(to.data(AT, bytes.len()) == bytes, "WRITE {number} transfers its data");
    // Return the entry to the device.
    from.driver.poke(page(n) + CQ + 32 * index + 31, &[0x80]);
}
