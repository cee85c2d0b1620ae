//! Tests a whole device with a driver, without QEMU. Guest memory is a memfd, and the tests write registers as the
//! public driver does.

mod bringup;
mod commands;
mod contexts;
mod ctxmgt;
mod extremes;
mod hgrnic;
mod limits;
mod registers;
mod replay;
mod strict;
mod trace;
mod traffic;

use card::frontend::Interface as _;
use card::frontend::testing::{Guest, MEMORY, dump, exchange};
use card::identity::Identity;
use card::net::address::Addresses;
use card::vfio::Bar;
use card::vfio::server::{Device, Region};
use drivers::hcr::GO;
use drivers::jingzhao::{
    CQC, Driver, EQC, ICM_CONTEXT, ICM_TPT, INBOX, MPT, MTT, OUTBOX, QPC, layout, region,
};
use engine::Instant;
use protocol::hca::jingzhao::cmd::{CmdStatus, Op};
use protocol::hca::jingzhao::icm::{self, IcmTable, MapEntry};
use protocol::hca::jingzhao::init::InitHca;
use protocol::ids::{IcmAddr, Iova, Lid, MacAddr};

use super::device::JingZhao;
use super::options::{Options, Setup};

/// Bus address that is not mapped.
const NOWHERE: u64 = 0x4000_0000_0000;

/// INIT_HCA inbox from section 14.2.
const INIT: &str = "
    00: 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 10
    10: 00 00 00 00 02 00 00 10 00 00 00 00 02 40 00 05
    30: 00 00 00 00 01 00 00 11 00 00 00 00 01 80 00 00";

fn setup(lid: u16, options: Options) -> Setup {
    Setup { options, mac: Identity::from_lid(Lid::new(lid)).mac, engine: engine::Config::default() }
}

/// Returns the addresses of an HCA with LID 1 or 2. Its default peer is the HCA with the other LID.
fn addresses(lid: u16) -> Addresses {
    let port = |lid| Identity::from_lid(Lid::new(lid));
    Addresses { own: port(lid), peers: Vec::new(), default_peer: Some(port(3 - lid)) }
}

/// A guest with one HCA, and its driver.
type Machine = Driver<Guest<JingZhao>>;

/// Creates a machine in its power-on state. [`addresses`] determines its peer.
fn powered_on(lid: u16, options: Options) -> Machine {
    powered_on_with(setup(lid, options), addresses(lid))
}

fn powered_on_with(setup: Setup, addresses: Addresses) -> Machine {
    let mut machine = Driver::new(Guest::new(JingZhao::new(setup), addresses));
    machine.interface.exact = false;
    machine
}

/// Creates a machine after INIT_HCA, with the tables of section 13 mapped.
fn initialised(options: Options) -> Machine {
    initialised_as(1, options)
}

fn initialised_as(lid: u16, options: Options) -> Machine {
    initialised_with(setup(lid, options), addresses(lid))
}

fn initialised_with(setup: Setup, addresses: Addresses) -> Machine {
    let mut machine = powered_on_with(setup, addresses);
    machine.initialise(1024);
    machine
}
