//! Fuzzes two functions of the `udp` fabric: one parses padding messages, and the other trims padded RoCE frames.
//! Trimming must remove exactly the padding.

use card::fabric::padding::{MAX_PADDING, can_pad, trim};
use card::fabric::udp::Message;

/// Length of a padding message in bytes.
const MESSAGE_LEN: usize = 32;

pub fn run(frame: &[u8]) {
    if let Some(message) = Message::parse(frame) {
        let source = *frame[6..].first_chunk().expect("a message contains its source MAC");
        assert_eq!(message.frame(protocol::ids::MacAddr(source)), frame[..MESSAGE_LEN]);
        assert_eq!(trim(frame), frame, "a message is not a RoCE frame");
    }
    let trimmed = trim(frame);
    assert!(frame.starts_with(trimmed));
    assert_eq!(trim(trimmed), trimmed, "a trimmed frame has no padding");
    let padded = [frame, &[0; MAX_PADDING]].concat();
    if can_pad(frame) {
        assert_eq!(trim(&padded), frame);
    } else if trimmed.len() < frame.len() {
        assert!(can_pad(trimmed));
        assert_eq!(trim(&padded), trimmed);
    }
}
