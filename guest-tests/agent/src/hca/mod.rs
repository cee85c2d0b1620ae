//! A driver for the JingZhao HCA, written from the interface specification alone. In comments, "the public driver" is
//! the Linux driver `ib_hgrnic`.
//!
//! [`Hca`] owns the open PCI function and the memory mapped for the device. Mailboxes and queue entries are built and
//! parsed by plain functions over bytes, so that tests can compare them with the specification's test vectors without a
//! device.

mod cq;
mod entries;
mod eq;
mod hcr;
mod icm;
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
    pub(super) fn hex(text: &str) -> Vec<u8> {
        text.split_whitespace().map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }
}
