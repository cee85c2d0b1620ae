//! Opcodes of admin commands and events.
//!
//! # Spec
//! E810 interface, sections 5.1 to 5.9 and 7.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal $word:literal;)*) => {
        /// A supported command or event. All other commands return ENOSYS.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Opcode {
            $($(#[$doc])* #[allow(missing_docs)] $name = $code,)*
        }

        impl Opcode {
            /// All supported commands and events.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// Returns the opcode with code `code`, or `None` if it is unknown.
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Returns the code used in descriptors.
            pub const fn code(self) -> u16 {
                self as u16
            }

            /// Returns the name used in traces and counters.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

opcodes! {
    /// Reads the firmware and API versions.
    GetVersion = 0x0001 "get_version";
    /// Reports the driver version.
    DriverVersion = 0x0002 "driver_version";
    /// Notifies the device that the driver is about to disable the queue.
    QueueShutdown = 0x0003 "queue_shutdown";
    /// Acquires a resource lock.
    RequestResource = 0x0008 "request_resource";
    /// Releases a resource lock.
    ReleaseResource = 0x0009 "release_resource";
    /// Lists the function's capabilities.
    FunctionCapabilities = 0x000a "function_capabilities";
    /// Lists the device's capabilities.
    DeviceCapabilities = 0x000b "device_capabilities";
    /// Reads the function's MAC address.
    ReadMac = 0x0107 "read_mac";
    /// Sets the function's MAC address.
    WriteMac = 0x0108 "write_mac";
    /// Leaves PXE boot mode.
    ClearPxe = 0x0110 "clear_pxe";
    /// Lists the switch elements.
    GetSwitchConfig = 0x0200 "get_switch_config";
    /// Configures forwarding on the port.
    SetPortParameters = 0x0203 "set_port_parameters";
    /// Allocates resources of one type.
    AllocateResources = 0x0208 "allocate_resources";
    FreeResources = 0x0209 "free_resources";
    /// Lists the allocated resources of one type.
    AllocatedResources = 0x020a "allocated_resources";
    AddVsi = 0x0210 "add_vsi";
    UpdateVsi = 0x0211 "update_vsi";
    FreeVsi = 0x0213 "free_vsi";
    AddRules = 0x02a0 "add_rules";
    UpdateRules = 0x02a1 "update_rules";
    RemoveRules = 0x02a2 "remove_rules";
    /// Clears the function's configuration.
    ClearPfConfig = 0x02a4 "clear_pf_config";
    /// Selects the priority flow control mode.
    SetPfcMode = 0x0303 "set_pfc_mode";
    /// Reads the scheduler's default topology.
    GetDefaultTopology = 0x0400 "get_default_topology";
    AddElements = 0x0401 "add_elements";
    ConfigureElements = 0x0403 "configure_elements";
    GetElements = 0x0404 "get_elements";
    MoveElements = 0x0408 "move_elements";
    SuspendElements = 0x0409 "suspend_elements";
    ResumeElements = 0x040a "resume_elements";
    /// Reads the port's enhanced transmission selection (ETS).
    QueryPortEts = 0x040e "query_port_ets";
    DeleteElements = 0x040f "delete_elements";
    AddRateProfiles = 0x0410 "add_rate_profiles";
    /// Reads the scheduler's resources.
    QuerySchedulerResources = 0x0412 "query_scheduler_resources";
    RemoveRateProfiles = 0x0415 "remove_rate_profiles";
    /// Reads the PHY's capabilities.
    GetPhyCapabilities = 0x0600 "get_phy_capabilities";
    SetPhyConfig = 0x0601 "set_phy_config";
    /// Configures the MAC's frame size and flow control.
    SetMacConfig = 0x0603 "set_mac_config";
    RestartNegotiation = 0x0605 "restart_negotiation";
    /// Reads the link status. The link status event has the same opcode.
    GetLinkStatus = 0x0607 "get_link_status";
    SetEventMask = 0x0613 "set_event_mask";
    SetMacLoopback = 0x0620 "set_mac_loopback";
    /// Blinks the port LED.
    SetPortLed = 0x06e9 "set_port_led";
    ReadNvm = 0x0701 "read_nvm";
    /// Verifies the flash checksum.
    NvmChecksum = 0x0706 "nvm_checksum";
    LldpEvents = 0x0a01 "lldp_events";
    /// Stops the LLDP agent.
    StopLldp = 0x0a05 "stop_lldp";
    /// Starts the LLDP agent.
    StartLldp = 0x0a06 "start_lldp";
    /// Sets the local LLDP MIB.
    SetLldpMib = 0x0a08 "set_lldp_mib";
    /// Starts or stops an LLDP agent.
    LldpAgent = 0x0a09 "lldp_agent";
    /// Sets the RSS key.
    SetRssKey = 0x0b02 "set_rss_key";
    /// Sets the RSS indirection table.
    SetRssTable = 0x0b03 "set_rss_table";
    /// Reads the RSS key.
    GetRssKey = 0x0b04 "get_rss_key";
    /// Reads the RSS indirection table.
    GetRssTable = 0x0b05 "get_rss_table";
    AddTxQueues = 0x0c30 "add_tx_queues";
    DisableTxQueues = 0x0c31 "disable_tx_queues";
    /// Moves transmit queues in the scheduler.
    MoveTxQueues = 0x0c32 "move_tx_queues";
    /// Adds RDMA queue sets to the scheduler.
    AddRdmaQueueSet = 0x0c33 "add_rdma_queue_set";
    /// Downloads one buffer of the DDP package.
    DownloadPackage = 0x0c40 "download_package";
    /// Updates the DDP package configuration.
    UpdatePackage = 0x0c42 "update_package";
    /// Lists the loaded DDP packages.
    GetPackageInfo = 0x0c43 "get_package_info";
    /// Selects which health status events are reported.
    SetHealthConfig = 0xff20 "set_health_config";
}

/// The side that fills a command's buffer, if any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferUse {
    /// The command has no buffer.
    None,
    /// The driver fills the buffer. The response may overwrite it.
    Input,
    /// The device fills the buffer.
    Output,
}

impl Opcode {
    /// Returns which side fills the command's buffer.
    pub const fn buffer_use(self) -> BufferUse {
        match self {
            Self::GetVersion
            | Self::QueueShutdown
            | Self::RequestResource
            | Self::ReleaseResource
            | Self::WriteMac
            | Self::ClearPxe
            | Self::SetPortParameters
            | Self::FreeVsi
            | Self::ClearPfConfig
            | Self::SetPfcMode
            | Self::SetMacConfig
            | Self::RestartNegotiation
            | Self::SetEventMask
            | Self::SetMacLoopback
            | Self::SetPortLed
            | Self::NvmChecksum
            | Self::LldpEvents
            | Self::StopLldp
            | Self::StartLldp
            | Self::LldpAgent
            | Self::SetHealthConfig => BufferUse::None,
            Self::FunctionCapabilities
            | Self::DeviceCapabilities
            | Self::ReadMac
            | Self::GetSwitchConfig
            | Self::AllocatedResources
            | Self::GetDefaultTopology
            | Self::QueryPortEts
            | Self::QuerySchedulerResources
            | Self::GetPhyCapabilities
            | Self::GetLinkStatus
            | Self::ReadNvm
            | Self::GetRssKey
            | Self::GetRssTable
            | Self::GetPackageInfo => BufferUse::Output,
            _ => BufferUse::Input,
        }
    }
}

/// Name used for unknown commands.
pub const UNKNOWN: &str = "unknown";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_round_trip() {
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_code(opcode.code()), Some(*opcode));
        }
        assert_eq!(Opcode::from_code(0x0c41), None, "the command that uploads a section is not implemented");
    }
}
