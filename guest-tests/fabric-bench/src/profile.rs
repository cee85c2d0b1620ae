//! Breaks down the CPU time of devices and drivers by the stages of a 64-byte SEND. perf(1) takes samples, and the
//! symbols in a sample determine its stage. The measured programs contain no instrumentation.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};

use crate::Cli;
use crate::endpoint::Spent;
use crate::fabric::Bench;
use crate::pair::{Place, Wire};
use crate::report::{Figure, Figures, Reference, print};
use crate::runs::nanos_each;

/// Number of samples per second, for each thread.
const FREQUENCY: &str = "4000";
const SECONDS: &str = "4";
const QPS: usize = 16;
const MESSAGES: u32 = 100_000;

/// Name of each thread, followed by the name that the reported figures use for it.
const THREADS: [(&str, &str); 4] = [
    ("hca1", "sender_device"),
    ("hca2", "receiver_device"),
    ("fabric-bench", "sender_driver"),
    ("driver2", "receiver_driver"),
];

/// Stages of samples taken in user space, each with substrings of symbols. A sample belongs to the first stage that
/// matches its innermost symbol. An inlined function counts as part of its caller.
const STAGES: &[(&str, &[&str])] = &[
    ("doorbell", &["card::vfio", "doorbell", "jingzhao::ring", "vfio_user::", "agent::vfio"]),
    ("fetch", &["next_send", "next_recv", "send_queue", "recv_queue", "queue_start", "::wqe"]),
    (
        "completion",
        &["completion", "entry_ring", "::notify", "cqe", "report_events", "event_queue", "hca::cq"],
    ),
    ("contexts", &["ctxmgt", "jingzhao::resources"]),
    ("memory", &["card::memory", "vm_memory"]),
    ("wire", &["card::net", "card::fabric", "hca::frames", "protocol::", "crc32", "quinn_udp"]),
    ("engine", &["engine::"]),
    ("copy", &["memmove", "memcpy", "memset"]),
    ("driver", &["agent::", "fabric_bench::"]),
    ("turn", &["device::", "card::", "jingzhao::", "hcr::"]),
    ("allocation", &["malloc", "_int_free", "cfree", "realloc", "alloc::"]),
];

/// Stages of samples taken in the kernel. The substrings are matched against all kernel symbols in the call chain.
const KERNEL_STAGES: &[(&str, &[&str])] = &[
    ("doorbell", &["unix_stream", "unix_poll"]),
    ("wire", &["udp_", "udpv6_", "inet_send", "inet_recv", "sock_wfree"]),
    ("sleep", &["epoll", "nanosleep", "futex", "schedule", "do_idle", "eventfd"]),
];

const REST: &str = "rest";

/// Number of samples by thread and stage.
type Samples = BTreeMap<String, BTreeMap<&'static str, u64>>;

pub(crate) fn measure(cli: &Cli, wire: Wire, figures: &mut Figures) -> Result<()> {
    let folder = tempfile::tempdir().context("cannot create a directory for sockets")?;
    let mut bench =
        Bench::start(Place { folder: folder.path(), wire, records: None, infix: "", metrics: None })?;
    // Warm up first.
    bench.rate(QPS, MESSAGES)?;
    let data = cli.pictures.join(format!("perf-{}.data", wire.title().split(',').next().unwrap_or_default()));
    std::fs::create_dir_all(&cli.pictures)?;
    let ids = [std::process::id(), bench.nodes[0].daemon().id(), bench.nodes[1].daemon().id()];
    let ids = ids.map(|id| id.to_string()).join(",");
    let mut perf = Command::new("perf");
    perf.args(["record", "-q", "-g", "-F", FREQUENCY, "-p", &ids, "-o"]).arg(&data);
    let spawned = perf.args(["--", "sleep", SECONDS]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut perf = match spawned {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            print("perf is not installed, so no profile is made; run 'apt-get install linux-perf'");
            return Ok(());
        }
        other => other.context("cannot start perf")?,
    };
    let (mut messages, mut spent) = (0, [Spent::default(); 2]);
    let ended = loop {
        if let Some(status) = perf.try_wait()? {
            break status;
        }
        let ran = bench.rate(QPS, MESSAGES)?;
        messages += ran.messages;
        for (sum, ran) in spent.iter_mut().zip(ran.spent) {
            sum.driver += ran.driver;
            sum.device += ran.device;
        }
    };
    ensure!(
        ended.success(),
        "perf record exited with {ended}; set /proc/sys/kernel/perf_event_paranoid to 1 or lower"
    );
    let samples = group(&script(&data)?);
    let times = [spent[0].device, spent[1].device, spent[0].driver, spent[1].driver];
    for ((thread, name), time) in THREADS.into_iter().zip(times) {
        let name = format!("{}profile_send_64b_{name}", wire.prefix());
        add(figures, &name, samples.get(thread), time, messages);
    }
    Ok(())
}

/// Adds figures for a thread's CPU time, both in total and per stage.
#[expect(clippy::cast_precision_loss, reason = "a share of samples")]
fn add(
    figures: &mut Figures,
    name: &str,
    stages: Option<&BTreeMap<&'static str, u64>>,
    time: Duration,
    messages: u64,
) {
    let Some(stages) = stages else { return };
    let total = nanos_each(time, messages);
    let all: u64 = stages.values().sum();
    let whole = Reference { name: format!("{name}_ns").into(), value: total };
    figures.add(Figure::new(format!("{name}_ns"), "ns", &[total], &whole));
    let mut stages: Vec<_> = stages.iter().collect();
    stages.sort_by_key(|&(_, &count)| std::cmp::Reverse(count));
    for (stage, &count) in stages {
        let part = total * count as f64 / all as f64;
        figures.add(Figure::new(format!("{name}_{stage}_ns"), "ns", &[part], &whole));
    }
}

/// Returns the samples as text. Each sample consists of a line with the thread's name, one line for each symbol,
/// innermost first, and an empty line.
fn script(data: &Path) -> Result<String> {
    let mut perf = Command::new("perf");
    perf.args(["script", "--no-inline", "-F", "comm,ip,sym", "-i"]).arg(data).stderr(Stdio::null());
    let output = perf.output().context("cannot start perf")?;
    ensure!(output.status.success(), "perf script: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn group(text: &str) -> Samples {
    let mut samples = Samples::new();
    for sample in text.split("\n\n") {
        let mut lines = sample.lines().filter(|line| !line.is_empty());
        let Some(thread) = lines.next() else { continue };
        let symbols: Vec<_> = lines.filter_map(Symbol::parse).collect();
        let count = samples.entry(thread.trim().to_owned()).or_default().entry(stage(&symbols)).or_default();
        *count += 1;
    }
    samples
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Symbol<'a> {
    is_kernel: bool,
    name: &'a str,
}

impl<'a> Symbol<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (address, name) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
        let address = u64::from_str_radix(address, 16).ok()?;
        // Only kernel addresses have the highest bit set.
        Some(Self { is_kernel: address >> 63 == 1, name })
    }
}

/// Returns the stage of a sample. `symbols` lists the sample's symbols, innermost first.
fn stage(symbols: &[Symbol<'_>]) -> &'static str {
    let fits = |symbol: &Symbol<'_>, parts: &[&str]| parts.iter().any(|part| symbol.name.contains(part));
    let Some(innermost) = symbols.first() else { return REST };
    let found = if innermost.is_kernel {
        let in_kernel = || symbols.iter().take_while(|symbol| symbol.is_kernel);
        KERNEL_STAGES.iter().find(|(_, parts)| in_kernel().any(|symbol| fits(symbol, parts)))
    } else {
        STAGES.iter().find(|(_, parts)| fits(innermost, parts))
    };
    found.map_or(REST, |(stage, _)| stage)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "hca1 \n\tffffffff81a23456 unix_stream_read_generic\n\tffffffff81a20000 __x64_sys_recvmsg\n\
        \t    55d0c0de0000 card::vfio::server::input::Input::read\n\n\
        hca1 \n\t    55d0c0de1000 <engine::qp::requester::Requester as X>::next\n\n\
        driver2 \n\t    55d0c0de2000 agent::hca::cq::Cq::consume\n\n\
        hca1 \n\t    7f00c0de1000 __memmove_avx512_unaligned_erms\n\n";

    #[test]
    fn samples_are_grouped_by_thread_and_stage() {
        let samples = group(TEXT);
        let hca1 = BTreeMap::from([("doorbell", 1), ("engine", 1), ("copy", 1)]);
        let driver2 = BTreeMap::from([("completion", 1)]);
        assert_eq!(samples, BTreeMap::from([("hca1".into(), hca1), ("driver2".into(), driver2)]));
    }

    #[test]
    fn first_matching_stage_is_selected() {
        let user = |name| [Symbol { is_kernel: false, name }];
        let fetch = "jingzhao::host::<impl hcr::host::Queues for jingzhao::resources::Resources>::next_send";
        for (name, expected) in [
            (fetch, "fetch"),
            ("card::hca::frames::<impl card::hca::Hca<F>>::transmit_roce", "wire"),
            ("card::memory::translate::Segments<P>::locate", "memory"),
            ("device::worker::Worker<F>::turn", "turn"),
            ("something", REST),
        ] {
            assert_eq!(stage(&user(name)), expected, "{name}");
        }
        assert_eq!(stage(&[]), REST);
    }

    #[test]
    fn kernel_symbols_are_recognised_by_address() {
        let symbol = Symbol::parse("\tffffffff81a23456 do_epoll_wait").unwrap();
        assert_eq!(symbol, Symbol { is_kernel: true, name: "do_epoll_wait" });
        assert_eq!(stage(&[symbol]), "sleep");
        assert_eq!(Symbol::parse("hca1"), None);
    }
}
