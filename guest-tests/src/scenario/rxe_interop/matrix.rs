//! The test matrix. Each combination of service, path MTU, operation, role and message size is a cell.

use std::fmt;

use agent::wire::Service;
use anyhow::{Context, Result};

use super::super::cell::{Cell, Operation};
use super::super::endpoint::Endpoint;
use super::Extent;

use Operation::{FetchAdd, NoSwap, Read, Send, SendImm, Swap, Write, WriteImm};

const RC: [Operation; 8] = [Send, SendImm, Write, WriteImm, Read, Swap, NoSwap, FetchAdd];
const UC: [Operation; 4] = [Send, SendImm, Write, WriteImm];
const UD: [Operation; 2] = [Send, SendImm];
const MTUS: [u16; 5] = [256, 512, 1024, 2048, 4096];

/// Whether the HCA is the requester or the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Requester,
    Responder,
}

/// A row of cells that differ only in message size.
#[derive(Clone, Debug)]
pub(super) struct Row {
    service: Service,
    mtu: u16,
    operation: Operation,
    role: Role,
    sizes: Vec<u32>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<String> = self.sizes.iter().map(u32::to_string).collect();
        write!(
            f,
            "{} {} {}, path MTU {}, {} bytes",
            service_name(self.service),
            self.operation.name(),
            self.role.name(),
            self.mtu,
            sizes.join(" ")
        )
    }
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Requester => "hcad -> rxe",
            Self::Responder => "rxe -> hcad",
        }
    }
}

#[derive(Debug)]
pub(super) struct Matrix {
    extent: Extent,
    /// Rows that have run, each with the number of cells that passed.
    done: Vec<(Row, usize)>,
    cells: u64,
}

impl Matrix {
    pub(super) const fn new(extent: Extent) -> Self {
        Self { extent, done: Vec::new(), cells: 0 }
    }

    /// Returns the connections to test, as pairs of service and path MTU.
    pub(super) fn connections(&self) -> Vec<(Service, u16)> {
        if self.extent == Extent::Ipv6 {
            let rc = [512, 1024, 2048, 4096].map(|mtu| (Service::Rc, mtu));
            return rc.into_iter().chain([(Service::Uc, 2048), (Service::Ud, 4096)]).collect();
        }
        if self.extent == Extent::Lossy {
            return [256, 1024, 4096].map(|mtu| (Service::Rc, mtu)).to_vec();
        }
        let connected = [Service::Rc, Service::Uc].into_iter().flat_map(|s| MTUS.map(|mtu| (s, mtu)));
        // One entry is enough for UD, where the maximum datagram size depends on the port, not on the connection.
        connected.chain([(Service::Ud, 4096)]).collect()
    }

    pub(super) fn rows(&self, service: Service, mtu: u16) -> Vec<Row> {
        let operations = match service {
            Service::Rc => &RC[..],
            Service::Uc => &UC,
            Service::Ud => &UD,
        };
        let mut rows = Vec::new();
        for &operation in operations {
            for role in [Role::Requester, Role::Responder] {
                let sizes = self.sizes(service, mtu, operation);
                rows.push(Row { service, mtu, operation, role, sizes });
            }
        }
        rows
    }

    fn sizes(&self, service: Service, mtu: u16, operation: Operation) -> Vec<u32> {
        let full = self.extent == Extent::Full;
        let packet = u32::from(mtu);
        if operation.is_atomic() {
            return vec![8];
        }
        let around = [packet - 1, packet, packet + 1];
        match service {
            Service::Ud => [0, 1, 17, 1024, packet - 1, packet].to_vec(),
            // Messages are short, since UC does not retransmit packets that are dropped when a socket buffer is full.
            Service::Uc if full => [0, 1, 17].into_iter().chain(around).chain([8 * packet + 3]).collect(),
            Service::Uc => vec![1, packet, packet + 1],
            // The messages consist of up to 256 packets, some of which are likely to be lost.
            Service::Rc if self.extent == Extent::Lossy => match mtu {
                256 => vec![1, packet + 1, 8 * packet],
                1024 => vec![0, 3 * packet - 1, 65536],
                _ => vec![packet, 65537, 1 << 20],
            },
            Service::Rc if full => {
                [0, 1, 17].into_iter().chain(around).chain([65536, 1 << 20, 8 << 20]).collect()
            }
            Service::Rc => match mtu {
                256 => vec![0, packet - 1, packet, packet + 1],
                4096 => [0, 1, 17].into_iter().chain(around).chain([65536, 1 << 20]).collect(),
                _ => vec![packet + 1, 65536],
            },
        }
    }

    pub(super) async fn run(
        &mut self,
        row: &Row,
        hca: &mut impl Endpoint,
        rxe: &mut impl Endpoint,
    ) -> Result<()> {
        self.done.push((row.clone(), 0));
        for &len in &row.sizes {
            self.cells += 1;
            let Row { service, operation, .. } = *row;
            let cell = Cell { service, operation, len, seed: self.cells << 32 };
            match row.role {
                Role::Requester => cell.run(hca, rxe).await,
                Role::Responder => cell.run(rxe, hca).await,
            }
            .with_context(|| format!("{len} bytes"))?;
            if let Some((_, passed)) = self.done.last_mut() {
                *passed += 1;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Matrix {
    /// Prints one line per service, operation and role, with the number of cells passed and the total for each path
    /// MTU.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:30}{}", "cells passed, by path MTU", MTUS.map(|mtu| format!("{mtu:>8}")).concat())?;
        let (mut passed, mut all) = (0, 0);
        for service in [Service::Rc, Service::Uc, Service::Ud] {
            for operation in RC {
                for role in [Role::Requester, Role::Responder] {
                    let of_mtu = |mtu| {
                        let mut rows = self.done.iter();
                        rows.find(|(row, _)| {
                            (row.service, row.operation, row.role, row.mtu) == (service, operation, role, mtu)
                        })
                    };
                    let found = MTUS.map(of_mtu);
                    if found.iter().all(Option::is_none) {
                        continue;
                    }
                    let name = format!("{} {} {}", service_name(service), operation.name(), role.name());
                    let counts = found.map(|row| match row {
                        Some((row, passed)) => format!("{:>8}", format!("{passed}/{}", row.sizes.len())),
                        None => format!("{:>8}", "-"),
                    });
                    writeln!(f, "{name:30}{}", counts.concat())?;
                    for (row, row_passed) in found.into_iter().flatten() {
                        passed += row_passed;
                        all += row.sizes.len();
                    }
                }
            }
        }
        writeln!(f, "{passed} of {all} cells passed")
    }
}

const fn service_name(service: Service) -> &'static str {
    match service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
    }
}
