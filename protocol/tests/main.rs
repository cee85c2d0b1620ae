//! Tests of the layouts through their public interface. They form a single program to link the crate only once.

mod citations;
mod corpus;
mod golden;
mod mad_golden;
mod mlx5_golden;
mod mlx5_props;
mod props;
mod xrc_golden;
