//! A client that knows nothing of TLS.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// How HTTP/2 begins without TLS, with an empty frame of settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
/// The type of a frame of settings, which an HTTP/2 server answers with.
const SETTINGS: u8 = 4;

/// Whether a port of a pod answers it.
pub(super) fn is_answered(pod: &Value, port: u16) -> bool {
    let address = pod["status"]["podIP"].as_str().unwrap();
    let mut stream = TcpStream::connect((address, port)).unwrap();
    let within = Some(Duration::from_secs(10));
    stream.set_read_timeout(within).unwrap();
    stream.write_all(PREFACE).unwrap();
    let mut head = [0; 9];
    // A server that wants TLS says what is wrong in a record of TLS, and ends.
    stream.read_exact(&mut head).is_ok() && head[3] == SETTINGS
}
