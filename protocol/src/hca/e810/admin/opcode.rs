//! Commands and events there are.
//!
//! # Spec
//! E810 interface, sections 5.1 to 5.9 and 7.

macro_rules! opcodes {
    ($($(#[$doc:meta])* $name:ident = $code:literal $word:literal;)*) => {
        /// A command that the device knows, or an event. Any other is answered "not implemented".
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u16)]
        pub enum Opcode {
            $($(#[$doc])* $name = $code,)*
        }

        impl Opcode {
            /// Every command.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The command with this code.
            pub const fn from_code(code: u16) -> Option<Self> {
                match code {
                    $($code => Some(Self::$name),)*
                    _ => None,
                }
            }

            /// Its code.
            pub const fn code(self) -> u16 {
                self as u16
            }

            /// Its name in traces and counters.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word,)*
                }
            }
        }
    };
}

opcodes! {
    /// Versions of firmware and interface.
    GetVersion = 0x0001 "get_version";
    /// The driver says which one it is.
    DriverVersion = 0x0002 "driver_version";
    /// The driver is about to disable the queue.
    QueueShutdown = 0x0003 "queue_shutdown";
    /// Takes a lock.
    RequestResource = 0x0008 "request_resource";
    /// Gives it back.
    ReleaseResource = 0x0009 "release_resource";
    /// Capabilities of the function.
    FunctionCapabilities = 0x000a "function_capabilities";
    /// Capabilities of the device.
    DeviceCapabilities = 0x000b "device_capabilities";
    /// MAC of the function.
    ReadMac = 0x0107 "read_mac";
    /// Another one.
    WriteMac = 0x0108 "write_mac";
    /// Leaves the mode of boot loaders.
    ClearPxe = 0x0110 "clear_pxe";
    /// Elements of the switch.
    GetSwitchConfig = 0x0200 "get_switch_config";
    /// Forwarding of the port.
    SetPortParameters = 0x0203 "set_port_parameters";
    /// Takes numbers of some kind.
    AllocateResources = 0x0208 "allocate_resources";
    /// Gives them back.
    FreeResources = 0x0209 "free_resources";
    /// Lists the numbers of some kind that are taken.
    AllocatedResources = 0x020a "allocated_resources";
    /// Adds a VSI.
    AddVsi = 0x0210 "add_vsi";
    /// Changes one.
    UpdateVsi = 0x0211 "update_vsi";
    /// Removes one.
    FreeVsi = 0x0213 "free_vsi";
    /// Adds switch rules.
    AddRules = 0x02a0 "add_rules";
    /// Changes some.
    UpdateRules = 0x02a1 "update_rules";
    /// Removes some.
    RemoveRules = 0x02a2 "remove_rules";
    /// Forgets what the function has configured.
    ClearPfConfig = 0x02a4 "clear_pf_config";
    /// Who decides about priority flow control.
    SetPfcMode = 0x0303 "set_pfc_mode";
    /// The scheduler's branch after a reset.
    GetDefaultTopology = 0x0400 "get_default_topology";
    /// Adds elements of the scheduler.
    AddElements = 0x0401 "add_elements";
    /// Changes some.
    ConfigureElements = 0x0403 "configure_elements";
    /// Looks at some.
    GetElements = 0x0404 "get_elements";
    /// Moves some.
    MoveElements = 0x0408 "move_elements";
    /// Suspends some.
    SuspendElements = 0x0409 "suspend_elements";
    /// Resumes some.
    ResumeElements = 0x040a "resume_elements";
    /// Transmission selection of the port.
    QueryPortEts = 0x040e "query_port_ets";
    /// Removes elements.
    DeleteElements = 0x040f "delete_elements";
    /// Adds rate profiles.
    AddRateProfiles = 0x0410 "add_rate_profiles";
    /// Sizes of the scheduler.
    QuerySchedulerResources = 0x0412 "query_scheduler_resources";
    /// Removes rate profiles.
    RemoveRateProfiles = 0x0415 "remove_rate_profiles";
    /// What the PHY can do.
    GetPhyCapabilities = 0x0600 "get_phy_capabilities";
    /// What it is to do.
    SetPhyConfig = 0x0601 "set_phy_config";
    /// Frame size and pauses of the MAC.
    SetMacConfig = 0x0603 "set_mac_config";
    /// Restarts negotiation.
    RestartNegotiation = 0x0605 "restart_negotiation";
    /// State of the link; also the event that it changed.
    GetLinkStatus = 0x0607 "get_link_status";
    /// Events of the link that are not wanted.
    SetEventMask = 0x0613 "set_event_mask";
    /// Loops the MAC back.
    SetMacLoopback = 0x0620 "set_mac_loopback";
    /// Blinks.
    SetPortLed = 0x06e9 "set_port_led";
    /// Reads the flash.
    ReadNvm = 0x0701 "read_nvm";
    /// Verifies the checksum of the flash.
    NvmChecksum = 0x0706 "nvm_checksum";
    /// Wants events of LLDP.
    LldpEvents = 0x0a01 "lldp_events";
    /// Stops the LLDP agent.
    StopLldp = 0x0a05 "stop_lldp";
    /// Starts it.
    StartLldp = 0x0a06 "start_lldp";
    /// Tells it what to advertise.
    SetLldpMib = 0x0a08 "set_lldp_mib";
    /// Stops or starts an agent of it.
    LldpAgent = 0x0a09 "lldp_agent";
    /// Key of the hash.
    SetRssKey = 0x0b02 "set_rss_key";
    /// Table behind the hash.
    SetRssTable = 0x0b03 "set_rss_table";
    /// Key of the hash.
    GetRssKey = 0x0b04 "get_rss_key";
    /// Table behind the hash.
    GetRssTable = 0x0b05 "get_rss_table";
    /// Adds transmit queues.
    AddTxQueues = 0x0c30 "add_tx_queues";
    /// Disables some.
    DisableTxQueues = 0x0c31 "disable_tx_queues";
    /// Moves some in the scheduler.
    MoveTxQueues = 0x0c32 "move_tx_queues";
    /// Adds a set of RDMA queues to the scheduler.
    AddRdmaQueueSet = 0x0c33 "add_rdma_queue_set";
    /// A piece of the package.
    DownloadPackage = 0x0c40 "download_package";
    /// Changes what the package has set up.
    UpdatePackage = 0x0c42 "update_package";
    /// Packages that are loaded.
    GetPackageInfo = 0x0c43 "get_package_info";
    /// Health reports that are wanted.
    SetHealthConfig = 0xff20 "set_health_config";
}

/// What a command has a buffer for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BufferUse {
    /// It has none.
    None,
    /// The driver fills it; some answers come in it too.
    Input,
    /// The device fills it.
    Output,
}

impl Opcode {
    /// What its buffer is for.
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

/// What a command is called that the device does not know.
pub const UNKNOWN: &str = "unknown";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_commands_go_both_ways() {
        for opcode in Opcode::ALL {
            assert_eq!(Opcode::from_code(opcode.code()), Some(*opcode));
        }
        assert_eq!(Opcode::from_code(0x0c41), None, "upload of a section: not implemented");
    }
}
