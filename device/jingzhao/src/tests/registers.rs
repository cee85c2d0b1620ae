//! BAR0 and the life cycle of a command (section 1).

use card::frontend::Frontend;
use card::vfio::MsixLayout;

use super::*;

const QUERY_DEV_LIM: u32 = 0x0080_0003;
const DOCUMENTED_HCR: u64 = 0x8_0000;
/// Low half of the outbox address; the high half is 0.
const OUTBOX_LOW: u32 = 0x2000;

const _: () = assert!(OUTBOX == OUTBOX_LOW as u64);

#[test]
fn pci_identity_and_bars_match_card() {
    let pci = JingZhao::new(setup(1, Options::default())).pci();
    assert_eq!((pci.vendor, pci.device, pci.class), (0x10ee, 0x7028, [2, 7, 0]));
    assert_eq!((pci.bars.len_of(Bar::Bar0), pci.bars.len_of(Bar::Bar2)), (1 << 20, 8 << 20));
    let (table, pending) = ((Bar::Bar0, 0x2_0000), (Bar::Bar0, 0x3_0000));
    assert_eq!(pci.msix, MsixLayout { vectors: 64, table, pending });
    let options: Options = serde_json::from_str(r#"{"uar_pages": 4096}"#).unwrap();
    assert_eq!(JingZhao::new(setup(1, options)).pci().bars.len_of(Bar::Bar2), 16 << 20);
}

#[test]
fn both_hcr_addresses_reach_same_registers() {
    let mut machine = powered_on(1, Options::default());
    machine.write32(0, DOCUMENTED_HCR + 0x10, OUTBOX_LOW);
    assert_eq!(machine.read32(0, 0x10), OUTBOX_LOW);
    machine.write32(0, 0x18, QUERY_DEV_LIM);
    assert_eq!(machine.read32(0, DOCUMENTED_HCR + 0x18), 3);
    assert_eq!(machine.peek(OUTBOX, 4), [1, 0, 0, 0]);
}

#[test]
fn command_completes_before_its_store_returns() {
    let mut machine = powered_on(1, Options::default());
    assert_eq!(machine.read32(0, 0x18), 0, "the HCR is zero at power-on");
    machine.write32(0, 0x10, OUTBOX_LOW);
    machine.write32(0, 0x14, 0xffff_0000);
    machine.write32(0, 0x18, QUERY_DEV_LIM);
    let word = machine.read32(0, 0x18);
    assert_eq!((word & 1 << 23, word & 1 << 15, word >> 24), (0, 0, 0));
    machine.write32(0, 0x18, 0x0080_0055);
    assert_eq!(machine.read32(0, 0x18), 0x0200_0055);
    assert_eq!(machine.read32(0, 0x14), 0xffff_0000);
}

#[test]
fn no_command_starts_without_go_bit() {
    let mut machine = powered_on(1, Options::default());
    machine.write32(0, 0x10, OUTBOX_LOW);
    machine.write32(0, 0x18, 3);
    assert_eq!(machine.read32(0, 0x18), 0);
    assert_eq!(machine.peek(OUTBOX, 0x40), [0; 0x40]);
}

#[test]
fn hcr_ignores_stores_narrower_than_word() {
    let mut machine = powered_on(1, Options::default());
    let bar0 = Region::Bar(Bar::Bar0);
    let both = [OUTBOX.to_le_bytes(), [0, 0, 0xff, 0xff, 3, 0, 0x80, 0]].concat();
    machine.hca.region_write(bar0, 0x10, &both[..4]);
    machine.hca.region_write(bar0, 0x10, &[0xff]);
    machine.hca.region_write(bar0, 0x10, &[0xff; 2]);
    // Write the token and the command word with one store, which is split because it crosses an 8-byte boundary.
    machine.hca.region_write(bar0, 0x14, &both[8..]);
    assert_eq!(machine.read32(0, 0x18), 3);
    assert_eq!(machine.peek(OUTBOX, 2), [1, 0]);
    let mut byte = [0];
    machine.hca.region_read(bar0, 0x17, &mut byte);
    assert_eq!(byte, [0xff]);
    let mut wide = [0; 8];
    machine.hca.region_read(bar0, 0x08, &mut wide);
    assert_eq!(wide, [0; 8]);
}

#[test]
fn undefined_registers_read_as_zero() {
    let mut machine = powered_on(1, Options::default());
    assert_eq!(machine.read32(0, 0xf20), 1);
    for offset in [0x1c, 0xf10, 0x1000, 0x5400, 0x8_001c, 0xf_0010, 0xf_fffc] {
        machine.write32(0, offset, 0xffff_fffe);
        assert_eq!(machine.read32(0, offset), 0, "{offset:#x}");
    }
    assert_eq!(machine.read32(2, 0), 0);
}

#[test]
fn either_reset_register_clears_hcr_icm_and_objects() {
    for register in [0xf10, 0xf_0010] {
        let mut machine = initialised(Options::default());
        machine.write32(0, register, 2);
        assert_eq!(machine.command(Op::UnmapIcm, 1, 1, &[]), 0, "a store with bit 0 clear resets nothing");
        machine.write32(0, register, 1);
        assert_eq!(machine.read32(0, 0x18), 0);
        assert_eq!(machine.read32(0, 0x08), 0);
        assert_eq!(machine.command(Op::QueryQp, 0, 0, &[]), CmdStatus::BadSysState.code());
        machine.ok(Op::InitHca, 0, 0, &dump(INIT, 0x40));
        let unmapped = machine.command(Op::Sw2HwCq, 0, 0, &[0; 0x40]);
        assert_eq!(unmapped, CmdStatus::BadParam.code(), "the reset removes the mappings");
    }
}

#[test]
fn function_reset_requires_new_init_hca() {
    let mut machine = initialised(Options::default());
    machine.hca.reset();
    machine.hca.region_write(Region::Config, 4, &[6, 0]);
    assert_eq!(machine.command(Op::QueryQp, 0, 0, &[]), CmdStatus::BadSysState.code());
}
