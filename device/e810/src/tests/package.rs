//! Tests for the DDP package (E810 interface, section 7).

use card::vfio::server::{Device as _, Region};
use protocol::hca::e810::admin::Opcode;
use protocol::hca::e810::regs::Register;

use super::*;

/// Parameters for the commands that request and release the global configuration lock.
const LOCK: [u8; 16] = [4, 0, 2, 0, 0x88, 0x13, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Returns the only segment of the synthetic package.
fn piece() -> Vec<u8> {
    let mut piece = vec![0; 4096];
    piece[..16].copy_from_slice(&[1, 0, 48, 0, 1, 0, 0, 0, 12, 0, 36, 0, 1, 3, 0, 0]);
    piece[16..30].copy_from_slice(b"hcad synthetic");
    piece
}

fn info(driver: &mut Driver) -> Vec<u8> {
    driver.succeed(&AdminCommand::with_output(Opcode::GetPackageInfo, [0; 16], 164)).buffer
}

fn lock(driver: &mut Driver) -> u8 {
    driver.succeed(&AdminCommand::direct(Opcode::RequestResource, LOCK)).parameters[12]
}

fn download(driver: &mut Driver) {
    let mut last = [0; 16];
    last[0] = 1;
    let reply = driver.succeed(&AdminCommand::with_input(Opcode::DownloadPackage, last, &piece()));
    assert_eq!(reply.buffer, piece());
    driver.succeed(&AdminCommand::direct(Opcode::ReleaseResource, LOCK));
}

#[test]
fn loaded_package_becomes_active() {
    let mut driver = started();
    assert_eq!(info(&mut driver), [0; 164]);
    assert_eq!(lock(&mut driver), 0);
    download(&mut driver);
    let reply = info(&mut driver);
    assert_eq!(reply[..22], *b"\x01\0\0\0\x01\x03\0\0hcad synthetic");
    assert_eq!(reply[36..48], [1, 0, 0, 0xc0, 0, 1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn package_survives_function_reset() {
    let mut driver = started();
    lock(&mut driver);
    download(&mut driver);
    let before = info(&mut driver);
    driver.write(Register::PfgenCtrl, 1);
    driver.open_admin_queue();
    assert_eq!(info(&mut driver), before);
    assert_eq!(lock(&mut driver), 2, "the lock request must report that the package is already loaded");
    driver.write(Register::GlgenRtrig, 1);
    driver.open_admin_queue();
    assert_eq!(info(&mut driver), [0; 164]);
    assert_eq!(lock(&mut driver), 0);
}

#[test]
fn interrupted_package_download_can_be_restarted() {
    let mut driver = started();
    lock(&mut driver);
    driver.succeed(&AdminCommand::with_input(Opcode::DownloadPackage, [0; 16], &piece()));
    driver.write(Register::PfgenCtrl, 1);
    driver.open_admin_queue();
    assert_eq!(lock(&mut driver), 0);
    let mut other = piece();
    other[16..20].copy_from_slice(b"else");
    driver.succeed(&AdminCommand::with_input(Opcode::DownloadPackage, [0; 16], &other));
    assert_eq!(info(&mut driver)[8..12], *b"else", "a different package must be accepted");
}

#[test]
fn device_reset_discards_package() {
    let mut driver = started();
    lock(&mut driver);
    download(&mut driver);
    driver.bus.hca.reset();
    driver.bus.hca.region_write(Region::Config, 4, &[6, 0]);
    driver.open_admin_queue();
    assert_eq!(info(&mut driver), [0; 164]);
}

#[test]
fn package_segment_without_metadata_is_not_reported() {
    let mut driver = started();
    for piece in [&[][..], &[0xff; 4096], &[1], &piece()[..47]] {
        driver.succeed(&AdminCommand::with_input(Opcode::DownloadPackage, [0; 16], piece));
    }
    driver.succeed(&AdminCommand::direct(Opcode::ReleaseResource, LOCK));
    assert_eq!(info(&mut driver), [0; 164]);
}
