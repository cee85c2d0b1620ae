//! Names of opcodes (IBTA volume 1, table 38).

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::opcode::{Opcode, Operation, Transport};

const NAMES: [(Operation, &str); 23] = [
    (Operation::SendFirst, "SEND First"),
    (Operation::SendMiddle, "SEND Middle"),
    (Operation::SendLast, "SEND Last"),
    (Operation::SendLastImm, "SEND Last with Immediate"),
    (Operation::SendOnly, "SEND Only"),
    (Operation::SendOnlyImm, "SEND Only with Immediate"),
    (Operation::WriteFirst, "RDMA WRITE First"),
    (Operation::WriteMiddle, "RDMA WRITE Middle"),
    (Operation::WriteLast, "RDMA WRITE Last"),
    (Operation::WriteLastImm, "RDMA WRITE Last with Immediate"),
    (Operation::WriteOnly, "RDMA WRITE Only"),
    (Operation::WriteOnlyImm, "RDMA WRITE Only with Immediate"),
    (Operation::ReadRequest, "RDMA READ Request"),
    (Operation::ReadResponseFirst, "RDMA READ response First"),
    (Operation::ReadResponseMiddle, "RDMA READ response Middle"),
    (Operation::ReadResponseLast, "RDMA READ response Last"),
    (Operation::ReadResponseOnly, "RDMA READ response Only"),
    (Operation::Acknowledge, "Acknowledge"),
    (Operation::AtomicAcknowledge, "ATOMIC Acknowledge"),
    (Operation::CompareSwap, "CmpSwap"),
    (Operation::FetchAdd, "FetchAdd"),
    (Operation::SendLastInvalidate, "SEND Last with Invalidate"),
    (Operation::SendOnlyInvalidate, "SEND Only with Invalidate"),
];

const CNP: &str = "CNP";

/// Formats the opcode, for example as "RC RDMA READ response Middle", "CNP", or "opcode 0x15" for an undefined code.
impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.iter().find(|(operation, _)| *operation == self.operation).map(|(_, name)| *name);
        match (service(self.transport), name) {
            (Some(service), Some(name)) => write!(f, "{service} {name}"),
            _ if *self == Self::CNP => f.write_str(CNP),
            _ => write!(f, "opcode {:#04x}", self.to_byte()),
        }
    }
}

/// An opcode, or one operation of any service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpcodePattern {
    /// Matches exactly this opcode.
    One(Opcode),
    /// Matches this operation of any service.
    AnyService(Operation),
}

/// The text does not name an opcode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("expected an opcode name such as \"RC SEND Only\" or \"RDMA READ response Middle\"")]
pub struct UnknownOpcode;

impl OpcodePattern {
    /// Returns whether `opcode` matches this pattern.
    pub fn matches(self, opcode: Opcode) -> bool {
        match self {
            Self::One(one) => one == opcode,
            Self::AnyService(operation) => operation == opcode.operation,
        }
    }
}

/// Parses a pattern. Case is ignored, words can be joined by `_` or `-`, and "RDMA" is optional.
impl FromStr for OpcodePattern {
    type Err = UnknownOpcode;

    fn from_str(text: &str) -> Result<Self, UnknownOpcode> {
        let words: Vec<_> = words(text).collect();
        let is = |name: &str, words: &[String]| self::words(name).eq(words.iter().cloned());
        let operation = |words: &[String]| {
            NAMES.iter().find(|(_, name)| is(name, words)).map(|(operation, _)| *operation)
        };
        if is(CNP, &words) {
            return Ok(Self::One(Opcode::CNP));
        }
        if let Some(operation) = operation(&words) {
            return Ok(Self::AnyService(operation));
        }
        let (first, rest) = words.split_first().ok_or(UnknownOpcode)?;
        let transport = [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Xrc]
            .into_iter()
            .find(|transport| service(*transport).is_some_and(|name| name.eq_ignore_ascii_case(first)))
            .ok_or(UnknownOpcode)?;
        let opcode = Opcode { transport, operation: operation(rest).ok_or(UnknownOpcode)? };
        // Reject operations that the service does not define.
        if Opcode::from_byte(opcode.to_byte()) == opcode { Ok(Self::One(opcode)) } else { Err(UnknownOpcode) }
    }
}

fn words(text: &str) -> impl Iterator<Item = String> {
    text.split([' ', '_', '-'])
        .filter(|word| !word.is_empty() && !word.eq_ignore_ascii_case("rdma"))
        .map(str::to_ascii_lowercase)
}

fn service(transport: Transport) -> Option<&'static str> {
    match transport {
        Transport::Rc => Some("RC"),
        Transport::Uc => Some("UC"),
        Transport::Ud => Some("UD"),
        Transport::Xrc => Some("XRC"),
        Transport::Other(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_defined_opcode_parses_by_name() {
        let mut named = 0;
        for byte in 0..=u8::MAX {
            let opcode = Opcode::from_byte(byte);
            if matches!(opcode.operation, Operation::Reserved(_)) && opcode != Opcode::CNP {
                assert_eq!(opcode.to_string(), format!("opcode {byte:#04x}"));
                continue;
            }
            named += 1;
            assert_eq!(opcode.to_string().parse(), Ok(OpcodePattern::One(opcode)));
        }
        assert_eq!(named, 23 + 12 + 2 + 23 + 1);
    }

    #[test]
    fn opcode_names_match_table_38() {
        for (byte, name) in [
            (0x0e, "RC RDMA READ response Middle"),
            (0x12, "RC ATOMIC Acknowledge"),
            (0x2b, "UC RDMA WRITE Only with Immediate"),
            (0x64, "UD SEND Only"),
            (0x81, "CNP"),
            (0xa0, "XRC SEND First"),
            (0xb1, "XRC Acknowledge"),
            (0xb7, "XRC SEND Only with Invalidate"),
        ] {
            assert_eq!(Opcode::from_byte(byte).to_string(), name);
        }
    }

    #[test]
    fn name_without_service_matches_any_service() {
        let middle = OpcodePattern::AnyService(Operation::ReadResponseMiddle);
        for text in ["RDMA READ response Middle", "READ response middle", "read_response-middle"] {
            assert_eq!(text.parse(), Ok(middle), "{text}");
        }
        assert!(middle.matches(Opcode::rc(Operation::ReadResponseMiddle)));
        let only: OpcodePattern = "uc send only".parse().unwrap();
        assert!(only.matches(Opcode::uc(Operation::SendOnly)));
        assert!(!only.matches(Opcode::rc(Operation::SendOnly)));
    }

    #[test]
    fn rejects_undefined_opcode_names() {
        for text in ["", "RC", "RD SEND Only", "UC FetchAdd", "UD SEND First", "SEND", "RC RC SEND Only"] {
            assert_eq!(text.parse::<OpcodePattern>(), Err(UnknownOpcode), "{text}");
        }
    }
}
