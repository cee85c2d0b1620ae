//! The QP state transition table. Each row contains the source states and the target state, the command, the service
//! types, and the attributes that the command requires or accepts.
//!
//! # Spec
//! JingZhao interface, sections 10.1, 10.2, 10.4 and 10.7.

use agent::wire::Service;

/// QP states with their codes (section 10.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum State {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqe = 4,
    Sqd = 5,
    Err = 6,
}

use State::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};

pub(super) const STATES: [State; 7] = [Reset, Init, Rtr, Rts, Sqe, Sqd, Err];

pub(super) const RC: Service = Service::Rc;
pub(super) const UC: Service = Service::Uc;
pub(super) const UD: Service = Service::Ud;

/// A bit field in a word of the QPC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Field {
    pub(super) offset: usize,
    pub(super) bits: u32,
    /// Value of the field in the context before the command.
    pub(super) held: u32,
    /// Value of the field in the command's mailbox.
    pub(super) given: u32,
}

const fn field(offset: usize, bits: u32, held: u32, given: u32) -> Field {
    Field { offset, bits, held, given }
}

/// An attribute, with its bit in opt_param_mask (section 10.4) and its fields in the QPC (10.3, 10.7).
#[derive(Clone, Copy, Debug)]
pub(super) struct Attribute {
    pub(super) name: &'static str,
    pub(super) bit: u32,
    /// Fields of the attribute, or none if the QPC has no field for it.
    pub(super) fields: &'static [Field],
}

const fn attribute(name: &'static str, bit: u32, fields: &'static [Field]) -> Attribute {
    Attribute { name, bit, fields }
}

const CUR_STATE: Attribute = attribute("CUR_STATE", 1, &[]);
const EN_SQD_ASYNC_NOTIFY: Attribute = attribute("EN_SQD_ASYNC_NOTIFY", 2, &[]);
const ACCESS_FLAGS: Attribute = attribute("ACCESS_FLAGS", 3, &[]);
/// As the port has a single P_Key, 0 is the only valid index.
const PKEY_INDEX: Attribute = attribute("PKEY_INDEX", 4, &[field(0x1c, 0x7f, 0, 0)]);
pub(super) const PORT: Attribute = attribute("PORT", 5, &[field(0x1c, 7 << 24, 1 << 24, 1 << 24)]);
const QKEY: Attribute = attribute("QKEY", 6, &[field(0x98, !0, 0x5566_7788, 0x1122_3344)]);
/// The address vector. Its fields are, in this order: GRH flag and path bits; source GID index, static rate and hop
/// limit; SL, traffic class and flow label; the four words of the destination GID; both LIDs; the high parts of the
/// source and destination MAC addresses; and the source and destination IP addresses.
const AV: Attribute = attribute(
    "AV",
    7,
    &[
        field(0x20, 0xff << 16, 0x83 << 16, 0x95 << 16),
        field(0x24, 0x00ff_ffff, 0x0002_0720, 0x0001_033f),
        field(0x28, !0, 0x2133_4455, 0x542a_bcde),
        field(0x2c, !0, 0xfe80_0001, 0xfe80_0000),
        field(0x30, !0, 0x0000_0002, 0x0000_0001),
        field(0x34, !0, 0x0807_0605, 0x0102_0304),
        field(0x38, !0, 0x0403_0201, 0x0506_0708),
        field(0x3c, !0, 0x0203_0405, 0x0102_0304),
        field(0x40, !0, 0x5254_0001, 0x5254_0002),
        field(0x44, !0, 0x5254_0003, 0x5254_0004),
        field(0x48, !0, 0x0a4d_0005, 0x0a4d_0006),
        field(0x4c, !0, 0x0a4d_0007, 0x0a4d_0008),
    ],
);
pub(super) const PATH_MTU: Attribute = attribute("PATH_MTU", 8, &[field(0x0c, 7 << 29, 5 << 29, 3 << 29)]);
const TIMEOUT: Attribute = attribute("TIMEOUT", 9, &[field(0x24, 0xff << 24, 21 << 27, 19 << 27)]);
const RETRY_CNT: Attribute = attribute("RETRY_CNT", 10, &[field(0x68, 7 << 16, 6 << 16, 5 << 16)]);
const RNR_RETRY: Attribute = attribute("RNR_RETRY", 11, &[field(0x20, 0xff << 24, 3 << 29, 6 << 29)]);
pub(super) const RQ_PSN: Attribute = attribute("RQ_PSN", 12, &[field(0x84, 0xff_ffff, 0x200, 0x65_4321)]);
const ALT_PATH: Attribute = attribute("ALT_PATH", 14, &[]);
pub(super) const MIN_RNR_TIMER: Attribute =
    attribute("MIN_RNR_TIMER", 15, &[field(0x84, 0x1f << 24, 12 << 24, 17 << 24)]);
pub(super) const SQ_PSN: Attribute = attribute("SQ_PSN", 16, &[field(0x6c, 0xff_ffff, 0x100, 0xab_cdef)]);
const PATH_MIG_STATE: Attribute = attribute("PATH_MIG_STATE", 18, &[]);
const DEST_QPN: Attribute = attribute("DEST_QPN", 20, &[field(0x18, 0xff_ffff, 0xff_ffff, 0x12_3456)]);

/// The attributes named in section 10.2.
pub(super) const ATTRIBUTES: [Attribute; 17] = [
    CUR_STATE,
    EN_SQD_ASYNC_NOTIFY,
    ACCESS_FLAGS,
    PKEY_INDEX,
    PORT,
    QKEY,
    AV,
    PATH_MTU,
    TIMEOUT,
    RETRY_CNT,
    RNR_RETRY,
    RQ_PSN,
    ALT_PATH,
    MIN_RNR_TIMER,
    SQ_PSN,
    PATH_MIG_STATE,
    DEST_QPN,
];

/// A row of the table in section 10.2.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    pub(super) from: &'static [State],
    pub(super) to: State,
    pub(super) op: u16,
    pub(super) types: &'static [Service],
    /// Attributes that software must supply.
    pub(super) req: &'static [Attribute],
    /// Attributes that software may supply.
    pub(super) opt: &'static [Attribute],
}

impl Row {
    /// Returns whether the transition accepts the attribute.
    pub(super) fn takes(&self, attribute: &Attribute) -> bool {
        self.req.iter().chain(self.opt).any(|taken| taken.bit == attribute.bit)
    }

    pub(super) fn requires(&self, attribute: &Attribute) -> bool {
        self.req.iter().any(|required| required.bit == attribute.bit)
    }
}

const fn row(
    from: &'static [State],
    to: State,
    op: u16,
    types: &'static [Service],
    req: &'static [Attribute],
    opt: &'static [Attribute],
) -> Row {
    Row { from, to, op, types, req, opt }
}

/// The rows of section 10.2: from, to, op, types, req, opt. SQD -> RTS also includes the attributes that section 10.2
/// lists only in the notes below its table.
#[rustfmt::skip]
pub(super) const ROWS: [Row; 24] = [
    row(&STATES,  Reset, 0x021, &[RC, UC, UD], &[], &[]),
    row(&STATES,  Err,   0x01e, &[RC, UC, UD], &[], &[]),
    row(&[Reset], Init,  0x019, &[UD],     &[PKEY_INDEX, PORT, QKEY], &[]),
    row(&[Reset], Init,  0x019, &[UC, RC], &[PKEY_INDEX, PORT, ACCESS_FLAGS], &[]),
    row(&[Init],  Init,  0x02d, &[UD],     &[PKEY_INDEX, PORT, QKEY], &[]),
    row(&[Init],  Init,  0x02d, &[UC, RC], &[PKEY_INDEX, PORT, ACCESS_FLAGS], &[]),
    row(&[Init],  Rtr,   0x01a, &[UD], &[], &[PKEY_INDEX, QKEY]),
    row(&[Init],  Rtr,   0x01a, &[UC], &[AV, PATH_MTU, DEST_QPN, RQ_PSN], &[ALT_PATH, ACCESS_FLAGS, PKEY_INDEX]),
    row(&[Init],  Rtr,   0x01a, &[RC], &[AV, PATH_MTU, DEST_QPN, RQ_PSN, MIN_RNR_TIMER], &[ALT_PATH, ACCESS_FLAGS, PKEY_INDEX]),
    row(&[Rtr],   Rts,   0x01b, &[UD], &[SQ_PSN], &[CUR_STATE, QKEY]),
    row(&[Rtr],   Rts,   0x01b, &[UC], &[SQ_PSN], &[CUR_STATE, ALT_PATH, ACCESS_FLAGS, PATH_MIG_STATE]),
    row(&[Rtr],   Rts,   0x01b, &[RC], &[TIMEOUT, RETRY_CNT, RNR_RETRY, SQ_PSN], &[CUR_STATE, ALT_PATH, ACCESS_FLAGS, MIN_RNR_TIMER, PATH_MIG_STATE]),
    row(&[Rts],   Rts,   0x01c, &[UD], &[], &[CUR_STATE, QKEY]),
    row(&[Rts],   Rts,   0x01c, &[UC], &[], &[CUR_STATE, ACCESS_FLAGS, ALT_PATH, PATH_MIG_STATE]),
    row(&[Rts],   Rts,   0x01c, &[RC], &[], &[CUR_STATE, ACCESS_FLAGS, ALT_PATH, PATH_MIG_STATE, MIN_RNR_TIMER]),
    row(&[Rts],   Sqd,   0x01f, &[RC, UC, UD], &[], &[EN_SQD_ASYNC_NOTIFY]),
    row(&[Sqd],   Sqd,   0x038, &[UD], &[], &[PKEY_INDEX, QKEY]),
    row(&[Sqd],   Sqd,   0x038, &[UC], &[], &[AV, ALT_PATH, ACCESS_FLAGS, PKEY_INDEX, PATH_MIG_STATE]),
    row(&[Sqd],   Sqd,   0x038, &[RC], &[], &[PORT, AV, TIMEOUT, RETRY_CNT, RNR_RETRY, ALT_PATH, ACCESS_FLAGS, PKEY_INDEX, MIN_RNR_TIMER, PATH_MIG_STATE]),
    row(&[Sqd],   Rts,   0x020, &[UD], &[], &[CUR_STATE, QKEY]),
    row(&[Sqd],   Rts,   0x020, &[UC], &[], &[CUR_STATE, ALT_PATH, ACCESS_FLAGS, PATH_MIG_STATE, AV]),
    row(&[Sqd],   Rts,   0x020, &[RC], &[], &[CUR_STATE, ALT_PATH, ACCESS_FLAGS, MIN_RNR_TIMER, PATH_MIG_STATE, AV, RETRY_CNT, RNR_RETRY, TIMEOUT, PORT]),
    row(&[Sqe],   Rts,   0x01d, &[UD], &[], &[CUR_STATE, QKEY]),
    row(&[Sqe],   Rts,   0x01d, &[UC], &[], &[CUR_STATE, ACCESS_FLAGS]),
];

/// Returns the target state of `op` in state `from` if section 10.2 permits the transition.
pub(super) fn listed(service: Service, from: State, op: u16) -> Option<State> {
    let row =
        ROWS.iter().find(|row| row.op == op && row.from.contains(&from) && row.types.contains(&service));
    row.map(|row| row.to)
}

/// Returns whether any transition of a QP of type `service` accepts the attribute.
pub(super) fn has(service: Service, attribute: &Attribute) -> bool {
    ROWS.iter().any(|row| row.types.contains(&service) && row.takes(attribute))
}

/// Returns the mask that contains exactly the attributes required by `op`.
pub(super) fn required_mask(service: Service, op: u16) -> u32 {
    let rows = ROWS.iter().filter(|row| row.op == op && row.types.contains(&service));
    rows.flat_map(|row| row.req).fold(0, |mask, attribute| mask | 1 << attribute.bit)
}

/// Returns whether a QP of type `service` can be in the state. RC QPs never enter SQE, although the rows for [`STATES`]
/// combine RC with SQE.
pub(super) fn occurs(service: Service, state: State) -> bool {
    (service, state) != (RC, Sqe)
}
