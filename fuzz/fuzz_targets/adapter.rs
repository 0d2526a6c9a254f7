#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| weir_model::fuzz::adapter(bytes));
