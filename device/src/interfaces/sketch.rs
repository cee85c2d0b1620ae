//! A device for tests, with a single register that has no effect. It is a minimal implementation of an interface.

#![allow(unreachable_pub, reason = "the list of a product is public")]

use card::frontend::reason::WIDTH;
use card::frontend::table::{Row, Table, TableSpec, hex};
use card::frontend::{
    Context, Frontend, HostContext, Interface, PortKind, PortNumber, RegisterAccess, Setup,
};
use card::memory::GuestRange;
use card::strict_rules;
use card::telemetry::monitor::Rule;
use card::telemetry::reason::IgnoreReason;
use card::vfio::{Bar, Bars, MemoryBar, MsixLayout, PciFunction};
use engine::{
    Access, AccessError, AtomicOp, Event, Fetch, Host, Initiator, PayloadRef, RecvRequest, RecvSource,
    SendRequest,
};
use protocol::describe::Visitor;
use protocol::ids::{Lkey, Qpn, Va};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

strict_rules! {
    /// A write that is misaligned, or not 4 bytes long.
    NARROW_WRITE "narrow_write" "1.1";
}

/// Reason for ignoring a write: the register is read-only.
const READ_ONLY: IgnoreReason = IgnoreReason::expected("read_only");

/// Options of the interface.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Value of the register.
    pub value: u32,
}

#[derive(Debug, Serialize)]
pub struct Counters {
    reads: u64,
}

#[derive(Debug, Serialize)]
struct RegisterRow {
    offset: u64,
    value: u32,
}

impl Row for RegisterRow {
    const TABLE: &'static TableSpec =
        &TableSpec { name: "registers", help: "registers", columns: &["OFFSET", "VALUE"] };

    fn cells(&self) -> Vec<String> {
        vec![hex(self.offset), self.value.to_string()]
    }
}

#[derive(Debug)]
pub struct Device {
    options: Options,
    reads: u64,
}

impl Interface for Device {
    type Options = Options;

    const NAME: &'static str = "Sketch";
    const DRIVERS: &'static [&'static str] = &[];
    const RULES: &'static [&'static Rule] = ALL;
    const NEEDS_TRAPS: Option<&'static str> = Some("do not exist");

    fn new(setup: Setup<Options>) -> Self {
        Self { options: setup.options, reads: 0 }
    }
}

impl Frontend for Device {
    type Host<'a> = NoQueues;
    type Counters = Counters;

    const KEY: &'static str = "sketch";
    const IGNORE_REASONS: &'static [&'static [IgnoreReason]] = &[&[READ_ONLY]];
    const TABLES: &'static [Table<Self>] = &[Table::new(RegisterRow::TABLE, |device, cx| {
        cx.single(RegisterRow { offset: 0, value: device.options.value })
    })];

    fn pci(&self) -> PciFunction {
        let memory = MemoryBar { len: 0x1000, prefetchable: false };
        PciFunction {
            vendor: 0x1234,
            device: 0x5678,
            subsystem_vendor: 0,
            subsystem: 0,
            revision: 0,
            class: [2, 0, 0],
            bars: Bars::new([(Bar::Bar0, memory)]),
            msix: MsixLayout { vectors: 1, table: (Bar::Bar0, 0x400), pending: (Bar::Bar0, 0x800) },
            serial_number: None,
        }
    }

    fn port_kind(&self, _: PortNumber) -> PortKind {
        PortKind::Ethernet
    }

    fn bar_read(&mut self, _: &mut Context<'_>, _: Bar, _: u64, data: &mut [u8]) {
        self.reads += 1;
        data.fill(0);
    }

    fn bar_write(&mut self, cx: &mut Context<'_>, bar: Bar, offset: u64, data: &[u8]) {
        let is_word = data.len() == 4 && offset.is_multiple_of(4);
        if !is_word && cx.monitor.is_strict() {
            cx.monitor.violation(&NARROW_WRITE, format_args!("{} bytes at {offset:#x}", data.len()));
        }
        cx.monitor.ignored_store(if is_word { READ_ONLY } else { WIDTH }, bar.number(), offset);
    }

    fn register_name(&self, _: &RegisterAccess<'_>) -> Option<String> {
        None
    }

    fn describe_access(&self, _: &RegisterAccess<'_>, _: &mut dyn Visitor) {}

    fn host<'a>(&'a mut self, _: HostContext<'a>) -> NoQueues {
        NoQueues
    }

    fn handle_event(&mut self, _: &mut Context<'_>, _: &Event) {}

    fn end_turn(&mut self, _: &mut Context<'_>) -> bool {
        false
    }

    fn link_changed(&mut self, _: &mut Context<'_>, _: bool) {}

    fn fail(&mut self, _: &mut Context<'_>) {}

    fn counters(&self) -> Counters {
        Counters { reads: self.reads }
    }

    fn reset(&mut self) {}
}

/// The [`Host`] of a device without queues or keys.
#[derive(Debug)]
pub struct NoQueues;

impl Host for NoQueues {
    type Range = GuestRange;

    fn next_send(&mut self, _: Qpn) -> Fetch<SendRequest> {
        Fetch::Empty
    }

    fn next_recv(&mut self, _: RecvSource) -> Fetch<RecvRequest> {
        Fetch::Empty
    }

    fn check(&self, _: Initiator, _: Lkey, _: Va, _: u64, _: Access) -> Result<(), AccessError> {
        Err(AccessError::Key)
    }

    fn read(
        &self,
        _: Initiator,
        _: Lkey,
        _: Va,
        _: usize,
        _: &mut Vec<u8>,
        _: Access,
    ) -> Result<(), AccessError> {
        Err(AccessError::Key)
    }

    fn write(
        &mut self,
        _: Initiator,
        _: Lkey,
        _: Va,
        _: PayloadRef<'_>,
        _: Access,
    ) -> Result<(), AccessError> {
        Err(AccessError::Key)
    }

    fn atomic(&mut self, _: Initiator, _: Lkey, _: Va, _: AtomicOp) -> Result<u64, AccessError> {
        Err(AccessError::Key)
    }
}
