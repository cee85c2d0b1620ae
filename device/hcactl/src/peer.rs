//! `hcactl peer`: peers on a device's fabric.

use std::net::SocketAddr;
use std::num::NonZeroU32;

use anyhow::bail;
use card::fabric::ring::MemberRow;
use card::fabric::switch::PeerRow;
use clap::Subcommand;
use control_api::message::{Request, Response};
use control_api::peer::{NO_PEER_LIST, UdpPeerEntry};
use serde::Serialize;

use crate::table::{self, RowOf};
use crate::{Cli, Daemon, json, of_device};

/// Commands of `hcactl peer`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Peer {
    /// List peers: addresses, frame counts, MACs, DNS names
    List,
    /// Add a peer; takes effect immediately
    Add {
        /// The peer's address and port
        #[arg(value_parser = address)]
        addr: SocketAddr,
        /// Device number of the peer, which determines the peer's MAC address
        #[arg(long)]
        id: Option<u16>,
        /// The peer's MAC address. Frames with this source MAC address are accepted only from this peer
        /// [default: learned from the peer's frames]
        #[arg(long, conflicts_with = "id")]
        mac: Option<String>,
        /// Forward frames between this peer and all other peers. This is needed if the peer sends only to this
        /// device, as QEMU's -netdev dgram does
        #[arg(long)]
        leaf: bool,
        /// Maximum number of frames per second to accept from the peer; excess frames are dropped [default:
        /// no limit]
        #[arg(long, value_name = "N")]
        max_frames_per_second: Option<NonZeroU32>,
    },
    /// Remove a peer; hcad drops frames that the peer sends later
    Remove {
        /// The peer's address and port
        #[arg(value_parser = address)]
        addr: SocketAddr,
    },
}

/// Parses the address of a peer. Only `hcad` looks up names, and only those in its configuration.
fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "expected a numeric IP address with a port; DNS names must be in the configuration")
}

impl Peer {
    pub(crate) fn request(&self, device: u16) -> Request {
        match self {
            Self::List => Request::Peers { device },
            Self::Add { addr, id, mac, leaf, max_frames_per_second } => Request::PeerAdd {
                device,
                peer: UdpPeerEntry {
                    addr: (*addr).into(),
                    id: *id,
                    mac: mac.clone(),
                    leaf: *leaf,
                    max_frames_per_second: *max_frames_per_second,
                },
            },
            Self::Remove { addr } => Request::PeerRemove { device, addr: *addr },
        }
    }

    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        match self {
            Self::List => None,
            Self::Add { addr, .. } | Self::Remove { addr } => Some(*addr),
        }
    }
}

/// A row of a list of peers. A list that covers several devices can contain rows of both kinds.
#[derive(Serialize)]
#[serde(untagged)]
enum Row {
    Peer(PeerRow),
    Member(MemberRow),
}

/// Returns a list of the peers of all chosen devices. If none was chosen, omits devices whose fabric has no peer list.
pub(crate) fn list(daemon: &mut Daemon, cli: &Cli) -> anyhow::Result<String> {
    let devices = daemon.several(&cli.device)?;
    let (mut peers, mut members, mut all) = (table::Text::default(), table::Text::default(), Vec::new());
    for device in devices.iter().copied() {
        let of = (devices.len() > 1).then_some(device);
        match daemon.ask(&Peer::List.request(device)) {
            Ok(Response::Peers(rows)) => {
                peers.add(&table::peers(&rows), of);
                all.extend(rows.into_iter().map(|row| RowOf { row: Row::Peer(row), device: of }));
            }
            Ok(Response::Members(rows)) => {
                members.add(&table::members(&rows), of);
                all.extend(rows.into_iter().map(|row| RowOf { row: Row::Member(row), device: of }));
            }
            Ok(_) => bail!("unexpected response from hcad"),
            Err(error) if of.is_some() && cli.device.is_empty() && error.to_string() == NO_PEER_LIST => {}
            Err(error) => daemon.ignore_if_removed(&cli.device, device, of_device(error, of))?,
        }
    }
    if cli.json {
        return json(&all);
    }
    // Peers and ring members have different columns.
    let tables = [peers, members].map(table::Text::finish);
    Ok(tables.iter().filter(|text| !text.is_empty()).cloned().collect::<Vec<_>>().join("\n"))
}

/// Returns a row's cells, in the order of the headings in `table::peers`.
pub(crate) fn cells(row: &PeerRow) -> Vec<String> {
    vec![
        row.addr.to_string(),
        if row.leaf { "leaf" } else { "mesh" }.to_owned(),
        row.rx_frames.to_string(),
        row.rx_over_rate.to_string(),
        row.rx_foreign_mac.to_string(),
        row.tx_frames.to_string(),
        if row.macs.is_empty() { "-".to_owned() } else { row.macs.join(",") },
        row.name.clone().unwrap_or_else(|| "-".to_owned()),
    ]
}

/// Returns a row's cells, in the order of the headings in `table::members`.
pub(crate) fn member_cells(row: &MemberRow) -> Vec<String> {
    vec![
        row.mac.clone(),
        if row.asleep { "asleep" } else { "awake" }.to_owned(),
        row.rx_frames.to_string(),
        (row.rx_foreign_mac + row.rx_foreign_ip).to_string(),
        row.tx_frames.to_string(),
        row.tx_refused.to_string(),
        row.tx_waiting_bytes.to_string(),
        if row.macs.is_empty() { "-".to_owned() } else { row.macs.join(",") },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_name_error_refers_to_configuration() {
        assert_eq!(address("192.0.2.1:47911").unwrap().port(), 47911);
        for text in ["192.0.2.1", "host-b:47911"] {
            assert!(address(text).unwrap_err().contains("DNS names must be in the configuration"), "{text}");
        }
    }
}
