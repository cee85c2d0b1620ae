//! The rules that section 3 of the interface defines for each command, in addition to the generic checks.
//!
//! # Spec
//! JingZhao interface, sections 3.1 to 3.14; statuses from section 1.4. 10h is the only extended status with a
//! documented condition. For other rejections, this table uses 08h for counts and sizes that exceed a limit, 09h for
//! objects that are unexpectedly valid or invalid, and 0Ah for a bad index or number.

use super::spec::status::{BAD_INDEX, BAD_OP, BAD_PARAM, BAD_QPEE_STATE, BAD_RES_STATE, EXCEED_LIM, OK};
use super::spec::{Form, Statuses, section_2};

/// The expected reply to one form of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) op: u16,
    pub(super) form: Form,
    /// The interface section that specifies the reply.
    pub(super) section: &'static str,
    pub(super) status: Statuses,
}

const GOOD: Statuses = [OK; 2];
const PARAM: Statuses = [BAD_PARAM; 2];
const LIMIT: Statuses = [BAD_PARAM, EXCEED_LIM];
const STATE: Statuses = [BAD_PARAM, BAD_RES_STATE];
const INDEX: Statuses = [BAD_PARAM, BAD_INDEX];
const QP_STATE: Statuses = [BAD_PARAM, BAD_QPEE_STATE];

const fn good(section: &'static str, op: u16, how: &'static str) -> Expected {
    Expected { op, form: Form::Good(how), section, status: GOOD }
}

const fn bad(section: &'static str, op: u16, what: &'static str, status: Statuses) -> Expected {
    Expected { op, form: Form::Bad(what), section, status }
}

/// All effects and errors listed in sections 3.1 to 3.14.
#[rustfmt::skip]
const SECTION_3: &[Expected] = &[
    good("3.1", 0x003, ""),
    good("3.2", 0x006, ""),

    good("3.3", 0x007, ""),
    good("3.3", 0x007, "again without CLOSE_HCA"),
    good("3.3", 0x007, "the largest counts"),
    bad("3.3", 0x007, "log_num_qps > 24", LIMIT),
    bad("3.3", 0x007, "log_num_cqs > 24", LIMIT),
    bad("3.3", 0x007, "log_num_eqs > 8", LIMIT),
    bad("3.3", 0x007, "log_mpt_sz > 32", LIMIT),

    good("3.4", 0x008, ""),
    good("3.4", 0x008, "when not initialised"),

    good("3.5", 0xffa, "contexts"),
    good("3.5", 0xffa, "MPT and MTT"),
    good("3.5", 0xffa, "three entries"),
    good("3.5", 0xffa, "mapped already"),
    good("3.5", 0xffa, "outside the tables of INIT_HCA"),
    bad("3.5", 0xffa, "in_modifier 0", PARAM),
    bad("3.5", 0xffa, "in_modifier over 256", PARAM),
    bad("3.5", 0xffa, "page_num 0", PARAM),
    bad("3.5", 0xffa, "virt not page aligned", PARAM),
    bad("3.5", 0xffa, "virt + length wraps", PARAM),
    bad("3.5", 0xffa, "second entry bad", PARAM),

    good("3.6", 0xff9, "contexts"),
    good("3.6", 0xff9, "MPT and MTT"),
    good("3.6", 0xff9, "pages that are not mapped"),
    bad("3.6", 0xff9, "unaligned address", PARAM),
    bad("3.6", 0xff9, "count 0", PARAM),

    good("3.7", 0x00d, ""),
    good("3.7", 0x00d, "key with rolling bits"),
    bad("3.7", 0x00d, "index outside the table", INDEX),
    bad("3.7", 0x00d, "key of another index", INDEX),
    bad("3.7", 0x00d, "page_size not supported", PARAM),
    bad("3.7", 0x00d, "ICM page not mapped", PARAM),
    bad("3.7", 0x00d, "entry valid already", STATE),
    good("3.7", 0x00f, ""),
    bad("3.7", 0x00f, "index outside the table", INDEX),
    bad("3.7", 0x00f, "entry not valid", STATE),

    good("3.8", 0x011, ""),
    good("3.8", 0x011, "508 entries"),
    good("3.8", 0x011, "more than 508 entries (J-11)"),
    bad("3.8", 0x011, "n = 0", PARAM),
    bad("3.8", 0x011, "ICM page not mapped", PARAM),
    bad("3.8", 0x011, "last entry's ICM page not mapped", PARAM),

    good("3.9", 0x012, "add"),
    good("3.9", 0x012, "remove"),
    bad("3.9", 0x012, "EQ not valid", STATE),

    good("3.10", 0x013, ""),
    good("3.10", 0x013, "logsize 20"),
    bad("3.10", 0x013, "logsize > 20", LIMIT),
    bad("3.10", 0x013, "EQN outside the table", INDEX),
    bad("3.10", 0x013, "valid already", STATE),
    bad("3.10", 0x013, "ICM page not mapped", PARAM),
    good("3.10", 0x014, ""),
    bad("1.4", 0x014, "EQ not valid", STATE),

    good("3.11", 0x016, ""),
    good("3.11", 0x016, "number with rolling bits"),
    bad("3.11", 0x016, "logsize > 16", LIMIT),
    bad("3.11", 0x016, "valid already", STATE),
    bad("3.11", 0x016, "ICM page not mapped", PARAM),
    good("3.11", 0x017, ""),
    good("3.11", 0x017, "number with other rolling bits"),
    bad("1.4", 0x017, "CQ not valid", STATE),
    good("3.11", 0x02c, "op_modifier 0 ([D])"),
    good("3.11", 0x02c, "op_modifier 1 (driver, J-35)"),
    good("3.11", 0x02c, "op_modifier FFh"),
    bad("3.11", 0x02c, "CQ not valid", STATE),
    bad("3.11", 0x02c, "logsize > 16", LIMIT),

    good("3.12", 0x019, ""),
    good("3.12", 0x019, "UC"),
    good("3.12", 0x019, "UD"),
    good("3.12", 0x019, "state and bytes A4h..BFh are ignored"),
    bad("3.12", 0x019, "service type 2 (RD)", PARAM),
    bad("3.12", 0x019, "service type 4", PARAM),
    bad("3.12", 0x019, "service type FFh", PARAM),
    bad("3.12", 0x019, "port 2", PARAM),
    bad("5.2", 0x019, "ICM page not mapped", PARAM),
    bad("3.12", 0x019, "QP in INIT", QP_STATE),
    good("3.12", 0x02d, ""),
    bad("3.12", 0x02d, "port 2", PARAM),
    bad("3.12", 0x02d, "QP in RESET", QP_STATE),
    good("3.12", 0x01a, ""),
    good("3.12", 0x01a, "UD without MTU"),
    good("3.12", 0x01a, "RQ of length 0"),
    bad("3.12", 0x01a, "port 2", PARAM),
    bad("3.12", 0x01a, "RC: MTU code 0", PARAM),
    bad("3.12", 0x01a, "RC: MTU code 6", PARAM),
    bad("3.12", 0x01a, "UC: MTU code 0", PARAM),
    bad("3.12", 0x01a, "RQ length not a multiple of its slot", PARAM),
    bad("3.12", 0x01a, "RQ entry_sz_log 4", PARAM),
    bad("3.12", 0x01a, "RQ entry_sz_log 13", PARAM),
    bad("3.12", 0x01a, "QP in RESET", QP_STATE),
    good("3.12", 0x01b, ""),
    bad("3.12", 0x01b, "port 2", PARAM),
    bad("3.12", 0x01b, "SQ length not a multiple of its slot", PARAM),
    bad("3.12", 0x01b, "SQ entry_sz_log 4", PARAM),
    bad("3.12", 0x01b, "SQ entry_sz_log 13", PARAM),
    bad("3.12", 0x01b, "QP in INIT", QP_STATE),
    good("3.12", 0x01c, ""),
    good("10.3", 0x01c, "zeros change nothing"),
    bad("3.12", 0x01c, "port 2", PARAM),
    bad("3.12", 0x01c, "QP in RTR", QP_STATE),
    good("3.12", 0x01d, "UC"),
    bad("3.12", 0x01d, "QP in RTS", QP_STATE),
    good("3.12", 0x01f, ""),
    good("3.12", 0x01f, "with notify request"),
    bad("3.12", 0x01f, "QP in RTR", QP_STATE),
    good("3.12", 0x038, ""),
    bad("3.12", 0x038, "port 2", PARAM),
    bad("3.12", 0x038, "QP in RTS", QP_STATE),
    good("3.12", 0x020, ""),
    bad("3.12", 0x020, "port 2", PARAM),
    bad("3.12", 0x020, "QP in RTS", QP_STATE),
    good("3.12", 0x01e, "op_modifier 0, zero mailbox"),
    good("3.12", 0x01e, "op_modifier 2"),
    good("3.12", 0x01e, "op_modifier 3"),
    good("J-36", 0x021, "op_modifier 0, zero mailbox (driver)"),
    good("J-36", 0x021, "op_modifier 2 (RTL)"),
    good("J-36", 0x021, "op_modifier 3 ([D])"),

    good("3.13", 0x022, ""),
    good("3.13", 0x022, "number with rolling bits"),
    good("3.13", 0x022, "QP in RESET"),
    good("3.13", 0x022, "unused number"),

    Expected { op: 0x023, form: Form::Good("special QP types 0 to 3"), section: "3.14", status: [BAD_OP; 2] },
    Expected { op: 0x024, form: Form::Good(""), section: "3.14", status: [BAD_OP, OK] },
    good("3.14", 0x031, ""),
    good("3.14", 0x031, "in_modifier is not checked"),
];

/// Returns all rows from sections 2 and 3.
pub(super) fn all() -> impl Iterator<Item = Expected> {
    section_2().chain(SECTION_3.iter().copied())
}
