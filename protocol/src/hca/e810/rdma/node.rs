//! Nodes by which the RDMA half shares the line among its queue pairs.
//!
//! # Spec
//! E810 interface, section 10.5.

use crate::describe::{Code, Field, Visitor};
use crate::layout;

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// It comes into being.
    Add,
    /// It changes.
    Modify,
    /// It goes.
    Delete,
    /// None of them.
    Other(u8),
}

impl From<u8> for NodeAction {
    fn from(code: u8) -> Self {
        match code {
            0 => Self::Add,
            1 => Self::Modify,
            2 => Self::Delete,
            other => Self::Other(other),
        }
    }
}

impl From<NodeAction> for u8 {
    fn from(action: NodeAction) -> Self {
        match action {
            NodeAction::Add => 0,
            NodeAction::Modify => 1,
            NodeAction::Delete => 2,
            NodeAction::Other(code) => code,
        }
    }
}

impl Field for NodeAction {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        let word = match self {
            Self::Add => Some("add"),
            Self::Modify => Some("modify"),
            Self::Delete => Some("delete"),
            Self::Other(_) => None,
        };
        Code(u8::from(*self).into(), word).show(name, to);
    }
}

layout! {
    /// "Scheduler node".
    pub struct NodeCommand[64] {
        /// The node.
        @24[13:0]   node: u16,
        /// The node above it.
        @24[29:16]  parent: u16,
        /// What happens to it.
        @24[55:52]  action: NodeAction as u8,
        /// Traffic class.
        @24[58:56]  class: u8,
        /// How it shares the line with its siblings.
        @24[60:59]  priority: u8,
        /// It is the set of queue pairs, not a node above sets.
        @24[61]     leaf: bool,
        /// What is below it may send.
        @24[62]     enable: bool,
        /// Its share.
        @32[38:32]  weight: u8,
        /// Its VSI.
        @32[63:48]  vsi: u16,
    }
}
