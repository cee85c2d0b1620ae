//! Device interfaces: one folder each, none knows another.

pub mod jingzhao;
