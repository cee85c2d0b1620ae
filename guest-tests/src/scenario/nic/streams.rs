//! iperf3 streams between two stations.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::net::Wire;
use super::station::Station;
use crate::tools::{Exchange, Ready};

const PORT: u16 = 5201;
/// Timeout for one run, including setup and teardown.
const LIMIT: Duration = Duration::from_secs(90);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Tcp,
    /// UDP at a rate far below an emulated guest's capacity. Unless the host is overloaded, datagrams are lost only on
    /// the link.
    Udp,
}

/// Parameters of an iperf3 run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Streams {
    pub(super) protocol: Protocol,
    pub(super) count: u32,
    /// Whether the data flows from the server to the client.
    pub(super) back: bool,
    pub(super) ipv6: bool,
    pub(super) amount: Amount,
}

/// How much data to send, or how long to keep sending.
#[derive(Clone, Copy, Debug)]
pub(super) enum Amount {
    Mib(u32),
    Seconds(u32),
}

/// Total rate of all UDP streams in bits per second.
const UDP_RATE: u32 = 20_000_000;

/// Size in bytes that iperf3 requests for a TCP socket's send and receive buffers. The kernel doubles it.
const SOCKET_BUFFER: u32 = 64 << 10;

impl Streams {
    /// Runs iperf3 over a network and returns the number of bytes that arrived.
    async fn run(self, client: &mut Station, server: &mut Station, network: u16) -> Result<u64> {
        let address = server.address(network);
        let peer = if self.ipv6 { address.ipv6 } else { address.ipv4 };
        let mut line = format!("iperf3 -c {peer} -J -P {}", self.count);
        match self.amount {
            Amount::Mib(mib) => line += &format!(" -n {mib}M"),
            Amount::Seconds(seconds) => line += &format!(" -t {seconds}"),
        }
        if self.back {
            line += " -R";
        }
        if self.protocol == Protocol::Tcp {
            line += &format!(" -w {SOCKET_BUFFER}");
        } else {
            line += &format!(" -u -l 1400 -b {}", UDP_RATE / self.count);
        }
        let exchange = Exchange {
            server: format!("iperf3 -s -1 -B {peer}"),
            client: line,
            ready: Ready::Tcp(PORT),
            limit: LIMIT,
        };
        let ends = exchange.run(&mut server.vm, &mut client.vm).await?;
        let report: Value = serde_json::from_str(&ends.client.stdout).context("iperf3's report")?;
        self.read(&report).with_context(|| format!("{report:#}"))
    }

    fn read(self, report: &Value) -> Result<u64> {
        let sum = if self.protocol == Protocol::Udp { "/end/sum" } else { "/end/sum_received" };
        report.pointer(&format!("{sum}/bytes")).and_then(Value::as_u64).context("no bytes")
    }

    /// Runs iperf3 and checks that data arrives. The exact amount cannot be checked, since the client exits once its
    /// kernel has accepted all bytes, and an overloaded guest drops datagrams. Other cases check the amount and the
    /// content.
    pub(super) async fn arrive(
        self,
        client: &mut Station,
        server: &mut Station,
        network: u16,
        wire: Wire,
    ) -> Result<()> {
        /// Maximum number of bytes per stream that may still be in flight at the end: both sockets' buffers and the
        /// block that iperf3 is about to write.
        const LATE: u64 = 4 * SOCKET_BUFFER as u64 + (128 << 10);
        /// Maximum number of runs that may fail because a stream's first datagram, or the reply to it, was lost. With
        /// eight streams, this happens in one run in seven.
        const GREETINGS_LOST: usize = 4;
        let mut arrived = self.run(client, server, network).await;
        for _ in 0..GREETINGS_LOST {
            if arrived.is_ok() || (wire, self.protocol) != (Wire::Lossy, Protocol::Udp) {
                break;
            }
            arrived = self.run(client, server, network).await;
        }
        let arrived = arrived?;
        if let (Protocol::Tcp, Amount::Mib(mib)) = (self.protocol, self.amount) {
            let late = u64::from(self.count) * LATE;
            ensure!(arrived + late >= u64::from(mib) << 20, "{arrived} bytes of {mib} MiB arrived");
        }
        ensure!(arrived > 0, "nothing arrived");
        Ok(())
    }
}
