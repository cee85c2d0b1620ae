//! Checks on commands. Each has its own syndrome, which the guest's driver logs together with the status.
//!
//! # Spec
//! mlx5 interface, sections 3.1 and 3.3.

use protocol::hca::mlx5::command::{OutputHeader, SlotError};
use protocol::hca::mlx5::status::{InputError, Status};
use thiserror::Error;

macro_rules! checks {
    ($($name:ident = $code:literal $status:ident $text:literal,)*) => {
        /// A check on a command. Bits 15 to 8 of its syndrome identify the command family.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs, reason = "the texts describe them")]
        pub enum Check {
            $($name,)*
        }

        impl Check {
            /// All checks in ascending order of their syndromes.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            pub const fn syndrome(self) -> u32 {
                match self {
                    $(Self::$name => $code,)*
                }
            }

            pub const fn status(self) -> Status {
                match self {
                    $(Self::$name => Status::$status,)*
                }
            }

            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}

checks! {
    // Slots and inputs.
    SlotKind = 0x0101 BadParameter "unknown command slot type",
    InputLength = 0x0102 BadInputLength "invalid input length",
    OutputLength = 0x0103 BadOutputLength "invalid output length",
    InputBlock = 0x0104 InternalError "input block is misaligned or not accessible",
    OutputBlock = 0x0105 InternalError "output block is misaligned or not accessible",
    BlockToken = 0x0106 InternalError "mailbox block has a different token than its slot",
    BlockNumber = 0x0107 InternalError "mailbox block has an unexpected block number",
    Opcode = 0x0110 BadOpcode "unsupported opcode",
    ShortInput = 0x0111 BadInputLength "input is too short for the command",
    UserContext = 0x0112 BadResource "unknown user context",
    QueueMemory = 0x0120 ExceedsLimit "queues and keys use more pages than the limit allows",

    // Device.
    NotEnabled = 0x0201 BadSystemState "command requires ENABLE_HCA, opcode",
    NotInitialised = 0x0202 BadSystemState "command requires INIT_HCA, opcode",
    AlreadyInitialised = 0x0203 BadSystemState "INIT_HCA was already executed",
    Function = 0x0204 BadParameter "unknown function",
    TeardownProfile = 0x0205 BadParameter "unsupported teardown profile",
    Issi = 0x0206 BadParameter "unsupported interface step",

    // Pages.
    PageUse = 0x0301 BadParameter "unknown QUERY_PAGES purpose",
    PageOperation = 0x0302 BadParameter "unknown MANAGE_PAGES operation",
    PageList = 0x0303 BadInputLength "page list is shorter than the number of pages",
    PageLimit = 0x0304 ExceedsLimit "more pages than the device accepts",

    // Capabilities.
    CapType = 0x0401 BadParameter "unsupported capability type",
    CapArea = 0x0402 BadInputLength "capability area is too short",
    CapLimit = 0x0403 ExceedsLimit "log2 of the number of QPs exceeds the capability",
    CapPort = 0x0404 BadParameter "port type cannot be changed",
    CapUar = 0x0405 ExceedsLimit "log2 of the UAR page size exceeds the limit",

    // Resources without a context.
    PdLimit = 0x0501 ExceedsLimit "limit of PDs reached",
    Pd = 0x0502 BadResource "unknown PD",
    PdInUse = 0x0503 BadResourceState "PD in use",
    UarLimit = 0x0504 ExceedsLimit "limit of UAR pages reached",
    Uar = 0x0505 BadResource "unknown UAR page",
    UarInUse = 0x0506 BadResourceState "UAR page in use",
    XrcdLimit = 0x0507 ExceedsLimit "limit of XRC domains reached",
    Xrcd = 0x0508 BadResource "unknown XRC domain",
    XrcdInUse = 0x0509 BadResourceState "XRC domain in use",
    DomainLimit = 0x050a ExceedsLimit "limit of transport domains reached",
    Domain = 0x050b BadResource "unknown transport domain",
    CounterLimit = 0x050c ExceedsLimit "limit of counter sets reached",
    CounterSet = 0x050d BadResource "unknown counter set",

    // Event queues.
    EqLimit = 0x0601 ExceedsLimit "limit of EQs reached",
    Eq = 0x0602 BadResource "unknown EQ",
    EqInUse = 0x0603 BadResourceState "EQ in use",
    EqSize = 0x0604 ExceedsLimit "log2 of the EQ size exceeds the capability",
    EqPages = 0x0605 BadParameter "page list is too short for the EQ, log2 of the EQ size",
    EqUar = 0x0606 BadResource "EQ refers to an unknown UAR page",
    EqVector = 0x0607 BadParameter "EQ refers to an unknown MSI-X vector",
    // Mapped doorbells.
    EqMappedUar = 0x0610 BadParameter "EQ refers to a UAR page whose doorbells are mapped",

    // Completion queues.
    CqLimit = 0x0701 ExceedsLimit "limit of CQs reached",
    Cq = 0x0702 BadResource "unknown CQ",
    CqInUse = 0x0703 BadResourceState "CQ in use",
    CqSize = 0x0704 ExceedsLimit "log2 of the CQ size exceeds the capability",
    CqPages = 0x0705 BadParameter "page list is too short for the CQ, log2 of the CQ size",
    CqUar = 0x0706 BadResource "CQ refers to an unknown UAR page",
    CqEq = 0x0707 BadResource "CQ refers to an unknown EQ",
    CqEntrySize = 0x0708 BadParameter "unknown CQE size",
    CqRecord = 0x0709 BadParameter "doorbell record of a CQ is misaligned",
    CqChange = 0x070a BadParameter "unsupported MODIFY_CQ change",
    CqUnread = 0x070b TooManyCqes "the new CQ size is too small for the unread CQEs",
    CqFull = 0x070c TooManyCqes "the old CQ ring has no free entry for the resize CQE",
    CqRecordAccess = 0x070d BadParameter "doorbell record of a CQ is not accessible",
    CqRingAccess = 0x070e BadParameter "ring of a CQ is not accessible",

    // Memory keys.
    MkeyLimit = 0x0801 ExceedsLimit "limit of memory keys reached",
    Mkey = 0x0802 BadResource "unknown memory key",
    MkeyMode = 0x0803 BadParameter "unsupported access mode of a key",
    MkeyPd = 0x0804 BadResource "key refers to an unknown PD",
    MkeyPageSize = 0x0805 BadParameter "unsupported log2 page size of a key",
    MkeyList = 0x0806 BadInputLength "translation list is shorter than its stated length",
    MkeyRange = 0x0807 BadParameter "key covers a larger range than its translation list",

    // Queue pairs.
    QpLimit = 0x0901 ExceedsLimit "limit of QPs reached",
    Qp = 0x0902 BadResource "unknown QP",
    QpService = 0x0903 BadParameter "unsupported service of a QP",
    QpXrcd = 0x0904 BadResource "QP refers to an unknown XRC domain",
    QpPd = 0x0905 BadResource "QP refers to an unknown PD",
    QpSendCq = 0x0906 BadResource "QP refers to an unknown send CQ",
    QpRecvCq = 0x0907 BadResource "QP refers to an unknown receive CQ",
    QpUar = 0x0908 BadResource "QP refers to an unknown UAR page",
    QpSrq = 0x0909 BadResource "QP refers to an unknown SRQ",
    QpReceiveKind = 0x090a BadParameter "unsupported receive queue type",
    QpSize = 0x090b ExceedsLimit "log2 of the work queue size exceeds the capability",
    QpPages = 0x090c BadParameter "page list is too short for the work queues",
    QpRecord = 0x090d BadParameter "doorbell record of a QP is misaligned",
    QpManagement = 0x090e BadResourceState "the port already has a management QP of this type",
    QpTransition = 0x090f BadQpState "transition not allowed in QP state",
    QpMtu = 0x0910 BadParameter "invalid MTU code",
    QpEngine = 0x0911 InternalError "QP has no transport state",

    // Shared receive queues.
    SrqLimit = 0x0a01 ExceedsLimit "limit of SRQs reached",
    Srq = 0x0a02 BadResource "unknown SRQ",
    SrqInUse = 0x0a03 BadResourceState "SRQ in use",
    SrqSize = 0x0a04 ExceedsLimit "log2 of the SRQ size exceeds the capability",
    SrqPages = 0x0a05 BadParameter "page list is too short for the SRQ",
    SrqPd = 0x0a06 BadResource "SRQ refers to an unknown PD",
    SrqCq = 0x0a07 BadResource "SRQ refers to an unknown CQ",
    SrqXrcd = 0x0a08 BadResource "SRQ refers to an unknown XRC domain",
    SrqKind = 0x0a09 BadParameter "unsupported SRQ type",
    SrqRecord = 0x0a0a BadParameter "doorbell record of an SRQ is misaligned",
    SrqArm = 0x0a0b BadParameter "unsupported SRQ arm operation",
    SrqStep = 0x0a0c BadOpcode "SRQ commands require interface step 0, opcode",

    // Multicast groups.
    GroupService = 0x0b01 BadParameter "only datagram QPs can be in a multicast group",
    GroupGid = 0x0b02 BadParameter "GID is not a multicast GID, first byte",
    GroupLimit = 0x0b03 ExceedsLimit "limit of multicast groups reached",
    GroupFull = 0x0b04 ExceedsLimit "limit of QPs in a multicast group reached",
    GroupMember = 0x0b05 BadResource "QP is not in the multicast group",

    // Port.
    Port = 0x0c01 BadParameter "unknown port",
    Mad = 0x0c02 BadPacket "no response to MAD of class",
    Register = 0x0c03 BadParameter "unsupported port register",
    RegisterDirection = 0x0c04 BadParameter "unknown register access direction",
    RegisterLength = 0x0c05 BadInputLength "register data is too short",
    Component = 0x0c06 BadParameter "unknown firmware component",
    ComponentInfo = 0x0c07 BadParameter "unsupported information about a firmware component",
    ConfigItem = 0x0c08 BadParameter "configuration item cannot be written",

    // Ethernet port.
    PortType = 0x0c10 BadOpcode "command requires a port of the other type, opcode",
    GidIndex = 0x0c11 BadIndex "GID index exceeds the table",
    GidVersion = 0x0c12 BadParameter "unsupported RoCE version",
    GidType = 0x0c13 BadParameter "unknown network layer of a GID",
    GidMac = 0x0c14 BadParameter "GID has no unicast MAC, first byte",
    PkeyIndex = 0x0c15 BadIndex "P_Key index exceeds the table",
    VportState = 0x0c16 BadParameter "unknown vport state",
    VportList = 0x0c17 BadParameter "unknown type of vport list",
    VportListLimit = 0x0c18 ExceedsLimit "vport list has more entries than the capability allows",
    VportListLength = 0x0c19 BadInputLength "vport list is shorter than its number of entries",
    Mtu = 0x0c1a BadParameter "MTU exceeds the maximum",
    PortStatus = 0x0c1b BadParameter "unknown port status",
    CounterGroup = 0x0c1c BadParameter "unknown group of port counters",

    // Flow tables.
    FlowTableLimit = 0x1001 ExceedsLimit "limit of flow tables reached",
    FlowTable = 0x1002 BadResource "unknown flow table",
    FlowTableInUse = 0x1003 BadResourceState "flow table in use, number of groups and references",
    FlowTableType = 0x1004 BadParameter "unsupported flow table type",
    FlowTableSize = 0x1005 ExceedsLimit "log2 of the flow table size exceeds the capability",
    FlowMissAction = 0x1006 BadParameter "unknown miss action of a flow table",
    FlowMissTable = 0x1007 BadResource "flow table refers to an unknown miss table",
    FlowMissLevel = 0x1008 BadParameter "miss table is not at a higher level than its flow table, level",
    FlowTableChange = 0x1009 BadParameter "unsupported MODIFY_FLOW_TABLE change",
    FlowRootChange = 0x100a BadParameter "unknown SET_FLOW_TABLE_ROOT operation",
    FlowGroupLimit = 0x1011 ExceedsLimit "limit of flow groups reached",
    FlowTableGroups = 0x1012 ExceedsLimit "limit of flow groups in a flow table reached",
    FlowGroup = 0x1013 BadResource "unknown flow group",
    FlowGroupInUse = 0x1014 BadResourceState "flow group in use, number of entries",
    FlowGroupRange = 0x1015 BadParameter "invalid index range of a flow group, last index",
    FlowGroupOverlap = 0x1016 BadParameter "index range overlaps with another flow group, first index",
    FlowCriteria = 0x1017 BadParameter "mask of a flow group selects unsupported fields, criteria",
    FlowMask = 0x1018 BadParameter "mask of a flow group selects unsupported outer header fields",
    FlowEntryLimit = 0x1021 ExceedsLimit "limit of flow table entries reached",
    FlowEntry = 0x1022 BadResource "unknown flow table entry",
    FlowEntryRange = 0x1023 BadParameter "flow table entry is not in the range of its group, index",
    FlowEntryChange = 0x1024 BadParameter "unknown SET_FLOW_TABLE_ENTRY operation",
    FlowEntryFields = 0x1025 BadParameter "unknown fields of a flow table entry",
    FlowLists = 0x1026 BadInputLength "lists of a flow table entry are incomplete",
    FlowActions = 0x1027 BadParameter "unsupported actions of a flow table entry",
    FlowFate = 0x1028 BadParameter "flow table entry must either allow, drop or forward, actions",
    FlowPushedTag = 0x1029 BadParameter "unsupported EtherType of a pushed VLAN tag",
    FlowNoDestination = 0x102a BadParameter "flow table entry forwards to no destination, actions",
    FlowDestinationLimit = 0x102b ExceedsLimit "limit of destinations reached",
    FlowDestinationKind = 0x102c BadParameter "unsupported kind of a destination",
    FlowDestinationTable = 0x102d BadResource "flow table entry refers to an unknown flow table",
    FlowDestinationLevel = 0x102e BadParameter "destination table is not at a higher level than the flow table, level",
    FlowDestinationTir = 0x102f BadResource "flow table entry refers to an unknown TIR",
    FlowEntryCounter = 0x1030 BadResource "flow table entry refers to an unknown flow counter",
    FlowEntryCounters = 0x1031 ExceedsLimit "too many flow counters of a flow table entry",
    FlowCounterLimit = 0x1041 ExceedsLimit "limit of flow counters reached",
    FlowCounter = 0x1042 BadResource "unknown flow counter",
    FlowCounterInUse = 0x1043 BadResourceState "flow counter in use",
    FlowCounterBulk = 0x1044 BadParameter "too many flow counters in one command",
    // Netdev objects.
    DomainInUse = 0x1101 BadResourceState "transport domain in use",
    TisLimit = 0x1201 ExceedsLimit "limit of TISs reached",
    Tis = 0x1202 BadResource "unknown TIS",
    TisInUse = 0x1203 BadResourceState "TIS in use",
    TisDomain = 0x1204 BadResource "TIS refers to an unknown transport domain",
    TisChange = 0x1205 BadParameter "unsupported MODIFY_TIS fields",
    TirLimit = 0x1301 ExceedsLimit "limit of TIRs reached",
    Tir = 0x1302 BadResource "unknown TIR",
    TirInUse = 0x1303 BadResourceState "TIR in use",
    TirDispatch = 0x1304 BadParameter "unknown dispatch type of a TIR",
    TirHash = 0x1305 BadParameter "unknown hash function of a TIR",
    TirRq = 0x1306 BadResource "TIR refers to an unknown RQ",
    TirRqt = 0x1307 BadResource "TIR refers to an unknown RQT",
    TirDomain = 0x1308 BadResource "TIR refers to an unknown transport domain",
    TirChange = 0x1309 BadParameter "unsupported MODIFY_TIR fields",
    RqtLimit = 0x1401 ExceedsLimit "limit of RQTs reached",
    Rqt = 0x1402 BadResource "unknown RQT",
    RqtInUse = 0x1403 BadResourceState "RQT in use",
    RqtSize = 0x1404 ExceedsLimit "RQT size exceeds the capability",
    RqtEntries = 0x1405 BadParameter "number of entries does not fit the RQT",
    RqtList = 0x1406 BadInputLength "list of RQs is shorter than the number of entries",
    RqtQueue = 0x1407 BadResource "RQT refers to an unknown RQ",
    WorkQueueLimit = 0x1501 ExceedsLimit "limit of SQs and RQs reached",
    Sq = 0x1502 BadResource "unknown SQ",
    SqKind = 0x1503 BadParameter "unsupported work queue type of an SQ",
    SqStride = 0x1504 BadParameter "unsupported log2 of the block size of an SQ",
    SqSize = 0x1505 ExceedsLimit "log2 of the SQ size exceeds the capability",
    SqPages = 0x1506 BadParameter "page list is too short for the SQ",
    SqRecord = 0x1507 BadParameter "doorbell record of an SQ is misaligned",
    SqPd = 0x1508 BadResource "SQ refers to an unknown PD",
    SqUar = 0x1509 BadResource "SQ refers to an unknown UAR page",
    SqCq = 0x150a BadResource "SQ refers to an unknown CQ",
    SqTisCount = 0x150b ExceedsLimit "number of TISs of an SQ exceeds the capability",
    SqTis = 0x150c BadResource "SQ refers to an unknown TIS",
    SqTransition = 0x150d BadResourceState "transition not allowed in SQ state, new state",
    Rq = 0x1601 BadResource "unknown RQ",
    RqInUse = 0x1602 BadResourceState "RQ in use",
    RqMemory = 0x1603 BadParameter "unsupported memory type of an RQ",
    RqKind = 0x1604 BadParameter "unsupported work queue type of an RQ",
    RqStride = 0x1605 BadParameter "unsupported log2 of the entry size of an RQ",
    RqSize = 0x1606 ExceedsLimit "log2 of the RQ size exceeds the capability",
    RqPages = 0x1607 BadParameter "page list is too short for the RQ",
    RqRecord = 0x1608 BadParameter "doorbell record of an RQ is misaligned",
    RqPd = 0x1609 BadResource "RQ refers to an unknown PD",
    RqCq = 0x160a BadResource "RQ refers to an unknown CQ",
    RqCounterSet = 0x160b BadResource "RQ refers to an unknown counter set",
    RqChange = 0x160c BadParameter "unsupported MODIFY_RQ fields",
    RqTransition = 0x160d BadResourceState "transition not allowed in RQ state, new state",

    // User contexts.
    UserLimit = 0x1a01 ExceedsLimit "limit of user contexts reached",
    UserCommand = 0x1a02 BadOpcode "command is not available to user contexts, opcode",
    UserObject = 0x1a03 BadResource "object does not belong to the user context",
    UserEq = 0x1a04 BadResource "CQ of a user context refers to an EQ for other events",
    UserService = 0x1a05 BadParameter "user contexts cannot create QPs of this service",
    UserReservedKey = 0x1a06 BadParameter "user contexts cannot use the reserved L_Key, PD",
    UserFastRegistration = 0x1a07 BadParameter "QPs of user contexts cannot register memory, PD",
    UserRawTransmit = 0x1a08 BadParameter "user context has no right to send raw frames",
    UserMkey = 0x1a09 BadParameter "user contexts cannot create such a key, access mode",
    UserQuota = 0x1a0a ExceedsLimit "user contexts have reached their quota of such objects, number",
    UmemLimit = 0x1b01 ExceedsLimit "limit of user memories reached",
    Umem = 0x1b02 BadResource "unknown user memory",
    UmemInUse = 0x1b03 BadResourceState "user memory in use",
    UmemList = 0x1b04 BadInputLength "page list is shorter than the number of pages of the user memory",
    UmemPages = 0x1b05 BadParameter "user memory has no bytes, offset of the first byte",
    UmemPageSize = 0x1b06 BadParameter "unsupported log2 page size of a user memory",
    UmemRange = 0x1b07 BadParameter "queue or region is not in its user memory, offset",
    UmemRecord = 0x1b08 BadParameter "doorbell record is misaligned or not in its user memory, offset",
}

impl Check {
    /// Returns the rejection for a command whose `value` fails this check.
    pub fn rejects(self, value: impl Into<u64>) -> Rejection {
        Rejection { check: self, value: value.into() }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}: {value:#x}", .check.text())]
pub struct Rejection {
    pub check: Check,
    pub value: u64,
}

impl Rejection {
    pub const fn header(&self) -> OutputHeader {
        OutputHeader::failed(self.check.status(), self.check.syndrome())
    }
}

impl From<SlotError> for Rejection {
    fn from(error: SlotError) -> Self {
        match error {
            SlotError::Kind(kind) => Check::SlotKind.rejects(kind),
            SlotError::InputLength(len) => Check::InputLength.rejects(len),
            SlotError::OutputLength(len) => Check::OutputLength.rejects(len),
            SlotError::NotOwned => Check::SlotKind.rejects(0_u8),
        }
    }
}

impl From<InputError> for Rejection {
    fn from(error: InputError) -> Self {
        match error {
            InputError::Short { have, .. } => Check::ShortInput.rejects(have as u64),
            InputError::Opcode(opcode) => Check::Opcode.rejects(opcode),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syndromes_are_unique_and_ascending() {
        assert!(Check::ALL.is_sorted_by(|a, b| a.syndrome() < b.syndrome()));
        assert!(Check::ALL.iter().all(|check| check.syndrome() != 0 && check.status() != Status::Ok));
    }

    #[test]
    fn rejection_shows_check_and_value() {
        let rejection = Check::Cq.rejects(0x40_u32);
        assert_eq!(rejection.to_string(), "unknown CQ: 0x40");
        let header = rejection.header().emit();
        assert_eq!(header[..8], [0x05, 0, 0, 0, 0, 0, 7, 2]);
    }
}
