//! Reference counts for objects. The device rejects commands that would destroy an object in use. Otherwise, a queue
//! could silently lose its events or its memory.
//!
//! # Spec
//! mlx5 interface, section 4.3.

use std::collections::BTreeMap;

use smallvec::SmallVec;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "named after the objects")]
pub enum Object {
    Pd(u32),
    Uar(u32),
    Xrcd(u32),
    Eq(u32),
    Cq(u32),
    Srq(u32),
    Domain(u32),
    Tir(u32),
    Tis(u32),
    Rqt(u32),
    Rq(u32),

    Umem(u32),
    // References to objects of the kinds below are not counted. The kinds are listed because their objects can have
    // owners.
    Qp(u32),
    Sq(u32),
    Mkey(u32),
    CounterSet(u32),
    FlowTable(u32),
    FlowCounter(u32),
}

impl Object {
    pub const fn number(self) -> u32 {
        match self {
            Self::Pd(number)
            | Self::Uar(number)
            | Self::Xrcd(number)
            | Self::Eq(number)
            | Self::Cq(number)
            | Self::Srq(number)
            | Self::Domain(number)
            | Self::Tir(number)
            | Self::Tis(number)
            | Self::Rqt(number)
            | Self::Rq(number)
            | Self::Umem(number)
            | Self::Qp(number)
            | Self::Sq(number)
            | Self::Mkey(number)
            | Self::CounterSet(number)
            | Self::FlowTable(number)
            | Self::FlowCounter(number) => number,
        }
    }
}

pub type Used = SmallVec<[Object; 6]>;

/// Number of references to each object. Only objects in use have an entry.
#[derive(Debug, Default)]
pub struct Uses(BTreeMap<Object, u32>);

impl Uses {
    /// Takes a reference for each entry of `used`.
    pub fn add(&mut self, used: &Used) {
        for object in used {
            *self.0.entry(*object).or_default() += 1;
        }
    }

    /// Drops a reference for each entry of `used`.
    pub fn remove(&mut self, used: &Used) {
        for object in used {
            if let Some(count) = self.0.get_mut(object) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(object);
                }
            }
        }
    }

    pub fn is_used(&self, object: Object) -> bool {
        self.0.contains_key(&object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_in_use_while_referenced() {
        let mut uses = Uses::default();
        let (pd, cq) = (Object::Pd(1), Object::Cq(0x40));
        let qp = Used::from_slice(&[pd, cq, cq]);
        uses.add(&qp);
        uses.add(&Used::from_slice(&[pd]));
        uses.remove(&qp);
        assert!(uses.is_used(pd) && !uses.is_used(cq) && !uses.is_used(Object::Pd(2)));
        uses.remove(&Used::from_slice(&[pd]));
        assert!(!uses.is_used(pd));
    }
}
