//! Tests of the layouts through their public interface. They form a single program, so that the crate is linked only
//! once.

mod citations;
mod corpus;
mod golden;
mod mad_golden;
mod mlx5_golden;
mod mlx5_props;
mod props;
mod xrc_golden;
