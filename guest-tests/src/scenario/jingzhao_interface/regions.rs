//! Tests memory regions with different page sizes and address ranges.

use agent::wire::{CreateMr, Fill, MrInfo, SendOp, SendRequest, Verify};
use anyhow::{Context, Result, ensure};

use super::{SOON_MS, request};
use crate::report::Report;
use crate::scenario::connection::{Attributes, Connection, destroy_region, expect_stream, region};
use crate::scenario::pair::{Direction, Pair};

/// Length of each region in bytes. A region covers many small pages, or part of one large page.
const LEN: u32 = 300_000;
const REMOTE_ACCESS: u8 = 0x13;

pub(super) async fn run(pair: &mut Pair, report: &mut Report, hint: &str) -> Result<()> {
    // The page_size field contains either the page size in bytes, where 0 means 4096, or the binary logarithm of the
    // page size minus 12 (JingZhao interface, section 9.3).
    for (page_size, field) in
        [(4096, 4096), (4096, 0), (8192, 1), (65536, 65536), (65536, 4), (2 << 20, 2 << 20)]
    {
        let name = format!("region with {page_size}-byte pages, page_size field {field}");
        let region =
            CreateMr { page_size, page_size_field: Some(field), page_offset: 1000, ..CreateMr::default() };
        report.case(&name, hint, there_and_back(pair, region)).await?;
    }
    let zero_based = CreateMr { zero_based: true, page_offset: 100, ..CreateMr::default() };
    report.case("region with addresses that start at zero", hint, there_and_back(pair, zero_based)).await?;
    let high = CreateMr { va: Some(0xffff_8000_1234_5678), ..CreateMr::default() };
    report.case("region in the upper half of the address space", hint, there_and_back(pair, high)).await
}

/// Writes to a region and reads it back, then checks that a WRITE fails after the region has been destroyed.
async fn there_and_back(pair: &mut Pair, target: CreateMr) -> Result<()> {
    const SEED: u64 = 31;
    let connection = Connection::create(pair, &Attributes::default()).await?;
    let target = pair.b.vm.call(CreateMr { len: LEN.into(), ..target }).await?;
    let source = region(&mut pair.a.vm, LEN.into(), 77).await?;
    let sink = region(&mut pair.a.vm, LEN.into(), 1234).await?;
    let len = u64::from(LEN);
    pair.a.vm.call(Fill { mr: source.id, len, seed: SEED, ..Fill::default() }).await?;

    ensure!(one(pair, &connection, SendOp::Write, &source, &target).await?.is_none(), "the WRITE failed");
    let whole = |mr: &MrInfo| Verify { mr: mr.id, len, seed: SEED, ..Verify::default() };
    expect_stream(&mut pair.b.vm, whole(&target), "what was written").await?;
    ensure!(one(pair, &connection, SendOp::Read, &sink, &target).await?.is_none(), "the READ failed");
    expect_stream(&mut pair.a.vm, whole(&sink), "what was read").await?;

    destroy_region(&mut pair.b.vm, &target).await?;
    let late = one(pair, &connection, SendOp::Write, &source, &target).await?;
    ensure!(late == Some(REMOTE_ACCESS), "WRITE to a destroyed region: syndrome {late:x?}");
    destroy_region(&mut pair.a.vm, &source).await?;
    destroy_region(&mut pair.a.vm, &sink).await?;
    connection.destroy(pair).await
}

/// Executes one request that covers the whole region and returns its completion's syndrome.
async fn one(
    pair: &mut Pair,
    connection: &Connection,
    op: SendOp,
    local: &MrInfo,
    target: &MrInfo,
) -> Result<Option<u8>> {
    let (at_a, _) = connection.towards(Direction::AToB);
    let step = SendRequest { remote: Some(target.remote(0)), ..request(op, local.sge(0, LEN)) };
    at_a.post(&mut pair.a.vm, vec![step]).await?;
    let cqes = at_a.poll(&mut pair.a.vm, 1, SOON_MS).await?;
    Ok(cqes.first().context("a completion is missing")?.syndrome)
}
