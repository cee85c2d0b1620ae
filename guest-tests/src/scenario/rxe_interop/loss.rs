//! Tests a link that impairs frames. The test matrix runs while frames are lost, duplicated and reordered. Separate
//! cases cover corrupted and ECN-marked frames.

use std::time::Duration;

use agent::wire::Service;
use anyhow::{Result, ensure};
use tokio::time::Instant;

use super::super::cell::{Cell, Operation};
use super::super::impairments::Impairments;
use super::matrix::Matrix;
use super::{Bench, Extent, witness};
use crate::lab::Lab;
use crate::report::{Report, line};

/// How long soft-RoCE may take to count the last frames in flight.
const COUNT_TIMEOUT: Duration = Duration::from_secs(60);

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let mut bench = Bench::start(lab, Extent::Lossy).await?;
    let hint = bench.hint();
    for (percent, probability) in [("1 %", "0.01"), ("5 %", "0.05")] {
        let rules = bad_wire(&bench, probability).await?;
        let mut matrix = Matrix::new(Extent::Lossy);
        for (service, mtu) in matrix.connections() {
            bench.connect(service, mtu).await?;
            for row in matrix.rows(service, mtu) {
                let name = format!("{percent} impaired: {row}");
                report.case(&name, &hint, matrix.run(&row, &mut bench.hca, &mut bench.rxe)).await?;
            }
        }
        line(&format!(
            "\n{percent} lost, {percent} duplicated, {percent} reordered in each direction:{matrix}"
        ))?;
        report
            .case(&format!("{percent} impaired: every rule matched frames"), &hint, met(&bench, &rules))
            .await?;
        rules.clear(&bench.hca.driver.daemon).await?;
    }
    report
        .case("a zero-length READ is retried if its response is lost", &hint, empty_answer(&mut bench))
        .await?;
    report
        .case("corrupted frames are dropped and counted, both directions", &hint, damaged(&mut bench))
        .await?;
    report.case("ECN-marked data arrives and triggers CNPs", &hint, marked(&mut bench)).await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, bench.stop()).await
}

/// Makes the link drop, duplicate and reorder frames in both directions, each with the given probability.
async fn bad_wire(bench: &Bench, probability: &str) -> Result<Impairments> {
    let mut rules = Impairments::default();
    for (direction, seed) in [("tx", "1"), ("rx", "2")] {
        for action in [&["drop"][..], &["duplicate"], &["reorder", "3"]] {
            let rule = [&[direction, "--probability", probability, "--seed", seed][..], action].concat();
            rules.add(&bench.hca.driver.daemon, &rule).await?;
        }
    }
    Ok(rules)
}

async fn met(bench: &Bench, rules: &Impairments) -> Result<()> {
    let hits = rules.hits_of_each(&bench.hca.driver.daemon).await?;
    ensure!(hits.len() == 6 && hits.iter().all(|&hits| hits > 0), "hits by rule: {hits:?}");
    line(&format!(
        "      frames lost, duplicated, reordered: sent {:?}, received {:?}",
        &hits[..3],
        &hits[3..]
    ))
}

async fn empty_answer(bench: &mut Bench) -> Result<()> {
    let [hca_qpn, _] = bench.connect(Service::Rc, 1024).await?;
    let mut rules = Impairments::default();
    let rule =
        ["rx", "--qpn", &hca_qpn.to_string(), "--opcode", "RDMA READ response Only", "--nth", "1", "drop"];
    rules.add(&bench.hca.driver.daemon, &rule).await?;
    let cell = Cell { service: Service::Rc, operation: Operation::Read, len: 0, seed: 0x4000 << 32 };
    cell.run(&mut bench.hca, &mut bench.rxe).await?;
    let hits = rules.hits(&bench.hca.driver.daemon).await?;
    ensure!(hits == 1, "{hits} replies were lost");
    rules.clear(&bench.hca.driver.daemon).await
}

/// Transfers 64 KiB in each direction, once with SEND and once with READ.
async fn traffic(bench: &mut Bench, seed: u64) -> Result<()> {
    for (n, operation) in (0..).zip([Operation::Send, Operation::Read]) {
        let cell = Cell { service: Service::Rc, operation, len: 65536, seed: (seed + n) << 32 };
        cell.run(&mut bench.hca, &mut bench.rxe).await?;
        cell.run(&mut bench.rxe, &mut bench.hca).await?;
    }
    Ok(())
}

/// Flips one ICRC-protected bit in some of the packets that each end sends, and checks that the other end drops exactly
/// those packets.
async fn damaged(bench: &mut Bench) -> Result<()> {
    let [hca_qpn, rxe_qpn] = bench.connect(Service::Rc, 1024).await?;
    let (ours, theirs) = (dropped(bench).await?, witness::dropped_by_rxe(bench).await?);
    let [mut received, mut sent] = [Impairments::default(), Impairments::default()];
    for (rules, way, qpn) in [(&mut received, "rx", hca_qpn), (&mut sent, "tx", rxe_qpn)] {
        let qpn = qpn.to_string();
        let rule = [way, "--qpn", &qpn, "--probability", "0.05", "--seed", "3", "corrupt"];
        rules.add(&bench.hca.driver.daemon, &rule).await?;
    }
    for seed in 0..3 {
        traffic(bench, 0x5000 + 16 * seed).await?;
    }
    let daemon = &bench.hca.driver.daemon;
    let (in_hits, out_hits) = (received.hits(daemon).await?, sent.hits(daemon).await?);
    ensure!(in_hits > 0 && out_hits > 0, "{in_hits} received and {out_hits} sent packets were corrupted");
    received.clear(daemon).await?;
    sent.clear(daemon).await?;

    let icrc = dropped(bench).await? - ours;
    ensure!(icrc == in_hits, "hcad dropped {icrc} of {in_hits} corrupted packets");
    let deadline = Instant::now() + COUNT_TIMEOUT;
    loop {
        let by_rxe = witness::dropped_by_rxe(bench).await? - theirs;
        if by_rxe == out_hits {
            break;
        }
        ensure!(Instant::now() < deadline, "rxe dropped {by_rxe} of {out_hits} corrupted packets");
    }
    line(&format!("      corrupted and dropped: {in_hits} by hcad, {out_hits} by soft-RoCE"))
}

/// Returns the number of corrupted packets that hcad dropped, either by the ICRC check or by an earlier check.
async fn dropped(bench: &Bench) -> Result<u64> {
    let mut sum = 0;
    for reason in ["icrc", "invalid", "short"] {
        sum += bench.hca.driver.daemon.counter(&format!("/port/dropped/{reason}")).await?;
    }
    Ok(sum)
}

/// Checks that the receiver of ECN-marked data sends congestion notifications (IBTA annex A17, section A17.9).
/// Soft-RoCE ignores them.
async fn marked(bench: &mut Bench) -> Result<()> {
    let [hca_qpn, _] = bench.connect(Service::Rc, 1024).await?;
    let mut marks = Impairments::default();
    let daemon = &bench.hca.driver.daemon;
    marks.add(daemon, &["rx", "--qpn", &hca_qpn.to_string(), "mark-ce"]).await?;
    let of = async |name: &str| daemon.counter(&format!("/engine/congestion/{name}")).await;
    let before = (of("received_marked").await?, of("sent_cnps").await?);
    traffic(bench, 0x7000).await?;
    let daemon = &bench.hca.driver.daemon;
    let of = async |name: &str| daemon.counter(&format!("/engine/congestion/{name}")).await;
    let (seen, cnps) = (of("received_marked").await? - before.0, of("sent_cnps").await? - before.1);
    let hits = marks.hits(daemon).await?;
    ensure!(seen == hits && cnps > 0 && cnps <= seen, "{hits} packets marked, {seen} arrived, {cnps} CNPs");
    marks.clear(daemon).await?;
    line(&format!("      {seen} packets marked, {cnps} CNPs"))
}
