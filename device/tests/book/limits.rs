//! The table of limits: what drivers are told, what configurations and processes can have.
//!
//! Structures are taken apart whole, so that a new limit does not compile until it is listed.

use std::fmt::{Display, Write as _};

use device::frontend::count::Count;
use device::frontend::{e810, jingzhao, mthca};
use device::memory::limits as memory;
use protocol::hca::jingzhao::caps::DevLim as JingzhaoLimits;
use protocol::hca::mthca::caps::DevLim as MthcaLimits;

const HEAD: &str = "# Limits

<!-- Made by `HCAD_UPDATE_BOOK=1 cargo test -p device --test book` from the code. -->

All limits that a device reports to its driver or enforces. A key without a dot belongs to `limits` in the device's options.
*Silicon* is the limit of the real part, where its documents or drivers state it. The last column is the result of exceeding the
limit. A refused command is also a log line, at the limited rate of all lines that a guest can cause. `hcad_commands_total` counts it
by status.
";

/// Completion of an operation of the E810's control queue.
const INVALID: &str = "major FFFFh, minor 2 (invalid)";
const EXISTS: &str = "major FFFFh, minor 4 (exists)";
const NO_ROOM: &str = "major FFFFh, minor 5 (no room)";
/// Status of an admin command.
const NO_SPACE: &str = "ENOSPC";
/// The driver counts for itself.
const DRIVER: &str = "refused by the driver";
/// It is no limit of the device.
const MODULE_PARAMETER: &str = "the driver sizes its table by a module parameter instead";
const PROFILE: &str = "the public driver uses constants instead; INIT_HCA rejects counts that exceed the width of a number: 03h";
const UNUSED: &str = "not enforced, and unused by the driver";
/// There is no key for it.
const FIXED: &str = "";
const UNKNOWN: &str = "";

pub(crate) fn page() -> String {
    let mut page = Page(HEAD.to_owned());
    rdma(&mut page);
    nic(&mut page);
    mthca(&mut page);
    jingzhao(&mut page);
    process(&mut page);
    page.0
}

struct Page(String);

impl Page {
    fn table(&mut self, title: &str, about: &str) {
        let _ = write!(
            self.0,
            "\n## {title}\n\n{about}\n\n| limit | default | key | range | silicon | the next one |\n\
             | --- | --- | --- | --- | --- | --- |\n"
        );
    }

    fn row(&mut self, what: &str, default: impl Display, key: &str, range: &str, silicon: &str, next: &str) {
        let key = if key.is_empty() { String::new() } else { format!("`{key}`") };
        let _ = writeln!(self.0, "| {what} | {default} | {key} | {range} | {silicon} | {next} |");
    }

    /// A count with a key.
    fn count<const MIN: u8, const MAX: u8>(
        &mut self,
        what: &str,
        key: &str,
        count: Count<MIN, MAX>,
        silicon: &str,
        next: &str,
    ) {
        let [least, most] = Count::<MIN, MAX>::RANGE.map(|count| power(count.into()));
        self.row(what, power(count.get().into()), key, &format!("{least} to {most}"), silicon, next);
    }

    /// A count whose exponent the driver is told, and that has no key.
    fn log(&mut self, what: &str, log: u8, silicon: &str, next: &str) {
        self.row(what, power(1 << log), FIXED, "", silicon, next);
    }
}

/// As people read it.
fn power(count: u64) -> String {
    if count.is_power_of_two() && count > 4096 { format!("2^{}", count.ilog2()) } else { count.to_string() }
}

fn rdma(page: &mut Page) {
    let e810::Options { queues: _, vectors: _, rdma: _, link_speed: _, limits } = e810::Options::default();
    let e810::limits::Limits { max_qps, max_cqs, max_regions, max_pbles, max_arp_entries, max_ahs } = limits;
    page.table("E810: RDMA", "The driver reads them by \"query FPM\" (operation 20h).");
    page.count("queue pairs, three of which the driver keeps", "max_qps", max_qps, "2^18", INVALID);
    page.count("completion queues", "max_cqs", max_cqs, "2^19", INVALID);
    page.count(
        "memory regions and windows",
        "max_regions",
        max_regions,
        "2^24 by the bits of a STag",
        EXISTS,
    );
    page.count("PBLEs: pages of registered memory", "max_pbles", max_pbles, "2^28", NO_ROOM);
    let full =
        format!("{INVALID}; the full table is `arp_table_full` in log, `explain` and `hcad_ignored_total`");
    page.count("neighbours", "max_arp_entries", max_arp_entries, "4096 by the bits of an index", &full);
    page.count("address handles", "max_ahs", max_ahs, "2^24 by the bits of a number", INVALID);
    page.row("multicast groups", "as queue pairs", FIXED, "", "8192 by the bits of a number", INVALID);
    let ceqs = e810::limits::MAX_CEQS;
    page.row("completion event queues", ceqs, FIXED, "", "1024 by the bits of a number", INVALID);
    let long = "event 132h; from a peer, NAK \"invalid request\"";
    page.row("bytes of a message", e810::limits::MAX_MESSAGE, FIXED, "", "2147483647", long);
}

fn nic(page: &mut Page) {
    use e810::limits::{
        DEVICE_FILTERS, DEVICE_VSIS, FUNCTION_FILTERS, FUNCTION_VSIS, MAX_COUNTER_BLOCKS, MAX_LISTS,
        MAX_PROFILES, MAX_TCAM_ENTRIES,
    };
    let e810::Options { queues, vectors, rdma: _, link_speed: _, limits: _ } = e810::Options::default();
    page.table(
        "E810: NIC",
        "The driver reads them from capabilities (000Ah, 000Bh) and from the reply to 0208h.",
    );
    let most = format!("1 to {}", e810::options::Queues::MAX);
    page.row("queue pairs", queues.get(), "e810.queues", &most, "2048", "EINVAL");
    page.row("MSI-X vectors", vectors.get(), "e810.vectors", "4 to 2048", "2048", "no such register");
    page.row("bytes of a frame", e810::link::MAX_FRAME, FIXED, "", "9728", "dropped: `oversize`");
    let vsis = format!("{FUNCTION_VSIS}, {DEVICE_VSIS}");
    page.row("VSIs of the function, of the device", vsis, FIXED, "", "768", NO_SPACE);
    page.row("lists of VSIs, of each kind", MAX_LISTS, FIXED, "", UNKNOWN, NO_SPACE);
    let filters = format!("{FUNCTION_FILTERS}, {DEVICE_FILTERS}");
    page.row("flow director filters of the function, of the device", filters, FIXED, "", UNKNOWN, NO_SPACE);
    page.row("blocks of counters for them", MAX_COUNTER_BLOCKS, FIXED, "", UNKNOWN, NO_SPACE);
    page.row("profiles, of each kind", MAX_PROFILES, FIXED, "", UNKNOWN, NO_SPACE);
    page.row("TCAM entries, of each kind", MAX_TCAM_ENTRIES, FIXED, "", UNKNOWN, NO_SPACE);
}

fn mthca(page: &mut Page) {
    let mthca::limits::LimitsEntry {
        max_qps,
        max_cqs,
        max_srqs,
        max_mpts,
        max_wqes,
        max_srq_wqes,
        max_cqes,
        max_rd_atomic,
        max_gids,
        max_pkeys,
        uar_mib,
        max_send_sges,
        max_recv_sges,
    } = mthca::limits::LimitsEntry::default();
    page.table("mthca", "The driver reads them by QUERY_DEV_LIM.");
    page.count("queue pairs", "max_qps", max_qps, UNKNOWN, MODULE_PARAMETER);
    page.count("completion queues", "max_cqs", max_cqs, UNKNOWN, MODULE_PARAMETER);
    page.count("shared receive queues", "max_srqs", max_srqs, UNKNOWN, DRIVER);
    page.count("memory regions", "max_mpts", max_mpts, UNKNOWN, MODULE_PARAMETER);
    page.count("work requests of a queue", "max_wqes", max_wqes, UNKNOWN, DRIVER);
    page.count(
        "work requests of a shared receive queue",
        "max_srq_wqes",
        max_srq_wqes,
        UNKNOWN,
        "EXCEED_LIM",
    );
    page.count("entries of a completion queue", "max_cqes", max_cqes, UNKNOWN, "EXCEED_LIM");
    page.count("READs and atomics under way", "max_rd_atomic", max_rd_atomic, UNKNOWN, DRIVER);
    page.count("GIDs", "max_gids", max_gids, UNKNOWN, DRIVER);
    page.count("P_Keys", "max_pkeys", max_pkeys, UNKNOWN, DRIVER);
    page.count("MiB of UAR pages", "uar_mib", uar_mib, UNKNOWN, DRIVER);
    page.row("elements of a gather list", max_send_sges, "max_send_sges", "4 to 30", UNKNOWN, DRIVER);
    page.row("elements of a scatter list", max_recv_sges, "max_recv_sges", "4 to 30", UNKNOWN, DRIVER);
    let told = MthcaLimits::RECOMMENDED;
    page.log("event queues", told.log_max_eqs, "64", "BAD_INDEX");
    page.log("bytes of a region", told.log_max_mr_len, UNKNOWN, UNUSED);
    page.log("MTT segments", told.log_max_mtt_segments, UNKNOWN, UNUSED);
    page.log("READs and atomics of a peer", told.log_max_responder_resources, UNKNOWN, UNUSED);
    page.log("multicast groups", told.log_max_groups, UNKNOWN, UNUSED);
    page.log("queue pairs of a group", told.log_max_group_qps, UNKNOWN, UNUSED);
    page.log("protection domains", told.log_max_pds, UNKNOWN, DRIVER);
    page.row("bytes of context memory", power(told.max_icm_len), FIXED, "", UNKNOWN, DRIVER);
}

fn jingzhao(page: &mut Page) {
    let jingzhao::limits::LimitsEntry {
        max_qps,
        max_cqs,
        max_eqs,
        max_mpts,
        max_pds,
        max_wqes,
        max_cqes,
        max_send_sges,
        max_send_wqe_len,
        max_recv_sges,
        max_recv_wqe_len,
        reserved_qps,
        max_icm_len,
    } = jingzhao::limits::LimitsEntry::default();
    page.table("JingZhao", "The driver reads them by QUERY_DEV_LIM. Silicon is the public RTL.");
    page.count("queue pairs", "max_qps", max_qps, "2^14", PROFILE);
    page.count("completion queues", "max_cqs", max_cqs, "2^13", PROFILE);
    page.count("event queues", "max_eqs", max_eqs, "32", PROFILE);
    page.count("memory regions", "max_mpts", max_mpts, "2^14", PROFILE);
    page.count("protection domains", "max_pds", max_pds, "4096", DRIVER);
    page.count("work requests of a queue", "max_wqes", max_wqes, "2^13", DRIVER);
    page.count("entries of a completion queue", "max_cqes", max_cqes, "2^13", "03h");
    let fits = "what a WQE holds";
    page.row("elements of a gather list", max_send_sges, "max_send_sges", fits, "16", DRIVER);
    page.row("bytes of a send WQE", max_send_wqe_len, "max_send_wqe_len", "16 to 1008", "512", DRIVER);
    page.row("elements of a scatter list", max_recv_sges, "max_recv_sges", fits, "16", DRIVER);
    page.row("bytes of a receive WQE", max_recv_wqe_len, "max_recv_wqe_len", "16 to 4096", "512", DRIVER);
    page.count("queue pairs left alone by the driver", "reserved_qps", reserved_qps, "2", DRIVER);
    let icm = power(max_icm_len.get());
    page.row("bytes of context memory", icm, "max_icm_len", "from 1", UNKNOWN, DRIVER);
    let told = JingzhaoLimits::RECOMMENDED;
    page.log("GIDs", told.log_max_gids, "1", DRIVER);
    page.log("P_Keys", told.log_max_pkeys, "2", "03h");
}

fn process(page: &mut Page) {
    page.table("Guest memory", "Per device, except for the last. [Guest memory that fails](inside/guest-memory.md#what-a-vmm-may-map) has more.");
    page.row("files", memory::MAX_FILES, FIXED, "", "", NO_SPACE);
    page.row("ranges, after merging", memory::MAX_WINDOWS, FIXED, "", "", NO_SPACE);
    page.row("bytes of files", power(memory::DEFAULT_BYTES), "guest_memory.max_gib", "", "", "ENOMEM");
    let all = power(memory::MAX_BYTES_OF_ALL);
    page.row("bytes of files of all devices", all, FIXED, "", "", "the device is refused");
}
