//! Records sessions and replays the recordings without a driver.

use card::frontend::testing::{pattern, wait};
use card::hca::Hca;
use card::replay::testing::{assert_same, recorded};

use super::traffic::{DATA_KEY, data_unit, get_data, pair, post_recv, put_data, remote, send};
use super::*;

/// Creates a device in its power-on state, as [`powered_on`] does.
fn device(lid: u16) -> Hca<JingZhao> {
    Hca::new(JingZhao::new(setup(lid, Options::default())), addresses(lid), None)
}

/// Executes SENDs, WRITEs and READs over a link with loss and delay.
fn session() {
    let (mut a, mut b) = pair();
    for (side, seed) in [(&mut a, 1), (&mut b, 2)] {
        side.impair(&format!(
            r#"{{"direction": "tx", "action": "drop", "probability": 0.2, "seed": {seed}}}"#
        ));
        side.impair(&format!(
            r#"{{"direction": "rx", "action": {{"delay": {{"us": 5, "jitter_us": 100}}}}, "probability": 0.2, "seed": {seed}}}"#
        ));
    }
    for round in 0..6 {
        let slot = 3 * u32::from(round);
        let data = pattern(0x400, round);
        put_data(&mut a, 0x10, &data);
        post_recv(&mut b, round.into(), 0x701, 0x400);
        send(&mut a, slot + 1, 0x0a, &[data_unit(0x10, 0x400)]);
        send(&mut a, slot + 2, 0x08, &[remote(0xc00, DATA_KEY), data_unit(0x10, 0x400)]);
        send(&mut a, slot + 3, 0x10, &[remote(0xc00, DATA_KEY), data_unit(0x1000, 0x400)]);
        wait(&mut a, &mut b);
        assert_eq!((get_data(&mut b, 0x701, 0x400), get_data(&mut a, 0x1000, 0x400)), (data.clone(), data));
    }
    assert!(a.hca.engine_stats().recovery.retransmitted_packets > 0, "the link loses packets");
}

#[test]
fn lossy_session_replays_bit_for_bit() {
    for (lid, record) in (1..).zip(&recorded(session)) {
        let counts = assert_same(&mut device(lid), record);
        assert!(counts.reads > 100 && counts.writes > 50 && counts.frames > 20, "{counts:?}");
    }
}
