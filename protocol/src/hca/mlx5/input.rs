//! Command inputs. [`Command`] has one variant per command and also describes command outputs for traces.
//!
//! # Spec
//! mlx5 interface, section 5.

use super::access_register::{self, AccessReg};
use super::capability::{Query, SetHcaCap};
use super::command::{InputHeader, OutputHeader};
use super::counter::{QCounters, QueryQCounter, QueryVportCounter, VportCounters};
use super::cq::{CreateCq, ModifyCq, QueriedCq};
use super::device::{
    AdapterInfo, Function, InitHca, Issi, NoArguments, SetDriverVersion, SetIssi, SpecialContexts, Teardown,
    TeardownState,
};
use super::eq::{CreateEq, QueriedEq};
use super::flow_counter::{AllocFlowCounter, FlowCounterNumber, QueriedFlowCounter, QueryFlowCounter};
use super::flow_entry::{FlowEntrySelector, QueriedFlowEntry, SetFlowTableEntry};
use super::flow_group::{CreateFlowGroup, FlowGroupNumber, FlowGroupSelector, QueriedFlowGroup};
use super::flow_table::{
    CreateFlowTable, FlowTableNumber, FlowTableSelector, ModifyFlowTable, QueriedFlowTable, SetFlowTableRoot,
};
use super::mad_ifc::{MadAnswer, MadIfc};
use super::mkey::{CreateMkey, QueriedMkey};
use super::nic_vport::{ModifyNicVport, ModifyVportState, QueriedNicVport, QueryNicVport, VportState};
use super::opcode::Opcode;
use super::pages::{ManagePages, ManagedPages, QueryPages, RequestedPages};
use super::qp::{CreateQp, ModifyQp, QueriedQp, QueryQp};
use super::resource::{
    CounterSetNumber, CqNumber, EqNumber, MkeyNumber, Multicast, PdNumber, QpNumber, SrqNumber,
    TransportDomainNumber, UarNumber, XrcDomainNumber,
};
use super::roce_address::{QueriedRoceAddress, QueryRoceAddress, SetRoceAddress};
use super::srq::{ArmSrq, CreateRmp, CreateSrq, ModifyRmp, QueriedRmp, QueriedSrq};
use super::status::InputError;
use super::transition::Transition;
use super::vport::{QueriedVport, QueriedVportPkey, QueryVportPkey};

use super::resource::{RqNumber, RqtNumber, SqNumber, TirNumber, TisNumber};
use super::rq::{CreateRq, ModifyRq, QueriedRq};
use super::rqt::{CreateRqt, ModifyRqt, QueriedRqt, RqNumbers};
use super::sq::{CreateSq, ModifySq, QueriedSq};
use super::tir::{CreateTir, ModifyTir, QueriedTir};
use super::tis::{CreateTis, ModifyTis, QueriedTis};

use super::user_context::{CreateUctx, UctxNumber};
use super::user_memory::{CreateUmem, UmemNumber};

use crate::describe::{Describe, Field, Value, Visitor};
use crate::ids::Iova;

/// List of page DMA addresses at the end of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Pages<'a>(&'a [[u8; 8]]);

impl<'a> Pages<'a> {
    /// Parses all of `bytes` as a list. Ignores a trailing partial address.
    pub const fn parse(bytes: &'a [u8]) -> Self {
        Self(bytes.as_chunks().0)
    }

    /// Returns the list in wire format.
    pub const fn bytes(self) -> &'a [u8] {
        self.0.as_flattened()
    }

    /// Returns the number of pages.
    pub const fn len(self) -> usize {
        self.0.len()
    }

    /// Returns whether the list is empty.
    pub const fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the addresses of the pages. Bits 11 to 0 of each entry are cleared.
    pub fn iter(self) -> impl ExactSizeIterator<Item = Iova> + 'a {
        self.0.iter().map(|address| Iova::new(u64::from_be_bytes(*address) & !0xfff))
    }
}

impl Field for Pages<'_> {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.addresses(name, &mut self.iter().map(Iova::get));
    }
}

/// Bytes at the end of an input, whose meaning depends on the fields before them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    /// Wraps the bytes without copying them.
    pub const fn parse(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Returns the wrapped bytes unchanged.
    pub const fn bytes(self) -> &'a [u8] {
        self.0
    }
}

impl Field for Bytes<'_> {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        to.value(name, Value::Bytes(self.0));
    }
}

macro_rules! commands {
    ($($(#[$doc:meta])* $name:ident($layout:ident $(, $tail:ident: $kind:ident)?) -> $output:ident;)*) => {
        /// A command with its arguments.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Command<'a> {
            $($(#[$doc])* #[allow(missing_docs)] $name($layout $(, $kind<'a>)?),)*
        }

        impl<'a> Command<'a> {
            /// Opcodes of all supported commands.
            pub const OPCODES: &'static [Opcode] = &[$(Opcode::$name),*];

            /// Parses an input. Bytes after the arguments are ignored.
            ///
            /// # Errors
            /// Fails if the opcode is not supported or if the input is shorter than the command's arguments.
            pub fn parse(input: &'a [u8]) -> Result<Self, InputError> {
                let short = |what, need| InputError::Short { what, need, have: input.len() };
                let header = InputHeader::parse_prefix(input)
                    .ok_or_else(|| short("a command", InputHeader::LEN))?;
                let opcode = Opcode::from_code(header.opcode).ok_or(InputError::Opcode(header.opcode))?;
                Ok(match opcode {
                    $(Opcode::$name => {
                        let fields = $layout::parse_prefix(input)
                            .ok_or_else(|| short(opcode.name(), $layout::LEN))?;
                        Self::$name(
                            fields
                            $(, $kind::parse(input.get($layout::LEN..).unwrap_or_default()))?
                        )
                    })*
                    _ => return Err(InputError::Opcode(header.opcode)),
                })
            }

            /// Returns the opcode of the command.
            pub const fn opcode(&self) -> Opcode {
                match self {
                    $(Self::$name(..) => Opcode::$name,)*
                }
            }

            /// Returns the input in wire format, as a driver writes it. `user` is the user context of a DevX command,
            /// or 0 for any other command.
            pub fn emit(&self, user: u16) -> Vec<u8> {
                let mut input = match self {
                    $(Self::$name(fields $(, $tail)?) => {
                        #[allow(unused_mut, reason = "only some commands have a list")]
                        let mut input = fields.emit().to_vec();
                        $(input.extend_from_slice($tail.bytes());)?
                        input
                    })*
                };
                let header = InputHeader { opcode: self.opcode().code(), user, op_mod: 0 }.emit();
                input.iter_mut().zip(header).for_each(|(byte, bits)| *byte |= bits);
                input
            }

            /// Returns the length in bytes of the fixed part of the output.
            pub const fn output_len(&self) -> usize {
                match self {
                    $(Self::$name(..) => $output::LEN,)*
                }
            }

            /// Passes the fields of a successful output to the visitor.
            #[allow(unreachable_patterns, reason = "the table repeats the commands that need care")]
            pub fn describe_output(&self, output: &[u8], to: &mut dyn Visitor) {
                match self {
                    Self::QueryHcaCap(query) => query.describe_output(output, to),
                    Self::AccessReg(access, _) => {
                        let data = output.get(AccessReg::LEN..).unwrap_or_default();
                        access_register::describe(access.register, data, to);
                    }
                    $(Self::$name(..) => $output::parse(&padded(output)).describe(to),)*
                }
                // In the output of MANAGE_PAGES, the page addresses follow the fixed part.
                if let (Self::ManagePages(..), Some(pages)) = (self, output.get(ManagedPages::LEN..)) {
                    Pages::parse(pages).show("pages", to);
                }
            }
        }

        impl Describe for Command<'_> {
            #[allow(unreachable_patterns, reason = "as above")]
            fn describe(&self, to: &mut dyn Visitor) {
                match self {
                    Self::SetHcaCap(set, area) => set.describe_area(area.bytes(), to),
                    Self::SetFlowTableEntry(set, lists) => {
                        set.describe(to);
                        set.context.describe_lists(lists.bytes(), to);
                    }
                    Self::AccessReg(access, data) => {
                        access.describe(to);
                        access_register::describe(access.register, data.bytes(), to);
                    }
                    $(Self::$name(fields $(, $tail)?) => {
                        fields.describe(to);
                        $($tail.show(stringify!($tail), to);)?
                    })*
                }
            }
        }
    };
}

/// Returns the first `LEN` bytes of an output, padded with zeros if the driver requested a shorter output.
fn padded<const LEN: usize>(bytes: &[u8]) -> [u8; LEN] {
    let mut padded = [0; LEN];
    padded.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    padded
}

commands! {
    /// Brings the device out of reset and discards all earlier state.
    EnableHca(Function) -> OutputHeader;
    /// Disables the function and discards its state.
    DisableHca(Function) -> OutputHeader;
    /// Starts the device after ENABLE_HCA.
    InitHca(InitHca) -> OutputHeader;
    /// Stops the device until the next INIT_HCA.
    TeardownHca(Teardown) -> TeardownState;
    /// Reads the supported interface step sequence IDs (ISSIs).
    QueryIssi(NoArguments) -> Issi;
    /// Selects the ISSI that the driver uses.
    SetIssi(SetIssi) -> OutputHeader;
    /// Reads the number of pages that the device requests.
    QueryPages(QueryPages) -> RequestedPages;
    /// Provides pages to the device or reclaims them.
    ManagePages(ManagePages, pages: Pages) -> ManagedPages;
    /// Reads a capability area.
    QueryHcaCap(Query) -> OutputHeader;
    /// Writes a capability area.
    SetHcaCap(SetHcaCap, area: Bytes) -> OutputHeader;
    /// Reads the identity of the board.
    QueryAdapter(NoArguments) -> AdapterInfo;
    /// Reports the driver version.
    SetDriverVersion(SetDriverVersion) -> OutputHeader;
    Nop(NoArguments) -> OutputHeader;
    /// Reads the link aggregation state. All zeros means that no ports are aggregated.
    QueryLag(NoArguments) -> OutputHeader;
    /// Reads the diagnostic counters of the vport. All zeros, because no capability announces any of them.
    QueryVnicEnv(NoArguments) -> OutputHeader;
    /// Reads the special memory keys.
    QuerySpecialContexts(NoArguments) -> SpecialContexts;

    AllocPd(NoArguments) -> PdNumber;
    DeallocPd(PdNumber) -> OutputHeader;
    AllocUar(NoArguments) -> UarNumber;
    DeallocUar(UarNumber) -> OutputHeader;
    AllocXrcd(NoArguments) -> XrcDomainNumber;
    DeallocXrcd(XrcDomainNumber) -> OutputHeader;
    AllocTransportDomain(NoArguments) -> TransportDomainNumber;
    DeallocTransportDomain(TransportDomainNumber) -> OutputHeader;
    AllocQCounter(NoArguments) -> CounterSetNumber;
    DeallocQCounter(CounterSetNumber) -> OutputHeader;
    QueryQCounter(QueryQCounter) -> QCounters;

    CreateEq(CreateEq, pages: Pages) -> EqNumber;
    DestroyEq(EqNumber) -> OutputHeader;
    QueryEq(EqNumber) -> QueriedEq;
    CreateCq(CreateCq, pages: Pages) -> CqNumber;
    DestroyCq(CqNumber) -> OutputHeader;
    QueryCq(CqNumber) -> QueriedCq;
    /// Changes a CQ's moderation settings or replaces its ring.
    ModifyCq(ModifyCq, pages: Pages) -> OutputHeader;
    CreateMkey(CreateMkey, translation: Bytes) -> MkeyNumber;
    QueryMkey(MkeyNumber) -> QueriedMkey;
    DestroyMkey(MkeyNumber) -> OutputHeader;

    /// Creates a QP in the RESET state.
    CreateQp(CreateQp, pages: Pages) -> QpNumber;
    DestroyQp(QpNumber) -> OutputHeader;
    Rst2InitQp(ModifyQp) -> OutputHeader;
    Init2RtrQp(ModifyQp) -> OutputHeader;
    Rtr2RtsQp(ModifyQp) -> OutputHeader;
    /// Changes attributes of a QP in RTS.
    Rts2RtsQp(ModifyQp) -> OutputHeader;
    /// Moves a QP from the send queue error state to RTS.
    SqErr2RtsQp(ModifyQp) -> OutputHeader;
    /// Moves a QP from any state to ERR.
    ToErrQp(QpNumber) -> OutputHeader;
    /// Moves a QP from any state to RESET.
    ToRstQp(QpNumber) -> OutputHeader;
    QueryQp(QueryQp) -> QueriedQp;
    /// Moves a QP from SQD to RTS. The device treats the command as RTS2RTS, since drivers cannot move a QP to SQD.
    Sqd2RtsQp(ModifyQp) -> OutputHeader;
    /// Changes attributes of a QP in INIT.
    Init2InitQp(ModifyQp) -> OutputHeader;
    /// Executes a management datagram (MAD).
    MadIfc(MadIfc) -> MadAnswer;
    /// Adds a QP to a multicast group.
    AttachToMcg(Multicast) -> OutputHeader;
    /// Removes a QP from a multicast group.
    DetachFromMcg(Multicast) -> OutputHeader;

    /// Creates a receive memory pool (RMP), which ISSI 1 uses in place of an SRQ.
    CreateRmp(CreateRmp, pages: Pages) -> SrqNumber;
    /// Arms the limit of an RMP.
    ModifyRmp(ModifyRmp) -> OutputHeader;
    DestroyRmp(SrqNumber) -> OutputHeader;
    QueryRmp(SrqNumber) -> QueriedRmp;
    CreateXrcSrq(CreateSrq, pages: Pages) -> SrqNumber;
    DestroyXrcSrq(SrqNumber) -> OutputHeader;
    QueryXrcSrq(SrqNumber) -> QueriedSrq;
    /// Arms the limit of an XRC SRQ.
    ArmXrcSrq(ArmSrq) -> OutputHeader;
    /// Creates an SRQ (ISSI 0 only).
    CreateSrq(CreateSrq, pages: Pages) -> SrqNumber;
    /// Destroys an SRQ (ISSI 0 only).
    DestroySrq(SrqNumber) -> OutputHeader;
    /// Reads the context of an SRQ (ISSI 0 only).
    QuerySrq(SrqNumber) -> QueriedSrq;
    /// Arms the limit of an SRQ (ISSI 0 only).
    ArmRq(ArmSrq) -> OutputHeader;

    /// Reads or writes a port register.
    AccessReg(AccessReg, data: Bytes) -> OutputHeader;
    /// Reads the state of the InfiniBand port.
    QueryHcaVportContext(NoArguments) -> QueriedVport;
    /// Reads the port counters.
    QueryVportCounter(QueryVportCounter) -> VportCounters;

    /// Sets the root flow table, where the evaluation of each frame starts.
    SetFlowTableRoot(SetFlowTableRoot) -> OutputHeader;
    CreateFlowTable(CreateFlowTable) -> FlowTableNumber;
    DestroyFlowTable(FlowTableSelector) -> OutputHeader;
    QueryFlowTable(FlowTableSelector) -> QueriedFlowTable;
    /// Changes the miss action of a flow table.
    ModifyFlowTable(ModifyFlowTable) -> OutputHeader;
    CreateFlowGroup(CreateFlowGroup) -> FlowGroupNumber;
    DestroyFlowGroup(FlowGroupSelector) -> OutputHeader;
    QueryFlowGroup(FlowGroupSelector) -> QueriedFlowGroup;
    /// Creates or changes an entry in a flow table.
    SetFlowTableEntry(SetFlowTableEntry, lists: Bytes) -> OutputHeader;
    QueryFlowTableEntry(FlowEntrySelector) -> QueriedFlowEntry;
    DeleteFlowTableEntry(FlowEntrySelector) -> OutputHeader;
    AllocFlowCounter(AllocFlowCounter) -> FlowCounterNumber;
    DeallocFlowCounter(FlowCounterNumber) -> OutputHeader;
    QueryFlowCounter(QueryFlowCounter) -> QueriedFlowCounter;
    /// Reads the state of the Ethernet port.
    QueryVportState(NoArguments) -> VportState;
    /// Sets the state of the Ethernet port.
    ModifyVportState(ModifyVportState) -> OutputHeader;
    QueryNicVportContext(QueryNicVport) -> QueriedNicVport;
    ModifyNicVportContext(ModifyNicVport, list: Bytes) -> OutputHeader;
    /// Sets an entry in the GID table.
    SetRoceAddress(SetRoceAddress) -> OutputHeader;
    /// Reads an entry from the GID table.
    QueryRoceAddress(QueryRoceAddress) -> QueriedRoceAddress;
    /// Reads an entry from the P_Key table.
    QueryHcaVportPkey(QueryVportPkey) -> QueriedVportPkey;
    CreateTir(CreateTir) -> TirNumber;
    ModifyTir(ModifyTir) -> OutputHeader;
    DestroyTir(TirNumber) -> OutputHeader;
    QueryTir(TirNumber) -> QueriedTir;
    CreateTis(CreateTis) -> TisNumber;
    ModifyTis(ModifyTis) -> OutputHeader;
    DestroyTis(TisNumber) -> OutputHeader;
    QueryTis(TisNumber) -> QueriedTis;
    CreateRqt(CreateRqt, queues: RqNumbers) -> RqtNumber;
    /// Replaces the entries of an RQT.
    ModifyRqt(ModifyRqt, queues: RqNumbers) -> OutputHeader;
    DestroyRqt(RqtNumber) -> OutputHeader;
    QueryRqt(RqtNumber) -> QueriedRqt;
    /// Creates an SQ in the reset state.
    CreateSq(CreateSq, pages: Pages) -> SqNumber;
    /// Changes the state of an SQ.
    ModifySq(ModifySq) -> OutputHeader;
    DestroySq(SqNumber) -> OutputHeader;
    QuerySq(SqNumber) -> QueriedSq;
    /// Creates an RQ in the reset state.
    CreateRq(CreateRq, pages: Pages) -> RqNumber;
    /// Changes the state and attributes of an RQ.
    ModifyRq(ModifyRq) -> OutputHeader;
    DestroyRq(RqNumber) -> OutputHeader;
    QueryRq(RqNumber) -> QueriedRq;

    /// Creates a DevX user context.
    CreateUctx(CreateUctx) -> UctxNumber;
    /// Destroys a DevX user context and releases its objects.
    DestroyUctx(UctxNumber) -> OutputHeader;
    /// Registers guest memory for the queues of a DevX user.
    CreateUmem(CreateUmem, pages: Pages) -> UmemNumber;
    DestroyUmem(UmemNumber) -> OutputHeader;
}

impl Command<'_> {
    /// Returns the transition and new context of a QP command, or `None` if the command does not modify a QP. For 2ERR
    /// and 2RST, the context is zero.
    pub fn transition(&self) -> Option<(Transition, ModifyQp)> {
        let bare = |number: &QpNumber| ModifyQp { qpn: number.qpn, ..ModifyQp::default() };
        Some(match self {
            Self::Rst2InitQp(modify) => (Transition::Rst2Init, *modify),
            Self::Init2InitQp(modify) => (Transition::Init2Init, *modify),
            Self::Init2RtrQp(modify) => (Transition::Init2Rtr, *modify),
            Self::Rtr2RtsQp(modify) => (Transition::Rtr2Rts, *modify),
            Self::Rts2RtsQp(modify) | Self::Sqd2RtsQp(modify) => (Transition::Rts2Rts, *modify),
            Self::SqErr2RtsQp(modify) => (Transition::SqErr2Rts, *modify),
            Self::ToErrQp(number) => (Transition::ToErr, bare(number)),
            Self::ToRstQp(number) => (Transition::ToRst, bare(number)),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Qpn;

    #[test]
    fn short_input_is_rejected() {
        let create = Command::CreateEq(CreateEq::default(), Pages::default()).emit(0);
        assert!(Command::parse(&create).is_ok());
        let expected = InputError::Short { what: "CREATE_EQ", need: 0x110, have: 0x10f };
        assert_eq!(Command::parse(&create[..0x10f]), Err(expected));
        assert!(matches!(Command::parse(&create[..15]), Err(InputError::Short { need: 16, .. })));
    }

    #[test]
    fn unsupported_opcodes_are_rejected() {
        for code in [0x000, 0x710, Opcode::ConfigIntModeration.code()] {
            let input = InputHeader { opcode: code, ..InputHeader::default() }.emit();
            assert_eq!(Command::parse(&input), Err(InputError::Opcode(code)));
        }
    }

    #[test]
    fn every_command_parses_from_zeros() {
        for opcode in Command::OPCODES {
            let mut input = [0; 0x400];
            input[..2].copy_from_slice(&opcode.code().to_be_bytes());
            assert_eq!(Command::parse(&input).unwrap().opcode(), *opcode);
        }
    }

    #[test]
    fn incomplete_page_address_is_ignored() {
        let bytes = [0, 0, 0, 1, 0x35, 0xaa, 0xef, 0xff, 0x11];
        let pages = Pages::parse(&bytes);
        assert_eq!((pages.len(), pages.is_empty()), (1, false));
        assert_eq!(pages.iter().collect::<Vec<_>>(), [Iova::new(0x1_35aa_e000)]);
        assert_eq!(pages.bytes(), &bytes[..8]);
    }

    #[test]
    fn qp_commands_map_to_transitions() {
        let reset = Command::ToRstQp(QpNumber { qpn: Qpn::new(0x83) });
        let (transition, modify) = reset.transition().unwrap();
        assert_eq!((transition, modify.qpn), (Transition::ToRst, Qpn::new(0x83)));
        assert!(Command::Nop(NoArguments::default()).transition().is_none());
    }
}
