//! Property tests of the ConnectX layouts with arbitrary bytes.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use protocol::hca::mlx5::capability::{AtomicCaps, GeneralCaps};
use protocol::hca::mlx5::command::{Block, InputHeader, Slot};
use protocol::hca::mlx5::counter::{QCounters, VportCounters};
use protocol::hca::mlx5::cq::CqContext;
use protocol::hca::mlx5::cqe::Cqe;
use protocol::hca::mlx5::doorbell::{ArmCq, CqRecord, QueueRecord};
use protocol::hca::mlx5::eq::EqContext;
use protocol::hca::mlx5::eqe::Eqe;
use protocol::hca::mlx5::flow_counter::{AllocFlowCounter, QueryFlowCounter};
use protocol::hca::mlx5::flow_entry::{FlowContext, FlowDestination, FlowEntrySelector, SetFlowTableEntry};
use protocol::hca::mlx5::flow_group::{CreateFlowGroup, FlowGroupSelector, QueriedFlowGroup};
use protocol::hca::mlx5::flow_table::{
    CreateFlowTable, FlowTableContext, FlowTableSelector, ModifyFlowTable, SetFlowTableRoot,
};
use protocol::hca::mlx5::input::Command;
use protocol::hca::mlx5::match_parameters::{MatchParameters, OuterHeaders};
use protocol::hca::mlx5::mkey::{MkeyContext, Mtt};
use protocol::hca::mlx5::opcode::Opcode;
use protocol::hca::mlx5::path::Path;
use protocol::hca::mlx5::qp::{QpContext, Service};
use protocol::hca::mlx5::regs::Register;
use protocol::hca::mlx5::srq::{RmpContext, SrqContext};
use protocol::hca::mlx5::transition::{QpAttributes, Transition};
use protocol::hca::mlx5::umr::{MkeyMask, UmrControl};
use protocol::hca::mlx5::vport::VportContext;
use protocol::hca::mlx5::wqe::{ControlSegment, DatagramSegment, RecvWqe, SendWqe, SrqEntry};

/// Checks that a layout ignores unnamed bits and that its fields survive a round trip through `emit` and `parse`.
macro_rules! round_trip {
    ($bytes:expr, $($layout:ty),* $(,)?) => {$({
        let object = <$layout>::parse($bytes.first_chunk().unwrap());
        let emitted = object.emit();
        prop_assert_eq!(<$layout>::parse(&emitted), object);
        prop_assert!(emitted.iter().zip($bytes.iter()).all(|(named, all)| named & !all == 0));
    })*};
}

fn services() -> impl Strategy<Value = Service> {
    prop::sample::select(Service::ALL)
}

proptest! {
    #[test]
    fn layouts_round_trip(bytes in prop::collection::vec(any::<u8>(), 1024)) {
        round_trip!(
            bytes, Slot, Block, EqContext, CqContext, QpContext, Path, MkeyContext, SrqContext, RmpContext,
            UmrControl, ControlSegment, DatagramSegment, GeneralCaps, AtomicCaps, VportContext, QCounters,
            VportCounters, ArmCq, CqRecord, QueueRecord,
        );
        round_trip!(
            bytes, OuterHeaders, MatchParameters, FlowTableContext, CreateFlowTable, ModifyFlowTable,
            FlowTableSelector, SetFlowTableRoot, CreateFlowGroup, FlowGroupSelector, QueriedFlowGroup,
            FlowContext, FlowDestination, SetFlowTableEntry, FlowEntrySelector, AllocFlowCounter,
            QueryFlowCounter,
        );
    }

    #[test]
    fn commands_round_trip(
        opcode in prop::sample::select(Command::OPCODES),
        user in any::<u16>(),
        bytes in prop::collection::vec(any::<u8>(), 0..2048),
    ) {
        let mut input = bytes;
        let header = InputHeader { opcode: opcode.code(), ..InputHeader::default() }.emit();
        input.iter_mut().zip(&header[..2]).for_each(|(byte, code)| *byte = *code);
        match Command::parse(&input) {
            Ok(command) => {
                prop_assert_eq!(command.opcode(), opcode);
                let emitted = command.emit(user);
                prop_assert!(emitted.len() <= input.len());
                prop_assert_eq!(Command::parse(&emitted), Ok(command));
            }
            Err(error) => prop_assert!(input.len() < 0x400, "{}", error),
        }
    }

    #[test]
    fn unknown_opcodes_are_rejected(code in any::<u16>()) {
        let input = InputHeader { opcode: code, ..InputHeader::default() }.emit();
        let known = Opcode::from_code(code).is_some_and(|opcode| Command::OPCODES.contains(&opcode));
        if !known {
            prop_assert!(Command::parse(&input).is_err());
        }
    }

    #[test]
    fn queue_entries_round_trip(bytes in any::<[[u8; 32]; 2]>()) {
        let entry: &[u8; 64] = bytes.as_flattened().try_into().unwrap();
        if let Ok((cqe, owner)) = Cqe::parse(entry) {
            prop_assert_eq!(Cqe::parse(&cqe.emit(owner)), Ok((cqe, owner)));
        }
        if let Ok((event, owner)) = Eqe::parse(entry) {
            prop_assert_eq!(Eqe::parse(&event.emit(owner)), Ok((event, owner)));
        }
    }

    #[test]
    fn send_wqes_round_trip(
        service in services(),
        opcode in prop::sample::select(protocol::hca::mlx5::wqe::Opcode::ALL),
        size in 0_u8..20,
        bytes in prop::collection::vec(any::<u8>(), 16..320),
    ) {
        let mut bytes = bytes;
        let control = ControlSegment::parse_prefix(&bytes).unwrap();
        let control = ControlSegment { opcode: opcode.code(), size, ..control };
        bytes[..ControlSegment::LEN].copy_from_slice(&control.emit());
        let emitted;
        if let Ok(wqe) = SendWqe::parse(&bytes, service, control.qpn) {
            emitted = wqe.emit();
            let again = SendWqe::parse(&emitted, service, control.qpn).unwrap();
            prop_assert_eq!(&again.emit(), &emitted);
            prop_assert_eq!((&again.operation, &again.data), (&wqe.operation, &wqe.data));
        }
    }

    #[test]
    fn receive_wqes_round_trip(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        let wqe = RecvWqe::parse(&bytes);
        prop_assert_eq!(RecvWqe::parse(&wqe.emit(bytes.len() + 16)), wqe);
        if let Some(entry) = SrqEntry::parse(&bytes) {
            prop_assert_eq!(SrqEntry::parse(&entry.emit(bytes.len() + 16)), Some(entry));
        }
    }

    #[test]
    fn transitions_keep_geometry(
        old in prop::collection::vec(any::<u8>(), QpContext::LEN),
        new in prop::collection::vec(any::<u8>(), QpContext::LEN),
        transition in prop::sample::select(Transition::ALL.as_slice()),
        mask in any::<u32>(),
    ) {
        let old = QpContext::parse(old.first_chunk().unwrap());
        let new = QpContext::parse(new.first_chunk().unwrap());
        if let Ok(next) = old.modified(transition, QpAttributes::from(mask), &new) {
            prop_assert_eq!(next.state(), Some(transition.target()));
            let geometry = |qp: &QpContext| {
                (qp.service, qp.log_rq_entries, qp.log_rq_stride, qp.log_sq_blocks, qp.log_page_size, qp.page_offset)
            };
            prop_assert_eq!(geometry(&next), geometry(&old));
            prop_assert_eq!((next.user_index, next.uar), (old.user_index, old.uar));
        }
    }

    #[test]
    fn umr_does_not_change_translation_size(
        bytes in prop::collection::vec(any::<u8>(), 2 * MkeyContext::LEN),
        mask in any::<u64>(),
    ) {
        let old = MkeyContext::parse(bytes.first_chunk().unwrap());
        let new = MkeyContext::parse(bytes.last_chunk().unwrap());
        let mask = MkeyMask::from_bits_retain(mask);
        let next = old.updated(mask, &new);
        prop_assert_eq!(next.translation_units, old.translation_units);
        prop_assert_eq!(next.access_mode(), old.access_mode());
        prop_assert_eq!(next.updated(mask, &new), next);
    }

    #[test]
    fn register_offsets_stay_in_segment(offset in any::<u64>()) {
        if let Some((_, word)) = Register::at(offset) {
            prop_assert!(offset < protocol::hca::mlx5::regs::SEGMENT_LEN && word % 4 == 0);
        }
    }

    #[test]
    fn page_entries_round_trip(entry in any::<[u8; 8]>()) {
        let mtt = Mtt::parse(entry);
        prop_assert_eq!(Mtt::parse(mtt.emit()), mtt);
    }
}
