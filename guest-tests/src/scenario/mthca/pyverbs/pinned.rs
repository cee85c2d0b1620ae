//! What is known of the suite of rdma-core 56: its modules, what cannot be run on this hardware, what cannot pass.

/// A test that no device could pass, since the driver's own source is in the way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) test: &'static str,
    /// With the place in the driver.
    pub(super) why: &'static str,
}

/// A test, class or module that skips itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skip {
    pub(super) tests: &'static str,
    /// Part of the reason it prints.
    pub(super) reason: &'static str,
    pub(super) why: &'static str,
}

/// Modules that any device is tested with. The others (`test_mlx5_*`, `test_efa*`) are about interfaces that only devices
/// of their vendors have; without such a device the suite does not survive one of them.
pub(super) const MODULES: &[&str] = &[
    "test_addr",
    "test_atomic",
    "test_cq",
    "test_cq_events",
    "test_cqex",
    "test_cuda_dmabuf",
    "test_device",
    "test_flow",
    "test_fork",
    "test_mr",
    "test_odp",
    "test_parent_domain",
    "test_pd",
    "test_qp",
    "test_qpex",
    "test_rdmacm",
    "test_relaxed_ordering",
    "test_rss_traffic",
    "test_shared_pd",
    "test_srq",
    "test_tag_matching",
];

pub(super) const FAILURES: &[Failure] = &[];

pub(super) const SKIPS: &[Skip] = &[];
