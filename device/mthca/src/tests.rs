//! Tests a whole device with a driver, without QEMU. The driver acts like `ib_mthca` and uses values observed on a
//! running kernel (sections 13.3 and 14).

mod commands;
mod datagrams;
mod events;
mod extremes;
mod hostile;
mod ignored;
mod limits;
mod lost_ack;
mod mapped;
mod port;
mod probe;
mod regions;
mod replay;
mod shared;
mod states;
mod strict;
mod trace;
mod traffic;
mod user;

use card::frontend::Interface as _;
use card::frontend::testing::Guest;
use card::identity::Identity;
use card::vfio::Bar;
use card::vfio::server::{Device as _, Region};
use drivers::Bus as _;
use drivers::hcr::{INBOX, OUTBOX};
use drivers::mthca::{self as driver, CommandEvents, EQ_ARM, EQ_SET_CI, HCR, Mpt, RESET, modify};
use protocol::hca::status::CmdStatus;
use protocol::ids::Lid;

use self::probe::replay;
use super::device::Mthca;
use super::options::{Options, Setup};

/// Bus address that ICM address 0 is mapped to. Pages are contiguous on the bus.
const ICM: u64 = 0x1_0000_0000;
/// Total size of the tables (section 4.3).
const ICM_LEN: u64 = 0x2685_4000;

/// ICM address of the MTT (section 4.3).
const MTT: u64 = 0x2000_0000;
/// Bus address of the first MTT entry (section 13.3).
const MTT_BUS: u64 = 0x1234_0000;

/// Bus addresses of the completion, async and command EQ buffers, by EQ number.
const EQ_BUFFERS: [u64; 4] = [0, 0x200_0000, 0x300_0000, 0x300_2000];

/// Returns the EQ for command completions. `token` is the token of the first command.
const fn command_events(token: u16) -> Option<CommandEvents> {
    Some(CommandEvents { buffer: EQ_BUFFERS[3], token, read: 0 })
}

type Driver = driver::Driver<Guest<Mthca>>;

fn setup(lid: u16, options: Options) -> Setup {
    Setup { options, mac: Identity::from_lid(Lid::new(lid)).mac, engine: engine::Config::default() }
}

/// Returns a MAP_ICM entry (section 3.3.3).
fn block(icm: u64, bus: u64, log: u8) -> Vec<u8> {
    [icm.to_be_bytes(), (bus | u64::from(log)).to_be_bytes()].concat()
}

fn eq_context(log_entries: u8, vector: u8, lkey: u32) -> Vec<u8> {
    driver::eq_context(log_entries, vector, 1, lkey)
}

/// Creates a driver for a powered-on device. MSI-X is enabled, and three vectors have eventfds.
fn powered_on() -> Driver {
    powered_on_with(1, Options::default())
}

fn powered_on_with(lid: u16, options: Options) -> Driver {
    let mut guest = Guest::new(Mthca::new(setup(lid, options)), Identity::from_lid(Lid::new(lid)));
    guest.map_memory(ICM, ICM_LEN);
    guest.configure(0x52, &[0, 0x80]);
    guest.listen(3);
    Driver::new(guest)
}

/// Creates a driver that has completed INIT_HCA, with the regions and EQs of section 14.3.
fn initialised() -> Driver {
    let mut driver = powered_on();
    replay(&mut driver, probe::BRING_UP);
    driver
}

/// Like [`initialised`], but with the port open and the port event consumed.
fn with_port() -> Driver {
    let mut driver = initialised();
    open_port(&mut driver);
    driver
}

/// Issues INIT_IB and consumes the resulting event.
fn open_port(driver: &mut Driver) {
    const PORT_CHANGE: u64 = 1 << 9;
    const UNMAP: u32 = 1 << 31;
    assert_eq!(driver.command(0x012, PORT_CHANGE, UNMAP | 2).0, 0);
    driver.ok(0x009, &[0; 56], 1);
    assert_eq!(driver.command(0x012, PORT_CHANGE, 2).0, 0);
    driver.settle();
}

trait EventQueues {
    fn eqe(&mut self, eqn: usize, number: u64) -> Vec<u8>;
}

impl EventQueues for Guest<Mthca> {
    fn eqe(&mut self, eqn: usize, number: u64) -> Vec<u8> {
        self.peek(EQ_BUFFERS[eqn] + 32 * number, 32)
    }
}
