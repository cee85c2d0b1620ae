//! The kernel's own network driver selftests (`tools/testing/selftests/drivers/net`), from the guest kernel's source.
//! The remote end is a second NIC in the same guest, in a network namespace.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use super::station::{bring_up, device, load, shape, strict_card};
use crate::daemon::{Daemon, HcaSpec, free_udp_ports};
use crate::lab::{Guest, Lab};
use crate::qemu::{Nic, NicModel};
use crate::report::Report;
use crate::run_dir::RunDir;
use crate::scenario::e810::package::Package;
use crate::scenario::nic::station::Address;
use crate::scenario::rxe_interop::mac;
use crate::testbed::kind::Device;
use crate::vm::Vm;

/// Timeout for each program.
const LIMIT: Duration = Duration::from_secs(3600);
/// Network namespace for the remote end.
const REMOTE: &str = "remote";
/// Network for the containers that some tests create.
const PREFIX: &str = "fd82::/64";
/// Directory in the guest that contains the sources.
const SOURCES: &str = "/sources";
/// Directories that contain the programs, below `tools/testing/selftests`.
const FOLDERS: [&str; 2] = ["drivers/net", "drivers/net/hw"];
/// Number of CPUs, and thus of queues. Some tests need ten queues, and others need eight queues and two extra CPUs.
const CPUS: u32 = 10;
/// Minimum number of tests that must pass on a ConnectX. There is no minimum for the other NICs.
const LEAST_PASSED: usize = 65;

/// Makes the programs parse YAML with libyaml. The pure Python parser takes half a minute in an emulated guest.
const FAST_YAML: &str = "import yaml\nyaml.safe_load = lambda text: yaml.load(text, yaml.CSafeLoader)\n";

/// Programs to skip, with the reason.
const LEFT_OUT: &[Known] = &[
    Known { tests: &["devmem_lib.py"], nics: ALL, kernel: "", reason: "this is a library, not a program" },
    Known {
        tests: &["gro.py"],
        nics: ALL,
        kernel: "6.12",
        reason: "it tests the software GRO of the default kernel, whose rules differ from those of older kernels",
    },
    Known {
        tests: &["iou-zcrx.py"],
        nics: ALL,
        kernel: "",
        reason: "it needs liburing 2.10, which is newer than the stable release's",
    },
    Known { tests: &["netpoll_basic.py"], nics: ALL, kernel: "", reason: "it needs bpftrace" },
    Known {
        tests: &["rss_flow_label.py"],
        nics: &["e810"],
        kernel: "",
        // See ice_parse_hash_flds in ice/ice_ethtool.c. The test counts CPUs, not queues. It can count two CPUs for
        // a single queue, because a queue's first interrupt often reaches a different CPU than later interrupts.
        reason: "ice accepts the flow label as a hash field but ignores it, so the test passes only by chance",
    },
    Known {
        tests: &["toeplitz.py"],
        nics: &["connectx"],
        kernel: "6.12",
        // See mlx5e_tir_builder_build_rss in mlx5/core/en/tir.c.
        reason: "it expects a hash that is not symmetric, but the driver always selects a symmetric one and does not report it",
    },
];

/// Messages that programs print instead of results if they cannot test this device or this kernel.
const NOT_STARTED: &[&str] = &[
    "KsftSkipEx",
    "Test not started",
    "not supported by the kernel",
    "devlink output is empty, test skipped",
];

/// Names of all NICs.
const ALL: &[&str] = &["connectx", "e810", "virtio"];

/// Tests that fail for reasons unrelated to the device. To keep the list current, it is also an error if a listed test
/// passes.
const KNOWN: &[Known] = &[
    Known {
        tests: &["drivers/net/hds.py hds.set_hds_disable"],
        nics: &["connectx"],
        kernel: "",
        // See rings_fill_reply in net/ethtool/rings.c and _hds_reset in hds.py.
        reason: "the clean-up reads tcp-data-split, which the kernel omits while the user has not set it",
    },
    Known {
        tests: &["drivers/net/gro.py gro.test.sw_ipv4_data_lrg_1byte"],
        nics: &["connectx", "e810"],
        kernel: "",
        // See inet_gro_receive in net/ipv4/af_inet.c.
        reason: "the NIC pads the frame to 60 bytes, and the kernel does not merge a packet that is shorter than its frame",
    },
    Known {
        tests: &[
            "drivers/net/gro.py gro.test_gro_capacity.sw_isolated",
            "drivers/net/xdp.py xdp.test_xdp_native_qstats.",
            "drivers/net/hw/ntuple.py",
            "drivers/net/hw/rss_ctx.py rss_ctx.test_rss_key_indir",
            "drivers/net/hw/rss_ctx.py rss_ctx.test_rss_context",
            "drivers/net/hw/rss_ctx.py rss_ctx.test_rss_ntuple_addition",
            "drivers/net/hw/rss_ctx.py rss_ctx.test_rss_default_context_rule",
            "drivers/net/hw/tso.py",
        ],
        nics: &["e810"],
        kernel: "",
        reason: "ice has no netdev_stat_ops, so it has no queue statistics",
    },
    Known {
        tests: &[
            "drivers/net/hw/rss_api.py rss_api.test_rxfh_nl_set_indir_ctx",
            "drivers/net/hw/rss_api.py rss_api.test_rxfh_indir_ctx_ntf",
            "drivers/net/hw/rss_api.py rss_api.test_rss_ctx_",
            "drivers/net/hw/rss_ctx.py rss_ctx.test_delete_rss_context_busy",
        ],
        nics: &["e810"],
        kernel: "",
        // See ice_ethtool_ops in ice/ice_ethtool.c. Linux 6.12's ice_set_rxfh returns EOPNOTSUPP.
        reason: "ice has no create_rxfh_context, so it cannot add RSS contexts",
    },
    Known {
        tests: &[
            "drivers/net/hw/rss_api.py rss_api.test_rxfh_nl_set_indir",
            "drivers/net/hw/rss_api.py rss_api.test_rxfh_nl_set_key",
            "drivers/net/hw/rss_api.py rss_api.test_rxfh_fields_",
        ],
        nics: &["e810"],
        kernel: "",
        // ice_set_rxfh in ice/ice_ethtool.c tests one bit of input_xfrm, which is also set in RXH_XFRM_NO_CHANGE. The
        // default input sets in ice/ice_lib.c hash the TEID of GTP, which ethtool_rxfh_config_is_sym in
        // net/ethtool/common.c does not accept.
        reason: "any change of RSS makes ice's hash symmetric, and the kernel then rejects changes over netlink",
    },
    Known {
        tests: &["drivers/net/hw/xsk_reconfig.py xsk_reconfig.check_rx_resize"],
        nics: &["e810"],
        kernel: "",
        // See ice_set_ringparam in ice/ice_ethtool.c.
        reason: "ice does not resize the rings while an AF_XDP socket uses one of them",
    },
    Known {
        tests: &["drivers/net/hw/nk_qlease.py"],
        nics: &["e810"],
        kernel: "",
        reason: "ice has no queue_mgmt_ops, so it cannot lease queues",
    },
    Known {
        tests: &["drivers/net/hw/nic_timestamp.py"],
        nics: &["e810"],
        kernel: "",
        // See ice_ptp_hwtstamp_get in ice/ice_ptp.c.
        reason: "the device has no PTP, so the driver answers requests for its time stamps with EIO",
    },
    Known {
        tests: &[
            "drivers/net/xdp.py xdp.test_xdp_native_qstats.drop_",
            "drivers/net/xdp.py xdp.test_xdp_native_qstats.tx_",
        ],
        nics: &["connectx"],
        kernel: "",
        // See mlx5e_get_queue_stats_rx in mlx5/core/en_main.c and mlx5e_complete_rx_cqe in mlx5/core/en_rx.c.
        reason: "the driver does not count packets that XDP drops or sends in the queue's statistics",
    },
    Known {
        tests: &[
            "drivers/net/hw/nk_qlease.py nk_qlease.test_iou_zcrx",
            "drivers/net/hw/nk_qlease.py nk_qlease.test_attach_xdp_with_mp",
            "drivers/net/hw/nk_qlease.py nk_qlease.test_destroy",
        ],
        nics: &["connectx"],
        kernel: "",
        // See mlx5e_ethtool_set_tcp_data_split in mlx5/core/en_ethtool.c.
        reason: "the driver splits headers only with hardware GRO, which the device does not have",
    },
    Known {
        tests: &["drivers/net/stats.py stats.check_pause"],
        nics: &["e810"],
        kernel: "6.12",
        reason: "ice has no get_pause_stats",
    },
    Known {
        tests: &[
            "drivers/net/hw/toeplitz.py toeplitz.test.rss_",
            "drivers/net/hw/toeplitz.py toeplitz.test.rps_",
        ],
        nics: &["e810"],
        kernel: "6.12",
        // See ice_vsi_req_irq_msix in ice/ice_main.c.
        reason: "ice only hints at the CPUs of its interrupts, and the test needs interrupts that are bound to one CPU",
    },
    Known {
        tests: &["drivers/net/hds.py hds.enabled_set_xdp", "drivers/net/hds.py hds.ioctl_enabled_set_xdp"],
        nics: &["connectx"],
        kernel: "6.12",
        // See supported_ring_params of mlx5e_ethtool_ops in mlx5/core/en_ethtool.c.
        reason: "the test expects that the driver accepts a setting of tcp-data-split",
    },
    Known {
        tests: &[
            "drivers/net/xdp.py xdp.test_xdp_native_pass_",
            "drivers/net/xdp.py xdp.test_xdp_native_drop_",
            "drivers/net/xdp.py xdp.test_xdp_native_tx_",
            "drivers/net/xdp.py xdp.test_xdp_native_adjst_",
            "drivers/net/xdp.py xdp.test_xdp_native_qstats.",
        ],
        nics: ALL,
        kernel: "6.12",
        reason: "the BPF program calls bpf_xdp_pull_data, which the kernel does not have",
    },
    Known {
        tests: &[
            "drivers/net/hw/rss_api.py rss_api.test_rxfh_nl_set_indir",
            "drivers/net/hw/rss_api.py rss_api.test_rxfh_indir_",
            "drivers/net/hw/rss_api.py rss_api.test_rxfh_nl_set_key",
            "drivers/net/hw/rss_api.py rss_api.test_rxfh_fields",
            "drivers/net/hw/rss_api.py rss_api.test_rss_ctx_",
            "drivers/net/hw/rss_ctx.py rss_ctx.test_hitless_key_update",
        ],
        nics: ALL,
        kernel: "6.12",
        reason: "the kernel does not set RSS over netlink, and sends no notifications of changes",
    },
    Known {
        tests: &[
            "drivers/net/hw/rss_ctx.py rss_ctx.test_rss_context_dump",
            "drivers/net/hw/rss_ctx.py rss_ctx.test_rss_context_persist_",
        ],
        nics: &["connectx"],
        kernel: "6.12",
        // See ethtool_rxfh_ctx_alloc in net/ethtool/ioctl.c.
        reason: "the kernel reports RXH_XFRM_NO_CHANGE as the input transformation, which the test cannot decode",
    },
    Known {
        tests: &["drivers/net/hw/rss_ctx.py rss_ctx.test_flow_add_context_missing"],
        nics: &["connectx"],
        kernel: "6.12",
        // See flow_get_tirn in mlx5/core/en_fs_ethtool.c.
        reason: "the driver reports a missing context as ENOENT, and the test expects EINVAL",
    },
    Known {
        tests: &["drivers/net/hw/nk_qlease.py"],
        nics: ALL,
        kernel: "6.12",
        reason: "the kernel does not lease queues to netkit",
    },
    Known {
        tests: &["drivers/net/napi_threaded.py", "drivers/net/queues.py queues.check_xsk"],
        nics: ALL,
        kernel: "6.12",
        reason: "the kernel does not report whether a NAPI has a thread or whether a queue has an AF_XDP socket",
    },
    Known {
        tests: &["drivers/net/napi_threaded.py"],
        nics: &["virtio"],
        kernel: "",
        reason: "the test needs two queues, and QEMU's NIC has one on this network",
    },
    Known {
        tests: &[
            "drivers/net/hw/rss_api.py rss_api.test_rxfh_nl_set_key",
            "drivers/net/hw/rss_api.py rss_api.test_rxfh_fields_",
            "drivers/net/hw/rss_api.py rss_api.test_rss_ctx_ntf",
            "drivers/net/hw/rss_ctx.py rss_ctx.test_hitless_key_update",
            "drivers/net/hw/toeplitz.py",
        ],
        nics: &["virtio"],
        kernel: "",
        reason: "QEMU's NIC does not hash received packets on this network, and the tests do not skip themselves",
    },
    Known {
        tests: &["drivers/net/hw/irq.py irq.check_irqs_reported"],
        nics: &["virtio"],
        kernel: "",
        // See virtnet_napi_enable in drivers/net/virtio_net.c.
        reason: "the driver does not call netif_napi_set_irq, so the kernel cannot report interrupts",
    },
];

/// Tests whose time limits an emulated guest may exceed. Each entry has a prefix of test names and the text that such a
/// test prints when it exceeds its limit. The tests must not fail for any other reason.
const TIMED: &[(&str, &str)] = &[
    // The kernel must merge 64 KiB bursts before `gro_flush_timeout` expires.
    ("drivers/net/gro.py gro.test.sw_ipv4_large_", "incorrect number of packets"),
    ("drivers/net/gro.py gro.test.sw_ipv6_large_", "incorrect number of packets"),
    ("drivers/net/gro.py gro.test.sw_ipip_large_", "incorrect number of packets"),
    ("drivers/net/gro.py gro.test.sw_ip6ip6_large_", "incorrect number of packets"),
    // Every test in this program measures when packets arrive.
    ("drivers/net/so_txtime.py", ""),
    ("drivers/net/hw/rss_ctx.py rss_ctx.test_hitless_key_update", "total_seconds(), 0.15)"),
    ("drivers/net/hw/toeplitz.py", "too few frames for verification"),
];

/// Tests that fail on some NICs, or programs to skip.
struct Known {
    /// Names of tests or programs, or prefixes of test names.
    tests: &'static [&'static str],
    nics: &'static [&'static str],
    /// Prefix of the kernel release.
    kernel: &'static str,
    reason: &'static str,
}

/// The NICs under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Nics {
    Cards(Device),
    /// QEMU's own NICs. If a test fails here as well, the device is not at fault.
    Virtio,
}

impl Nics {
    const fn name(self) -> &'static str {
        match self {
            Self::Cards(hca) => hca.name(),
            Self::Virtio => "virtio",
        }
    }
}

/// Returns whether a test failed only because the host is too slow.
fn exceeds_time(test: &str, messages: &str) -> bool {
    TIMED.iter().any(|(beginning, text)| test.starts_with(beginning) && messages.contains(text))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped,
    Failed,
}

pub(in super::super) async fn run(lab: &Lab, report: &mut Report, nics: Nics) -> Result<()> {
    let run = lab.new_run(&format!("{}-kselftest", nics.name()))?;
    let hint = format!("console output, logs and the output of all programs: {}", run.path().display());
    let mut bench = Bench::start(lab, &run, nics).await.context(hint.clone())?;
    report.case_within(LIMIT, "both NICs and the tests are ready", &hint, bench.prepare()).await?;
    let mut log = File::create(run.file("selftests.log"))?;
    for program in bench.programs().await? {
        report.case_within(LIMIT, &program, &hint, bench.passes(&program, &mut log)).await?;
    }
    let counts = [Outcome::Passed, Outcome::Skipped, Outcome::Failed]
        .map(|outcome| bench.outcomes.values().filter(|found| **found == outcome).count());
    let title = format!("{} tests passed, {} skipped themselves, {} failed", counts[0], counts[1], counts[2]);
    let enough = async {
        let is_control = nics != Nics::Cards(Device::Connectx);
        ensure!(is_control || counts[0] >= LEAST_PASSED, "expected at least {LEAST_PASSED}");
        Ok(())
    };
    report.case(&title, &hint, enough).await?;
    report.case("the daemons exit cleanly on SIGTERM", &hint, bench.stop()).await
}

struct Bench {
    vm: Vm,
    daemon: Option<Daemon>,
    nics: Nics,
    /// Network device under test.
    device: String,
    /// Release of the guest kernel.
    kernel: String,
    outcomes: BTreeMap<String, Outcome>,
}

impl Bench {
    async fn start(lab: &Lab, run: &RunDir, nics: Nics) -> Result<Self> {
        let image = lab.self_test_image(run).await?;
        let disks = vec![lab.self_tests().await?];
        let guest = Guest { disks, least_cpus: CPUS, ..shape("a") };
        let (guest, daemon) = match nics {
            Nics::Cards(hca) => {
                let specs = HcaSpec::pair()?.map(|spec| strict_card(hca, lab, spec));
                let hcad = tokio::process::Command::new(lab.hcad()?);
                let daemon = Daemon::start_by(hcad, &specs, run).await?;
                (Guest { cards: daemon.sockets().to_vec(), ..guest }, Some(daemon))
            }
            Nics::Virtio => {
                let [one, other] = free_udp_ports()?;
                let nic = |id, bind, peer| Nic { model: NicModel::Virtio, mac: mac(id), bind, peer };
                (Guest { nics: vec![nic(1, one, other), nic(2, other, one)], ..guest }, None)
            }
        };
        let vm = lab.boot(run, &image, guest).await?;
        Ok(Self { vm, daemon, nics, device: String::new(), kernel: String::new(), outcomes: BTreeMap::new() })
    }

    async fn prepare(&mut self) -> Result<()> {
        let vm = &mut self.vm;
        match self.nics {
            Nics::Cards(Device::E810) => {
                Package::Synthetic.install(vm).await?;
                load(vm, &["ice"]).await?;
            }
            Nics::Cards(_) => load(vm, &["mlx5_core"]).await?,
            Nics::Virtio => load(vm, &["virtio_net"]).await?,
        }
        self.kernel = vm.run(&["uname", "-r"]).await?;
        self.device = device(vm, 1).await?;
        let remote = device(vm, 2).await?;
        bring_up(vm, &self.device, &Address::on(0, 1)).await?;
        let Address { ipv4, ipv6 } = Address::on(0, 2);
        let (device, local_ipv6) = (&self.device, Address::on(0, 1).ipv6);
        // Keep IPv6 addresses when programs take links down.
        let line = format!(
            "sysctl -qw net.ipv6.conf.all.keep_addr_on_down=1 && ip netns add {REMOTE} && ip link set {remote} netns {REMOTE} && \
             ip -n {REMOTE} address add {ipv4}/24 dev {remote} && \
             ip -n {REMOTE} address add {ipv6}/64 dev {remote} nodad && \
             ip -n {REMOTE} link set {remote} up && ip -n {REMOTE} link set lo up && \
             mkdir -p /mnt {SOURCES} && mount -o ro /dev/vdc /mnt && cp -r /mnt/* {SOURCES} && \
             ip -n {REMOTE} route add {PREFIX} via {local_ipv6} && modprobe pppoe && \
             {{ ethtool -K {device} ntuple on || true; }} && \
             for i in $(seq 60); do ping -c 1 -W 1 {ipv4} && ping -c 1 -W 1 {ipv6} && break; done"
        );
        self.sh(&line).await?;
        self.sh(&format!("cat > {SOURCES}/sitecustomize.py <<'END'\n{FAST_YAML}END\n")).await.map(drop)
    }

    /// Returns the Python programs to run.
    async fn programs(&mut self) -> Result<Vec<String>> {
        let mut all = Vec::new();
        for folder in FOLDERS {
            let line = format!("cd {SOURCES}/tools/testing/selftests/{folder} && ls *.py");
            let names = self.sh(&line).await?;
            let is_out =
                |name: &str| LEFT_OUT.iter().any(|out| out.tests.contains(&name) && self.matches(out));
            let wanted = names.lines().filter(|name| !is_out(name));
            all.extend(wanted.map(|name| format!("{folder}/{name}")));
        }
        Ok(all)
    }

    /// Runs a program and compares its test results with the expected ones.
    async fn passes(&mut self, program: &str, log: &mut File) -> Result<()> {
        let (local, remote) = (Address::on(0, 1), Address::on(0, 2));
        let line = format!(
            "env HOME=/tmp PYTHONPATH={SOURCES} NETIF={} LOCAL_V4={} LOCAL_V6={} REMOTE_V4={} REMOTE_V6={} \
             LOCAL_PREFIX_V6={PREFIX} REMOTE_TYPE=netns REMOTE_ARGS={REMOTE} python3 {SOURCES}/tools/testing/selftests/{program}",
            self.device, local.ipv4, local.ipv6, remote.ipv4, remote.ipv6
        );
        let end = self.vm.program(LIMIT, &line).await?;
        writeln!(log, "{program}: {:?}\n{}{}", end.status, end.stdout, end.stderr)?;
        // A test prints its messages before its result.
        let (mut found, mut messages) = (Vec::new(), String::new());
        for line in end.stdout.lines() {
            match parse(program, line) {
                Some((name, outcome)) => found.push((name, outcome, std::mem::take(&mut messages))),
                None => messages.push_str(line),
            }
        }
        let skips_itself =
            NOT_STARTED.iter().any(|text| end.stdout.contains(text) || end.stderr.contains(text));
        if found.is_empty() && !skips_itself {
            let no_results = || format!("no results: {}{}", end.stdout, end.stderr);
            let reason = self.known_failure(program).with_context(no_results)?;
            writeln!(log, "{program} stops before its first test because {reason}")?;
            self.outcomes.insert(program.to_owned(), Outcome::Failed);
        }
        let mut wrong = Vec::new();
        for (name, outcome, messages) in found {
            match (outcome, self.known_failure(&name)) {
                (Outcome::Skipped, _) | (Outcome::Passed, None) => {}
                (Outcome::Failed, Some(reason)) => writeln!(log, "{name} fails because {reason}")?,
                (Outcome::Failed, None) if exceeds_time(&name, &messages) => {
                    writeln!(log, "{name} exceeded its time limit")?;
                }
                (Outcome::Failed, None) => wrong.push(format!("{name} failed")),
                (Outcome::Passed, Some(_)) => wrong.push(format!("{name} passed, but is listed as failing")),
            }
            self.outcomes.insert(name, outcome);
        }
        ensure!(wrong.is_empty(), "unexpected results: {wrong:#?}\n{}{}", end.stdout, end.stderr);
        Ok(())
    }

    /// Returns the known reason, if any, why a test fails with the guest's NICs and kernel.
    fn known_failure(&self, test: &str) -> Option<&'static str> {
        let is_it = |known: &&Known| {
            known.tests.iter().any(|beginning| test.starts_with(beginning)) && self.matches(known)
        };
        KNOWN.iter().find(is_it).map(|known| known.reason)
    }

    /// Returns whether `known` applies to the guest's NICs and kernel.
    fn matches(&self, known: &Known) -> bool {
        known.nics.contains(&self.nics.name()) && self.kernel.starts_with(known.kernel)
    }

    async fn sh(&mut self, line: &str) -> Result<String> {
        self.vm.run_within(LIMIT, &["sh", "-c", line]).await
    }

    async fn stop(mut self) -> Result<()> {
        self.vm.kill().await?;
        match self.daemon {
            Some(daemon) => daemon.stop().await,
            None => Ok(()),
        }
    }
}

/// Parses a result line of the Kernel Test Anything Protocol (KTAP). Returns the test's name and its outcome.
fn parse(program: &str, line: &str) -> Option<(String, Outcome)> {
    let (rest, ok) = match line.strip_prefix("not ok ") {
        Some(rest) => (rest, false),
        None => (line.strip_prefix("ok ")?, true),
    };
    let (_, rest) = rest.split_once(' ')?;
    let (name, directive) = rest.split_once(" # ").unwrap_or((rest, ""));
    let outcome = match (ok, directive.split(' ').next()) {
        (_, Some("SKIP" | "XFAIL")) => Outcome::Skipped,
        (true, _) => Outcome::Passed,
        (false, _) => Outcome::Failed,
    };
    Some((format!("{program} {}", name.trim()), outcome))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exceeded_time_limit_excuses_failure() {
        let exceeds = |messages| exceeds_time("drivers/net/hw/toeplitz.py toeplitz.test.tcp_ipv4", messages);
        assert!(exceeds("# Exception|  toeplitz: too few frames for verification"));
        assert!(!exceeds("# Exception|  cpu 8: rx_hash 0x13d5b526 ERROR"));
    }

    #[test]
    fn ktap_result_lines_are_parsed() {
        let found = |line| parse("hw/x.py", line);
        let named = |outcome| Some(("hw/x.py x.test_a".to_owned(), outcome));
        assert_eq!(found("ok 1 x.test_a"), named(Outcome::Passed));
        assert_eq!(found("ok 2 x.test_a # SKIP no device"), named(Outcome::Skipped));
        assert_eq!(found("not ok 3 x.test_a"), named(Outcome::Failed));
        assert_eq!(found("# Check| x"), None);
    }
}
