//! Work scheduler nodes. The device stores the tree that the driver builds but does not use it to arbitrate bandwidth:
//! queue pairs are served round-robin.
//!
//! # Spec
//! E810 interface, section 10.5.

use std::collections::BTreeMap;

use protocol::hca::e810::rdma::error::{CqpError, CqpErrorCode};
use protocol::hca::e810::rdma::node::{NodeAction, NodeCommand};

use super::dispatch::{Done, Outcome};
use crate::id_pool::IdPool;
use crate::limits::{MAX_NODES, MAX_SETS};

#[derive(Debug)]
pub(in super::super) struct Nodes {
    nodes: BTreeMap<u16, Node>,
    sets: IdPool,
}

#[derive(Debug)]
struct Node {
    parent: u16,
    /// Queue set handle of a leaf; `None` for other nodes.
    set: Option<u16>,
}

impl Nodes {
    pub(super) fn count(&self) -> usize {
        self.nodes.len()
    }
}

impl Default for Nodes {
    fn default() -> Self {
        Self { nodes: BTreeMap::new(), sets: IdPool::new(1, MAX_SETS) }
    }
}

impl Nodes {
    /// Executes "Scheduler node". Returns the queue set handle of an added leaf and 0 in all other cases.
    ///
    /// # Errors
    /// `Exists` if the node to add already exists, `NoObject` if the node or its parent is unknown or the
    /// parent is a leaf, `InUse` if the node to delete has children, and `NoRoom` if a limit is reached.
    pub(super) fn manage(&mut self, command: &NodeCommand) -> Outcome {
        match command.action {
            NodeAction::Add => self.add(command),
            NodeAction::Modify => {
                self.nodes.get(&command.node).map(|_| Done::Plain).ok_or(unknown(command.node))
            }
            NodeAction::Delete => self.delete(command.node),
            NodeAction::Other(code) => Err(CqpError::invalid("node action", code.into())),
        }
    }

    fn add(&mut self, command: &NodeCommand) -> Outcome {
        let NodeCommand { node, parent, leaf, .. } = *command;
        if self.nodes.contains_key(&node) {
            return Err(CqpError::new(CqpErrorCode::Exists, "node", node.into()));
        }
        // A root node is its own parent.
        if parent != node && self.nodes.get(&parent).is_none_or(|parent| parent.set.is_some()) {
            return Err(unknown(parent));
        }
        if self.nodes.len() >= MAX_NODES {
            return Err(CqpError::new(CqpErrorCode::NoRoom, "limit of nodes reached at", MAX_NODES as u64));
        }
        let set = match leaf {
            true => Some(self.sets.allocate().ok_or(CqpError::new(
                CqpErrorCode::NoRoom,
                "limit of queue sets reached at",
                MAX_SETS.into(),
            ))?),
            false => None,
        };
        self.nodes.insert(node, Node { parent, set });
        Ok(Done::Value(set.unwrap_or_default().into()))
    }

    fn delete(&mut self, number: u16) -> Outcome {
        if self.nodes.iter().any(|(other, node)| node.parent == number && *other != number) {
            return Err(CqpError::new(CqpErrorCode::InUse, "node", number.into()));
        }
        let node = self.nodes.remove(&number).ok_or(unknown(number))?;
        if let Some(set) = node.set {
            self.sets.release(set);
        }
        Ok(Done::Plain)
    }
}

fn unknown(node: u16) -> CqpError {
    CqpError::no_object("node", node.into())
}
