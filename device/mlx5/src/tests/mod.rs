//! Tests a whole device with a driver, without QEMU. The driver acts like `mlx5_core` and `mlx5_ib`.

mod counters;
mod doorbells;
mod ethernet_port;
mod extremes;
mod flow;
mod golden;
mod hostile;
mod lifecycle;
mod limits;
mod mailboxes;
mod mapped;
mod netdev;
mod objects;
mod port;
mod qps;
mod shared;
mod strict;
mod strided;
mod trace;
mod traffic;
mod umr;
mod user;

mod user_contexts;
mod user_memories;

use card::frontend::Interface as _;
use card::frontend::testing::Guest;
use card::identity::Identity;
use drivers::Bus as _;
use drivers::mlx5 as driver;
use protocol::hca::mlx5::command::OutputHeader;
use protocol::hca::mlx5::cq::{CqContext, CreateCq};
use protocol::hca::mlx5::device::{Function, InitHca, NoArguments};
use protocol::hca::mlx5::eq::{CreateEq, EqContext};
use protocol::hca::mlx5::eqe::EventMask;
use protocol::hca::mlx5::input::{Command, Pages};
use protocol::hca::mlx5::opcode::Opcode;
use protocol::hca::mlx5::resource::{CqNumber, EqNumber, PdNumber, UarNumber};
use protocol::ids::{Cqn, Eqn, Iova, Lid, Pdn, UarIndex};

use super::check::Check;
use super::device::Mlx5;
use super::options::{Options, Port, Setup};

type Driver = driver::Driver<Guest<Mlx5>>;

const BARE: NoArguments = NoArguments { op_mod: 0 };

/// Address of the doorbell record shared by a test's queues.
const RECORD: Iova = Iova::new(0x30_0000);

fn infiniband() -> Options {
    Options { port: Port::InfiniBand, ..Options::default() }
}

fn setup(lid: u16, options: Options) -> Setup {
    Setup { options, mac: Identity::from_lid(Lid::new(lid)).mac, engine: engine::Config::default() }
}

/// Like [`powered_on_with`], but with the given identity.
fn powered_on_as(identity: Identity, options: Options) -> Driver {
    let setup = Setup { options, mac: identity.mac, engine: engine::Config::default() };
    let mut guest = Guest::new(Mlx5::new(setup), identity);
    guest.configure(0x52, &[0, 0x80]);
    guest.listen(3);
    let mut driver = Driver::new(guest, driver::Layout::LARGE);
    driver.start();
    driver
}

/// Creates a driver that has powered on the device and written the command queue address. MSI-X is enabled, and three
/// vectors have eventfds.
fn powered_on_with(lid: u16, options: Options) -> Driver {
    powered_on_as(Identity::from_lid(Lid::new(lid)), options)
}

fn powered_on() -> Driver {
    powered_on_with(1, infiniband())
}

fn initialised() -> Driver {
    initialised_with(infiniband())
}

/// Like [`initialised`], but with an Ethernet port.
fn initialised_with_ethernet() -> Driver {
    initialised_with(Options::default())
}

fn initialised_with(options: Options) -> Driver {
    let mut driver = powered_on_with(1, options);
    driver.ok(&Command::EnableHca(Function { function: 0 }));
    driver.ok(&Command::InitHca(InitHca::default()));
    driver
}

/// Commands for tests. Methods panic if the command does not have the expected result.
trait Commands {
    /// Executes a command that must succeed. Returns its output.
    fn ok(&mut self, command: &Command<'_>) -> Vec<u8>;

    /// Executes a command that must fail. Returns the [`Check`] that rejected it.
    fn rejected(&mut self, command: &Command<'_>) -> Check;

    fn alloc_uar(&mut self) -> UarIndex;
    fn alloc_pd(&mut self) -> Pdn;

    /// Creates a 256-entry EQ with its ring at `ring`.
    fn create_eq(&mut self, uar: UarIndex, vector: u16, mask: EventMask, ring: u64) -> Eqn;

    /// Creates a 64-entry CQ with its ring at `ring`.
    fn create_cq(&mut self, uar: UarIndex, eqn: Eqn, ring: u64) -> Cqn;
}

/// Returns the first `LEN` bytes of an output. Panics if the output is shorter.
fn output<const LEN: usize>(bytes: &[u8]) -> [u8; LEN] {
    *bytes.first_chunk().expect("the output has at least `LEN` bytes")
}

fn pages(first: u64, count: u64) -> Vec<u8> {
    (0..count).flat_map(|page| (first + (page << 12)).to_be_bytes()).collect()
}

fn eq_context(uar: UarIndex, vector: u16) -> EqContext {
    EqContext { log_entries: 8, uar, vector, ..EqContext::default() }
}

fn cq_context(uar: UarIndex, eqn: Eqn) -> CqContext {
    CqContext { log_entries: 6, uar, eqn, record: RECORD, ..CqContext::default() }
}

impl<B: drivers::Bus> Commands for driver::Driver<B> {
    fn ok(&mut self, command: &Command<'_>) -> Vec<u8> {
        let (header, output) = self.command(command);
        assert_eq!(header, OutputHeader::default(), "{}", command.opcode().name());
        assert_eq!(self.owner_byte(0), 0);
        output
    }

    fn rejected(&mut self, command: &Command<'_>) -> Check {
        let (header, output) = self.command(command);
        let check = Check::ALL.iter().find(|check| check.syndrome() == header.syndrome);
        let check = check.unwrap_or_else(|| panic!("{}: {header:?}", command.opcode().name()));
        assert_eq!((self.owner_byte(0), header.status), (0, check.status().code()));
        assert!(output.get(8..).unwrap_or_default().iter().all(|byte| *byte == 0));
        *check
    }

    fn alloc_uar(&mut self) -> UarIndex {
        UarNumber::parse(&output(&self.ok(&Command::AllocUar(BARE)))).uar
    }

    fn alloc_pd(&mut self) -> Pdn {
        PdNumber::parse(&output(&self.ok(&Command::AllocPd(BARE)))).pd
    }

    fn create_eq(&mut self, uar: UarIndex, vector: u16, mask: EventMask, ring: u64) -> Eqn {
        let create = CreateEq { context: eq_context(uar, vector), events: [mask.bits(), 0, 0, 0] };
        let list = pages(ring, 4);
        EqNumber::parse(&output(&self.ok(&Command::CreateEq(create, Pages::parse(&list))))).eqn
    }

    fn create_cq(&mut self, uar: UarIndex, eqn: Eqn, ring: u64) -> Cqn {
        let list = pages(ring, 1);
        let command = Command::CreateCq(
            CreateCq { context: cq_context(uar, eqn), ..CreateCq::default() },
            Pages::parse(&list),
        );
        CqNumber::parse(&output(&self.ok(&command))).cqn
    }
}

#[test]
fn unsupported_opcodes_return_bad_op() {
    let mut driver = initialised();
    for opcode in Opcode::ALL.iter().filter(|opcode| !Command::OPCODES.contains(opcode)) {
        let output = driver.execute(&driver::bare(opcode.code()), 16);
        let header = OutputHeader::parse(&self::output(&output));
        let expected = OutputHeader { status: 2, syndrome: Check::Opcode.syndrome() };
        assert_eq!(header, expected, "{}", opcode.name());
    }
}
