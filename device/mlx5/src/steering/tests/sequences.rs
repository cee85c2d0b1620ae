//! Executes random sequences of operations. A wrong reference count would leave an object that cannot be destroyed at
//! the end.

use proptest::prelude::*;

use super::frames::{C_TAG, OWN, tcp4};
use super::*;

#[derive(Clone, Debug)]
enum Operation {
    CreateTable { level: u8, miss: u32 },
    SetMiss { table: u32, miss: u32 },
    DestroyTable(u32),
    SetRoot(u32),
    CreateGroup { table: u32, first: u32 },
    DestroyGroup { table: u32, group: u32 },
    SetEntry { table: u32, group: u32, index: u32, to: Vec<Destination>, counter: u32 },
    DeleteEntry { table: u32, index: u32 },
    AllocCounter,
    DeallocCounter(u32),
}

/// IDs for tables, groups and counters. The range is small, so most IDs soon belong to an object.
const NUMBERS: std::ops::Range<u32> = 0..6;
const INDICES: std::ops::Range<u32> = 0..8;

fn operation() -> impl Strategy<Value = Operation> {
    use Operation::*;
    let table = |number| Destination::Table(FlowTableId::new(number));
    let destination = prop_oneof![NUMBERS.prop_map(table), NUMBERS.prop_map(tir)];
    let entry = (NUMBERS, NUMBERS, INDICES, prop::collection::vec(destination, 1..4), NUMBERS);
    prop_oneof![
        3 => (0..4_u8, NUMBERS).prop_map(|(level, miss)| CreateTable { level, miss }),
        2 => (NUMBERS, NUMBERS).prop_map(|(table, miss)| SetMiss { table, miss }),
        1 => NUMBERS.prop_map(DestroyTable),
        1 => NUMBERS.prop_map(SetRoot),
        3 => (NUMBERS, INDICES).prop_map(|(table, first)| CreateGroup { table, first }),
        1 => (NUMBERS, NUMBERS).prop_map(|(table, group)| DestroyGroup { table, group }),
        8 => entry.prop_map(|(table, group, index, to, counter)| SetEntry { table, group, index, to, counter }),
        2 => (NUMBERS, INDICES).prop_map(|(table, index)| DeleteEntry { table, index }),
        1 => Just(AllocCounter),
        1 => NUMBERS.prop_map(DeallocCounter),
    ]
}

/// Executes an operation. At first, most operations fail because their objects do not exist yet.
fn execute(steering: &mut Steering, operation: Operation) -> Result<(), Rejection> {
    let existing = |number| Some(FlowTableId::new(number)).filter(|_| number != 0);
    match operation {
        Operation::CreateTable { level, miss } => {
            steering.create_table(&context(level, 3, existing(miss))).map(drop)
        }
        Operation::SetMiss { table, miss } => {
            steering.set_miss(FlowTableId::new(table), &context(0, 0, existing(miss)))
        }
        Operation::DestroyTable(table) => steering.destroy_table(FlowTableId::new(table)),
        Operation::SetRoot(table) => steering.set_root(existing(table)),
        Operation::CreateGroup { table, first } => {
            steering.create_group(FlowTableId::new(table), group(first, first + 1, ANY)).map(drop)
        }
        Operation::DestroyGroup { table, group } => {
            steering.destroy_group(FlowTableId::new(table), FlowGroupId::new(group))
        }
        Operation::SetEntry { table, group, index, to, counter } => {
            let place = Place { table: FlowTableId::new(table), group: FlowGroupId::new(group), index };
            let counters = (counter != 0).then(|| smallvec![FlowCounterId::new(counter)]);
            let rule = Rule { counters, ..forward(&to) };
            steering.set_entry(place, &Fields::default(), rule).map(drop)
        }
        Operation::DeleteEntry { table, index } => {
            steering.delete_entry(FlowTableId::new(table), index).map(drop)
        }
        Operation::AllocCounter => steering.alloc_counter().map(drop),
        Operation::DeallocCounter(counter) => steering.dealloc_counter(FlowCounterId::new(counter)),
    }
}

/// Returns the IDs of all tables.
fn all(steering: &Steering) -> Vec<FlowTableId> {
    steering.tables.iter_from(0).map(|(number, _)| FlowTableId::new(number)).collect()
}

proptest! {
    #[test]
    fn all_objects_can_be_destroyed_at_end(
        operations in prop::collection::vec(operation(), 0..120),
    ) {
        let mut steering = Steering::default();
        for operation in operations {
            let _ = execute(&mut steering, operation);
            evaluate(&steering, &tcp4(OWN, &[C_TAG]));
        }
        for table in all(&steering) {
            steering.set_miss(table, &context(0, 0, None)).unwrap();
            for index in INDICES {
                let _ = steering.delete_entry(table, index);
            }
        }
        prop_assert_eq!((steering.entries, steering.destinations), (0, 0));
        let groups: Vec<_> = steering.groups.iter_from(0).map(|(number, ())| number).collect();
        for table in all(&steering) {
            for group in &groups {
                let _ = steering.destroy_group(table, FlowGroupId::new(*group));
            }
            steering.destroy_table(table).unwrap();
        }
        prop_assert_eq!((steering.tables(), steering.groups.count(), steering.root), (0, 0, None));
        let counters: Vec<_> = steering.counters.iter_from(0).map(|(number, _)| number).collect();
        for counter in counters {
            steering.dealloc_counter(FlowCounterId::new(counter)).unwrap();
        }
    }
}
