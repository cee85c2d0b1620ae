//! The JingZhao (HanGu) HCA: registers, command mailboxes, contexts and queue entries.
//!
//! # Spec
//! JingZhao software/hardware interface V1.3-b; section numbers in this folder are those of the interface summary
//! used by the project (`spec/jingzhao.md`).
