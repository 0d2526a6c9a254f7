#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weir_protocol::fuzz::frames(bytes));
