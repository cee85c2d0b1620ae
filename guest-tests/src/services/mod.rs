//! Services over RDMA that run in guests. Scenarios test them, and the templates of testbeds start them.

pub(crate) mod remote_shell;
pub(crate) mod storage;
