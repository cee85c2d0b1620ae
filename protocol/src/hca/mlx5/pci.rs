//! PCI identity of the device.
//!
//! # Spec
//! mlx5 interface, section 1.1.

use super::code::codes;

/// Vendor ID of Mellanox Technologies.
pub const VENDOR_ID: u16 = 0x15b3;
/// PCI subsystem ID, chosen by hcad.
pub const SUBSYSTEM_ID: u16 = 0x0007;
/// PCI revision ID, chosen by hcad.
pub const REVISION: u8 = 0;
/// Class code of a device with an InfiniBand port: InfiniBand controller.
pub const INFINIBAND_CLASS: [u8; 3] = [0x02, 0x07, 0x00];
/// Class code of a device with an Ethernet port: Ethernet controller.
pub const ETHERNET_CLASS: [u8; 3] = [0x02, 0x00, 0x00];

codes! {
    /// Device model. The code is the device ID of the physical function. Drivers treat all models alike.
    pub enum Model(u16) {
        ConnectX4 = 0x1013 "ConnectX-4",
        ConnectX4Lx = 0x1015 "ConnectX-4 Lx",
        ConnectX5 = 0x1017 "ConnectX-5",
        ConnectX5Ex = 0x1019 "ConnectX-5 Ex",
        ConnectX6 = 0x101b "ConnectX-6",
        ConnectX6Dx = 0x101d "ConnectX-6 Dx",
        ConnectX6Lx = 0x101f "ConnectX-6 Lx",
        ConnectX7 = 0x1021 "ConnectX-7",
        ConnectX8 = 0x1023 "ConnectX-8",
    }
}

impl Model {
    /// Returns the device ID of a virtual function. ConnectX-6 Dx and all later models share one ID.
    pub const fn virtual_function(self) -> u16 {
        match self {
            Self::ConnectX4 => 0x1014,
            Self::ConnectX4Lx => 0x1016,
            Self::ConnectX5 => 0x1018,
            Self::ConnectX5Ex => 0x101a,
            Self::ConnectX6 => 0x101c,
            Self::ConnectX6Dx | Self::ConnectX6Lx | Self::ConnectX7 | Self::ConnectX8 => 0x101e,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_function_ids_match_specification() {
        let mut ids: Vec<_> = Model::ALL.iter().map(|model| model.virtual_function()).collect();
        ids.dedup();
        assert_eq!(ids, [0x1014, 0x1016, 0x1018, 0x101a, 0x101c, 0x101e]);
        assert_eq!(Model::ConnectX5.code(), 0x1017);
    }
}
