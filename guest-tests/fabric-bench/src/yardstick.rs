//! Baselines for the HCA results, measured on the same machine and in the same run: raw UDP, and single-threaded memory
//! copies.

use std::time::Duration;

use anyhow::Result;

use crate::report::{Figure, Figures, Reference};
use crate::runs::{micros, repeated, runs, size};
use crate::{Cli, Part, copy, udp};

/// Length of the frame that carries a full MIDDLE packet at path MTU 4096: Ethernet, IPv4, UDP, BTH, payload, ICRC.
const FRAME_LEN: usize = HEADERS + 4096;
/// Length of that frame without the payload.
const HEADERS: usize = 14 + 20 + 8 + 12 + 4;
/// Length of a frame that carries a 64-byte RDMA WRITE. It has the same headers plus a RETH.
const SMALL_FRAME_LEN: usize = HEADERS + 16 + 64;
/// Duration of one raw UDP run.
const RUN_TIME: Duration = Duration::from_millis(500);
/// Duration of the run for each chart point.
const POINT_TIME: Duration = Duration::from_millis(100);
/// Number of round trips in a latency run.
pub(crate) const PINGS: u32 = 5_000;

/// Message sizes in the bandwidth measurements.
pub(crate) const SIZES: [u32; 9] =
    [64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20];

/// The baselines that HCA results are compared against.
pub(crate) struct Yardstick {
    pub(crate) bandwidth: Reference,
    pub(crate) rate: Reference,
    /// Median and 99th percentile of the UDP latency.
    pub(crate) latency: [Reference; 2],
    /// Time per datagram in nanoseconds, for 64-byte and 4 KiB datagrams.
    pub(crate) datagram: [Reference; 2],
}

impl Yardstick {
    pub(crate) fn take(cli: &Cli, figures: &mut Figures) -> Result<Self> {
        let mega = |rate: f64| rate / 1e6;
        let gso = runs(cli.runs, || Ok(mega(udp::bandwidth(FRAME_LEN, true, RUN_TIME)?)))?;
        let plain = runs(cli.runs, || Ok(mega(udp::bandwidth(FRAME_LEN, false, RUN_TIME)?)))?;
        let rate = runs(cli.runs, || datagram_rate(true))?;
        let plain_rate = runs(cli.runs, || datagram_rate(false))?;
        let one_way = repeated(cli.runs, latency)?;
        let bandwidth = Reference::of("udp_4k_bw", &gso);
        let udp_rate = Reference::of("udp_64b_rate", &rate);
        let latency = [
            Reference::of("udp_64b_latency", &one_way[0]),
            Reference::of("udp_64b_latency_p99", &one_way[1]),
        ];
        figures.add(Figure::new("udp_4k_bw", "MB/s", &gso, &bandwidth));
        figures.add(Figure::new("udp_4k_nogso_bw", "MB/s", &plain, &bandwidth));
        figures.add(Figure::new("udp_64b_rate", "1/s", &rate, &udp_rate));
        figures.add(Figure::new("udp_64b_nogso_rate", "1/s", &plain_rate, &udp_rate));
        for (runs, reference) in one_way.iter().zip(&latency) {
            figures.add(Figure::new(reference.name.clone(), "us", runs, reference));
        }
        for (name, len) in [("memcpy_4k_bw", FRAME_LEN), ("memcpy_16m_bw", copy::LONG)] {
            let copied = runs(cli.runs, || Ok(mega(copy::bandwidth(len, RUN_TIME))))?;
            figures.add(Figure::new(name, "MB/s", &copied, &bandwidth));
        }
        if cli.only.is_none() && cli.has(Part::Fabric) {
            Self::points(cli, &bandwidth, figures)?;
        }
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let datagram = [
            Reference { name: "udp_64b_ns".into(), value: 1e9 / udp_rate.value },
            Reference { name: "udp_4k_ns".into(), value: FRAME_LEN as f64 / bandwidth.value * 1e3 },
        ];
        Ok(Self { bandwidth, rate: udp_rate, latency, datagram })
    }

    /// Measures additional lengths for the charts: UDP payloads shorter than 4 KiB, and memory copies.
    fn points(cli: &Cli, bandwidth: &Reference, figures: &mut Figures) -> Result<()> {
        for len in SIZES.map(|len| len as usize) {
            if len < 4096 {
                #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
                let payload = len as f64 / (HEADERS + len) as f64;
                let udp =
                    runs(cli.runs, || Ok(udp::bandwidth(HEADERS + len, true, POINT_TIME)? * payload / 1e6))?;
                let name = format!("udp_{}_bw", size(len as u64));
                figures.add(Figure::new(name, "MB/s", &udp, bandwidth));
            }
            if len != 4096 {
                let copied = runs(cli.runs, || Ok(copy::bandwidth(len, POINT_TIME) / 1e6))?;
                let name = format!("memcpy_{}_bw", size(len as u64));
                figures.add(Figure::new(name, "MB/s", &copied, bandwidth));
            }
        }
        Ok(())
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn datagram_rate(gso: bool) -> Result<f64> {
    Ok(udp::bandwidth(SMALL_FRAME_LEN, gso, RUN_TIME)? / SMALL_FRAME_LEN as f64)
}

/// Returns the median and the 99th percentile of the one-way UDP latency in microseconds.
fn latency() -> Result<[f64; 2]> {
    let sorted = udp::latencies(SMALL_FRAME_LEN, PINGS as usize)?;
    Ok([50, 99].map(|part| micros(sorted[sorted.len() * part / 100])))
}
