//! Configuration of the function, set by admin commands: switch, VSIs, scheduler and allocated resources. A function
//! reset discards this state, and so does "clear PF configuration".

mod snapshot;

use protocol::hca::e810::admin::AdminError;
use protocol::hca::e810::admin::resource::AllocatedResources;
use protocol::hca::e810::admin::vsi::{VsiParameters, VsiResponse};
use protocol::net::layers::Layers;

use super::resources::Resources;
use super::scheduler::Scheduler;
use super::switch::{Destination, DiscardError, Route, RuleCommand, RuleScope, Switch, VsiSet};
use super::vsi::{VsiNumber, Vsis};

#[derive(Debug, Default)]
pub(super) struct PfConfig {
    /// Scheduler tree for the transmit queues.
    pub(super) scheduler: Scheduler,
    /// VSIs and their RSS configuration.
    pub(super) vsis: Vsis,
    switch: Switch,
    resources: Resources,
}

impl PfConfig {
    /// Returns whether any VSI diverts RoCEv2 packets to the RDMA half.
    pub(super) fn diverts_rdma(&self) -> bool {
        self.vsis.iter().any(|(_, vsi)| vsi.has_rdma_filter())
    }

    /// Returns the VSIs that receive a frame from the wire.
    pub(super) fn receive(&self, layers: &Layers) -> VsiSet {
        self.switch.receive(&self.vsis, layers)
    }

    /// Selects the destinations of a frame sent by a VSI. `layers` describes the frame after VLAN insertion.
    ///
    /// # Errors
    /// Returns the reason if the frame is discarded.
    pub(super) fn transmit(
        &self,
        from: VsiNumber,
        layers: &Layers,
        to: Destination,
    ) -> Result<Route, DiscardError> {
        self.switch.transmit(&self.vsis, from, layers, to)
    }

    /// Executes "add switch rules", "update switch rules" or "remove switch rules".
    ///
    /// # Errors
    /// Same as for [`Switch::rules`].
    pub(super) fn rules(
        &mut self,
        command: RuleCommand,
        count: u16,
        buffer: &mut [u8],
    ) -> Result<(), AdminError> {
        let scope = RuleScope { vsis: &self.vsis, resources: &self.resources };
        self.switch.rules(command, scope, count, buffer)
    }

    /// Executes "Free VSI".
    ///
    /// # Errors
    /// Same as for [`Vsis::free`].
    pub(super) fn free_vsi(&mut self, parameters: &VsiParameters) -> Result<VsiResponse, AdminError> {
        let answer = self.vsis.free(parameters)?;
        self.switch.remove_vsi(VsiNumber::new(parameters.number));
        Ok(answer)
    }

    /// Executes "Allocate resources".
    ///
    /// # Errors
    /// Same as for [`Resources::allocate`].
    pub(super) fn allocate(&mut self, buffer: &mut [u8]) -> Result<(), AdminError> {
        self.resources.allocate(buffer)
    }

    /// Executes "Get allocated resource descriptors".
    ///
    /// # Errors
    /// Same as for [`Resources::allocated`].
    pub(super) fn allocated(
        &self,
        request: AllocatedResources,
        buffer: &mut [u8],
    ) -> Result<AllocatedResources, AdminError> {
        self.resources.allocated(request, buffer)
    }

    /// Executes "Free resources".
    ///
    /// # Errors
    /// Same as for [`Resources::free`].
    pub(super) fn free(&mut self, buffer: &mut [u8]) -> Result<(), AdminError> {
        let outcome = self.resources.free(buffer);
        self.switch.remove_freed_lists(&self.resources);
        outcome
    }
}

#[cfg(test)]
mod tests;
