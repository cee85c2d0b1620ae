//! All fuzz targets of the protocol crate in one program. Separate programs would each have to link the whole crate.
//! The environment variable `HCAD_FUZZ_TARGET` selects the target.
#![no_main]

use std::sync::LazyLock;

use protocol_fuzz::{TARGETS, Target};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("HCAD_FUZZ_TARGET").expect("HCAD_FUZZ_TARGET must name a target");
    let found = TARGETS.iter().find(|(target, _)| *target == name);
    found.unwrap_or_else(|| panic!("unknown fuzz target {name}")).1
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| (*TARGET)(input));
