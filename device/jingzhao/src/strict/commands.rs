//! Checks for all commands, and additional checks for INIT_HCA and CLOSE_HCA.

use std::ops::Range;

use card::identity::Identity;
use card::memory::GuestMemory;
use hcr::strict::{end, overlapping};
use protocol::hca::jingzhao::PAGE;
use protocol::hca::jingzhao::cmd::{Command, Inbox, Op, PendingCommand};
use protocol::hca::jingzhao::eqe::EventType;
use protocol::hca::jingzhao::init::InitHca;
use protocol::hca::jingzhao::mailbox::Mailbox;
use protocol::hca::jingzhao::qpc;
use protocol::hca::jingzhao::transition::Transition;

use super::rules::{
    CLOSE_IN_USE, CLOSE_TWICE, EVENT_DROPPED, INIT_COUNTS, INIT_OVERLAP, INIT_TWICE, MAILBOX_ALIGNMENT,
    MAILBOX_IGNORED, UNDOCUMENTED_MODIFIER, UNUSED_PARAMETER,
};
use super::{Examined, Findings, Strict, View, icm, memory, qps, queues};
use crate::options::Setup;
use crate::resources::{DeviceState, Resources};

#[derive(Clone, Copy)]
pub(in super::super) struct Before<'a> {
    pub(in super::super) strict: &'a Strict,
    pub(in super::super) state: &'a DeviceState,
    pub(in super::super) setup: &'a Setup,
    pub(in super::super) own: &'a Identity,
    pub(in super::super) dma: &'a GuestMemory,
}

/// Checks a command before it is executed. The findings are reported if the command succeeds.
pub(in super::super) fn examine(
    before: Before<'_>,
    pending: &PendingCommand,
    command: &Command,
    inbox: &[u8],
) -> Examined {
    let state = before.state;
    let freed = (command.op == Op::Hw2SwMpt)
        .then(|| state.resources.as_ref()?.regions.keys.get(command.in_modifier).map(|region| region.key))
        .flatten();
    Examined { found: check(before, pending, command, inbox), freed }
}

fn check(before: Before<'_>, pending: &PendingCommand, command: &Command, inbox: &[u8]) -> Findings {
    let Before { strict, state, setup, own, dma } = before;
    let mut found = Findings::default();
    parameters(command, &mut found);
    let mailbox = Mailbox::inbox(command.op, command.in_modifier, inbox);
    if let Some(mailbox) = &mailbox {
        ignored_bits(command.op, inbox, mailbox, &mut found);
    }
    let Some(resources) = &state.resources else {
        match (command.op, &mailbox) {
            (Op::InitHca, Some(Mailbox::InitHca(init))) => layout(setup, init, &mut found),
            (Op::CloseHca, _) => found.add(&CLOSE_TWICE, "CLOSE_HCA before INIT_HCA"),
            _ => {}
        }
        return found;
    };
    let accepts_commands = |eq: &super::super::event_queue::EventQueue| eq.accepts(EventType::Command);
    if pending.command.event() && !resources.eqs.iter_from(0).any(|(_, eq)| accepts_commands(eq)) {
        found.add(
            &EVENT_DROPPED,
            format!("{} has the event bit set, but no EQ receives command events", command.op),
        );
    }
    let view = View { resources, dma };
    match (command.op, &mailbox) {
        (Op::InitHca, Some(Mailbox::InitHca(init))) => {
            found.add(&INIT_TWICE, "second INIT_HCA without CLOSE_HCA");
            layout(setup, init, &mut found);
        }
        (Op::CloseHca, _) => close(resources, &mut found),
        (Op::MapIcm, Some(Mailbox::MapIcm(entries))) => icm::map(resources, command, entries, &mut found),
        (Op::UnmapIcm, _) => icm::unmap(resources, command, &mut found),
        (Op::Sw2HwMpt, Some(Mailbox::Mpt(mpt))) => memory::sw2hw_mpt(view, strict, mpt, &mut found),
        (Op::Hw2SwMpt, _) => memory::hw2sw_mpt(resources, command, &mut found),
        (Op::WriteMtt, Some(Mailbox::WriteMtt(write))) => {
            memory::write_mtt(resources, command, write, &mut found);
        }
        (Op::Sw2HwCq, Some(Mailbox::Cqc(cqc))) => queues::sw2hw_cq(view, command, cqc, &mut found),
        (Op::Hw2SwCq, _) => queues::hw2sw_cq(resources, command, &mut found),
        (Op::ResizeCq, Some(Mailbox::ResizeCq(resize))) => {
            queues::resize_cq(view, command, resize, &mut found);
        }
        (Op::Sw2HwEq, Some(Mailbox::Eqc(eqc))) => queues::sw2hw_eq(view, command, eqc, &mut found),
        (Op::Hw2SwEq, _) => queues::hw2sw_eq(resources, command, &mut found),
        (Op::MapEq, _) => queues::map_eq(command, &mut found),
        (Op::QueryQp, _) => qps::query(resources, command, &mut found),
        (op, Some(Mailbox::Qpc(mailbox))) => {
            if let Some(transition) = Transition::from_op(op) {
                qps::modify(view, own, command, transition, mailbox, &mut found);
            }
        }
        _ => {}
    }
    found
}

fn parameters(command: &Command, found: &mut Findings) {
    let Command { op, op_modifier, in_modifier, in_param, out_param, inbox_len, outbox_len } = *command;
    let immediate = matches!(op, Op::UnmapIcm | Op::MapEq);
    let numbered =
        !matches!(op, Op::QueryDevLim | Op::QueryAdapter | Op::InitHca | Op::CloseHca | Op::MadIfc | Op::Nop);
    for (name, value, unused) in [
        ("in_param", in_param, inbox_len == 0 && !immediate && op.spec().inbox == Inbox::None),
        ("out_param", out_param, outbox_len == 0),
        ("in_modifier", u64::from(in_modifier), !numbered && !matches!(op, Op::MadIfc | Op::Nop)),
    ] {
        if unused && value != 0 {
            found.add(&UNUSED_PARAMETER, format!("{op} has {name} {value:#x}, expected 0"));
        }
    }
    for (name, address, len) in [("inbox", in_param, inbox_len), ("outbox", out_param, outbox_len)] {
        if len != 0 && !address.is_multiple_of(PAGE as u64) {
            found.add(
                &MAILBOX_ALIGNMENT,
                format!("{name} of {op} is at {address:#x}, which is not page-aligned"),
            );
        }
    }
    let documented = match op {
        Op::ResizeCq => op_modifier == 0,
        Op::ToRst => op_modifier == 3,
        _ => true,
    };
    if !documented {
        found.add(&UNDOCUMENTED_MODIFIER, format!("{op} has undefined op_modifier {op_modifier}"));
    }
}

/// Finds bits that are set in a mailbox but ignored by the device. The last part of a QP mailbox is undefined and
/// therefore not checked.
fn ignored_bits(op: Op, inbox: &[u8], mailbox: &Mailbox, found: &mut Findings) {
    /// Position of the page size in an MPT entry. The device accepts a size or a code (J-20), but [`Mailbox::emit`]
    /// returns only sizes.
    const PAGE_SIZE: Range<usize> = 4..8;
    let read = mailbox.emit();
    let defined = if matches!(mailbox, Mailbox::Qpc(_)) { qpc::MEANINGFUL_LEN } else { inbox.len() };
    let unchecked = if matches!(mailbox, Mailbox::Mpt(_)) { PAGE_SIZE } else { 0..0 };
    let words = inbox.iter().zip(&read).take(defined).enumerate();
    let mut words = words.filter(|(at, _)| !unchecked.contains(at));
    if let Some((at, (given, kept))) = words.find(|(_, (given, kept))| *given & !*kept != 0) {
        found.add(
            &MAILBOX_IGNORED,
            format!("{op} ignores bits {:#04x} in byte {at:#x} of its inbox", given & !kept),
        );
    }
}

fn layout(setup: &Setup, init: &InitHca, found: &mut Findings) {
    let limits = setup.options.limits.dev_lim();
    let tables = [
        ("QPC", init.qpc, limits.log_max_qps, limits.qpc_len),
        ("CQC", init.cqc, limits.log_max_cqs, limits.cqc_len),
        ("EQC", init.eqc, limits.log_max_eqs, limits.eqc_len),
        ("MPT", init.mpt, limits.log_max_mpts, limits.mpt_len),
    ];
    for (name, table, most, _) in tables {
        if table.log_entries > most {
            found.add(
                &INIT_COUNTS,
                format!("{name} table has 2^{} entries, maximum is 2^{most}", table.log_entries),
            );
        }
    }
    // The MPT, last in the list, has a separate ICM address space and cannot overlap the context tables.
    let contexts = tables.map(|(name, table, _, len)| (name, table, len));
    for what in overlapping(contexts.split_last().map_or(&[], |(_, contexts)| contexts)) {
        found.add(&INIT_OVERLAP, what);
    }
    let mtt = init.mtt_base.get();
    let mpt = init.mpt.base.get();
    if mtt >= mpt && u128::from(mtt) < end(&init.mpt, limits.mpt_len) {
        found.add(&INIT_OVERLAP, "the MPT and MTT tables overlap in ICM");
    }
}

fn close(resources: &Resources, found: &mut Findings) {
    let eqs = resources.eqs.iter_from(0).count();
    let counts = [("QPs", resources.qps.len()), ("CQs", resources.cqs.len()), ("EQs", eqs)];
    // Regions are not reported, since the public driver relies on CLOSE_HCA to free its first region.
    let left: Vec<_> =
        counts.iter().filter(|(_, n)| *n != 0).map(|(name, n)| format!("{name}: {n}")).collect();
    if !left.is_empty() {
        found.add(&CLOSE_IN_USE, format!("CLOSE_HCA while objects are in use ({})", left.join(", ")));
    }
}
