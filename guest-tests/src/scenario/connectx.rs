//! Guests whose stock `mlx5_core` and `mlx5_ib` drive a ConnectX, verified with Debian's RDMA tools.

mod messages;
pub(super) mod probe;
