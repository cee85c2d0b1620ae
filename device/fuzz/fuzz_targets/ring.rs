#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| device_fuzz::ring::run(input));
