//! Every form of every command, in execution order. Section numbers refer to the JingZhao interface.

use agent::wire::{InParam, OutParam, RawCommand};

use super::answers::Script;
use super::device::Device;
use super::mailbox::{
    Mailbox, WorkQueue, cqc, eqc, init_hca, map_icm, mpt, qpc, resize_cq, service, write_mtt,
};
use super::spec::{Form, InModifier, Inbox, Row, SECTION_2, UNSUPPORTED};

/// An address that is not backed by memory.
const NOWHERE: u64 = 0x7fff_ffff_f000;
/// Rolling bits of an object number, which are those above the table's index mask.
const ROLLING: u32 = 0x9c_0000;

// These numbers are far above those that the agent uses and refer to the last page of each table.
const QPN: u32 = 1020;
const UNUSED_QPN: u32 = 1019;
const CQN: u32 = 1000;
const EQN: u32 = 20;
const MPT: u32 = 4090;
const MTT: u64 = 64_000;

/// Returns a command without mailboxes.
pub(super) fn of(op: u16) -> RawCommand {
    RawCommand { op, ..RawCommand::default() }
}

/// Returns a command that takes an object number.
pub(super) fn on(op: u16, number: u32) -> RawCommand {
    RawCommand { in_modifier: number, ..of(op) }
}

/// Returns a command that takes an object number and has an input mailbox.
pub(super) fn with(op: u16, number: u32, inbox: &Mailbox) -> RawCommand {
    RawCommand { input: inbox.input(), ..on(op, number) }
}

/// Returns a command that takes an object number and has an output mailbox.
pub(super) fn query(op: u16, number: u32) -> RawCommand {
    RawCommand { output: OutParam::Mailbox, ..on(op, number) }
}

fn modified(op_modifier: u8, command: RawCommand) -> RawCommand {
    RawCommand { op_modifier, ..command }
}

/// Returns a command that passes the checks in section 2, with one entry and zeroed mailboxes.
fn plain(row: &Row) -> RawCommand {
    RawCommand {
        op_modifier: row.op_modifier.first(),
        in_modifier: 1,
        input: row.inbox.bytes().map_or(InParam::None, |_| Mailbox::new(0x40).input()),
        output: row.outbox.map_or(OutParam::None, |_| OutParam::Mailbox),
        ..of(row.op)
    }
}

/// Returns the commands to try before INIT_HCA, as well as INIT_HCA and CLOSE_HCA themselves.
pub(super) fn uninitialised() -> Script {
    const INIT_HCA: u16 = 0x007;
    const CLOSE_HCA: u16 = 0x008;
    let mut script = Script::default();
    let early = |script: &mut Script| {
        for row in SECTION_2.iter().filter(|row| row.op != INIT_HCA) {
            script.tries(Form::BeforeInitHca, plain(row));
        }
        UNSUPPORTED.iter().for_each(|&(op, _)| script.tries(Form::BeforeInitHca, of(op)));
    };
    let init = |mailbox: Mailbox| with(INIT_HCA, 0, &mailbox);
    early(&mut script);
    for (what, offset, most) in [
        ("log_num_qps > 24", 0x0f, 24),
        ("log_num_cqs > 24", 0x17, 24),
        ("log_num_eqs > 8", 0x1f, 8),
        ("log_mpt_sz > 32", 0x37, 32),
    ] {
        script.bad(what, init(init_hca().byte(offset, most + 1)));
        script.bad(what, init(init_hca().byte(offset, 0xff)));
    }
    // Repeat the early commands to show that the invalid INIT_HCA commands had no effect.
    early(&mut script);
    script.good("when not initialised", of(CLOSE_HCA));
    script.tries(Form::BeforeInitHca, init(init_hca()));
    script.needs(query(0x022, 1));
    script.good("again without CLOSE_HCA", init(init_hca()));
    script.good("", of(CLOSE_HCA));
    early(&mut script);
    let largest = [(0x0f, 24), (0x17, 24), (0x1f, 8), (0x37, 32)];
    let largest = largest.into_iter().fold(init_hca(), |mailbox, (at, most)| mailbox.byte(at, most));
    script.good("the largest counts", init(largest));
    script.needs(of(CLOSE_HCA));
    script.good("", init(init_hca()));
    script.needs(of(CLOSE_HCA));
    script
}

/// Returns commands that an initialised device rejects in its generic checks.
pub(super) fn generic(device: &Device) -> Script {
    let mut script = Script::default();
    for row in &SECTION_2 {
        let plain = plain(row);
        for op_modifier in row.op_modifier.unlisted() {
            script.tries(Form::OpModifier, modified(op_modifier, plain.clone()));
        }
        if let Some(len) = row.inbox.bytes() {
            let at = |address| RawCommand { input: InParam::Immediate(address), ..plain.clone() };
            script.tries(Form::NoInbox, at(0));
            script.tries(Form::InboxNowhere, at(NOWHERE));
            script.tries(Form::InboxNowhere, at(u64::MAX - 3));
            script.tries(Form::InboxCut, at(device.memory_end() - len + 4));
        }
        if let Some(len) = row.outbox {
            let at = |address| RawCommand { output: OutParam::Immediate(address), ..plain.clone() };
            script.tries(Form::NoOutbox, at(0));
            script.tries(Form::OutboxNowhere, at(NOWHERE));
            script.tries(Form::OutboxNowhere, at(u64::MAX - 3));
            script.tries(Form::OutboxCut, at(device.memory_end() - len + 4));
        }
        if row.in_modifier == InModifier::Number {
            let numbered = |in_modifier| RawCommand { in_modifier, ..plain.clone() };
            script.tries(Form::NumberOver24Bits, numbered(0x0100_0001));
            script.tries(Form::NumberOver24Bits, numbered(0x7fff_ffff));
        }
        if let Inbox::Unmodified(_) = row.inbox {
            // The command has an input mailbox only if op_modifier is 0. Also test the object number check without a
            // mailbox.
            script.tries(
                Form::NumberOver24Bits,
                RawCommand {
                    input: InParam::None,
                    ..modified(3, RawCommand { in_modifier: 0x0100_0001, ..plain })
                },
            );
        }
    }
    UNSUPPORTED.iter().for_each(|&(op, _)| script.good("", of(op)));
    script
}

/// Returns one command for each opcode that no document defines.
pub(super) fn undefined() -> impl Iterator<Item = RawCommand> {
    let defined = |op: &u16| {
        SECTION_2.iter().any(|row| row.op == *op)
            || UNSUPPORTED.iter().any(|(unsupported, _)| unsupported == op)
    };
    (0..0x1000).filter(move |op| !defined(op)).map(of)
}

/// Returns the query commands (sections 3.1, 3.2 and 3.14).
pub(super) fn queries() -> Script {
    let mut script = Script::default();
    script.good("", query(0x003, 0));
    script.good("", query(0x006, 0));
    for op_modifier in 0..4 {
        script.good("special QP types 0 to 3", modified(op_modifier, on(0x023, 2)));
    }
    script.good("", modified(1, query(0x024, 1)));
    script.good("", on(0x031, 0x1f));
    script.good("in_modifier is not checked", on(0x031, u32::MAX));
    script
}

/// Returns the commands in sections 3.5 and 3.6, and other commands that fail while their ICM pages are unmapped
/// (section 5.2).
pub(super) fn icm(device: &Device) -> Script {
    const MAP: u16 = 0xffa;
    const UNMAP: u16 = 0xff9;
    let mut script = Script::default();
    let map = |name_space, count, runs: &[_]| modified(name_space, with(MAP, count, &map_icm(runs)));
    let unmap = |name_space, virt, pages| {
        modified(name_space, RawCommand { input: InParam::Immediate(virt), ..on(UNMAP, pages) })
    };
    let [qpc_page, cqc_page, eqc_page, mpt_page, mtt_page] = device.last_pages();
    for virt in [qpc_page, cqc_page, eqc_page] {
        script.good("contexts", unmap(1, virt, 1));
    }
    for virt in [mpt_page, mtt_page] {
        script.good("MPT and MTT", unmap(2, virt, 1));
    }
    script.good("pages that are not mapped", unmap(1, cqc_page, 1));
    script.good("pages that are not mapped", unmap(2, 0x7000_0000_0000, 64));
    script.bad("unaligned address", unmap(1, qpc_page + 8, 1));
    script.bad("count 0", unmap(2, mpt_page, 0));

    let unmapped = |script: &mut Script| {
        script.bad("ICM page not mapped", with(0x00d, MPT, &mpt(MPT, MTT)));
        script.bad("ICM page not mapped", with(0x013, EQN, &eqc(5, device.lkey())));
        script.bad("ICM page not mapped", with(0x016, CQN, &cqc(5, device.lkey())));
        script.bad("ICM page not mapped", with(0x019, QPN, &image(device, service::RC)));
    };
    unmapped(&mut script);
    script.bad("ICM page not mapped", with(0x011, 1, &write_mtt(1 << 30, 0x1000, 1)));
    // Four entries are before the table's last page, and four are in it.
    let across = (1 << 16) - 512 - 4;
    script.bad("last entry's ICM page not mapped", with(0x011, 8, &write_mtt(across, 0x1000, 8)));

    let [page_0, page_1, page_2, page_3, page_4, ..] = device.pages();
    let run = |virt, bus| (virt, bus, 1);
    script.bad("in_modifier 0", map(1, 0, &[run(qpc_page, page_0)]));
    script.bad("in_modifier over 256", map(1, 257, &[run(qpc_page, page_0)]));
    script.bad("in_modifier over 256", map(1, u32::MAX, &[run(qpc_page, page_0)]));
    script.bad("page_num 0", map(1, 1, &[(qpc_page, page_0, 0)]));
    script.bad("virt not page aligned", map(1, 1, &[run(qpc_page + 0x100, page_0)]));
    script.bad("virt + length wraps", map(2, 1, &[(u64::MAX - 0xfff, page_0, 2)]));
    for bad in [(qpc_page, page_0, 0), (qpc_page + 8, page_0, 1)] {
        script.bad("second entry bad", map(1, 2, &[run(cqc_page, page_1), bad]));
    }
    // A failed command must not map anything.
    unmapped(&mut script);

    script.good("contexts", map(1, 1, &[run(qpc_page, page_0)]));
    script.good(
        "three entries",
        map(1, 3, &[run(cqc_page, page_1), run(eqc_page, page_2), run(0x7000_0000_0000, page_3)]),
    );
    script.good("MPT and MTT", map(2, 2, &[run(mpt_page, page_3), run(mtt_page, page_4)]));
    script.good("mapped already", map(1, 1, &[run(cqc_page, page_1)]));
    script.good("outside the tables of INIT_HCA", map(2, 1, &[(0x7000_0000_0000, page_3, 2)]));
    script
}

/// Returns the commands for memory regions (sections 3.7 and 3.8).
pub(super) fn regions() -> Script {
    const SW2HW: u16 = 0x00d;
    const HW2SW: u16 = 0x00f;
    const WRITE_MTT: u16 = 0x011;
    let mut script = Script::default();
    script.bad("index outside the table", with(SW2HW, 1 << 12, &mpt(1 << 12, MTT)));
    script.bad("key of another index", with(SW2HW, MPT, &mpt(MPT - 1, MTT)));
    for page_size in [20, 0x800, 0xfff, 0x3000, 1 << 31 | 1 << 12] {
        script.bad("page_size not supported", with(SW2HW, MPT, &mpt(MPT, MTT).word(4, page_size)));
    }
    script.bad("index outside the table", on(HW2SW, 1 << 12));
    script.bad("entry not valid", on(HW2SW, MPT));
    script.good("", with(SW2HW, MPT, &mpt(MPT, MTT)));
    script.bad("entry valid already", with(SW2HW, MPT, &mpt(MPT, MTT)));
    script.bad("entry valid already", with(SW2HW, MPT, &mpt(1 << 12 | MPT, MTT)));
    script.good("", on(HW2SW, MPT));
    script.bad("entry not valid", on(HW2SW, MPT));
    script.good("key with rolling bits", with(SW2HW, MPT, &mpt(5 << 12 | MPT, MTT)));
    script.needs(on(HW2SW, MPT));

    script.bad("n = 0", with(WRITE_MTT, 0, &write_mtt(MTT, 0x1000, 1)));
    script.good("", with(WRITE_MTT, 1, &write_mtt(MTT, 0x1000, 1)));
    script.good("508 entries", with(WRITE_MTT, 508, &write_mtt(MTT, 0x1000, 508)));
    script.good("more than 508 entries (J-11)", with(WRITE_MTT, 509, &write_mtt(MTT, 0x1000, 508)));
    script.good("more than 508 entries (J-11)", with(WRITE_MTT, u32::MAX, &write_mtt(MTT, 0x1000, 508)));
    script
}

/// Returns the commands for event queues (sections 3.9 and 3.10).
pub(super) fn event_queues(device: &Device) -> Script {
    const MAP_EQ: u16 = 0x012;
    const SW2HW: u16 = 0x013;
    const HW2SW: u16 = 0x014;
    const REMOVE: u32 = 1 << 31;
    let mut script = Script::default();
    let context = |log_entries| eqc(log_entries, device.lkey());
    let map = |eqn| RawCommand { input: InParam::Immediate(0x3_0c3c), ..on(MAP_EQ, eqn) };
    script.bad("logsize > 20", with(SW2HW, EQN, &context(21)));
    script.bad("logsize > 20", with(SW2HW, EQN, &context(255)));
    script.bad("EQN outside the table", with(SW2HW, 32, &context(5)));
    script.bad("EQ not valid", on(HW2SW, EQN));
    script.bad("EQ not valid", map(EQN));
    script.bad("EQ not valid", map(REMOVE | EQN));
    script.good("", with(SW2HW, EQN, &context(5)));
    script.bad("valid already", with(SW2HW, EQN, &context(5)));
    script.good("add", map(EQN));
    script.good("remove", map(REMOVE | EQN));
    script.good("", on(HW2SW, EQN));
    script.bad("EQ not valid", on(HW2SW, EQN));
    script.good("logsize 20", with(SW2HW, EQN, &context(20)));
    script.needs(on(HW2SW, EQN));
    script
}

/// Returns the commands for completion queues (section 3.11).
pub(super) fn completion_queues(device: &Device) -> Script {
    const SW2HW: u16 = 0x016;
    const HW2SW: u16 = 0x017;
    const RESIZE: u16 = 0x02c;
    let mut script = Script::default();
    let context = |log_entries| cqc(log_entries, device.lkey());
    let resize = |op_modifier, log_entries| {
        modified(op_modifier, with(RESIZE, CQN, &resize_cq(log_entries, device.lkey())))
    };
    for log_entries in [17, 255] {
        script.bad("logsize > 16", with(SW2HW, CQN, &context(log_entries)));
    }
    script.bad("CQ not valid", on(HW2SW, CQN));
    script.bad("CQ not valid", resize(1, 5));
    script.good("", with(SW2HW, CQN, &context(5)));
    script.bad("valid already", with(SW2HW, CQN, &context(5)));
    script.bad("valid already", with(SW2HW, ROLLING | CQN, &context(5)));
    for op_modifier in [0, 1] {
        script.bad("logsize > 16", resize(op_modifier, 17));
    }
    script.good("op_modifier 0 ([D])", resize(0, 6));
    script.good("op_modifier 1 (driver, J-35)", resize(1, 5));
    script.good("op_modifier FFh", resize(0xff, 5));
    script.good("", on(HW2SW, CQN));
    script.bad("CQ not valid", on(HW2SW, CQN));
    script.good("number with rolling bits", with(SW2HW, ROLLING | CQN, &context(16)));
    script.good("number with other rolling bits", on(HW2SW, 0x34_0000 | CQN));
    script
}

/// Returns the commands for queue pairs (sections 3.12 and 3.13). `sqe` is the QPN of a UC QP in SQE.
pub(super) fn queue_pairs(device: &Device, sqe: u32) -> Script {
    let mut script = Script::default();
    let rc = image(device, service::RC);
    let zeros = Mailbox::new(0xc0);
    let qp = |op, inbox: &Mailbox| with(op, QPN, inbox);
    let reset = modified(3, on(0x021, QPN));

    script.good("QP in RESET", query(0x022, QPN));
    script.good("unused number", query(0x022, UNUSED_QPN));
    script.bad("QP in RESET", qp(0x02d, &rc));
    script.bad("QP in RESET", qp(0x01a, &rc));
    script.bad("service type 2 (RD)", qp(0x019, &image(device, 2)));
    script.bad("service type 4", qp(0x019, &image(device, 4)));
    script.bad("service type FFh", qp(0x019, &image(device, 0xff)));
    script.bad("port 2", qp(0x019, &rc.clone().byte(0x1c, 2)));
    for (how, service) in [("UC", service::UC), ("UD", service::UD), ("", service::RC)] {
        script.good(how, qp(0x019, &image(device, service)));
        script.needs(reset.clone());
    }
    script.good(
        "state and bytes A4h..BFh are ignored",
        qp(0x019, &rc.clone().byte(0x08, 0x60).rest(0xa4, 0xee)),
    );

    script.bad("QP in INIT", qp(0x019, &rc));
    script.bad("QP in INIT", qp(0x01b, &rc));
    script.bad("port 2", qp(0x02d, &rc.clone().byte(0x1c, 2)));
    script.good("", qp(0x02d, &rc));
    script.bad("port 2", qp(0x01a, &rc.clone().byte(0x1c, 2)));
    script.bad("RC: MTU code 6", qp(0x01a, &rc.clone().byte(0x0c, 6 << 5 | 31)));
    script.bad("RQ length not a multiple of its slot", qp(0x01a, &rc.clone().word(0x94, 0x4100)));
    script.bad("RQ entry_sz_log 4", qp(0x01a, &rc.clone().byte(0x0d, 4)));
    script.bad("RQ entry_sz_log 13", qp(0x01a, &rc.clone().byte(0x0d, 13)));
    script.good("", qp(0x01a, &rc));

    for op in [0x01c, 0x01f] {
        script.bad("QP in RTR", qp(op, &rc));
    }
    script.bad("port 2", qp(0x01b, &rc.clone().byte(0x1c, 2)));
    script.bad("SQ length not a multiple of its slot", qp(0x01b, &rc.clone().word(0x78, 0x4100)));
    script.bad("SQ entry_sz_log 4", qp(0x01b, &rc.clone().byte(0x0e, 4)));
    script.bad("SQ entry_sz_log 13", qp(0x01b, &rc.clone().byte(0x0e, 13)));
    script.good("", qp(0x01b, &rc));

    script.good("", query(0x022, QPN));
    script.good("number with rolling bits", query(0x022, ROLLING | QPN));
    for op in [0x01d, 0x038, 0x020] {
        script.bad("QP in RTS", qp(op, &rc));
    }
    script.bad("port 2", qp(0x01c, &rc.clone().byte(0x1c, 2)));
    script.good("", qp(0x01c, &rc));
    script.good("zeros change nothing", qp(0x01c, &zeros));
    script.good("", qp(0x01f, &rc));
    script.bad("port 2", qp(0x038, &rc.clone().byte(0x1c, 2)));
    script.good("", qp(0x038, &rc));
    script.bad("port 2", qp(0x020, &rc.clone().byte(0x1c, 2)));
    script.good("", qp(0x020, &rc));
    script.good("with notify request", qp(0x01f, &rc.clone().word(0, 1 << 2)));

    script.good("op_modifier 0, zero mailbox", qp(0x01e, &zeros));
    script.good("op_modifier 2", modified(2, on(0x01e, QPN)));
    script.good("op_modifier 3", modified(3, on(0x01e, QPN)));
    script.good("op_modifier 0, zero mailbox (driver)", qp(0x021, &zeros));
    script.good("op_modifier 2 (RTL)", modified(2, on(0x021, QPN)));
    script.good("op_modifier 3 ([D])", reset.clone());

    // Start each attempt with RST2INIT, because a field that is zero in a later command keeps its earlier value.
    for (form, service) in [
        (Form::Bad("RC: MTU code 0"), service::RC),
        (Form::Bad("UC: MTU code 0"), service::UC),
        (Form::Good("UD without MTU"), service::UD),
    ] {
        let without_mtu = image(device, service).byte(0x0c, 31);
        script.needs(qp(0x019, &without_mtu));
        script.tries(form, qp(0x01a, &without_mtu));
        script.needs(reset.clone());
    }
    let without_rq = rc.byte(0x0d, 0).word(0x94, 0);
    script.needs(qp(0x019, &without_rq));
    script.good("RQ of length 0", qp(0x01a, &without_rq));
    script.needs(reset);

    script.good("UC", with(0x01d, sqe, &zeros));
    script
}

/// Returns a QPC for `service`, with both queues in the device's queue region and completions in [`CQN`].
fn image(device: &Device, service: u8) -> Mailbox {
    let queue = WorkQueue { lkey: device.lkey(), len: 0x4000, log_slot: 9, cqn: CQN };
    qpc(service, queue, queue)
}
