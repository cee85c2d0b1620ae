//! A driver for the JingZhao HCA, written from the interface specification alone.
//!
//! [`Hca`] owns the open function and the memory lent to it, and makes memory regions, completion queues, event
//! queues and queue pairs. Layouts are plain functions over bytes, tested against the specification's vectors without a device.

mod cq;
mod eq;
mod hcr;
mod icm;
mod idle;
mod latency;
mod layout;
mod mr;
mod open;
mod qp;
mod qpc;
mod traffic;
mod wqe;

pub(crate) use open::Hca;

#[cfg(test)]
mod test_bytes {
    /// The bytes of a listing: hexadecimal pairs between white space.
    pub(super) fn hex(text: &str) -> Vec<u8> {
        text.split_whitespace().map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }
}
