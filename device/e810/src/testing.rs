//! Test helpers: a guest with an E810, driven by the test driver from the `drivers` crate.

use card::frontend::Interface as _;
use card::frontend::testing::Guest;
use card::identity::Identity;
use card::net::address::Addresses;
use drivers::Bus as _;
pub(crate) use drivers::e810::{
    AdminCommand, AdminEvent, AdminReply, BUFFER, CCQ_RING, CCQ_SHADOW, CEQ_RING, CEQ_VECTOR, CQP_ENTRIES,
    CQP_RING, ENTRIES, PBLE_SEGMENT, RDMA_BUFFER, SEND_RING, segment,
};
use protocol::ids::{Lid, MacAddr};

use super::{E810, Options, Setup};

/// MAC address of the device in the recordings.
pub(crate) const MAC: MacAddr = MacAddr([0x02, 0xe8, 0x10, 0, 0, 1]);

/// The test driver, attached to a guest with an E810.
pub(crate) type Driver = drivers::e810::Driver<Guest<E810>>;

/// Creates a device in its power-on state, with MSI-X enabled and eventfds for eight vectors.
pub(crate) fn powered_on(options: Options) -> Driver {
    powered_on_as(MAC, options)
}

/// Like [`powered_on`], but with the MAC address `mac`.
pub(crate) fn powered_on_as(mac: MacAddr, options: Options) -> Driver {
    let own = Identity { mac, ..Identity::from_lid(Lid::new(1)) };
    let addresses = Addresses { own, peers: Vec::new(), default_peer: None };
    let setup = Setup { options, mac: own.mac, engine: engine::Config::default() };
    let mut guest = Guest::new(E810::new(setup), addresses);
    guest.configure(0x52, &[0, 0x80]);
    guest.listen(8);
    Driver::new(guest)
}

/// Like [`powered_on`], but with both admin rings set up and events routed to vector 0.
pub(crate) fn started() -> Driver {
    let mut driver = powered_on(Options::default());
    driver.open_admin_queue();
    driver
}
