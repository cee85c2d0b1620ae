//! The agent's program: PID 1 of a small initramfs, or an ordinary program in a running guest.

fn main() {}
