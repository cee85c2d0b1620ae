//! Keeps devices' peers up to date with DNS.
//!
//! This code runs on the main thread. A device's thread never looks up a name. It receives the resulting peers in a
//! call between two turns of its event loop. `directory` decides which name to look up and when, and `resolver` is the
//! DNS client.

mod directory;
mod resolver;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use card::fabric::switch::{PeerError, ResolvedPeer};
use engine::Instant;
use tokio::task::JoinSet;

use self::directory::{Answer, Change, Directory, MAX_RECORDS, Outcome, Question, Target};
use self::resolver::LookupError;
pub use self::resolver::{Resolver, ResolverError};
use crate::clock::now;
use crate::control::call::Call;
use crate::control::named_peers::PeerNames;
use crate::control::peers::PeerCall;
use crate::control::registry::{Device, DeviceRegistry};

/// Maximum number of lookups in progress for one device. This bounds the number of sockets.
const MAX_LOOKUPS: usize = 8;

/// Pause before the peers are sent again to a device that did not accept them.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// Keeps all devices' peers up to date. Never returns.
pub async fn serve(resolver: Option<Resolver>, mut registry: DeviceRegistry) {
    // Each JoinSet holds one task, which is aborted when the set is dropped.
    let mut followed: Vec<(Arc<Device>, JoinSet<()>)> = Vec::new();
    loop {
        let devices = registry.borrow_and_update().clone();
        followed.retain(|(device, _)| devices.iter().any(|other| Arc::ptr_eq(device, other)));
        for device in devices.iter().filter(|device| device.names.is_some()) {
            if followed.iter().any(|(other, _)| Arc::ptr_eq(device, other)) {
                continue;
            }
            let mut task = JoinSet::new();
            match &resolver {
                Some(resolver) => drop(task.spawn(follow(device.clone(), resolver.clone()))),
                None => tracing::error!(
                    device = device.name,
                    "cannot look up peers: DNS was not set up when hcad started"
                ),
            }
            followed.push((device.clone(), task));
        }
        if registry.changed().await.is_err() {
            return std::future::pending().await;
        }
    }
}

/// The name of a finished lookup and its outcome.
enum Found {
    Addresses(Arc<str>, Result<Answer<IpAddr>, LookupError>),
    Targets(Arc<str>, Result<Answer<Target>, LookupError>),
}

/// Keeps one device's peers up to date. Never returns.
async fn follow(device: Arc<Device>, resolver: Resolver) {
    let Some(PeerNames { bind, entries, resolved }) = &device.names else { return };
    let mut directory = Directory::new(entries, now());
    let mut lookups = JoinSet::new();
    // When to send the peers to the device. `None` if they have been sent.
    let mut send_at: Option<Instant> = None;
    loop {
        while lookups.len() < MAX_LOOKUPS
            && let Some(question) = directory.poll_question(now())
        {
            lookups.spawn(look_up(resolver.clone(), question, bind.is_ipv4()));
        }
        if send_at.is_some_and(|at| at <= now()) {
            send_at = match send(&device, directory.peers()).await {
                true => None,
                false => Some(now() + RETRY_PAUSE),
            };
        }
        let next_lookup = directory.next_lookup().filter(|_| lookups.len() < MAX_LOOKUPS);
        let deadline = [next_lookup, send_at].into_iter().flatten().min();
        tokio::select! {
            Some(done) = lookups.join_next() => match done {
                Ok(found) => {
                    finish(&device, &mut directory, found);
                    if let Some(change) = directory.refresh(|addr| is_own(*bind, addr)) {
                        report(&device, &change);
                        resolved.set(directory.peers());
                        send_at = Some(now());
                    }
                }
                Err(error) => tracing::error!(device = device.name, %error, "a DNS lookup was cancelled"),
            },
            () = sleep_until(deadline) => {}
        }
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep(deadline.saturating_since(now())).await,
        None => std::future::pending().await,
    }
}

async fn look_up(resolver: Resolver, question: Question, ipv4: bool) -> Found {
    match question {
        Question::Host(host) => {
            let answer = resolver.addresses(&host, ipv4).await;
            Found::Addresses(host, answer)
        }
        Question::Service(service) => {
            let answer = resolver.targets(&service).await;
            Found::Targets(service, answer)
        }
    }
}

/// Passes the outcome of a lookup to the directory. Logs failures, but only the first of several in a row.
fn finish(device: &Device, directory: &mut Directory, found: Found) {
    let now = now();
    let (name, outcome, error) = match found {
        Found::Addresses(name, answer) => {
            let (answer, error) = split(answer);
            let outcome = directory.handle_addresses(now, &name, answer);
            (name, outcome, error)
        }
        Found::Targets(name, answer) => {
            let (answer, error) = split(answer);
            let outcome = directory.handle_targets(now, &name, answer);
            (name, outcome, error)
        }
    };
    let device = &device.name;
    match (outcome, error) {
        (Outcome::Failed { is_first: true }, Some(error)) => {
            tracing::warn!(device, name = &*name, %error, "cannot look up a peer in DNS; keeping its last known addresses");
        }
        (Outcome::Answered { recovered, ignored }, _) => {
            if recovered {
                tracing::info!(device, name = &*name, "DNS lookup of a peer works again");
            }
            if ignored > 0 {
                tracing::warn!(
                    device,
                    name = &*name,
                    ignored,
                    "DNS name has more than {MAX_RECORDS} records; ignoring the others"
                );
            }
        }
        (Outcome::Failed { .. } | Outcome::Obsolete, _) => {}
    }
}

fn split<T>(answer: Result<T, LookupError>) -> (Option<T>, Option<LookupError>) {
    match answer {
        Ok(answer) => (Some(answer), None),
        Err(error) => (None, Some(error)),
    }
}

/// Logs the peers that joined and left. Called at most once per DNS answer, so a zone cannot flood the log.
fn report(device: &Device, Change { joined, left }: &Change) {
    /// Maximum number of peers listed in one log line.
    const LISTED: usize = 16;
    let device = &device.name;
    for (peers, what) in
        [(left, "peers left: DNS no longer has their addresses"), (joined, "peers found in DNS")]
    {
        if !peers.is_empty() {
            let listed =
                peers.iter().take(LISTED).map(|found| format!("{} ({})", found.peer.addr, found.name));
            let listed = listed.collect::<Vec<_>>().join(", ");
            tracing::info!(device, count = peers.len(), peers = listed, "{what}");
        }
    }
}

/// Sends the peers to the device's thread. Returns false if the thread has not accepted them.
async fn send(device: &Device, peers: Vec<ResolvedPeer>) -> bool {
    match device.handle.call(|answer| Call::Peers(PeerCall::Resolve(peers, answer))).await {
        Ok(Ok(left_out)) => {
            for error in left_out.iter().filter(|error| !matches!(error, PeerError::TooMany)) {
                tracing::warn!(device = device.name, %error, "cannot use a peer found in DNS");
            }
            let too_many = left_out.iter().filter(|error| matches!(error, PeerError::TooMany)).count();
            if too_many > 0 {
                let error = PeerError::TooMany;
                tracing::warn!(device = device.name, ignored = too_many, %error, "ignoring peers found in DNS");
            }
            true
        }
        Ok(Err(error)) => {
            tracing::error!(device = device.name, %error, "cannot change the peers of the device");
            true
        }
        // The device is restarting, or its thread is busy.
        Err(_) => false,
    }
}

/// Returns whether a device whose socket is bound to `bind` receives on `addr`.
fn is_own(bind: SocketAddr, addr: SocketAddr) -> bool {
    let is_bound = addr.ip() == bind.ip() || bind.ip().is_unspecified() && is_local(addr.ip());
    is_bound && addr.port() == bind.port()
}

/// Returns whether an address belongs to this host, by trying to bind a socket to it. Reading the addresses of the
/// host's interfaces would require a netlink socket, which the sandbox does not permit.
fn is_local(ip: IpAddr) -> bool {
    UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_address_depends_on_bind_address_and_port() {
        let own = |bind: &str, addr: &str| is_own(bind.parse().unwrap(), addr.parse().unwrap());
        assert!(
            own("127.0.0.1:7", "127.0.0.1:7") && own("0.0.0.0:7", "127.0.0.1:7") && own("[::]:7", "[::1]:7")
        );
        for (bind, addr) in [
            ("127.0.0.1:7", "127.0.0.1:8"),
            ("127.0.0.1:7", "127.0.0.2:7"),
            ("0.0.0.0:7", "127.0.0.1:8"),
            // A documentation address (RFC 5737) does not belong to this host.
            ("0.0.0.0:7", "192.0.2.1:7"),
        ] {
            assert!(!own(bind, addr), "{bind} {addr}");
        }
    }
}
