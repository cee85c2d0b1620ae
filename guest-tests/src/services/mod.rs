//! Services over RDMA that run in guests. Scenarios test them, and testbed templates start them.

pub(crate) mod remote_shell;
pub(crate) mod storage;
