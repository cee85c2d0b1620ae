//! A table of all scenarios. Each scenario is a sequence of cases that share the same guests.

mod boot;
mod cell;
mod codes;
mod connection;
mod connectx;
pub mod demo;
mod driver;
mod e810;
mod endpoint;
mod extent;
mod fabric_hosts;
mod fabric_mesh;
mod fabric_tap;
mod failing;
mod impairments;
mod jingzhao_errors;
mod jingzhao_events;
mod jingzhao_full;
mod jingzhao_interface;
mod jingzhao_probe;
mod jingzhao_rc;
mod jingzhao_services;
mod lab_tool;
mod leak;
mod mixed_fabric;
mod mthca;
mod namespace;
mod netboot;
mod operator;
mod pair;
mod perftest;
mod rdma_core_suite;
mod replay;
mod rxe_interop;
pub mod schedule;
pub mod shell;
mod speed_guests;
mod stock_pair;
mod torture;
mod transfer;
mod wire_rc;

use std::pin::Pin;
use std::time::Instant;

use anyhow::Result;

use self::extent::Extent;
pub(crate) use self::mthca::RECORDS_LENT_AGAIN;
use crate::lab::Lab;
use crate::report::Report;
use crate::testbed::kind::Device;
use crate::times;

/// A named group of cases.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// Name of the scenario on the command line.
    pub name: &'static str,
    /// Description that fits on one line.
    pub about: &'static str,
    /// Whether the scenario's guests are a pair with one HCA each.
    pair: bool,
    /// Whether the scenario must run alone, because other load would change its results. Such a scenario measures times
    /// or rates, or contains tests with fixed delays.
    alone: bool,
    run: Run,
}

type Run = for<'a> fn(&'a Lab, &'a mut Report) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// All scenarios, in the order of the help text.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "boot",
        about: "guests without an HCA boot and respond: a test of guest-lab itself",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(boot::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-probe",
        about: "a stock kernel enumerates the HCA as specified, without a warning",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_probe::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-rc",
        about: "RC traffic between two guests; every byte is compared at both ends",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_rc::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-errors",
        about: "errors return the exact status or syndrome, and affect no other QP",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_errors::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-events",
        about: "every event type arrives by MSI-X and is compared byte for byte; masks, arming, overflow",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_events::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-services",
        about: "UC, UD and atomics between two guests, also under loss; contexts in memory",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_services::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-interface",
        about: "the interface as drivers use it: queues, regions, registers, contexts, restarts",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_interface::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-full",
        about: "every form of every command and every QP transition, compared with the tables of the interface",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_full::run(lab, report)),
    },
    Scenario {
        name: "rxe-interop",
        about: "a JingZhao HCA and Linux's soft-RoCE exchange messages; every byte is compared at both ends",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(rxe_interop::run(lab, report, rxe_interop::Extent::Core)),
    },
    Scenario {
        name: "rxe-interop-full",
        about: "rxe-interop with every operation, path MTU and size; takes minutes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(rxe_interop::run(lab, report, rxe_interop::Extent::Full)),
    },
    Scenario {
        name: "rxe-ipv6",
        about: "rxe-interop with RoCEv2 over IPv6",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(rxe_interop::run(lab, report, rxe_interop::Extent::Ipv6)),
    },
    Scenario {
        name: "rxe-loss",
        about: "rxe-interop on a link that drops, duplicates, reorders, corrupts and ECN-marks frames",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(rxe_interop::loss::run(lab, report)),
    },
    Scenario {
        name: "fabric-mesh",
        about: "eight HCAs on one fabric, all pairs, over UDP and within one process; peers join and leave",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(fabric_mesh::run(lab, report)),
    },
    Scenario {
        name: "mthca-probe",
        about: "Debian's ib_mthca binds and shows every attribute as on hardware; reloads, restarts, recovery",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::probe::run(lab, report, Extent::Core)),
    },
    Scenario {
        name: "mthca-probe-full",
        about: "mthca-probe with 50 unload and load cycles; takes minutes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::probe::run(lab, report, Extent::Full)),
    },
    Scenario {
        name: "mthca-pingpong",
        about: "rdma-core's ping-pong programs between two guests with ib_mthca, with checked content",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::pingpong::run(lab, report, Extent::Core)),
    },
    Scenario {
        name: "mthca-pingpong-full",
        about: "mthca-pingpong with more sizes, path MTUs and GIDs; takes minutes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::pingpong::run(lab, report, Extent::Full)),
    },
    Scenario {
        name: "mthca-perftest",
        about: "perftest between two guests with ib_mthca: every operation and service",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::perftest::run(lab, report, Extent::Core)),
    },
    Scenario {
        name: "mthca-perftest-full",
        about: "mthca-perftest with all sizes, both directions and latencies; takes minutes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::perftest::run(lab, report, Extent::Full)),
    },
    Scenario {
        name: "mthca-doorbells",
        about: "ib_mthca with mapped doorbells: content, strict mode, and speed compared with trapped doorbells",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(mthca::doorbells::run(lab, report)),
    },
    Scenario {
        name: "mthca-pyverbs",
        about: "rdma-core's device tests in a guest with ib_mthca",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(mthca::pyverbs::run(lab, report)),
    },
    Scenario {
        name: "mthca-ipoib",
        about: "IPoIB, rdma_cm and infiniband-diags between two guests with ib_mthca",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::ipoib::run(lab, report)),
    },
    Scenario {
        name: "mthca-opensm",
        about: "opensm in a guest yields to the built-in subnet manager; traffic works even if opensm takes over",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::opensm::run(lab, report)),
    },
    Scenario {
        name: "mthca-errors",
        about: "errors under ib_mthca: status, event and kernel message as on hardware",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::errors::run(lab, report)),
    },
    Scenario {
        name: "strict-mthca",
        about: "strict mode reports each bug planted in a test driver, and nothing for a correct driver",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::strict::run(lab, report)),
    },
    Scenario {
        name: "strict-mthca-kernel",
        about: "strict mode reports each bug planted in Linux's ib_mthca, which is built from downloaded source",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::strict_kernel::run(lab, report)),
    },
    Scenario {
        name: "connectx-probe",
        about: "Debian's mlx5_core and mlx5_ib bind to two ConnectX; reloads, resets, recovery, restarts",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(connectx::probe::run(lab, report, connectx::probe::Extent::Core)),
    },
    Scenario {
        name: "connectx-reloads",
        about: "mlx5_core and mlx5_ib are unloaded and loaded 50 times, without leaking memory",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(connectx::probe::run(lab, report, connectx::probe::Extent::Reloads)),
    },
    Scenario {
        name: "connectx-pingpong",
        about: "rdma-core's ping-pong programs, XRC's too, between two guests with mlx5_ib, with checked content",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(connectx::pingpong::run(lab, report)),
    },
    Scenario {
        name: "connectx-perftest",
        about: "perftest between two guests with mlx5_ib: every operation and service",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(connectx::perftest::run(lab, report, connectx::perftest::Extent::Core)),
    },
    Scenario {
        name: "connectx-perftest-full",
        about: "connectx-perftest with all sizes, both directions and many queue pairs; takes minutes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(connectx::perftest::run(lab, report, connectx::perftest::Extent::Full)),
    },
    Scenario {
        name: "connectx-cm",
        about: "IPoIB in both modes, rdma_cm and subnet diagnostics between two guests with mlx5_ib",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(connectx::cm::run(lab, report)),
    },
    Scenario {
        name: "connectx-errors",
        about: "errors under mlx5_ib: status, event and kernel message; the driver is removed during traffic",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(connectx::errors::run(lab, report)),
    },
    Scenario {
        name: "connectx-storage",
        about: "NVMe and NFS over RDMA between two ConnectX with IPoIB addresses: content, fio, loss, server failure",
        pair: false,
        alone: false,
        run: |lab, report| {
            Box::pin(e810::storage::run(lab, report, Device::ConnectxIb, e810::storage::Extent::Core))
        },
    },
    Scenario {
        name: "connectx-storage-full",
        about: "NVMe, iSER and NFS with 512 MiB, minutes of fio and a killed server, and sockets, between two ConnectX",
        pair: false,
        alone: false,
        run: |lab, report| {
            Box::pin(e810::storage::run(lab, report, Device::ConnectxIb, e810::storage::Extent::Full))
        },
    },
    Scenario {
        name: "connectx-pyverbs",
        about: "rdma-core's device tests in a guest with mlx5_ib",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(connectx::pyverbs::run(lab, report)),
    },
    Scenario {
        name: "e810-probe",
        about: "Debian's ice binds to two E810s with each kind of DDP package; reloads, resets, restarts, link changes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::probe::run(lab, report, Extent::Core)),
    },
    Scenario {
        name: "e810-probe-full",
        about: "e810-probe with 50 unload and load cycles; takes minutes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::probe::run(lab, report, Extent::Full)),
    },
    Scenario {
        name: "e810-selftest",
        about: "the self-test of Debian's ice passes, online and offline; its loopback works",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::selftest::run(lab, report)),
    },
    Scenario {
        name: "dpdk",
        about: "DPDK's testpmd forwards frames between two E810s, and so connects two guests that use Debian's ice",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::dpdk::run(lab, report)),
    },
    Scenario {
        name: "netboot",
        about: "iPXE boots a guest over the E810 and the InfiniHost by DHCP and TFTP, and Linux then drives the card",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(netboot::run(lab, report)),
    },
    Scenario {
        name: "e810-rdma-probe",
        about: "Debian's irdma binds to an E810: active port, tools, GIDs, reloads, resets, link changes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::rdma_probe::run(lab, report)),
    },
    Scenario {
        name: "e810-pingpong",
        about: "rdma-core's ping-pong programs between two E810s with Debian's irdma, with checked content",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::pingpong::run(lab, report, Extent::Core)),
    },
    Scenario {
        name: "e810-pingpong-full",
        about: "e810-pingpong with more sizes and combinations; takes minutes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::pingpong::run(lab, report, Extent::Full)),
    },
    Scenario {
        name: "e810-cm",
        about: "rdma_cm between E810s and with soft-RoCE: streams, datagrams, multicast over IPv4, IPv6 and a VLAN",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::cm::run(lab, report, Extent::Core)),
    },
    Scenario {
        name: "e810-cm-full",
        about: "e810-cm with every program in every combination; takes minutes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::cm::run(lab, report, Extent::Full)),
    },
    Scenario {
        name: "e810-storage",
        about: "NVMe and NFS over RDMA between two E810s with stock software: content, fio, loss, server failure",
        pair: false,
        alone: false,
        run: |lab, report| {
            Box::pin(e810::storage::run(lab, report, Device::E810, e810::storage::Extent::Core))
        },
    },
    Scenario {
        name: "e810-storage-nvme",
        about: "NVMe over RDMA with 512 MiB, minutes of fio, and a server that is killed",
        pair: false,
        alone: false,
        run: |lab, report| {
            Box::pin(e810::storage::run(lab, report, Device::E810, e810::storage::Extent::Nvme))
        },
    },
    Scenario {
        name: "e810-storage-iser",
        about: "iSER with 512 MiB, minutes of fio, and a server that is killed",
        pair: false,
        alone: false,
        run: |lab, report| {
            Box::pin(e810::storage::run(lab, report, Device::E810, e810::storage::Extent::Iser))
        },
    },
    Scenario {
        name: "e810-storage-nfs",
        about: "NFS over RDMA with 512 MiB, minutes of fio, and a server that is killed",
        pair: false,
        alone: false,
        run: |lab, report| {
            Box::pin(e810::storage::run(lab, report, Device::E810, e810::storage::Extent::Nfs))
        },
    },
    Scenario {
        name: "e810-storage-sockets",
        about: "RDS and SMC sockets over RDMA between two E810s",
        pair: false,
        alone: false,
        run: |lab, report| {
            Box::pin(e810::storage::run(lab, report, Device::E810, e810::storage::Extent::Sockets))
        },
    },
    Scenario {
        name: "e810-storage-full",
        about: "all four e810-storage scenarios in the same guests",
        pair: false,
        alone: false,
        run: |lab, report| {
            Box::pin(e810::storage::run(lab, report, Device::E810, e810::storage::Extent::Full))
        },
    },
    Scenario {
        name: "e810-limits",
        about: "an E810 with 1,000 neighbours, 16 GiB of memory regions and 4 NVMe controllers with 8 queues each",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::limits::run(lab, report)),
    },
    Scenario {
        name: "e810-paths",
        about: "RoCE GIDs, traffic classes and UDP ports; address, MTU, link and driver changes during connections",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::paths::run(lab, report)),
    },
    Scenario {
        name: "e810-pyverbs",
        about: "rdma-core's device tests in a guest with an E810 and Debian's irdma",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(e810::pyverbs::run(lab, report)),
    },
    Scenario {
        name: "e810-errors",
        about: "errors between two E810s under irdma: status, event and kernel message",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::errors::run(lab, report)),
    },
    Scenario {
        name: "e810-net",
        about: "IP between E810s with Debian's ice and with a virtio NIC: sizes, MTUs, VLANs, multicast, bridges, queues",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::net::run(lab, report, e810::net::Extent::Good)),
    },
    Scenario {
        name: "e810-loss",
        about: "e810-net on a link that drops 1 % of the frames in each direction",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(e810::net::run(lab, report, e810::net::Extent::Lossy)),
    },
    Scenario {
        name: "e810-net-control",
        about: "e810-net between two virtio NICs, to distinguish lab faults from E810 faults",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::net::run(lab, report, e810::net::Extent::Control)),
    },
    Scenario {
        name: "e810-speed",
        about: "E810, virtio-net and e1000e in the same guests: throughput and round trips as ratios",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(e810::speed::run(lab, report, e810::speed::Extent::All)),
    },
    Scenario {
        name: "e810-round-trips",
        about: "e810-speed for round trips only, with more samples and the host's CPU time for each",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(e810::speed::run(lab, report, e810::speed::Extent::RoundTrips)),
    },
    Scenario {
        name: "e810-perftest",
        about: "perftest between two E810s with Debian's irdma: every operation and service",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::perftest::run(lab, report, Extent::Core)),
    },
    Scenario {
        name: "e810-perftest-full",
        about: "e810-perftest with all sizes, both directions, latencies and rdma_cm; takes minutes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::perftest::run(lab, report, Extent::Full)),
    },
    Scenario {
        name: "e810-middleware",
        about: "UCX, libfabric and Open MPI between two E810s with Debian's irdma, with checked content",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::middleware::run(lab, report, Extent::Core)),
    },
    Scenario {
        name: "e810-middleware-full",
        about: "e810-middleware with more sizes and combinations; takes minutes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::middleware::run(lab, report, Extent::Full)),
    },
    Scenario {
        name: "fabric-tap",
        about: "HCAs on tap interfaces: a bridge, a VXLAN, and the kernel's ping",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(fabric_tap::run(lab, report)),
    },
    Scenario {
        name: "fabric-hosts",
        about: "HCAs on three hosts, all pairs, over VXLAN and over WireGuard, with realistic MTUs",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(fabric_hosts::run(lab, report)),
    },
    Scenario {
        name: "operator",
        about: "devices are added, removed and changed while other guests of the process are running; hot-plug",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(operator::run(lab, report)),
    },
    Scenario {
        name: "mixed-fabric",
        about: "ib_mthca, JingZhao, E810, ConnectX and soft-RoCE on one fabric, all pairs, with verified content",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mixed_fabric::run(lab, report)),
    },
    Scenario {
        name: "lab-tool",
        about: "guest-lab's own commands: up, exec, cp, build, reload, logs, ci, down; nothing is left behind",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(lab_tool::run(lab, report, Extent::Core)),
    },
    Scenario {
        name: "lab-tool-full",
        about: "lab-tool, plus adding Debian packages to the guests, which are downloaded each time",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(lab_tool::run(lab, report, Extent::Full)),
    },
    Scenario {
        name: "wire-rc",
        about: "RC tested with single packets built by scapy: every fault of a link or a peer",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(wire_rc::run(lab, report)),
    },
    Scenario {
        name: "replay",
        about: "devices recorded under ib_mthca and irdma on a lossy link, then replayed without guests, bit for bit",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(replay::run(lab, report, replay::Extent::Core)),
    },
    Scenario {
        name: "replay-random",
        about: "replay of ten devices, each recorded for a minute of random operations",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(replay::run(lab, report, replay::Extent::Random)),
    },
    Scenario {
        name: "replay-sessions",
        about: "records the sessions in device/tests/sessions, which the device tests replay",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(replay::run(lab, report, replay::Extent::Kept)),
    },
    Scenario {
        name: "speed-guests",
        about: "perftest on ib_mthca, E810, soft-RoCE and JingZhao with the lab's driver: one table of ratios",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(speed_guests::run(lab, report)),
    },
    Scenario {
        name: "torture",
        about: "random kills, stops, resets and attacks under verified traffic; only their targets are affected",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(torture::run(lab, report)),
    },
];

impl Scenario {
    /// Returns the scenario with this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|scenario| scenario.name == name)
    }

    /// Runs all cases of the scenario. An error that prevents them from running counts as one failed case.
    ///
    /// # Errors
    /// An outcome cannot be printed.
    pub async fn run(&self, lab: &Lab, report: &mut Report) -> Result<()> {
        report.begin(self.name);
        let begun = Instant::now();
        let result = (self.run)(lab, report).await;
        times::scenario(self.name, begun.elapsed());
        match result {
            Ok(()) => Ok(()),
            Err(error) => report.case("set-up", "", async { Err(error) }).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_names_are_unique() {
        for scenario in ALL {
            assert_eq!(Scenario::named(scenario.name).map(|found| found.about), Some(scenario.about));
        }
        assert!(Scenario::named("jingzhao").is_none());
    }
}
