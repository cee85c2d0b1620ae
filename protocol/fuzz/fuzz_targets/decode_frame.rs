#![no_main]

libfuzzer_sys::fuzz_target!(|frame: &[u8]| protocol_fuzz::decode_frame(frame));
