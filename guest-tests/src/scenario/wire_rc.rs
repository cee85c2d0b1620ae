//! Tests RC against a peer that sends individual packets. The cases check how the HCA responds to requests and handles
//! responses.
//!
//! The HCA is driven over its vfio-user socket, without a guest. The peer uses scapy instead of hcad's code to build
//! and parse every packet and to check every ICRC.

mod link;
mod requester;
mod responder;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent::serve::Agent;
use agent::wire::{DeviceSelector, OpenHca};
use anyhow::{Context as _, Result};
use tokio::runtime::Handle;

use self::link::{Attributes, Link};
use crate::daemon::{Control, Daemon, HcaSpec};
use crate::lab::Lab;
use crate::packet_peer::Peer;
use crate::report::Report;

/// A behaviour and the function that tests it on a new connection.
struct Case {
    name: &'static str,
    attributes: Attributes,
    run: fn(&mut Link<'_>) -> Result<()>,
}

/// The HCA's driver, the scapy peer, and the control connection to the HCA's daemon.
#[derive(Debug)]
struct Bench {
    agent: Agent,
    peer: Peer,
    control: Control,
    runtime: Handle,
}

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("wire-rc")?;
    let [hca, peer] = HcaSpec::pair()?;
    let mut daemon = Daemon::start(&lab.hcad()?, &hca, &run).await?;
    let hint = format!("see {}", run.path().display());
    let socket = daemon.socket().display().to_string();
    let (control, runtime) = (daemon.controls(), Handle::current());
    let bench = blocking(move || {
        let mut agent = Agent::default();
        agent.call(OpenHca { device: DeviceSelector::Socket(socket), ..OpenHca::default() })?;
        let peer = Peer::start(peer.id, peer.bind, hca.id, hca.bind)?;
        Ok(Arc::new(Mutex::new(Bench { agent, peer, control, runtime })))
    })
    .await?;
    for (role, cases) in [
        ("responder", responder::CASES),
        ("responder", responder::headers::CASES),
        ("responder", responder::messages::CASES),
        ("responder", responder::order::CASES),
        ("responder", responder::states::CASES),
        ("responder", responder::refusals::CASES),
        ("requester", requester::CASES),
        ("requester", requester::reads::CASES),
        ("requester", requester::answers::CASES),
        ("requester", requester::limits::CASES),
        ("requester", requester::recovery::CASES),
    ] {
        for case in cases {
            let held = bench.clone();
            let running = blocking(move || {
                let mut bench = held.lock().unwrap_or_else(PoisonError::into_inner);
                Link::with(&mut bench, &case.attributes, case.run)
            });
            report.case(&format!("{role}: {}", case.name), &hint, running).await?;
        }
    }
    drop(bench);
    report.case("the daemon is still running", &hint, async { daemon.wait_for_disconnect().await }).await?;
    report.case("the daemon exits cleanly on SIGTERM", &hint, daemon.stop()).await
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.context("a case panicked")?
}

/// Returns the ACK timeout for a timeout code: 4.096 us x 2^code (JingZhao interface, section 10.6).
fn ack_timeout(code: u8) -> Duration {
    Duration::from_nanos(4096) * (1 << code)
}
