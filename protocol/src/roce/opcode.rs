//! BTH OpCode: a transport service and an operation.

/// Transport service, the top three bits of the BTH OpCode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection, 000.
    Rc,
    /// Unreliable connection, 001.
    Uc,
    /// Unreliable datagram, 011.
    Ud,
    /// Any other prefix (RD, CNP, XRC), kept as it came.
    Other(u8),
}

/// Operation, the low five bits of the BTH OpCode.
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
    /// A code the table reserves, kept as it came: an RC responder must answer it with a NAK.
    Reserved(u8),
}

/// The whole BTH OpCode byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Opcode {
    /// Transport service.
    pub transport: Transport,
    /// Operation and position in the message.
    pub operation: Operation,
}
