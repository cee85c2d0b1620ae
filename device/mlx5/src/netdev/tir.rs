//! Transport interface receive objects (TIRs), which select an RQ for each received frame.
//!
//! # Spec
//! mlx5 interface, section 16.3.

use protocol::hca::mlx5::tir::{Dispatch, HashFunction, TirContext, tir_fields};
use protocol::ids::{Rqn, Rqtn, TransportDomain};
use protocol::net::layers::Layers;

use super::hash::{Hash, Hashed};
use crate::check::{Check, Rejection};
use crate::numbered::Numbered;
use crate::uses::{Object, Used};

use super::rqt::Rqt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Direct(Rqn),
    Indirect(Rqtn),
}

#[derive(Debug)]
pub struct Tir {
    context: TirContext,
    target: Target,
    hash: Hash,
}

impl Tir {
    /// Creates a TIR.
    ///
    /// # Errors
    /// Fails if the dispatch type or the hash function is unknown.
    pub fn new(context: TirContext) -> Result<Self, Rejection> {
        let target = match Dispatch::from_code(context.dispatch) {
            Some(Dispatch::Direct) => Target::Direct(context.rqn),
            Some(Dispatch::Indirect) => Target::Indirect(context.rqtn),
            None => return Err(Check::TirDispatch.rejects(context.dispatch)),
        };
        let unknown = Check::TirHash.rejects(context.hash_function);
        let hash = match HashFunction::from_code(context.hash_function).ok_or(unknown)? {
            HashFunction::None => Hash::None,
            HashFunction::Xor => Hash::Xor(context.fields),
            HashFunction::Toeplitz => Hash::toeplitz(&context),
        };
        Ok(Self { context, target, hash })
    }

    /// Returns a copy of the TIR, with the fields selected by `fields` taken from `new`.
    ///
    /// # Errors
    /// Fails if a field cannot be changed or if the hash function is unknown.
    pub fn modified(&self, fields: u64, new: &TirContext) -> Result<Self, Rejection> {
        if fields & !(tir_fields::LRO | tir_fields::HASH | tir_fields::LOOPBACK) != 0 {
            return Err(Check::TirChange.rejects(fields));
        }
        let mut context = self.context;
        if fields & tir_fields::LRO != 0 {
            context.lro = new.lro;
        }
        if fields & tir_fields::HASH != 0 {
            context.hash_function = new.hash_function;
            context.symmetric = new.symmetric;
            context.key = new.key;
            context.fields = new.fields;
        }
        if fields & tir_fields::LOOPBACK != 0 {
            context.unicast_loopback = new.unicast_loopback;
            context.multicast_loopback = new.multicast_loopback;
        }
        Self::new(context)
    }

    pub const fn context(&self) -> &TirContext {
        &self.context
    }

    pub fn uses(&self) -> Used {
        let target = match self.target {
            Target::Direct(rqn) => Object::Rq(rqn.get()),
            Target::Indirect(rqtn) => Object::Rqt(rqtn.get()),
        };
        let domain = self.context.domain.get();
        let mut used = Used::from_slice(&[target]);
        // Section 23.1: a DevX program may create a TIR without a transport domain, that is, with domain 0.
        used.extend((domain != 0).then_some(Object::Domain(domain)));
        used
    }

    /// Returns whether the TIR accepts a frame that one of this device's SQs has sent. `from` is the SQ's transport
    /// domain. Section 20, M-26: frames from the TIR's own domain require a loopback bit.
    pub fn accepts_own(&self, from: TransportDomain, layers: &Layers) -> bool {
        let allowed = match layers.dst.is_multicast() {
            true => self.context.multicast_loopback,
            false => self.context.unicast_loopback,
        };
        from != self.context.domain || allowed
    }

    /// Returns the RQ for a frame and the hash to report.
    pub fn select(&self, rqts: &Numbered<Rqt>, frame: &[u8], layers: &Layers) -> Option<(Rqn, Hashed)> {
        match self.target {
            Target::Direct(rqn) => Some((rqn, Hashed::default())),
            Target::Indirect(rqtn) => {
                let (index, hashed) = self.hash.of(frame, layers);
                Some((rqts.get(rqtn.get())?.select(index)?, hashed))
            }
        }
    }
}
