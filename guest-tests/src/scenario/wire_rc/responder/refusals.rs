//! Tests rejected requests. Each triggers a NAK and moves the queue pair to ERR, after which the HCA stops responding.

use agent::wire::Hex;
use anyhow::{Context as _, Result, ensure};

use super::messages::write_packets;
use super::{case, fetch_add, write_only};
use crate::packet_peer::{Atomic, Op, Packet, Reth};
use crate::scenario::wire_rc::Case;
use crate::scenario::wire_rc::link::{Link, content, message, state, syndrome};

/// Completion syndromes for the receive queue (JingZhao interface, section 7.4).
mod completion {
    pub(super) const LOCAL_LENGTH: u8 = 0x01;
    pub(super) const FLUSHED: u8 = 0x05;
}

pub(in crate::scenario::wire_rc) const CASES: &[Case] = &[
    case("a reserved opcode: invalid request", reserved_opcode),
    case("a reserved opcode below the valid ones: invalid request", |link| unknown_opcode(link, 0x15)),
    case("a reserved opcode between valid ones: invalid request", |link| unknown_opcode(link, 0x18)),
    case("SEND LAST with invalidate: invalid request", |link| unknown_opcode(link, 0x16)),
    case("SEND ONLY with invalidate: invalid request", |link| unknown_opcode(link, 0x17)),
    case("FIRST with padding: invalid request", |link| {
        invalid(link, |link| vec![link.packet("RC_SEND_FIRST", 0, &message(link.mtu - 1))])
    }),
    case("ONLY within a message: invalid request", |link| {
        invalid(link, |link| {
            vec![
                link.packet("RC_SEND_FIRST", 0, &message(link.mtu)),
                link.packet("RC_SEND_ONLY", 1, &message(8)),
            ]
        })
    }),
    case("SEND MIDDLE within a WRITE: invalid request", |link| {
        invalid(link, |link| {
            let [first, ..] = write_of_three(link);
            vec![first, link.packet("RC_SEND_MIDDLE", 1, &message(link.mtu))]
        })
    }),
    case("an atomic within a WRITE: invalid request", |link| {
        invalid(link, |link| {
            let [first, ..] = write_of_three(link);
            vec![first, fetch_add(link, 1, 0, 1)]
        })
    }),
    case("WRITE LAST without FIRST: invalid request", |link| {
        invalid(link, |link| vec![link.packet("RC_RDMA_WRITE_LAST", 0, &message(8))])
    }),
    case("a WRITE that ends before its RETH length: invalid request", |link| {
        invalid(link, |link| {
            let [first, middle, last] = write_of_three(link);
            vec![first, middle, Packet { payload: Hex(message(link.mtu - 4)), ..last }]
        })
    }),
    case("a WRITE that continues beyond its RETH length: invalid request", |link| {
        invalid(link, |link| {
            let [first, middle, _] = write_of_three(link);
            let beyond = |n| Packet { psn: Link::peer_psn(n), ..middle.clone() };
            vec![first, beyond(1), beyond(2), beyond(3)]
        })
    }),
    case("a READ request with payload: invalid request", |link| {
        invalid(link, |link| {
            vec![Packet { payload: Hex(message(8)), ..link.read_request(0, link.reth(0, 8)) }]
        })
    }),
    case("an atomic with payload: invalid request", |link| {
        invalid(link, |link| vec![Packet { payload: Hex(message(8)), ..fetch_add(link, 0, 0, 1) }])
    }),
    case("wrong R_Key in a READ: remote access error", |link| {
        forbidden(link, |link| {
            vec![link.read_request(0, Reth { rkey: link.mr.key ^ 0x101, ..link.reth(0, 64) })]
        })
    }),
    case("a WRITE of three packets beyond the region: remote access error on the first", |link| {
        forbidden(link, |link| {
            let [first, ..] = write_of_three(link);
            vec![Packet { reth: Some(link.reth(65536 - 512, 768)), ..first }]
        })
    }),
    case("ONLY longer than the path MTU: invalid request", |link| {
        invalid(link, |link| vec![link.packet("RC_SEND_ONLY", 0, &message(link.mtu + 1))])
    }),
    case("FIRST shorter than the path MTU: invalid request", |link| {
        invalid(link, |link| vec![link.packet("RC_SEND_FIRST", 0, &message(link.mtu - 4))])
    }),
    case("MIDDLE shorter than the path MTU: invalid request", |link| {
        invalid(link, |link| {
            vec![
                link.packet("RC_SEND_FIRST", 0, &message(link.mtu)),
                link.packet("RC_SEND_MIDDLE", 1, &message(link.mtu - 4)),
            ]
        })
    }),
    case("LAST without payload: invalid request", |link| {
        invalid(link, |link| {
            vec![link.packet("RC_SEND_FIRST", 0, &message(link.mtu)), link.packet("RC_SEND_LAST", 1, &[])]
        })
    }),
    case("LAST longer than the path MTU: invalid request", |link| {
        invalid(link, |link| {
            vec![
                link.packet("RC_SEND_FIRST", 0, &message(link.mtu)),
                link.packet("RC_SEND_LAST", 1, &message(link.mtu + 1)),
            ]
        })
    }),
    case("MIDDLE without FIRST: invalid request", |link| {
        invalid(link, |link| vec![link.packet("RC_SEND_MIDDLE", 0, &message(link.mtu))])
    }),
    case("FIRST within a message: invalid request", |link| {
        invalid(link, |link| {
            vec![
                link.packet("RC_SEND_FIRST", 0, &message(link.mtu)),
                link.packet("RC_SEND_FIRST", 1, &message(link.mtu)),
            ]
        })
    }),
    case("LAST of a different operation: invalid request", |link| {
        invalid(link, |link| {
            vec![
                link.packet("RC_SEND_FIRST", 0, &message(link.mtu)),
                link.packet("RC_RDMA_WRITE_LAST", 1, &message(16)),
            ]
        })
    }),
    case("WRITE shorter than its RETH length: invalid request", |link| {
        invalid(link, |link| vec![write_only(link, link.reth(0, 100), &message(96))])
    }),
    case("WRITE longer than its RETH length: invalid request", |link| {
        invalid(link, |link| vec![write_only(link, link.reth(0, 100), &message(104))])
    }),
    case("RETH length above 2^31: invalid request", |link| {
        invalid(link, |link| vec![link.read_request(0, link.reth(0, 0x8000_0001))])
    }),
    case("atomic at an address that is not a multiple of 8: invalid request", |link| {
        invalid(link, |link| vec![fetch_add(link, 0, 4, 1)])
    }),
    case("SEND longer than the receive request: invalid request and local length error", receive_too_small),
    case(
        "a SEND that only partly fits the receive request: invalid request and local length error",
        receive_too_small_later,
    ),
    case("wrong R_Key in a WRITE: remote access error, memory unchanged", |link| {
        forbidden(link, |link| {
            vec![write_only(link, Reth { rkey: link.mr.key ^ 0x101, ..link.reth(0, 64) }, &message(64))]
        })
    }),
    case("WRITE beyond the region: remote access error, memory unchanged", |link| {
        forbidden(link, |link| vec![write_only(link, link.reth(65536 - 63, 64), &message(64))])
    }),
    case("READ beyond the region: remote access error", |link| {
        forbidden(link, |link| vec![link.read_request(0, link.reth(65536 - 1023, 1024))])
    }),
    case("READ that wraps around the address space: remote access error", |link| {
        forbidden(link, |link| vec![link.read_request(0, Reth { va: u64::MAX - 15, ..link.reth(0, 64) })])
    }),
    case("wrong R_Key in an atomic: remote access error", |link| {
        forbidden(link, |link| {
            let mut packet = fetch_add(link, 0, 0, 1);
            packet.atomic = packet.atomic.map(|atomic| Atomic { rkey: atomic.rkey ^ 0x101, ..atomic });
            vec![packet]
        })
    }),
    case("R_Key invalidated during a WRITE: remote access error on a later packet", rkey_invalidated),
    case("a QP in ERR sends nothing", silent_in_err),
    case("a READ within a SEND: invalid request", |link| {
        invalid(link, |link| {
            let first = link.packet("RC_SEND_FIRST", 0, &message(link.mtu));
            vec![first, link.read_request(1, link.reth(0, 8))]
        })
    }),
    case("WRITE, READ and atomic without the access right: remote access error", without_right),
];

fn unknown_opcode(link: &mut Link<'_>, code: u8) -> Result<()> {
    let packet = Packet { ack_req: true, ..link.packet(Op::Code(code), 0, &message(16)) };
    refused(link, &[packet], syndrome::NAK_INVALID_REQUEST)?;
    link.completion().map(drop)
}

/// Returns a WRITE of three full packets to an address outside the memory that [`refused`] checks.
fn write_of_three(link: &Link<'_>) -> [Packet; 3] {
    let payload = message(3 * link.mtu);
    let len = u32::try_from(payload.len()).unwrap_or_default();
    let packets = write_packets(link, link.reth(16384, len), &payload);
    packets.try_into().unwrap_or_else(|packets| panic!("expected three packets: {packets:?}"))
}

fn reserved_opcode(link: &mut Link<'_>) -> Result<()> {
    invalid(link, |link| vec![Packet { ack_req: true, ..link.packet(Op::Code(0x1f), 0, &message(16)) }])
}

/// Checks that the queue pair sends one NAK, moves to ERR and stops responding (IBTA 9.7.4.1).
fn refused(link: &mut Link<'_>, packets: &[Packet], nak: u8) -> Result<()> {
    link.post_receive(4096, 4096)?;
    link.send_all(packets)?;
    let last = u32::try_from(packets.len())? - 1;
    link.expect_acknowledge(last, nak, 0)?;
    link.expect_state(state::ERR)?;
    let again = packets.last().context("the case has no packets")?.clone();
    link.send(&again)?;
    link.expect_silence()?;
    link.expect_memory(0, &content(0, 4096))
}

fn invalid(link: &mut Link<'_>, packets: fn(&Link<'_>) -> Vec<Packet>) -> Result<()> {
    let packets = packets(link);
    refused(link, &packets, syndrome::NAK_INVALID_REQUEST)?;
    link.completion().map(drop)
}

fn forbidden(link: &mut Link<'_>, packets: fn(&Link<'_>) -> Vec<Packet>) -> Result<()> {
    let packets = packets(link);
    refused(link, &packets, syndrome::NAK_REMOTE_ACCESS)?;
    let cqe = link.completion()?;
    ensure!(cqe.syndrome == Some(completion::FLUSHED), "the posted receive completed with {cqe:?}");
    Ok(())
}

fn receive_too_small(link: &mut Link<'_>) -> Result<()> {
    link.post_receive(0, 63)?;
    let packets = link.send_message(0, &message(64));
    link.send_all(&packets)?;
    link.expect_acknowledge(0, syndrome::NAK_INVALID_REQUEST, 0)?;
    link.expect_error(completion::LOCAL_LENGTH)?;
    link.expect_memory(63, &content(63, 64))
}

fn receive_too_small_later(link: &mut Link<'_>) -> Result<()> {
    let room = u32::try_from(link.mtu)? + 1;
    link.post_receive(0, room)?;
    let packets = link.send_message(0, &message(3 * link.mtu));
    link.send_all(&packets[..2])?;
    link.expect_acknowledge(1, syndrome::NAK_INVALID_REQUEST, 0)?;
    link.expect_error(completion::LOCAL_LENGTH)?;
    link.expect_memory(room.into(), &content(room as usize, 1024))
}

fn rkey_invalidated(link: &mut Link<'_>) -> Result<()> {
    let mtu = u32::try_from(link.mtu)?;
    let first = Packet {
        reth: Some(link.reth(0, 3 * mtu)),
        ack_req: true,
        ..link.packet("RC_RDMA_WRITE_FIRST", 0, &message(link.mtu))
    };
    link.send(&first)?;
    link.expect_acknowledge(0, syndrome::ACK, 0)?;
    link.destroy_region()?;
    let middle = Packet { ack_req: true, ..link.packet("RC_RDMA_WRITE_MIDDLE", 1, &message(link.mtu)) };
    link.send(&middle)?;
    link.expect_acknowledge(1, syndrome::NAK_REMOTE_ACCESS, 0)?;
    link.expect_state(state::ERR)
}

fn silent_in_err(link: &mut Link<'_>) -> Result<()> {
    let bad = link.packet("RC_SEND_LAST", 0, &message(8));
    link.send(&bad)?;
    link.expect_acknowledge(0, syndrome::NAK_INVALID_REQUEST, 0)?;
    for packet in [
        link.send_message(0, &message(8)).remove(0),
        link.read_request(0, link.reth(0, 8)),
        fetch_add(link, 0, 0, 1),
        link.packet("RC_SEND_ONLY", 9, &message(8)),
    ] {
        link.send(&packet)?;
    }
    link.expect_silence()?;
    link.expect_memory(0, &content(0, 64))
}

fn without_right(link: &mut Link<'_>) -> Result<()> {
    link.forbid_remote_access()?;
    forbidden(link, |link| vec![write_only(link, link.reth(0, 64), &message(64))])?;
    for packet in
        [|link: &Link<'_>| link.read_request(0, link.reth(0, 64)), |link: &Link<'_>| fetch_add(link, 0, 0, 1)]
    {
        link.reconnect()?;
        let packet = packet(link);
        link.send(&packet)?;
        link.expect_acknowledge(0, syndrome::NAK_REMOTE_ACCESS, 0)?;
        link.expect_state(state::ERR)?;
    }
    Ok(())
}
