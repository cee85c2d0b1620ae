#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| protocol_fuzz::mthca::decode_mthca(input));
