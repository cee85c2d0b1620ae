//! NVIDIA ConnectX ("mlx5"): registers, commands, contexts and queue entries. Its drivers are `mlx5_core` and `mlx5_ib`
//! in Linux and `libmlx5` in rdma-core.
//!
//! All multi-byte fields are big-endian, including those in registers and doorbell records. As in the interface
//! document, `@0x0c[28:24]` means bits 28 to 24 of the 32-bit word at byte 0Ch.
//!
//! # Spec
//! The mlx5 interface is described in `protocol/interfaces/mlx5.md`. Each file cites the sections that it implements.
//! Section 20 defines the numbers that start with "M-".

pub mod access_register;
pub mod capability;
mod code;
pub mod command;
pub mod counter;
pub mod cq;
pub mod cqe;
pub mod device;
pub mod doorbell;
pub mod eq;
pub mod eqe;
pub mod ethernet_capability;
pub mod firmware_register;
pub mod flow_counter;
pub mod flow_entry;
pub mod flow_group;
pub mod flow_table;
pub mod input;
pub mod mad_ifc;
pub mod match_parameters;
pub mod mkey;
pub mod nic_vport;
pub mod opcode;
pub mod pages;
pub mod path;
pub mod pci;
pub mod port_register;
pub mod qp;
pub mod regs;
pub mod resource;
pub mod roce_address;
pub mod srq;
pub mod status;
pub mod strided;
pub mod syndrome;
#[cfg(test)]
mod testing;
pub mod transition;
pub mod umr;
pub mod vport;
pub mod wqe;

pub mod frame_cqe;
pub mod rq;
pub mod rqt;
pub mod sq;
pub mod tir;
pub mod tis;

pub mod user_context;
pub mod user_memory;

/// Length of a guest page and of a UAR page in bytes.
pub const PAGE: usize = 4096;

/// Returns the page size of a queue in bytes, given `log_page_size` from its context.
pub const fn page_len(log_page_size: u8) -> u64 {
    (PAGE as u64) << (log_page_size & 0x1f)
}

/// Returns the byte offset of a queue's first entry in its page. The page offset in a context is in 64ths of a page
/// (section 10.1).
pub const fn page_offset(log_page_size: u8, offset: u8) -> u64 {
    page_len(log_page_size) / 64 * offset as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first case is the one that libmlx5 uses: 8 KiB pages and an offset of 32.
    #[test]
    fn page_offset_counts_64ths_of_page() {
        assert_eq!(page_offset(1, 32), 4096);
        assert_eq!(page_offset(4, 28), 28_672);
        assert_eq!(page_offset(0, 0), 0);
        assert_eq!(page_offset(31, 63), 63 << 37);
    }
}
