#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| device_fuzz::e810::run(input));
