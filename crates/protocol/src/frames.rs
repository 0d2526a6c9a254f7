//! Small conveniences over the generated frames, for both ends of a session.

use crate::worker::{
    Attach, Cancel, Detached, GatewayFrame, Hello, Ping, Pong, Progress, Rejected, StepOutput,
    Submit, Welcome, WorkerFrame, WorkerStatus, gateway_frame, worker_frame,
};

/// The protocol's number in [`Hello`] and [`Welcome`].
pub const PROTOCOL: u32 = 1;

/// The largest encoded message either end accepts: a prompt of a million tokens (at most 5 bytes each) fits, with room to spare.
pub const MAX_MESSAGE_BYTES: usize = 16 << 20;

/// HTTP/2 windows of a session. Rows are small, but a returning gateway asks for thousands at once, and the default of 64 KiB would
/// make every such burst wait for round trips.
pub const STREAM_WINDOW_BYTES: u32 = 4 << 20;

/// A run's id on the wire, if it has the right length.
pub fn run_bytes(run: &[u8]) -> Option<[u8; 16]> {
    run.try_into().ok()
}

macro_rules! frames {
    ($frame:ident, $module:ident: $($variant:ident($message:ident)),+) => {$(
        impl From<$message> for $frame {
            fn from(message: $message) -> Self {
                Self { frame: Some($module::Frame::$variant(message)) }
            }
        }
    )+};
}

frames!(GatewayFrame, gateway_frame:
    Hello(Hello), Submit(Submit), Attach(Attach), Cancel(Cancel), Progress(Progress), Ping(Ping));
frames!(WorkerFrame, worker_frame:
    Welcome(Welcome), Step(StepOutput), Rejected(Rejected), Status(WorkerStatus), Pong(Pong), Detached(Detached));

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn a_frame_survives_the_wire() {
        let frame = GatewayFrame::from(Attach {
            run: vec![7; 16].into(),
            epoch: 3,
            from_index: 36,
            credit: 100,
        });
        let decoded = GatewayFrame::decode(frame.encode_to_vec().as_slice()).unwrap();
        assert_eq!(decoded, frame);
        assert_eq!(run_bytes(&[7; 16]), Some([7; 16]));
        assert_eq!(run_bytes(&[7; 15]), None);
    }
}
