//! Lines of the control socket.

use device::control::message::{Request, Response};
use device::fabric::impair::Rule;

/// Runs an input: any line is refused, or is a request that can be read again as it is written.
pub fn run(input: &[u8]) {
    // Numbers with a fraction may come back with another last digit, so that what is read is not compared.
    for line in input.split(|byte| *byte == b'\n') {
        if let Ok(request) = serde_json::from_slice::<Request>(line) {
            let again = serde_json::to_vec(&request).expect("a request is JSON");
            assert!(serde_json::from_slice::<Request>(&again).is_ok());
            match request {
                Request::ImpairAdd { rule, .. } => _ = Rule::try_from(rule),
                Request::PeerAdd { peer, .. } => _ = peer.check(""),
                _ => {}
            }
        }
        // What `hcactl` reads comes from a socket too.
        if let Ok(response) = serde_json::from_slice::<Response>(line) {
            let again = serde_json::to_vec(&response).expect("a response is JSON");
            assert!(serde_json::from_slice::<Response>(&again).is_ok());
        }
    }
}
