//! BTH opcode: transport service and operation.

use super::ext::ExtKind;

/// Transport service, encoded in the top three bits of the BTH opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection (RC), code 000.
    Rc,
    /// Unreliable connection (UC), code 001.
    Uc,
    /// Unreliable datagram (UD), code 011.
    Ud,
    /// Extended reliable connection (XRC), code 101.
    Xrc,
    /// Any other prefix (such as RD or CNP), which is preserved.
    Other(u8),
}

/// Operation, encoded in the low five bits of the BTH opcode.
///
/// # Spec
/// IBTA volume 1, table 38 (OpCode field).
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    SendFirst,
    SendMiddle,
    SendLast,
    SendLastImm,
    SendOnly,
    SendOnlyImm,
    WriteFirst,
    WriteMiddle,
    WriteLast,
    WriteLastImm,
    WriteOnly,
    WriteOnlyImm,
    ReadRequest,
    ReadResponseFirst,
    ReadResponseMiddle,
    ReadResponseLast,
    ReadResponseOnly,
    Acknowledge,
    AtomicAcknowledge,
    CompareSwap,
    FetchAdd,
    SendLastInvalidate,
    SendOnlyInvalidate,
    /// A code that table 38 reserves. It is preserved, and an RC responder rejects it with a NAK.
    Reserved(u8),
}

/// The opcode in a BTH, one byte.
///
/// [`Opcode::from_byte`] returns [`Operation::Reserved`] for codes that are not defined for their service, and for all
/// codes of services that this crate does not implement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub struct Opcode {
    pub transport: Transport,
    /// Operation, including the position in the message.
    pub operation: Operation,
}

/// Position of a packet in its message.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    First,
    Middle,
    Last,
    Only,
}

/// Operation of the message that a packet belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Kind {
    /// SEND, with or without immediate data or invalidation.
    Send,
    /// RDMA WRITE, with or without immediate data.
    Write,
    Read,
    /// CMP_SWAP or FETCH_ADD request.
    Atomic,
    ReadResponse,
    /// An ACK, NAK or RNR NAK.
    Acknowledge,
    AtomicAcknowledge,
    /// A code that is not defined for the service.
    Reserved,
}

impl Opcode {
    /// Congestion notification packet (IBTA annex A17): service prefix 100, operation code 1.
    pub const CNP: Self = Self::from_byte(0x81);

    /// Returns the opcode of an RC operation.
    pub const fn rc(operation: Operation) -> Self {
        Self { transport: Transport::Rc, operation }
    }

    /// Returns the opcode of a UC operation.
    pub const fn uc(operation: Operation) -> Self {
        Self { transport: Transport::Uc, operation }
    }

    /// Returns the opcode of a UD operation.
    pub const fn ud(operation: Operation) -> Self {
        Self { transport: Transport::Ud, operation }
    }

    /// Returns the opcode of an operation on an extended reliable connection.
    pub const fn xrc(operation: Operation) -> Self {
        Self { transport: Transport::Xrc, operation }
    }

    /// Decodes an opcode. Every byte is valid.
    pub const fn from_byte(byte: u8) -> Self {
        let code = byte & 0x1f;
        // IBTA volume 1, table 38: UC defines only SEND and RDMA WRITE, and UD defines only SEND Only.
        let (transport, defined) = match byte >> 5 {
            0 => (Transport::Rc, true),
            1 => (Transport::Uc, code <= 0x0b),
            3 => (Transport::Ud, matches!(code, 0x04 | 0x05)),
            5 => (Transport::Xrc, true),
            prefix => (Transport::Other(prefix), false),
        };
        let operation = if defined { Operation::from_code(code) } else { Operation::Reserved(code) };
        Self { transport, operation }
    }

    /// Encodes the opcode; the inverse of [`Opcode::from_byte`].
    pub const fn to_byte(self) -> u8 {
        let prefix = match self.transport {
            Transport::Rc => 0,
            Transport::Uc => 1,
            Transport::Ud => 3,
            Transport::Xrc => 5,
            Transport::Other(prefix) => prefix & 7,
        };
        prefix << 5 | self.operation.code()
    }

    /// Returns the [`Ext`](super::Ext) variant that the opcode requires.
    pub const fn ext_kind(self) -> ExtKind {
        use Operation as O;
        let datagram = matches!(self.transport, Transport::Ud);
        match self.operation {
            O::SendOnly if datagram => ExtKind::Deth,
            O::SendOnlyImm if datagram => ExtKind::DethImm,
            O::SendFirst | O::SendMiddle | O::SendLast | O::SendOnly => ExtKind::None,
            O::SendLastImm | O::SendOnlyImm | O::WriteLastImm => ExtKind::Imm,
            O::WriteFirst | O::WriteOnly | O::ReadRequest => ExtKind::Reth,
            O::WriteMiddle | O::WriteLast => ExtKind::None,
            O::WriteOnlyImm => ExtKind::RethImm,
            O::ReadResponseFirst | O::ReadResponseLast | O::ReadResponseOnly => ExtKind::Aeth,
            O::ReadResponseMiddle => ExtKind::None,
            O::Acknowledge => ExtKind::Aeth,
            O::AtomicAcknowledge => ExtKind::AtomicAck,
            O::CompareSwap | O::FetchAdd => ExtKind::Atomic,
            O::SendLastInvalidate | O::SendOnlyInvalidate => ExtKind::Invalidate,
            O::Reserved(_) => ExtKind::None,
        }
    }

    /// Returns whether an XRCETH follows the BTH. Every XRC request has one, and no response does.
    ///
    /// # Spec
    /// IBTA volume 1, table 38 (OpCode field); annex A14.
    pub const fn has_xrceth(self) -> bool {
        let defined = !matches!(self.operation, Operation::Reserved(_));
        matches!(self.transport, Transport::Xrc) && defined && !self.is_response()
    }

    /// Returns whether the packet is a READ response or an acknowledgement. Such packets are addressed to a requester.
    /// All other packets, including those with reserved codes, are addressed to a responder.
    pub const fn is_response(self) -> bool {
        self.operation.is_response()
    }
}

impl Operation {
    /// Returns the operation of a SEND packet at `position`. Ignores `imm` for First and Middle; only the last packet
    /// carries immediate data.
    pub const fn send(position: Position, imm: bool) -> Self {
        match (position, imm) {
            (Position::First, _) => Self::SendFirst,
            (Position::Middle, _) => Self::SendMiddle,
            (Position::Last, false) => Self::SendLast,
            (Position::Last, true) => Self::SendLastImm,
            (Position::Only, false) => Self::SendOnly,
            (Position::Only, true) => Self::SendOnlyImm,
        }
    }

    /// Returns the operation of a WRITE packet at `position`. Ignores `imm` for First and Middle; only the last packet
    /// carries immediate data.
    pub const fn write(position: Position, imm: bool) -> Self {
        match (position, imm) {
            (Position::First, _) => Self::WriteFirst,
            (Position::Middle, _) => Self::WriteMiddle,
            (Position::Last, false) => Self::WriteLast,
            (Position::Last, true) => Self::WriteLastImm,
            (Position::Only, false) => Self::WriteOnly,
            (Position::Only, true) => Self::WriteOnlyImm,
        }
    }

    /// Returns the operation of a READ response packet at `position`.
    pub const fn read_response(position: Position) -> Self {
        match position {
            Position::First => Self::ReadResponseFirst,
            Position::Middle => Self::ReadResponseMiddle,
            Position::Last => Self::ReadResponseLast,
            Position::Only => Self::ReadResponseOnly,
        }
    }

    /// Returns the operation of the packet at another position in the same message. Operations that always consist of a
    /// single packet are returned unchanged.
    pub const fn at(self, position: Position) -> Self {
        match (self, position) {
            (Self::SendLastInvalidate | Self::SendOnlyInvalidate, Position::Last) => Self::SendLastInvalidate,
            (Self::SendLastInvalidate | Self::SendOnlyInvalidate, Position::Only) => Self::SendOnlyInvalidate,
            _ => match self.kind() {
                Kind::Send => Self::send(position, self.has_imm()),
                Kind::Write => Self::write(position, self.has_imm()),
                Kind::ReadResponse => Self::read_response(position),
                _ => self,
            },
        }
    }

    /// Returns the position of the packet in its message. Reserved codes and operations that always consist of a single
    /// packet have [`Position::Only`].
    pub const fn position(self) -> Position {
        match self {
            Self::SendFirst | Self::WriteFirst | Self::ReadResponseFirst => Position::First,
            Self::SendMiddle | Self::WriteMiddle | Self::ReadResponseMiddle => Position::Middle,
            Self::SendLast
            | Self::SendLastImm
            | Self::SendLastInvalidate
            | Self::WriteLast
            | Self::WriteLastImm
            | Self::ReadResponseLast => Position::Last,
            Self::SendOnly
            | Self::SendOnlyImm
            | Self::SendOnlyInvalidate
            | Self::WriteOnly
            | Self::WriteOnlyImm
            | Self::ReadResponseOnly
            | Self::ReadRequest
            | Self::Acknowledge
            | Self::AtomicAcknowledge
            | Self::CompareSwap
            | Self::FetchAdd
            | Self::Reserved(_) => Position::Only,
        }
    }

    /// Returns the operation of the message that the packet belongs to.
    pub const fn kind(self) -> Kind {
        match self {
            Self::SendFirst
            | Self::SendMiddle
            | Self::SendLast
            | Self::SendLastImm
            | Self::SendLastInvalidate
            | Self::SendOnly
            | Self::SendOnlyImm
            | Self::SendOnlyInvalidate => Kind::Send,
            Self::WriteFirst
            | Self::WriteMiddle
            | Self::WriteLast
            | Self::WriteLastImm
            | Self::WriteOnly
            | Self::WriteOnlyImm => Kind::Write,
            Self::ReadRequest => Kind::Read,
            Self::CompareSwap | Self::FetchAdd => Kind::Atomic,
            Self::ReadResponseFirst
            | Self::ReadResponseMiddle
            | Self::ReadResponseLast
            | Self::ReadResponseOnly => Kind::ReadResponse,
            Self::Acknowledge => Kind::Acknowledge,
            Self::AtomicAcknowledge => Kind::AtomicAcknowledge,
            Self::Reserved(_) => Kind::Reserved,
        }
    }

    /// Returns whether the packet is addressed to a requester; see [`Opcode::is_response`].
    pub const fn is_response(self) -> bool {
        matches!(self.kind(), Kind::ReadResponse | Kind::Acknowledge | Kind::AtomicAcknowledge)
    }

    /// Returns whether the packet carries immediate data.
    pub const fn has_imm(self) -> bool {
        matches!(self, Self::SendLastImm | Self::SendOnlyImm | Self::WriteLastImm | Self::WriteOnlyImm)
    }

    const fn from_code(code: u8) -> Self {
        match code {
            0x00 => Self::SendFirst,
            0x01 => Self::SendMiddle,
            0x02 => Self::SendLast,
            0x03 => Self::SendLastImm,
            0x04 => Self::SendOnly,
            0x05 => Self::SendOnlyImm,
            0x06 => Self::WriteFirst,
            0x07 => Self::WriteMiddle,
            0x08 => Self::WriteLast,
            0x09 => Self::WriteLastImm,
            0x0a => Self::WriteOnly,
            0x0b => Self::WriteOnlyImm,
            0x0c => Self::ReadRequest,
            0x0d => Self::ReadResponseFirst,
            0x0e => Self::ReadResponseMiddle,
            0x0f => Self::ReadResponseLast,
            0x10 => Self::ReadResponseOnly,
            0x11 => Self::Acknowledge,
            0x12 => Self::AtomicAcknowledge,
            0x13 => Self::CompareSwap,
            0x14 => Self::FetchAdd,
            0x16 => Self::SendLastInvalidate,
            0x17 => Self::SendOnlyInvalidate,
            reserved => Self::Reserved(reserved),
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::SendFirst => 0x00,
            Self::SendMiddle => 0x01,
            Self::SendLast => 0x02,
            Self::SendLastImm => 0x03,
            Self::SendOnly => 0x04,
            Self::SendOnlyImm => 0x05,
            Self::WriteFirst => 0x06,
            Self::WriteMiddle => 0x07,
            Self::WriteLast => 0x08,
            Self::WriteLastImm => 0x09,
            Self::WriteOnly => 0x0a,
            Self::WriteOnlyImm => 0x0b,
            Self::ReadRequest => 0x0c,
            Self::ReadResponseFirst => 0x0d,
            Self::ReadResponseMiddle => 0x0e,
            Self::ReadResponseLast => 0x0f,
            Self::ReadResponseOnly => 0x10,
            Self::Acknowledge => 0x11,
            Self::AtomicAcknowledge => 0x12,
            Self::CompareSwap => 0x13,
            Self::FetchAdd => 0x14,
            Self::SendLastInvalidate => 0x16,
            Self::SendOnlyInvalidate => 0x17,
            Self::Reserved(code) => code & 0x1f,
        }
    }
}

impl Position {
    /// Returns the position of a packet, given whether it is the first and whether it is the last of its message.
    pub const fn of(first: bool, last: bool) -> Self {
        match (first, last) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }

    /// Returns whether this is the first packet of the message (First or Only).
    pub const fn begins(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Returns whether this is the last packet of the message (Last or Only).
    pub const fn ends(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_byte_round_trips() {
        for byte in 0..=u8::MAX {
            assert_eq!(Opcode::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn undefined_opcodes_decode_as_reserved() {
        let defined = |prefix: u8| {
            (0..0x20u8)
                .filter(|code| {
                    !matches!(Opcode::from_byte(prefix << 5 | code).operation, Operation::Reserved(_))
                })
                .collect::<Vec<_>>()
        };
        let rc: Vec<u8> = (0..=0x14).chain([0x16, 0x17]).collect();
        assert_eq!(defined(0), rc);
        assert_eq!(defined(5), rc);
        assert_eq!(defined(1), (0..=0x0b).collect::<Vec<u8>>());
        assert_eq!(defined(3), [4, 5]);
        for other in [2, 4, 6, 7] {
            assert_eq!(defined(other), [], "prefix {other}");
        }
    }

    /// Rows of IBTA volume 1, table 38: code, position, kind and extension headers for RC. XRC has the same rows, but
    /// its requests also have an XRCETH.
    const TABLE: [(u8, Position, Kind, ExtKind); 23] = [
        (0x00, Position::First, Kind::Send, ExtKind::None),
        (0x01, Position::Middle, Kind::Send, ExtKind::None),
        (0x02, Position::Last, Kind::Send, ExtKind::None),
        (0x03, Position::Last, Kind::Send, ExtKind::Imm),
        (0x04, Position::Only, Kind::Send, ExtKind::None),
        (0x05, Position::Only, Kind::Send, ExtKind::Imm),
        (0x06, Position::First, Kind::Write, ExtKind::Reth),
        (0x07, Position::Middle, Kind::Write, ExtKind::None),
        (0x08, Position::Last, Kind::Write, ExtKind::None),
        (0x09, Position::Last, Kind::Write, ExtKind::Imm),
        (0x0a, Position::Only, Kind::Write, ExtKind::Reth),
        (0x0b, Position::Only, Kind::Write, ExtKind::RethImm),
        (0x0c, Position::Only, Kind::Read, ExtKind::Reth),
        (0x0d, Position::First, Kind::ReadResponse, ExtKind::Aeth),
        (0x0e, Position::Middle, Kind::ReadResponse, ExtKind::None),
        (0x0f, Position::Last, Kind::ReadResponse, ExtKind::Aeth),
        (0x10, Position::Only, Kind::ReadResponse, ExtKind::Aeth),
        (0x11, Position::Only, Kind::Acknowledge, ExtKind::Aeth),
        (0x12, Position::Only, Kind::AtomicAcknowledge, ExtKind::AtomicAck),
        (0x13, Position::Only, Kind::Atomic, ExtKind::Atomic),
        (0x14, Position::Only, Kind::Atomic, ExtKind::Atomic),
        (0x16, Position::Last, Kind::Send, ExtKind::Invalidate),
        (0x17, Position::Only, Kind::Send, ExtKind::Invalidate),
    ];

    #[test]
    fn rc_and_xrc_opcodes_match_table_38() {
        let services = [(0, Transport::Rc), (0xa0, Transport::Xrc)];
        for ((code, position, kind, ext), (prefix, transport)) in
            TABLE.into_iter().flat_map(|row| services.map(|service| (row, service)))
        {
            let opcode = Opcode::from_byte(prefix | code);
            assert_eq!(opcode.transport, transport);
            assert_eq!(opcode.operation.position(), position, "{opcode:?}");
            assert_eq!(opcode.operation.kind(), kind, "{opcode:?}");
            assert_eq!(opcode.ext_kind(), ext, "{opcode:?}");
            assert_eq!(opcode.is_response(), (0x0d..=0x12).contains(&code), "{opcode:?}");
            assert_eq!(
                opcode.operation.has_imm(),
                matches!(ext, ExtKind::Imm | ExtKind::RethImm),
                "{opcode:?}"
            );
        }
    }

    #[test]
    fn only_xrc_requests_have_xrceth() {
        let requests = (0..=u8::MAX).filter(|&byte| Opcode::from_byte(byte).has_xrceth());
        let expected = (0xa0..=0xac).chain([0xb3, 0xb4, 0xb6, 0xb7]);
        assert_eq!(requests.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn ud_opcodes_require_deth() {
        assert_eq!(Opcode::from_byte(0x64).ext_kind(), ExtKind::Deth);
        assert_eq!(Opcode::from_byte(0x65).ext_kind(), ExtKind::DethImm);
    }

    #[test]
    fn packet_position_selects_opcode() {
        for (code, position, kind, ext) in TABLE {
            let imm = matches!(ext, ExtKind::Imm | ExtKind::RethImm);
            let built = match kind {
                Kind::Send if ext != ExtKind::Invalidate => Operation::send(position, imm),
                Kind::Write => Operation::write(position, imm),
                Kind::ReadResponse => Operation::read_response(position),
                _ => continue,
            };
            assert_eq!(Opcode::rc(built).to_byte(), code);
            assert_eq!(Position::of(position.begins(), position.ends()), position);
        }
    }
}
