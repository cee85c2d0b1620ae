//! A table of all scenarios. Each scenario is a sequence of cases that share the same guests.

mod arm64;
mod boot;
mod cell;
mod codes;
mod connection;
mod connectx;
pub mod demo;
mod doorbells;
mod driver;
mod e810;
mod endpoint;
mod extent;
mod fabric_hosts;
mod fabric_mesh;
mod fabric_tap;
mod failing;
mod hosts_dns;
mod hosts_slurm;
mod impairments;
mod jingzhao_errors;
mod jingzhao_events;
mod jingzhao_full;
mod jingzhao_interface;
mod jingzhao_probe;
mod jingzhao_rc;
mod jingzhao_services;
mod kernel_log;
mod lab_tool;
mod leak;
mod many_guests;
mod middleware;
mod mixed_fabric;
mod mthca;
mod namespace;
mod netboot;
mod nic;
mod operator;
mod pair;
mod perftest;
mod planted;
mod rdma_core_suite;
mod replay;
mod rxe_interop;
pub mod schedule;
pub mod shell;
mod site;
mod speed_guests;
mod stock_pair;
mod torture;
mod transfer;
mod wire_rc;

use std::pin::Pin;
use std::time::Instant;

use anyhow::Result;

use self::connectx::pyverbs::Suite;
use self::extent::Extent;
pub(crate) use self::mthca::DOORBELL_RECORD_REMAPS;
use self::nic::kselftest::Nics;
use crate::artifacts::RdmaCore;
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
    /// Whether the scenario runs on a pair of guests with one HCA each.
    pair: bool,
    /// Whether the scenario must run alone. Other load would distort its measurements or make tests with fixed delays
    /// fail.
    alone: bool,
    run: Run,
}

type Run = for<'a> fn(&'a Lab, &'a mut Report) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// All scenarios, in the order of the help text.
pub const ALL: &[Scenario] = &[
    Scenario::new(
        "boot",
        "guests without an HCA boot and respond: a test of guest-lab itself",
        |lab, report| Box::pin(boot::run(lab, report)),
    ),
    Scenario::new(
        "jingzhao-probe",
        "a stock kernel enumerates the HCA as specified, without a warning",
        |lab, report| Box::pin(jingzhao_probe::run(lab, report)),
    )
    .pair(),
    Scenario::new(
        "jingzhao-rc",
        "RC traffic between two guests; every byte is compared at both ends",
        |lab, report| Box::pin(jingzhao_rc::run(lab, report)),
    )
    .pair(),
    Scenario::new(
        "jingzhao-errors",
        "errors return the exact status or syndrome, and affect no other QP",
        |lab, report| Box::pin(jingzhao_errors::run(lab, report)),
    )
    .pair(),
    Scenario::new(
        "jingzhao-events",
        "every event type arrives by MSI-X and is compared byte for byte; masks, arming, overflow",
        |lab, report| Box::pin(jingzhao_events::run(lab, report)),
    )
    .pair(),
    Scenario::new(
        "jingzhao-services",
        "UC, UD and atomics between two guests, also under loss; contexts in memory",
        |lab, report| Box::pin(jingzhao_services::run(lab, report)),
    )
    .pair(),
    Scenario::new(
        "jingzhao-interface",
        "the interface as drivers use it: queues, regions, registers, contexts, restarts",
        |lab, report| Box::pin(jingzhao_interface::run(lab, report)),
    )
    .pair(),
    Scenario::new(
        "jingzhao-full",
        "every form of every command and every QP transition, compared with the tables of the interface",
        |lab, report| Box::pin(jingzhao_full::run(lab, report)),
    )
    .pair(),
    Scenario::new(
        "rxe-interop",
        "a JingZhao HCA and Linux's soft-RoCE exchange messages; every byte is compared at both ends",
        |lab, report| Box::pin(rxe_interop::run(lab, report, rxe_interop::Extent::Core)),
    ),
    Scenario::new(
        "rxe-interop-full",
        "rxe-interop with every operation, path MTU and size; takes minutes",
        |lab, report| Box::pin(rxe_interop::run(lab, report, rxe_interop::Extent::Full)),
    ),
    Scenario::new("rxe-ipv6", "rxe-interop with RoCEv2 over IPv6", |lab, report| {
        Box::pin(rxe_interop::run(lab, report, rxe_interop::Extent::Ipv6))
    }),
    Scenario::new(
        "rxe-loss",
        "rxe-interop on a link that drops, duplicates, reorders, corrupts and ECN-marks frames",
        |lab, report| Box::pin(rxe_interop::loss::run(lab, report)),
    ),
    Scenario::new(
        "fabric-mesh",
        "eight HCAs on one fabric, all pairs, over UDP and within one process; peers join and leave",
        |lab, report| Box::pin(fabric_mesh::run(lab, report)),
    )
    .alone(),
    Scenario::new(
        "mthca-probe",
        "Debian's ib_mthca binds and shows every attribute as on hardware; reloads, a replaced guest, recovery",
        |lab, report| Box::pin(mthca::probe::run(lab, report, Extent::Core)),
    ),
    Scenario::new(
        "mthca-probe-full",
        "mthca-probe with 50 unload and load cycles and a restarted guest; takes minutes",
        |lab, report| Box::pin(mthca::probe::run(lab, report, Extent::Full)),
    ),
    Scenario::new(
        "mthca-pingpong",
        "rdma-core's ping-pong programs between two guests with ib_mthca, with checked content",
        |lab, report| Box::pin(mthca::pingpong::run(lab, report, Extent::Core)),
    ),
    Scenario::new(
        "mthca-pingpong-full",
        "mthca-pingpong with more sizes, path MTUs and GIDs; takes minutes",
        |lab, report| Box::pin(mthca::pingpong::run(lab, report, Extent::Full)),
    ),
    Scenario::new(
        "mthca-perftest",
        "perftest between two guests with ib_mthca: every operation and service",
        |lab, report| Box::pin(mthca::perftest::run(lab, report, Extent::Core)),
    ),
    Scenario::new(
        "mthca-perftest-full",
        "mthca-perftest with all sizes, both directions and latencies; takes minutes",
        |lab, report| Box::pin(mthca::perftest::run(lab, report, Extent::Full)),
    ),
    Scenario::new(
        "mthca-doorbells",
        "ib_mthca with mapped doorbells: content, strict mode, and speed compared with trapped doorbells",
        |lab, report| Box::pin(doorbells::run(lab, report, &doorbells::MTHCA)),
    )
    .alone(),
    Scenario::new("mthca-pyverbs", "rdma-core's device tests in a guest with ib_mthca", |lab, report| {
        Box::pin(mthca::pyverbs::run(lab, report))
    })
    .alone(),
    Scenario::new(
        "mthca-ipoib",
        "IPoIB, rdma_cm and infiniband-diags between two guests with ib_mthca",
        |lab, report| Box::pin(mthca::ipoib::run(lab, report)),
    ),
    Scenario::new(
        "mthca-opensm",
        "opensm in a guest yields to the built-in subnet manager; traffic works even if opensm takes over",
        |lab, report| Box::pin(mthca::opensm::run(lab, report)),
    ),
    Scenario::new(
        "mthca-errors",
        "errors under ib_mthca: status, event and kernel message as on hardware",
        |lab, report| Box::pin(mthca::errors::run(lab, report)),
    ),
    Scenario::new(
        "strict-mthca",
        "strict mode reports each bug planted in a test driver, and nothing for a correct driver",
        |lab, report| Box::pin(mthca::strict::run(lab, report)),
    ),
    Scenario::new(
        "strict-mthca-kernel",
        "strict mode reports each bug planted in Linux's ib_mthca, which is built from downloaded source",
        |lab, report| Box::pin(mthca::strict_kernel::run(lab, report)),
    ),
    Scenario::new(
        "strict-mlx5",
        "strict mode reports nothing for Debian's mlx5_core and mlx5_ib, from loading to unloading",
        |lab, report| Box::pin(connectx::strict::run(lab, report)),
    ),
    Scenario::new(
        "strict-mlx5-kernel",
        "strict mode reports each bug planted in Linux's mlx5_ib, which is built from downloaded source",
        |lab, report| Box::pin(connectx::strict_kernel::run(lab, report)),
    ),
    Scenario::new(
        "connectx-probe",
        "Debian's mlx5_core and mlx5_ib bind to two ConnectX; reloads, resets, recovery, restarts",
        |lab, report| Box::pin(connectx::probe::run(lab, report, connectx::probe::Extent::Core)),
    ),
    Scenario::new(
        "connectx-reloads",
        "mlx5_core and mlx5_ib are loaded 50 times without a leak; then a kernel panic, and guests with 1 and 8 CPUs",
        |lab, report| Box::pin(connectx::probe::run(lab, report, connectx::probe::Extent::Reloads)),
    ),
    Scenario::new(
        "connectx-pingpong",
        "rdma-core's ping-pong programs, XRC's too, between two guests with mlx5_ib, with checked content",
        |lab, report| Box::pin(connectx::pingpong::run(lab, report, Device::ConnectxIb)),
    ),
    Scenario::new(
        "connectx-perftest",
        "perftest between two guests with mlx5_ib: every operation and service",
        |lab, report| Box::pin(connectx::perftest::run(lab, report, Device::ConnectxIb, Extent::Core)),
    ),
    Scenario::new(
        "connectx-perftest-full",
        "connectx-perftest with all sizes, both directions and many queue pairs; takes minutes",
        |lab, report| Box::pin(connectx::perftest::run(lab, report, Device::ConnectxIb, Extent::Full)),
    ),
    Scenario::new(
        "connectx-doorbells",
        "mlx5_ib with mapped doorbells: content, strict mode, and speed compared with trapped doorbells",
        |lab, report| Box::pin(doorbells::run(lab, report, &doorbells::CONNECTX)),
    )
    .alone(),
    Scenario::new(
        "connectx-cm",
        "IPoIB in both modes, rdma_cm and subnet diagnostics between two guests with mlx5_ib",
        |lab, report| Box::pin(connectx::cm::run(lab, report)),
    ),
    Scenario::new(
        "connectx-net",
        "network traffic of mlx5_core: two ConnectX and a virtio NIC; sizes, MTU, VLANs, filters, queues",
        |lab, report| {
            Box::pin(nic::net::run(lab, report, Device::Connectx, nic::net::Extent::Core))
        },
    ),
    Scenario::new(
        "connectx-net-full",
        "connectx-net with more MTUs, streams and tags, and large files",
        |lab, report| {
            Box::pin(nic::net::run(lab, report, Device::Connectx, nic::net::Extent::Full))
        },
    ),
    Scenario::new(
        "connectx-loss",
        "connectx-net on a link that loses 1 % of the frames",
        |lab, report| {
            Box::pin(nic::net::run(lab, report, Device::Connectx, nic::net::Extent::Lossy))
        },
    ),
    Scenario::new(
        "connectx-errors",
        "errors under mlx5_ib: status, event and kernel message; the driver is removed during traffic",
        |lab, report| Box::pin(connectx::errors::run(lab, report, Device::ConnectxIb)),
    ),
    Scenario::new(
        "connectx-storage",
        "NVMe and NFS over RDMA between two ConnectX with IPoIB addresses: content, fio, loss, server failure",
        |lab, report| {
            Box::pin(nic::storage::run(lab, report, Device::ConnectxIb, nic::storage::Extent::Core))
        },
    ),
    Scenario::new(
        "connectx-storage-full",
        "NVMe, iSER, SRP and NFS with 512 MiB, minutes of fio and a killed server, and sockets, between two ConnectX",
        |lab, report| {
            Box::pin(nic::storage::run(lab, report, Device::ConnectxIb, nic::storage::Extent::Full))
        },
    ),
    Scenario::new(
        "connectx-storage-srp",
        "the part of connectx-storage-full that tests SRP",
        |lab, report| {
            Box::pin(nic::storage::run(lab, report, Device::ConnectxIb, nic::storage::Extent::Srp))
        },
    ),
    Scenario::new(
        "connectx-middleware",
        "UCX, libfabric and Open MPI between two guests with mlx5_ib, over UCX's mlx5 transports too",
        |lab, report| Box::pin(connectx::middleware::run(lab, report, Device::ConnectxIb)),
    ),
    Scenario::new(
        "connectx-vfio",
        "a driver in user space drives a ConnectX without mlx5_core: copies, unmapped memory, interrupts, restarts",
        |lab, report| Box::pin(connectx::vfio::run(lab, report)),
    ),
    Scenario::new("connectx-pyverbs", "rdma-core's device tests in a guest with mlx5_ib", |lab, report| {
        Box::pin(connectx::pyverbs::run(lab, report, Suite::InfiniBand(RdmaCore::Stable)))
    })
    .alone(),
    Scenario::new(
        "connectx-pyverbs-newest",
        "connectx-pyverbs with the newest rdma-core, from Debian's unstable release",
        |lab, report| Box::pin(connectx::pyverbs::run(lab, report, Suite::InfiniBand(RdmaCore::Newest))),
    )
    .alone(),
    Scenario::new(
        "connectx-soak",
        "an hour of TCP, UDP and files with verified content between two ConnectX, without a kernel warning",
        |lab, report| Box::pin(nic::soak::run(lab, report, Device::Connectx)),
    ),
    Scenario::new(
        "connectx-features",
        "ethtool, XDP, AF_XDP and tunnels between two ConnectX with an Ethernet port, with counted traffic",
        |lab, report| Box::pin(nic::features::run(lab, report, Device::Connectx)),
    ),
    Scenario::new(
        "connectx-many",
        "eight ConnectX in a guest; a guest whose only network is two ConnectX: DHCP, bonds, failover",
        |lab, report| Box::pin(connectx::many::run(lab, report)),
    ),
    Scenario::new(
        "connectx-kselftest",
        "the kernel's own self-tests of network drivers with a ConnectX with an Ethernet port",
        |lab, report| Box::pin(nic::kselftest::run(lab, report, Nics::Cards(Device::Connectx))),
    ),
    Scenario::new(
        "e810-kselftest",
        "the kernel's own self-tests of network drivers with an E810",
        |lab, report| Box::pin(nic::kselftest::run(lab, report, Nics::Cards(Device::E810))),
    ),
    Scenario::new(
        "virtio-kselftest",
        "connectx-kselftest with virtio NICs, to distinguish faults of the tests from faults of a device",
        |lab, report| Box::pin(nic::kselftest::run(lab, report, Nics::Virtio)),
    ),
    Scenario::new(
        "connectx-dpdk",
        "DPDK's testpmd connects two guests by forwarding frames between two ConnectX with 4 queues each",
        |lab, report| Box::pin(nic::dpdk::run(lab, report, nic::dpdk::Driver::Mlx5)),
    ),
    Scenario::new(
        "connectx-dpdk-verbs",
        "connectx-dpdk without DevX, so that net_mlx5 creates its queues through verbs",
        |lab, report| Box::pin(nic::dpdk::run(lab, report, nic::dpdk::Driver::Mlx5WithoutDevx)),
    ),
    Scenario::new(
        "connectx-roce-pingpong",
        "connectx-pingpong between two ConnectX with an Ethernet port",
        |lab, report| Box::pin(connectx::pingpong::run(lab, report, Device::Connectx)),
    ),
    Scenario::new(
        "connectx-roce-perftest",
        "connectx-perftest between two ConnectX with an Ethernet port, also with rdma_cm",
        |lab, report| Box::pin(connectx::perftest::run(lab, report, Device::Connectx, Extent::Core)),
    ),
    Scenario::new(
        "connectx-roce-perftest-full",
        "connectx-roce-perftest with all sizes, both directions and many queue pairs; takes minutes",
        |lab, report| Box::pin(connectx::perftest::run(lab, report, Device::Connectx, Extent::Full)),
    ),
    Scenario::new(
        "connectx-roce-cm",
        "rdma_cm between ConnectX with an Ethernet port, and with soft-RoCE and an E810 in both roles",
        |lab, report| Box::pin(nic::cm::run(lab, report, Device::Connectx, Extent::Core)),
    ),
    Scenario::new(
        "connectx-roce-cm-full",
        "connectx-roce-cm with every program in every combination; takes minutes",
        |lab, report| Box::pin(nic::cm::run(lab, report, Device::Connectx, Extent::Full)),
    ),
    Scenario::new(
        "connectx-roce-errors",
        "connectx-errors between two ConnectX with an Ethernet port",
        |lab, report| Box::pin(connectx::errors::run(lab, report, Device::Connectx)),
    ),
    Scenario::new(
        "connectx-roce-storage",
        "NVMe and NFS over RDMA between two ConnectX with an Ethernet port: content, fio, loss, server failure",
        |lab, report| {
            Box::pin(nic::storage::run(lab, report, Device::Connectx, nic::storage::Extent::Core))
        },
    ),
    Scenario::new(
        "connectx-roce-storage-full",
        "NVMe, iSER and NFS with 512 MiB, minutes of fio and a killed server, and sockets, over Ethernet ports",
        |lab, report| {
            Box::pin(nic::storage::run(lab, report, Device::Connectx, nic::storage::Extent::Full))
        },
    ),
    Scenario::new(
        "connectx-roce-storage-sockets",
        "RDS and SMC sockets over RDMA between two ConnectX with an Ethernet port",
        |lab, report| {
            Box::pin(nic::storage::run(lab, report, Device::Connectx, nic::storage::Extent::Sockets))
        },
    ),
    Scenario::new(
        "connectx-roce-middleware",
        "connectx-middleware between two ConnectX with an Ethernet port",
        |lab, report| Box::pin(connectx::middleware::run(lab, report, Device::Connectx)),
    ),
    Scenario::new(
        "connectx-nixl",
        "NIXL with its own UCX over two ConnectX with an Ethernet port: its example, and WRITE and READ up to 64 MiB",
        |lab, report| Box::pin(connectx::nixl::run(lab, report)),
    ),
    Scenario::new(
        "connectx-roce-pyverbs",
        "rdma-core's whole suite, with the tests of libmlx5, in a guest with an Ethernet port",
        |lab, report| Box::pin(connectx::pyverbs::run(lab, report, Suite::Ethernet)),
    )
    .alone(),
    Scenario::new(
        "e810-probe",
        "Debian's ice binds to two E810s with each kind of DDP package; reloads, resets, restarts, link changes",
        |lab, report| Box::pin(e810::probe::run(lab, report, Extent::Core)),
    ),
    Scenario::new(
        "e810-probe-full",
        "e810-probe with 50 unload and load cycles; takes minutes",
        |lab, report| Box::pin(e810::probe::run(lab, report, Extent::Full)),
    ),
    Scenario::new(
        "e810-selftest",
        "the self-test of Debian's ice passes, online and offline; its loopback works",
        |lab, report| Box::pin(e810::selftest::run(lab, report)),
    ),
    Scenario::new(
        "dpdk",
        "DPDK's testpmd connects two guests, which use Debian's ice, by forwarding frames between two E810s",
        |lab, report| Box::pin(nic::dpdk::run(lab, report, nic::dpdk::Driver::Ice)),
    ),
    Scenario::new(
        "netboot",
        "iPXE boots a guest over the E810 and the InfiniHost by DHCP and TFTP, and Linux then drives the card",
        |lab, report| Box::pin(netboot::run(lab, report)),
    ),
    Scenario::new(
        "e810-rdma-probe",
        "Debian's irdma binds to an E810: active port, tools, GIDs, reloads, resets, link changes",
        |lab, report| Box::pin(e810::rdma_probe::run(lab, report)),
    ),
    Scenario::new(
        "e810-pingpong",
        "rdma-core's ping-pong programs between two E810s with Debian's irdma, with checked content",
        |lab, report| Box::pin(e810::pingpong::run(lab, report, Extent::Core)),
    ),
    Scenario::new(
        "e810-pingpong-full",
        "e810-pingpong with more sizes and combinations; takes minutes",
        |lab, report| Box::pin(e810::pingpong::run(lab, report, Extent::Full)),
    ),
    Scenario::new(
        "e810-cm",
        "rdma_cm between E810s and with soft-RoCE: streams, datagrams, multicast over IPv4, IPv6 and a VLAN",
        |lab, report| Box::pin(nic::cm::run(lab, report, Device::E810, Extent::Core)),
    ),
    Scenario::new(
        "e810-cm-full",
        "e810-cm with every program in every combination; takes minutes",
        |lab, report| Box::pin(nic::cm::run(lab, report, Device::E810, Extent::Full)),
    ),
    Scenario::new(
        "e810-storage",
        "NVMe and NFS over RDMA between two E810s with stock software: content, fio, loss, server failure",
        |lab, report| Box::pin(nic::storage::run(lab, report, Device::E810, nic::storage::Extent::Core)),
    ),
    Scenario::new(
        "e810-storage-nvme",
        "NVMe over RDMA with 512 MiB, minutes of fio, and a server that is killed",
        |lab, report| Box::pin(nic::storage::run(lab, report, Device::E810, nic::storage::Extent::Nvme)),
    ),
    Scenario::new(
        "e810-storage-iser",
        "iSER with 512 MiB, minutes of fio, and a server that is killed",
        |lab, report| Box::pin(nic::storage::run(lab, report, Device::E810, nic::storage::Extent::Iser)),
    ),
    Scenario::new(
        "e810-storage-nfs",
        "NFS over RDMA with 512 MiB, minutes of fio, and a server that is killed",
        |lab, report| Box::pin(nic::storage::run(lab, report, Device::E810, nic::storage::Extent::Nfs)),
    ),
    Scenario::new(
        "e810-storage-sockets",
        "RDS and SMC sockets over RDMA between two E810s",
        |lab, report| Box::pin(nic::storage::run(lab, report, Device::E810, nic::storage::Extent::Sockets)),
    ),
    Scenario::new(
        "e810-storage-full",
        "all four e810-storage scenarios in the same guests",
        |lab, report| Box::pin(nic::storage::run(lab, report, Device::E810, nic::storage::Extent::Full)),
    ),
    Scenario::new(
        "e810-limits",
        "an E810 with 1,000 neighbours, 16 GiB of memory regions and 4 NVMe controllers with 8 queues each",
        |lab, report| Box::pin(e810::limits::run(lab, report)),
    ),
    Scenario::new(
        "e810-paths",
        "RoCE GIDs, traffic classes and UDP ports; address, MTU, link and driver changes during connections",
        |lab, report| Box::pin(e810::paths::run(lab, report)),
    ),
    Scenario::new(
        "e810-pyverbs",
        "rdma-core's device tests in a guest with an E810 and Debian's irdma",
        |lab, report| Box::pin(e810::pyverbs::run(lab, report)),
    )
    .alone(),
    Scenario::new(
        "e810-errors",
        "errors between two E810s under irdma: status, event and kernel message",
        |lab, report| Box::pin(e810::errors::run(lab, report)),
    ),
    Scenario::new(
        "e810-net",
        "IP between E810s with Debian's ice and with a virtio NIC: sizes, MTUs, VLANs, multicast, bridges, queues",
        |lab, report| Box::pin(nic::net::run(lab, report, Device::E810, nic::net::Extent::Core)),
    ),
    Scenario::new(
        "e810-net-full",
        "e810-net with all MTUs, streams and VLANs, and with large files; takes minutes",
        |lab, report| Box::pin(nic::net::run(lab, report, Device::E810, nic::net::Extent::Full)),
    ),
    Scenario::new(
        "e810-loss",
        "e810-net-full on a link that drops 1 % of the frames in each direction",
        |lab, report| Box::pin(nic::net::run(lab, report, Device::E810, nic::net::Extent::Lossy)),
    )
    .alone(),
    Scenario::new(
        "e810-net-control",
        "e810-net-full between two virtio NICs, to distinguish lab faults from E810 faults",
        |lab, report| Box::pin(nic::net::run(lab, report, Device::E810, nic::net::Extent::Control)),
    ),
    Scenario::new(
        "nic-speed",
        "ConnectX, E810, virtio-net and e1000e in the same guests: throughput and round trips as ratios",
        |lab, report| Box::pin(nic::speed::run(lab, report, nic::speed::Extent::All)),
    )
    .alone(),
    Scenario::new(
        "nic-round-trips",
        "nic-speed for round trips only, with more samples and the host's CPU time for each",
        |lab, report| Box::pin(nic::speed::run(lab, report, nic::speed::Extent::RoundTrips)),
    )
    .alone(),
    Scenario::new(
        "e810-perftest",
        "perftest between two E810s with Debian's irdma: every operation and service",
        |lab, report| Box::pin(e810::perftest::run(lab, report, Extent::Core)),
    ),
    Scenario::new(
        "e810-perftest-full",
        "e810-perftest with all sizes, both directions, latencies and rdma_cm; takes minutes",
        |lab, report| Box::pin(e810::perftest::run(lab, report, Extent::Full)),
    ),
    Scenario::new(
        "e810-middleware",
        "UCX, libfabric and Open MPI between two E810s with Debian's irdma, with checked content",
        |lab, report| Box::pin(e810::middleware::run(lab, report, Extent::Core)),
    ),
    Scenario::new(
        "e810-middleware-full",
        "e810-middleware with more sizes and combinations; takes minutes",
        |lab, report| Box::pin(e810::middleware::run(lab, report, Extent::Full)),
    ),
    Scenario::new(
        "fabric-tap",
        "HCAs on tap interfaces: a bridge, a VXLAN, and the kernel's ping",
        |lab, report| Box::pin(fabric_tap::run(lab, report)),
    ),
    Scenario::new(
        "fabric-hosts",
        "HCAs on three hosts, all pairs, over VXLAN and over WireGuard, with realistic MTUs",
        |lab, report| Box::pin(fabric_hosts::run(lab, report)),
    ),
    Scenario::new(
        "hosts-dns",
        "HCAs on three hosts find each other in DNS; a host returns under another address during traffic",
        |lab, report| Box::pin(hosts_dns::run(lab, report)),
    ),
    Scenario::new(
        "hosts-slurm",
        "guest-lab node as a Slurm job step on three hosts: output by rank, MPI over RDMA, failures",
        |lab, report| Box::pin(hosts_slurm::run(lab, report)),
    ),
    Scenario::new(
        "operator",
        "devices are added, removed and changed while other guests of the process are running; hot-plug",
        |lab, report| Box::pin(operator::run(lab, report)),
    ),
    Scenario::new(
        "hot-unplug",
        "a card is unplugged while it carries traffic and plugged in again, if QEMU supports it",
        |lab, report| Box::pin(operator::hot_unplug::run(lab, report)),
    ),
    Scenario::new(
        "mixed-fabric",
        "ib_mthca, JingZhao, E810, ConnectX with both ports and soft-RoCE on one fabric, with verified content",
        |lab, report| Box::pin(mixed_fabric::run(lab, report)),
    ),
    Scenario::new(
        "lab-tool",
        "guest-lab's own commands: up, exec, cp, build, reload, logs, ci, down; nothing is left behind",
        |lab, report| Box::pin(lab_tool::run(lab, report, Extent::Core)),
    ),
    Scenario::new(
        "lab-tool-full",
        "lab-tool, plus adding Debian packages, which are downloaded each time, to the guests",
        |lab, report| Box::pin(lab_tool::run(lab, report, Extent::Full)),
    ),
    Scenario::new(
        "here",
        "guest-lab here: guests with the files of this machine run programs that were built on it",
        |lab, report| Box::pin(lab_tool::here::run(lab, report, Extent::Core)),
    ),
    Scenario::new(
        "impair",
        "guest-lab --impair: content on impaired networks, partitions, flapping links, repeated random impairments",
        |lab, report| Box::pin(lab_tool::impair::run(lab, report)),
    ),
    Scenario::new(
        "templates",
        "guest-lab up nvme-of, nfs and ucx: the services are running, and content is exact",
        |lab, report| Box::pin(lab_tool::templates::run(lab, report)),
    ),
    Scenario::new(
        "many-guests",
        "sixteen guests of 256 MiB: all pairs and incasts, with killed and replaced daemons and guests",
        |lab, report| Box::pin(many_guests::run(lab, report)),
    )
    .alone(),
    Scenario::new("here-full", "here with all kinds of devices", |lab, report| {
        Box::pin(lab_tool::here::run(lab, report, Extent::Full))
    }),
    Scenario::new(
        "arm64-probe",
        "Debian's drivers bind to a device of each kind in an arm64 guest, which exchanges verified messages",
        |lab, report| Box::pin(arm64::probe(lab, report)),
    ),
    Scenario::new(
        "arm64",
        "arm64 guests: arm64-probe, also with 16 KiB pages, interoperation, ping-pong, perftest and storage",
        |lab, report| Box::pin(arm64::run(lab, report)),
    ),
    Scenario::new(
        "wire-rc",
        "RC tested with single packets built by scapy: every fault of a link or a peer",
        |lab, report| Box::pin(wire_rc::run(lab, report)),
    )
    .alone(),
    Scenario::new(
        "replay",
        "devices recorded under ib_mthca and irdma on a lossy link, then replayed without guests, bit for bit",
        |lab, report| Box::pin(replay::run(lab, report, replay::Extent::Core)),
    ),
    Scenario::new(
        "replay-random",
        "replay of ten devices, each recorded for a minute of random operations",
        |lab, report| Box::pin(replay::run(lab, report, replay::Extent::Random)),
    ),
    Scenario::new(
        "replay-sessions",
        "records the sessions in device/tests/sessions, which the device tests replay",
        |lab, report| Box::pin(replay::run(lab, report, replay::Extent::Kept)),
    ),
    Scenario::new(
        "speed-guests",
        "perftest on ib_mthca, E810, ConnectX and soft-RoCE, and JingZhao with the lab's driver: one table of ratios",
        |lab, report| Box::pin(speed_guests::run(lab, report)),
    )
    .alone(),
    Scenario::new(
        "torture",
        "random kills, stops, resets and attacks under verified traffic; only their targets are affected",
        |lab, report| Box::pin(torture::run(lab, report)),
    )
    .alone(),
];

impl Scenario {
    const fn new(name: &'static str, about: &'static str, run: Run) -> Self {
        Self { name, about, pair: false, alone: false, run }
    }

    const fn pair(self) -> Self {
        Self { pair: true, ..self }
    }

    const fn alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Looks up a scenario by name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|scenario| scenario.name == name)
    }

    /// Runs all of the scenario's cases. An error that prevents them from running counts as one failed case.
    ///
    /// # Errors
    /// Fails if an outcome cannot be printed.
    pub async fn run(&self, lab: &Lab, report: &mut Report) -> Result<()> {
        self.run_as(self.name, lab, report).await
    }

    /// Like [`Self::run`], but reports the scenario under the given name.
    async fn run_as(&self, name: &str, lab: &Lab, report: &mut Report) -> Result<()> {
        report.begin(name);
        let begun = Instant::now();
        let result = (self.run)(lab, report).await;
        times::scenario(name, begun.elapsed());
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
