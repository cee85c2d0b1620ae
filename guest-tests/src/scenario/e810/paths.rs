//! Paths between two E810s with `irdma`, and connections whose paths change. The cases cover GIDs, traffic classes and
//! UDP source ports, as well as changes to addresses, MTUs, links and drivers (E810 interface, sections 13.9 and 14.4).

mod changes;
mod gids;
mod groups;
mod traffic;
mod wire;

use anyhow::{Context, Result};

use self::changes::Change;
use self::wire::Wire;
use crate::lab::Lab;
use crate::report::Report;
use crate::scenario::nic::roce;
use crate::scenario::nic::station::{Station, bring_up};

/// Number of a second IP network on the same wire. Each device has additional addresses in it.
const SECOND: u16 = 50;
/// VLAN ID of the tagged interfaces.
const VLAN: u16 = 100;
/// VLAN egress mapping from Linux priority 2 to VLAN priority 5. Packets in the tested traffic class have Linux
/// priority 2.
const PRIORITIES: &str = "egress-qos-map 2:5";

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("e810-paths")?;
    let hint = format!("console output, logs, captures and command lines: {}", run.path().display());
    let image = lab.debian_image(&run).await?;
    let [a, b] = roce::pair(lab, &run, &image).await.context(hint.clone())?;
    let mut stations = (a, b);
    let (a, b) = (&mut stations.0, &mut stations.1);
    for station in [&mut *a, &mut *b] {
        roce::start(station).await?;
        more_addresses(station).await.context(hint.clone())?;
    }
    for (name, network, ipv6) in gids::CASES {
        for program in gids::PROGRAMS {
            let case = gids::ping_pong(a, b, program, *network, *ipv6);
            report.case(&format!("{program} with the GID of {name}"), &hint, case).await?;
        }
    }
    report.case("a datagram to an IPv6 multicast group", &hint, groups::datagram(a, b)).await?;
    report.case("a datagram to an IPv6 multicast group, reverse", &hint, groups::datagram(b, a)).await?;
    let wire = Wire(&run);
    report.case("traffic class and priority of a connection", &hint, wire.class_of_connection(a, b)).await?;
    report.case("traffic class and priority of datagrams", &hint, wire.class_of_datagrams(a, b)).await?;
    report.case("each flow has its own UDP source port", &hint, wire.ports_of_flows(a, b)).await?;
    for &(name, change) in Change::ALL {
        report.case(name, &hint, change.happen(a, b)).await?;
    }
    report.case("a connection fails if the link stays down", &hint, changes::given_up(a, b)).await?;
    report.case("the driver is unloaded during a connection", &hint, changes::driver_removed(a, b)).await?;
    report.case("RoCE together with NIC traffic", &hint, traffic::beside_nic(a, b)).await?;
    let ends = async {
        a.no_warnings().await?;
        b.no_warnings().await
    };
    report.case("no kernel warnings", &hint, ends).await?;
    let ends = async {
        stations.0.stop().await?;
        stations.1.stop().await
    };
    report.case("the daemons exit cleanly on SIGTERM", &hint, ends).await
}

/// Adds a station's addresses in the second network and in the VLAN.
async fn more_addresses(station: &mut Station) -> Result<()> {
    let device = station.device.clone();
    let second = station.address(SECOND);
    bring_up(&mut station.vm, &device, &second).await?;
    station
        .sh(&format!("ip link add link {device} name vlan{VLAN} type vlan id {VLAN} {PRIORITIES}"))
        .await?;
    let tagged = station.address(VLAN);
    bring_up(&mut station.vm, &format!("vlan{VLAN}"), &tagged).await
}
