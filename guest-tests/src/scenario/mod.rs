//! What can be run: a table of scenarios, each a sequence of cases on guests booted once.

mod boot;
mod cell;
mod codes;
mod connection;
pub mod demo;
mod driver;
mod e810;
mod endpoint;
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

use anyhow::Result;

pub(crate) use self::mthca::RECORDS_LENT_AGAIN;
use self::rxe_interop::Extent;
use crate::lab::Lab;
use crate::report::Report;

/// A named group of cases.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// What the user types.
    pub name: &'static str,
    /// What it shows, in a line.
    pub about: &'static str,
    /// Its guests are a pair, each with an HCA.
    pair: bool,
    /// Another scenario beside it would change what it sees: it judges times or amounts per second, or a suite whose tests
    /// do not wait for all that they judge.
    alone: bool,
    run: Run,
}

type Run = for<'a> fn(&'a Lab, &'a mut Report) -> Pin<Box<dyn Future<Output = Result<()>> + 'a>>;

/// Every scenario.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "boot",
        about: "stock guests without an HCA boot and answer: the lab itself works",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(boot::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-probe",
        about: "a stock kernel enumerates the HCA as its interface says, without a warning",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_probe::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-rc",
        about: "RC traffic between two guests, every byte checked at both ends",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_rc::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-errors",
        about: "what goes wrong is answered with the exact status or syndrome, and harms nobody else",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_errors::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-events",
        about: "each type of event by MSI-X, byte for byte; masks, arming, overflow",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_events::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-services",
        about: "UC, UD and atomics between two guests, contexts in memory, also under loss",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_services::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-interface",
        about: "what drivers of either kind rely on: queues, regions, registers, contexts, restarts",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_interface::run(lab, report)),
    },
    Scenario {
        name: "jingzhao-full",
        about: "every command in every form, every transition from every state, as the tables of the interface",
        pair: true,
        alone: false,
        run: |lab, report| Box::pin(jingzhao_full::run(lab, report)),
    },
    Scenario {
        name: "rxe-interop",
        about: "a JingZhao HCA and Linux's soft-RoCE talk to each other, every byte checked at both ends",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(rxe_interop::run(lab, report, Extent::Core)),
    },
    Scenario {
        name: "rxe-interop-full",
        about: "the same with every operation, path MTU and size; takes minutes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(rxe_interop::run(lab, report, Extent::Full)),
    },
    Scenario {
        name: "rxe-ipv6",
        about: "the same by RoCEv2 over IPv6",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(rxe_interop::run(lab, report, Extent::Ipv6)),
    },
    Scenario {
        name: "rxe-loss",
        about: "the same on a wire that loses, doubles, reorders, damages and marks frames",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(rxe_interop::loss::run(lab, report)),
    },
    Scenario {
        name: "fabric-mesh",
        about: "eight on one fabric, all with all, by UDP with a NIC and in one process; peers come and go",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(fabric_mesh::run(lab, report)),
    },
    Scenario {
        name: "mthca-probe",
        about: "Debian's own ib_mthca binds, with every attribute as on hardware; reloads, restarts, recovery",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::probe::run(lab, report)),
    },
    Scenario {
        name: "mthca-pingpong",
        about: "rdma-core's ping-pong programs between two guests with ib_mthca, content checked",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::pingpong::run(lab, report)),
    },
    Scenario {
        name: "mthca-perftest",
        about: "perftest between two guests with ib_mthca, its figures beside those of soft-RoCE",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(mthca::perftest::run(lab, report)),
    },
    Scenario {
        name: "mthca-doorbells",
        about: "ib_mthca whose doorbells do not trap: content, judged drivers, and figures beside those that trap",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(mthca::doorbells::run(lab, report)),
    },
    Scenario {
        name: "mthca-pyverbs",
        about: "rdma-core's own tests for devices in a guest with ib_mthca",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(mthca::pyverbs::run(lab, report)),
    },
    Scenario {
        name: "mthca-ipoib",
        about: "IPoIB, rdma_cm and the subnet's diagnostics between two guests with ib_mthca",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::ipoib::run(lab, report)),
    },
    Scenario {
        name: "mthca-opensm",
        about: "a guest's opensm yields to the subnet's own manager, and one that does not harms nobody",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::opensm::run(lab, report)),
    },
    Scenario {
        name: "mthca-errors",
        about: "what goes wrong shows in status, event and kernel message as on hardware",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::errors::run(lab, report)),
    },
    Scenario {
        name: "strict-mthca",
        about: "a driver with planted mistakes: what hcad says of each leads to it, and of a right driver it says nothing",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::strict::run(lab, report)),
    },
    Scenario {
        name: "strict-mthca-kernel",
        about: "the same with bugs planted in Linux's own ib_mthca, which is built for it; fetches Linux's source",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mthca::strict_kernel::run(lab, report)),
    },
    Scenario {
        name: "e810-probe",
        about: "Debian's own ice binds two E810, with every kind of package; reloads, resets, restarts, links that go",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::probe::run(lab, report)),
    },
    Scenario {
        name: "e810-selftest",
        about: "the self-test of Debian's own ice passes, online and offline; its loopback loops",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::selftest::run(lab, report)),
    },
    Scenario {
        name: "dpdk",
        about: "DPDK's testpmd forwards between two E810, as a wire between guests with Debian's own ice",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::dpdk::run(lab, report)),
    },
    Scenario {
        name: "netboot",
        about: "iPXE boots a guest over the E810 and over the InfiniHost by DHCP and TFTP, and Linux takes the card over",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(netboot::run(lab, report)),
    },
    Scenario {
        name: "e810-rdma-probe",
        about: "Debian's own irdma binds to an E810 with RDMA: an active port, tools, GIDs, reloads, resets, links that go",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::rdma_probe::run(lab, report)),
    },
    Scenario {
        name: "e810-pingpong",
        about: "rdma-core's ping-pong programs between two E810 with Debian's own irdma, content checked",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::pingpong::run(lab, report)),
    },
    Scenario {
        name: "e810-cm",
        about: "connections by rdma_cm between E810, and with soft-RoCE: streams, datagrams, groups over IPv4, IPv6, a VLAN",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::cm::run(lab, report, e810::cm::Extent::Core)),
    },
    Scenario {
        name: "e810-cm-full",
        about: "the same with every program over everything; takes minutes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::cm::run(lab, report, e810::cm::Extent::Full)),
    },
    Scenario {
        name: "e810-storage",
        about: "NVMe and NFS over RDMA between two E810, nothing but Debian's: content, fio, loss, a server that goes",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::storage::run(lab, report, e810::storage::Extent::Core)),
    },
    Scenario {
        name: "e810-storage-nvme",
        about: "NVMe with 512 MiB and minutes of fio, and with a server that is killed",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::storage::run(lab, report, e810::storage::Extent::Nvme)),
    },
    Scenario {
        name: "e810-storage-iser",
        about: "the same by iSER",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::storage::run(lab, report, e810::storage::Extent::Iser)),
    },
    Scenario {
        name: "e810-storage-nfs",
        about: "the same by NFS",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::storage::run(lab, report, e810::storage::Extent::Nfs)),
    },
    Scenario {
        name: "e810-storage-sockets",
        about: "RDS and SMC sockets over RDMA between two E810",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::storage::run(lab, report, e810::storage::Extent::Sockets)),
    },
    Scenario {
        name: "e810-storage-full",
        about: "these four in the same guests",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::storage::run(lab, report, e810::storage::Extent::Full)),
    },
    Scenario {
        name: "e810-limits",
        about: "an E810 with 1,000 neighbours, 16 GiB of regions, and NVMe by 8 queues of 4 controllers, all at once",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::limits::run(lab, report)),
    },
    Scenario {
        name: "e810-paths",
        about: "GIDs, classes and flows of RoCE between E810; addresses, MTUs, links and drivers that change under connections",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::paths::run(lab, report)),
    },
    Scenario {
        name: "e810-pyverbs",
        about: "rdma-core's own tests for devices in a guest with an E810 and Debian's own irdma",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(e810::pyverbs::run(lab, report)),
    },
    Scenario {
        name: "e810-errors",
        about: "what goes wrong between two E810 with RDMA shows in status, event and kernel message",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::errors::run(lab, report)),
    },
    Scenario {
        name: "e810-net",
        about: "IP between E810 with Debian's own ice, and with a virtio NIC: sizes, MTUs, VLANs, groups, bridges, queues",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::net::run(lab, report, e810::net::Extent::Good)),
    },
    Scenario {
        name: "e810-loss",
        about: "the same on a wire that loses one frame in a hundred, each way",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(e810::net::run(lab, report, e810::net::Extent::Lossy)),
    },
    Scenario {
        name: "e810-net-control",
        about: "the same between two virtio NICs of QEMU: what fails there too is not the E810's fault",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::net::run(lab, report, e810::net::Extent::Control)),
    },
    Scenario {
        name: "e810-speed",
        about: "E810, virtio-net and e1000e side by side in the same guests: throughput and round trips as ratios",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(e810::speed::run(lab, report, e810::speed::Extent::All)),
    },
    Scenario {
        name: "e810-round-trips",
        about: "the same for round trips alone, more often, and what one takes of the host",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(e810::speed::run(lab, report, e810::speed::Extent::RoundTrips)),
    },
    Scenario {
        name: "e810-perftest",
        about: "perftest between two E810 with Debian's own irdma, its figures beside those of ib_mthca and soft-RoCE",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(e810::perftest::run(lab, report, e810::perftest::Extent::Core)),
    },
    Scenario {
        name: "e810-perftest-full",
        about: "the same with all sizes in both directions, of latencies and by rdma_cm; takes minutes",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(e810::perftest::run(lab, report, e810::perftest::Extent::Full)),
    },
    Scenario {
        name: "e810-middleware",
        about: "UCX, libfabric and Open MPI between two E810 with Debian's own irdma, content checked",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(e810::middleware::run(lab, report)),
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
        about: "HCAs of three hosts, each with each: over a VXLAN and over WireGuard, with the MTUs of networks as they are",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(fabric_hosts::run(lab, report)),
    },
    Scenario {
        name: "operator",
        about: "devices come, go and change while guests of the same process run, and a card is plugged into one of them",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(operator::run(lab, report)),
    },
    Scenario {
        name: "mixed-fabric",
        about: "guests with ib_mthca, a JingZhao HCA and soft-RoCE on one fabric, each with each, content checked",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(mixed_fabric::run(lab, report)),
    },
    Scenario {
        name: "lab-tool",
        about: "guest-lab's own commands as users type them: up, exec, cp, build, reload, logs, ci, down; nothing stays behind",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(lab_tool::run(lab, report, lab_tool::Extent::Core)),
    },
    Scenario {
        name: "lab-tool-full",
        about: "the same with packages added to the guests, which are fetched each time",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(lab_tool::run(lab, report, lab_tool::Extent::Full)),
    },
    Scenario {
        name: "wire-rc",
        about: "RC against a peer of single packets made by scapy: every way a wire or a peer goes wrong",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(wire_rc::run(lab, report)),
    },
    Scenario {
        name: "replay",
        about: "devices under ib_mthca and irdma on a bad wire are recorded, and run again without guests, bit for bit",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(replay::run(lab, report, replay::Extent::Core)),
    },
    Scenario {
        name: "replay-random",
        about: "the same of ten devices, each for a minute of what is drawn at random",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(replay::run(lab, report, replay::Extent::Random)),
    },
    Scenario {
        name: "replay-sessions",
        about: "records the sessions that the device's own tests replay, for device/tests/sessions",
        pair: false,
        alone: false,
        run: |lab, report| Box::pin(replay::run(lab, report, replay::Extent::Kept)),
    },
    Scenario {
        name: "speed-guests",
        about: "perftest on ib_mthca, E810 and soft-RoCE, and JingZhao HCAs by our own driver: one table, as ratios",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(speed_guests::run(lab, report)),
    },
    Scenario {
        name: "torture",
        about: "kills, stops, resets, attacks at random under checked traffic: nobody notices but their victims",
        pair: false,
        alone: true,
        run: |lab, report| Box::pin(torture::run(lab, report)),
    },
];

impl Scenario {
    /// The scenario of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        ALL.iter().find(|scenario| scenario.name == name)
    }

    /// Runs all its cases. What keeps them from being run at all counts as one failed case.
    ///
    /// # Errors
    /// When an outcome cannot be printed.
    pub async fn run(&self, lab: &Lab, report: &mut Report) -> Result<()> {
        report.begin(self.name);
        let result = (self.run)(lab, report).await;
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
    fn a_scenario_is_found_by_its_name_and_names_are_unique() {
        for scenario in ALL {
            assert_eq!(Scenario::named(scenario.name).map(|found| found.about), Some(scenario.about));
        }
        assert!(Scenario::named("jingzhao").is_none());
    }
}
