//! Trace records: names and fields of registers, commands and events.

use card::telemetry::testing::Written;
use card::telemetry::trace::TraceFormat;
use drivers::mlx5::{HEALTH, QUEUE_LOW};
use protocol::hca::mlx5::doorbell::EqDoorbell;

use super::*;

/// Calls `run` with tracing enabled. Returns the trace records without time and device.
fn records(driver: &mut Driver, run: impl FnOnce(&mut Driver)) -> Vec<String> {
    let written = Written::default();
    driver.hca.set_trace(Some(written.trace(TraceFormat::Text)));
    run(driver);
    driver.hca.flush();
    driver.hca.set_trace(None);
    let text = written.text();
    let of = |line: &str| line.split_once(" hca1 ").map(|(_, record)| record.to_owned());
    text.lines().filter_map(of).collect()
}

fn starting<'a>(records: &'a [String], start: &str) -> &'a str {
    records.iter().find(|record| record.starts_with(start)).unwrap_or_else(|| panic!("{start}: {records:#?}"))
}

#[test]
fn trace_shows_names_and_fields_of_registers() {
    let mut driver = initialised();
    let uar = driver.alloc_uar();
    let records = records(&mut driver, |driver| {
        driver.read(HEALTH + 0x3c);
        driver.read(0x1010);
        driver.write(QUEUE_LOW, 0x700);
        driver.ring(uar, driver::ARM_EQ, &EqDoorbell { eqn: Eqn::new(3), consumer: 7 }.emit());
        driver.ring(uar, driver::SEND + 0x100, &0x0000_0325_0000_8209_u64.to_be_bytes());
    });
    starting(&records, "read health+0x3c ");
    starting(&records, "read health_counter ");
    assert!(starting(&records, "write cmdq_addr_l_sz ").ends_with(" request=sw_reset"));
    assert!(starting(&records, "write UAR[16].arm_eq ").contains(" eqn=0x3 consumer=7"), "{records:?}");
    assert!(starting(&records, "write UAR[16].send[0.1]+0x0 ").contains(" qpn=0x82"), "{records:?}");
}

/// The page list of a large key can be megabytes long.
#[test]
fn long_field_is_truncated_in_trace() {
    let mut driver = initialised();
    let input = [&driver::bare(0x710)[..], &[0xab; 10_000]].concat();
    let records = records(&mut driver, |driver| _ = driver.execute(&input, 16));
    let record = starting(&records, "command unknown status=BAD_OP");
    assert!(record.len() < 9_000 && record.ends_with("abab...+5920"), "{}", record.len());
}

#[test]
fn trace_shows_fields_of_commands_and_events() {
    let mut driver = initialised();
    let records = records(&mut driver, |driver| {
        let uar = driver.alloc_uar();
        driver.create_eq(uar, 0, EventMask::COMMAND, 0x40_0000);
        driver.rejected(&Command::DestroyEq(EqNumber { eqn: Eqn::new(9) }));
        driver.execute(&driver::bare(0x710), 16);
    });
    let create = starting(&records, "command CREATE_EQ status=OK");
    assert!(create.contains("log_entries=8") && create.contains("out.eqn=0x1"), "{create}");
    let rejected = starting(&records, "command DESTROY_EQ status=BAD_RES");
    assert!(rejected.contains("unknown EQ: 0x9") && rejected.contains("syndrome=0x602"), "{rejected}");
    starting(&records, "command unknown status=BAD_OP");
    assert!(starting(&records, "eqe command ").contains("eqn=0x1 slot=0"), "{records:?}");
}
