//! Scheduler nodes: a tree that divides bandwidth between QPs.
//!
//! # Spec
//! E810 interface, section 10.5.

use crate::describe::{Code, Field, Visitor};
use crate::layout;

/// Action of "Manage scheduler node".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum NodeAction {
    Add,
    Modify,
    Delete,
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
    /// CQP WQE of "Manage scheduler node".
    pub struct NodeCommand[64] {
        /// Node number, 14 bits.
        @24[13:0]   node: u16,
        /// Node number of the parent.
        @24[29:16]  parent: u16,
        @24[55:52]  action: NodeAction as u8,
        @24[58:56]  class: u8,
        /// Scheduling mode of the node among its siblings.
        @24[60:59]  priority: u8,
        /// Whether the node is a queue set rather than an inner node.
        @24[61]     leaf: bool,
        /// Whether the queue sets below the node can send.
        @24[62]     enable: bool,
        /// Weight of the node among its siblings.
        @32[38:32]  weight: u8,
        @32[63:48]  vsi: u16,
    }
}
