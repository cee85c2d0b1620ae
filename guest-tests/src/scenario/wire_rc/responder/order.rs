//! Reordered and duplicate packets, and the order of responses.

use anyhow::{Result, ensure};

use super::{case, expect_original, fetch_add, responses, write_only};
use crate::packet_peer::{Packet, Reth};
use crate::scenario::wire_rc::Case;
use crate::scenario::wire_rc::link::{Attributes, Link, content, message, syndrome};

pub(in crate::scenario::wire_rc) const CASES: &[Case] = &[
    case("two reordered packets: a NAK, then all are acknowledged", swapped),
    case("duplicates are answered while a PSN is missing", duplicates_in_a_gap),
    case("a duplicate READ of any part is answered, starting with FIRST or ONLY", read_parts),
    case("the MSN counts messages of every kind", message_numbers),
    case("an RNR NAK acknowledges earlier requests", rnr_acknowledges),
    case("a NAK is sent after pending READ responses", nak_after_read),
    case("RNR NAK for the last packet of a WRITE with immediate, then success", rnr_of_last),
    case("FETCH_ADD wraps at 2^64", wrapping_add),
    case("a SEND that fills its receive buffer exactly", exact_fit),
    case("a READ of 2^31 bytes, valid but beyond the region: remote access error", longest_read),
    case("a WRITE of the whole region, and one before its start", region_borders),
];

fn swapped(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(0, 64)?;
    link.post_receive(64, 64)?;
    let [first, second] = [link.send_message(0, &message(8)), link.send_message(1, &message(9))];
    for packet in [&second[0], &first[0], &second[0]] {
        link.send(packet)?;
    }
    link.expect_acknowledge(0, syndrome::NAK_SEQUENCE, 0)?;
    // The HCA may send one acknowledgement for both messages, or one for each message.
    let answers = link.rest()?;
    ensure!(
        answers.last().is_some_and(|ack| ack.is("RC_ACKNOWLEDGE")
            && ack.psn == Link::peer_psn(1)
            && ack.aeth.is_some_and(|aeth| aeth.syndrome >> 5 == 0 && aeth.msn == 2))
            && answers.len() <= 2,
        "answered {answers:?}"
    );
    link.expect_success()?;
    link.expect_success()?;
    link.expect_memory(64, &message(9))
}

fn duplicates_in_a_gap(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(4096, 64)?;
    let read = link.read_request(0, link.reth(0, 8));
    let send = link.send_message(1, &message(8)).remove(0);
    let add = fetch_add(link, 2, 64, 1);
    link.send_all(&[read.clone(), send.clone(), add.clone()])?;
    let original = u64::from_le_bytes(content(64, 8).try_into().unwrap_or_default());
    ensure!(link.rest()?.len() >= 2, "too few answers");
    let ahead = link.send_message(5, &message(8)).remove(0);
    link.send(&ahead)?;
    link.expect_acknowledge(3, syndrome::NAK_SEQUENCE, 3)?;
    link.send(&send)?;
    link.expect_acknowledge(2, syndrome::ACK, 3)?;
    link.send(&add)?;
    expect_original(link, 2, original, 3)?;
    link.send(&read)?;
    ensure!(responses(link, 0, &["RC_RDMA_READ_RESPONSE_ONLY"], 3)? == content(0, 8), "content differs");
    link.send(&ahead)?;
    link.expect_silence()?;
    link.expect_success()?;
    link.expect_receives(3, 4)
}

fn read_parts(link: &mut Link<'_>) -> Result<()> {
    const PACKETS: u32 = 4;
    let mtu = u32::try_from(link.mtu)?;
    let whole = link.read_request(0, link.reth(0, PACKETS * mtu));
    link.send(&whole)?;
    ensure!(link.rest()?.len() == PACKETS as usize, "not all responses");
    for start in 0..PACKETS {
        for count in 1..=PACKETS - start {
            let part = link.read_request(start, link.reth(u64::from(start * mtu), count * mtu));
            link.send(&part)?;
            let names: Vec<_> = (0..count)
                .map(|n| match (n == 0, n + 1 == count) {
                    (true, true) => "RC_RDMA_READ_RESPONSE_ONLY",
                    (true, false) => "RC_RDMA_READ_RESPONSE_FIRST",
                    (false, false) => "RC_RDMA_READ_RESPONSE_MIDDLE",
                    (false, true) => "RC_RDMA_READ_RESPONSE_LAST",
                })
                .collect();
            let expected = content((start * mtu) as usize, (count * mtu) as usize);
            ensure!(responses(link, start, &names, 1)? == expected, "{count} from {start} differ");
        }
    }
    link.expect_receives(PACKETS, 2)
}

fn message_numbers(link: &mut Link<'_>) -> Result<()> {
    link.expect_receives(0, 1)?;
    let write = write_only(link, link.reth(0, 8), &message(8));
    link.send(&Packet { psn: Link::peer_psn(3), ..write })?;
    link.expect_acknowledge(3, syndrome::ACK, 2)?;
    let read = link.read_request(4, link.reth(64, 2 * u32::try_from(link.mtu)?));
    link.send(&read)?;
    responses(link, 4, &["RC_RDMA_READ_RESPONSE_FIRST", "RC_RDMA_READ_RESPONSE_LAST"], 3)?;
    link.store(0, &[0; 8])?;
    let add = fetch_add(link, 6, 0, 1);
    link.send(&add)?;
    expect_original(link, 6, 0, 4)?;
    link.expect_receives(7, 5)
}

fn rnr_acknowledges(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(0, 64)?;
    let first = link.packet("RC_SEND_ONLY", 0, &message(8));
    let second = link.send_message(1, &message(8)).remove(0);
    link.send_all(&[first, second])?;
    link.expect_acknowledge(1, syndrome::RNR | Attributes::DEFAULT.rnr_timer, 1)?;
    link.expect_silence()?;
    link.expect_success().map(drop)
}

fn nak_after_read(link: &mut Link<'_>) -> Result<()> {
    let mtu = u32::try_from(link.mtu)?;
    let read = link.read_request(0, link.reth(0, 3 * mtu));
    let bad = link.packet("RC_SEND_MIDDLE", 3, &message(link.mtu));
    link.send_all(&[read, bad])?;
    let names = ["RC_RDMA_READ_RESPONSE_FIRST", "RC_RDMA_READ_RESPONSE_MIDDLE", "RC_RDMA_READ_RESPONSE_LAST"];
    ensure!(responses(link, 0, &names, 1)? == content(0, 3 * link.mtu), "content differs");
    link.expect_acknowledge(3, syndrome::NAK_INVALID_REQUEST, 1)?;
    link.expect_silence()
}

fn rnr_of_last(link: &mut Link<'_>) -> Result<()> {
    let payload = message(2 * link.mtu + 8);
    let mut packets =
        super::messages::write_packets(link, link.reth(0, u32::try_from(payload.len())?), &payload);
    packets[2].op = "RC_RDMA_WRITE_LAST_WITH_IMMEDIATE".into();
    packets[2].imm = Some(agent::wire::Hex(vec![1, 2, 3, 4]));
    link.send_all(&packets)?;
    link.expect_acknowledge(2, syndrome::RNR | Attributes::DEFAULT.rnr_timer, 0)?;
    link.expect_memory(2 * 256, &content(2 * 256, 8))?;
    link.post_receive(4096, 64)?;
    link.send(&packets[2])?;
    link.expect_acknowledge(2, syndrome::ACK, 1)?;
    let cqe = link.expect_success()?;
    ensure!(cqe.imm == [1, 2, 3, 4], "completed with {cqe:?}");
    link.expect_memory(0, &payload)
}

fn wrapping_add(link: &mut Link<'_>) -> Result<()> {
    link.store(0, &u64::MAX.to_le_bytes())?;
    let add = fetch_add(link, 0, 0, 3);
    link.send(&add)?;
    expect_original(link, 0, u64::MAX, 1)?;
    link.expect_memory(0, &2u64.to_le_bytes())
}

fn exact_fit(link: &mut Link<'_>) -> Result<()> {
    let payload = message(2 * link.mtu);
    link.post_receive(0, u32::try_from(payload.len())?)?;
    let packets = link.send_message(0, &payload);
    link.send_all(&packets)?;
    link.expect_acknowledge(1, syndrome::ACK, 1)?;
    let cqe = link.expect_success()?;
    ensure!(cqe.byte_count as usize == payload.len(), "completed with {cqe:?}");
    link.expect_memory(0, &payload)
}

fn longest_read(link: &mut Link<'_>) -> Result<()> {
    let read = link.read_request(0, link.reth(0, 0x8000_0000));
    link.send(&read)?;
    link.expect_acknowledge(0, syndrome::NAK_REMOTE_ACCESS, 0)
}

fn region_borders(link: &mut Link<'_>) -> Result<()> {
    let payload = message(65536);
    let packets = super::messages::write_packets(link, link.reth(0, 65536), &payload);
    for part in packets.chunks(32) {
        link.send_all(part)?;
    }
    link.expect_acknowledge(255, syndrome::ACK, 1)?;
    link.expect_memory(0, &payload[..4096])?;
    link.expect_memory(65536 - 256, &payload[65536 - 256..])?;
    let Reth { va, rkey, .. } = link.reth(0, 8);
    let below = write_only(link, Reth { va: va - 1, rkey, len: 8 }, &message(8));
    link.send(&Packet { psn: Link::peer_psn(256), ..below })?;
    link.expect_acknowledge(256, syndrome::NAK_REMOTE_ACCESS, 1)
}
