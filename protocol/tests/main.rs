//! Tests of the layouts by their public interface. One test program, since each links the whole crate.

mod citations;
mod corpus;
mod golden;
mod mad_golden;
mod mlx5_golden;
mod mlx5_props;
mod props;
mod xrc_golden;
