//! Fuzzes the replay of untrusted recordings, such as those attached to bug reports. A replay must always return and
//! never panic. A recording supplies the guest memory that the device reads, so it can also emulate a guest that
//! changes its memory at any time.

use std::io::Cursor;

use card::frontend::{FrontendVisitor, Interface, Setup};
use card::hca::Hca;
use card::identity::Identity;
use card::record::{FORMAT, Reader, ReplaySource};
use card::replay::{Next, Outcome, play};
use device::interfaces::{self, FrontendEntry};
use protocol::ids::Lid;
use twox_hash::XxHash3_64;

/// Maximum number of steps in one run.
const STEPS: u64 = 512;

/// Runs one input. The first byte selects a device or the parser for complete recording files. A device replays the
/// remaining bytes as the entries of a recording.
pub fn run(input: &[u8]) {
    let Some((first, rest)) = input.split_first() else { return };
    let Some(interface) = interfaces::ALL.get(usize::from(*first) % (interfaces::ALL.len() + 1)) else {
        if let Ok(reader) = Reader::new(Box::new(Cursor::new(rest.to_vec()))) {
            let _ = reader.count();
        }
        return;
    };
    let frontend = format!("{{\"{}\": {{}}}}", interface.key);
    let header =
        format!("{{\"format\": {FORMAT}, \"hcad\": \"0\", \"device\": \"hca1\", \"configuration\": {{}}}}");
    let record = [b"HCADREC\n".to_vec(), chunk(header.as_bytes()), chunk(rest)].concat();
    let reader = Reader::new(Box::new(Cursor::new(record))).expect("the header has the current format");
    let frontend: FrontendEntry =
        serde_json::from_str(&frontend).expect("every interface has default options");
    let mac = Identity::from_lid(Lid::new(1)).mac;
    let common = Setup { options: (), mac, engine: engine::Config::default() };
    frontend.make(&common, Replay(ReplaySource::new(reader)));
}

fn chunk(contents: &[u8]) -> Vec<u8> {
    let len = u32::try_from(contents.len()).expect("libFuzzer inputs are shorter than 4 GiB").to_le_bytes();
    [&len[..], &XxHash3_64::oneshot(contents).to_le_bytes(), contents].concat()
}

struct Replay(ReplaySource);

impl FrontendVisitor for Replay {
    type Output = ();

    fn visit<F: Interface>(self, frontend: impl Fn() -> F + Send + 'static) {
        let mut hca = Hca::new(frontend(), Identity::from_lid(Lid::new(1)), None);
        let report =
            play(&mut hca, self.0, |step| if step.counts.steps > STEPS { Next::Stop } else { Next::Go });
        assert!(!matches!(report.outcome, Outcome::Panicked { .. }), "{report}");
    }
}
