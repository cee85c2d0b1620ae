//! Fuzzes the control socket's JSON messages.

use card::fabric::impair::Rule;
use control_api::message::{Request, Response};
use device::config::check_peer;

/// Runs one input. Each line is either rejected or parsed into a message that survives a round trip through JSON.
pub fn run(input: &[u8]) {
    // The last digit of a fractional number may change in a round trip, so values are not compared.
    for line in input.split(|byte| *byte == b'\n') {
        if let Ok(request) = serde_json::from_slice::<Request>(line) {
            let again = serde_json::to_vec(&request).expect("any request can be written as JSON");
            assert!(serde_json::from_slice::<Request>(&again).is_ok());
            match request {
                Request::ImpairAdd { rule, .. } => _ = Rule::try_from(rule),
                Request::PeerAdd { peer, .. } => _ = check_peer(&peer, ""),
                _ => {}
            }
        }
        // Parse the line as a response too, since `hcactl` reads responses from a socket.
        if let Ok(response) = serde_json::from_slice::<Response>(line) {
            let again = serde_json::to_vec(&response).expect("any response can be written as JSON");
            assert!(serde_json::from_slice::<Response>(&again).is_ok());
        }
    }
}
