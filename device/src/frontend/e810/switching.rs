//! What stands between the port and the queues: the switch with its VSIs and rules, the scheduler, and the resources that
//! software asks for to set them up. A PF reset drops all of it.

mod snapshot;

use protocol::hca::e810::admin::AdminError;
use protocol::hca::e810::admin::resource::AllocatedResources;
use protocol::hca::e810::admin::vsi::{VsiParameters, VsiResponse};
use protocol::net::layers::Layers;

use super::resources::Resources;
use super::scheduler::Scheduler;
use super::switch::{Destination, Discard, Named, Route, RuleCommand, Switch, VsiSet};
use super::vsi::{VsiNumber, Vsis};

/// Switch, scheduler and resources.
#[derive(Debug, Default)]
pub(super) struct Switching {
    /// Tree of the transmit queues.
    pub(super) scheduler: Scheduler,
    /// VSIs, with their receive side scaling.
    pub(super) vsis: Vsis,
    switch: Switch,
    resources: Resources,
}

impl Switching {
    /// Whether some VSI leaves packets of RDMA to the RDMA half.
    pub(super) fn takes_rdma(&self) -> bool {
        self.vsis.iter().any(|(_, vsi)| vsi.has_rdma_filter())
    }

    /// VSIs that take a frame from the wire.
    pub(super) fn receive(&self, layers: &Layers) -> VsiSet {
        self.switch.receive(&self.vsis, layers)
    }

    /// Where a frame goes that a VSI sends. `layers` are of the frame with the tags that software wants in it.
    ///
    /// # Errors
    /// Why it goes nowhere.
    pub(super) fn transmit(
        &self,
        from: VsiNumber,
        layers: &Layers,
        to: Destination,
    ) -> Result<Route, Discard> {
        self.switch.transmit(&self.vsis, from, layers, to)
    }

    /// "Add", "update" and "remove rules".
    ///
    /// # Errors
    /// As [`Switch::rules`].
    pub(super) fn rules(
        &mut self,
        command: RuleCommand,
        count: u16,
        buffer: &mut [u8],
    ) -> Result<(), AdminError> {
        let named = Named { vsis: &self.vsis, resources: &self.resources };
        self.switch.rules(command, named, count, buffer)
    }

    /// "Free VSI".
    ///
    /// # Errors
    /// As [`Vsis::free`].
    pub(super) fn free_vsi(&mut self, parameters: &VsiParameters) -> Result<VsiResponse, AdminError> {
        let answer = self.vsis.free(parameters)?;
        self.switch.forget_vsi(VsiNumber::new(parameters.number));
        Ok(answer)
    }

    /// "Allocate resources".
    ///
    /// # Errors
    /// As [`Resources::allocate`].
    pub(super) fn allocate(&mut self, buffer: &mut [u8]) -> Result<(), AdminError> {
        self.resources.allocate(buffer)
    }

    /// "Get allocated resource descriptors".
    ///
    /// # Errors
    /// As [`Resources::allocated`].
    pub(super) fn allocated(
        &self,
        asked: AllocatedResources,
        buffer: &mut [u8],
    ) -> Result<AllocatedResources, AdminError> {
        self.resources.allocated(asked, buffer)
    }

    /// "Free resources".
    ///
    /// # Errors
    /// As [`Resources::free`].
    pub(super) fn free(&mut self, buffer: &mut [u8]) -> Result<(), AdminError> {
        let outcome = self.resources.free(buffer);
        self.switch.forget_lists(&self.resources);
        outcome
    }
}

#[cfg(test)]
mod tests;
