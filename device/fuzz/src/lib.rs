//! Bodies of the fuzz targets, shared with `device/tests/hostile.rs`.
//!
//! An input for `jingzhao`, `mthca`, `e810` or `mlx5` consists of a byte of flags and a list of operations. The flags
//! enable strict mode, tracing and mapped doorbells. The guest, the client and the fabric perform the operations on one
//! device. For `jingzhao`, two bytes that select device options precede the flags. About half of the operations are
//! well-formed, because a device rejects most random ones. After every input, the device must still be able to serve a
//! well-behaved guest.

pub mod config;
pub mod control;
pub mod dma;
pub mod e810;
pub mod impair;
mod input;
pub mod jingzhao;
mod machine;
pub mod mads;
pub mod mlx5;
pub mod mthca;
pub mod net;
mod peer_frames;
pub mod record;
pub mod ring;
pub mod switch;
pub mod udp;
pub mod vfio;

pub type Target = fn(&[u8]);

/// All targets, with the names of their corpora.
pub const TARGETS: &[(&str, Target)] = &[
    ("config", config::run),
    ("control_messages", control::run),
    ("device_ops", jingzhao::run),
    ("dma_maps", dma::run),
    ("e810_ops", e810::run),
    ("impairments", impair::run),
    ("mads", mads::run),
    ("mlx5_ops", mlx5::run),
    ("mthca_ops", mthca::run),
    ("net_frames", net::run),
    ("records", record::run),
    ("ring", ring::run),
    ("switch", switch::run),
    ("udp_frames", udp::run),
    ("vfio_messages", vfio::run),
];

/// For each device interface: its configuration key, its fuzz target, and the number of bytes by which its random
/// inputs grow per run.
pub const INTERFACES: &[(&str, Target, usize)] = &[
    ("jingzhao", jingzhao::run, 8),
    ("mthca", mthca::run, 8),
    ("e810", e810::run, 16),
    ("connectx", mlx5::run, 8),
];

/// Maximum number of operations in one run. With more operations, work requests linked into a cycle can make a run take
/// seconds.
const OPERATIONS: usize = 128;

/// Maximum number of event loop turns after each operation. Work requests that the guest links into a cycle never end.
const TURNS: usize = 2;
