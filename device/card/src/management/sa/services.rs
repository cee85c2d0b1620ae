//! Services registered by this HCA's guest.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::Instant;
use protocol::mad::MadStatus;
use protocol::mad::record::SERVICE;

use super::{Answer, Request};

const MAX_SERVICES: usize = 256;

/// Components that identify a service: ServiceID, GID, P_Key (section 15.2.5.14.1).
const NAME: u64 = 0b111;
const NAME_LEN: usize = 26;

/// Component that contains the lease period in seconds, and its position in a record.
const LEASE: u64 = 1 << 4;
const LEASE_AT: usize = 28;
/// Lease period of a service that never expires (section 15.2.5.14).
const NO_EXPIRY: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Service {
    record: [u8; SERVICE.len],
    /// Time after which the service no longer exists, if it expires.
    last: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Services {
    all: BTreeMap<[u8; NAME_LEN], Service>,
}

impl Services {
    /// Returns the records of all services. Each contains the rest of its lease period.
    pub(super) fn records(&mut self, now: Instant) -> Vec<Vec<u8>> {
        self.expire(now);
        let record = |service: &Service| {
            let mut record = service.record.to_vec();
            if let Some(last) = service.last {
                let left = u32::try_from(last.saturating_since(now).as_secs()).unwrap_or(NO_EXPIRY);
                record[LEASE_AT..LEASE_AT + 4].copy_from_slice(&left.to_be_bytes());
            }
            record
        };
        self.all.values().map(record).collect()
    }

    /// Registers a service or replaces its record.
    pub(super) fn register(&mut self, now: Instant, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let name = named(request)?;
        self.expire(now);
        if self.all.len() >= MAX_SERVICES && !self.all.contains_key(&name) {
            return Err(MadStatus::NO_RESOURCES);
        }
        let record = *request.attribute();
        self.all.insert(name, Service { record, last: last(now, request) });
        Ok(Answer::Attribute(record.to_vec()))
    }

    pub(super) fn withdraw(&mut self, now: Instant, request: &Request<'_>) -> Result<Answer, MadStatus> {
        self.expire(now);
        let service = self.all.remove(&named(request)?).ok_or(MadStatus::NO_RECORDS)?;
        Ok(Answer::Attribute(service.record.to_vec()))
    }

    /// Removes the services whose lease period has ended. Nothing depends on when they are removed, so this needs no
    /// timer.
    fn expire(&mut self, now: Instant) {
        self.all.retain(|_, service| service.last.is_none_or(|last| now <= last));
    }
}

/// Returns the time at which the lease period in a request ends, if it ends.
fn last(now: Instant, request: &Request<'_>) -> Option<Instant> {
    let record: &[u8; SERVICE.len] = request.attribute();
    let seconds = u32::from_be_bytes(*record.get(LEASE_AT..)?.first_chunk()?);
    let is_finite = request.has(LEASE) && seconds != NO_EXPIRY;
    is_finite.then(|| now + Duration::from_secs(seconds.into()))
}

fn named(request: &Request<'_>) -> Result<[u8; NAME_LEN], MadStatus> {
    if !request.has(NAME) {
        return Err(MadStatus::INSUFFICIENT_COMPONENTS);
    }
    Ok(*request.attribute())
}
