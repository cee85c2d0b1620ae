//! Services registered by this HCA's guest.

use std::collections::BTreeMap;

use protocol::mad::MadStatus;
use protocol::mad::record::SERVICE;

use super::{Answer, Request};

const MAX_SERVICES: usize = 256;

/// Components that identify a service: ServiceID, GID, P_Key (section 15.2.5.14.1).
const NAME: u64 = 0b111;
const NAME_LEN: usize = 26;

#[derive(Clone, Debug, Default)]
pub(super) struct Services {
    all: BTreeMap<[u8; NAME_LEN], Vec<u8>>,
}

impl Services {
    pub(super) fn records(&self) -> Vec<Vec<u8>> {
        self.all.values().cloned().collect()
    }

    /// Registers a service or replaces its record.
    pub(super) fn register(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let name = named(request)?;
        if self.all.len() >= MAX_SERVICES && !self.all.contains_key(&name) {
            return Err(MadStatus::NO_RESOURCES);
        }
        let record = request.attribute::<{ SERVICE.len }>().to_vec();
        self.all.insert(name, record.clone());
        Ok(Answer::Attribute(record))
    }

    pub(super) fn withdraw(&mut self, request: &Request<'_>) -> Result<Answer, MadStatus> {
        let record = self.all.remove(&named(request)?).ok_or(MadStatus::NO_RECORDS)?;
        Ok(Answer::Attribute(record))
    }
}

fn named(request: &Request<'_>) -> Result<[u8; NAME_LEN], MadStatus> {
    if !request.has(NAME) {
        return Err(MadStatus::INSUFFICIENT_COMPONENTS);
    }
    Ok(*request.attribute())
}
