//! Tests impairments with frames built by scapy. They are sent from MAC 02:00:00:00:00:01 and address 10.77.0.1 to MAC
//! 02:00:00:00:00:02, address 10.77.0.2 and QP 0xabcdef.

use protocol::WireError;
use protocol::roce::RoceFrame;

use super::*;

const T0: Instant = Instant::from_nanos(1_000_000_000);

fn frame(name: &str) -> Vec<u8> {
    let frames = include_str!("../../../../../protocol/tests/data/scapy_frames.txt");
    let hex = frames.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap();
    let pairs = hex.as_bytes().as_chunks::<2>().0;
    pairs.iter().map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// An ARP request built with scapy 2.8.0: who has 10.77.0.2, tell 10.77.0.1 at 02:00:00:00:00:01.
const ARP: [u8; 42] = *b"\xff\xff\xff\xff\xff\xff\x02\0\0\0\0\x01\x08\x06\
    \0\x01\x08\0\x06\x04\0\x01\x02\0\0\0\0\x01\x0a\x4d\0\x01\0\0\0\0\0\0\x0a\x4d\0\x02";

fn rules(rules: &[&str]) -> Impairments {
    let mut impairments = Impairments::default();
    for rule in rules {
        let entry: RuleEntry = serde_json::from_str(rule).unwrap();
        impairments.add(Rule::try_from(entry).unwrap()).unwrap();
    }
    impairments
}

fn after(us: u64) -> Instant {
    T0 + Duration::from_micros(us)
}

/// Sends `frame` at `now` and returns the frames that are passed on at that time.
fn send(impairments: &mut Impairments, now: Instant, frame: &[u8]) -> Vec<Vec<u8>> {
    let mut out = match impairments.apply_rules(now, Direction::Tx, frame, Origin::Own) {
        Verdict::Pass => vec![frame.to_vec()],
        Verdict::Modified { frames, .. } => frames.into_vec(),
    };
    out.extend(std::iter::from_fn(|| impairments.release(now, Direction::Tx).map(|on| on.bytes)));
    out
}

/// Sends `count` identical frames. Returns the positions, counted from 1, of those that the rule drops.
fn dropped(rule: &str, count: usize) -> Vec<usize> {
    let mut impairments = rules(&[rule]);
    let frame = frame("rc_send_first");
    (1..=count).filter(|_| send(&mut impairments, T0, &frame).is_empty()).collect()
}

#[test]
fn rule_with_nth_hits_only_nth_matching_frame() {
    let mut impairments = rules(&[
        r#"{"direction": "tx", "action": "drop", "qpn": 11259375, "opcode": "READ response middle", "nth": 3}"#,
    ]);
    let (middle, first) = (frame("rc_read_response_middle"), frame("rc_read_response_first"));
    let verdicts: Vec<_> = [&first, &middle, &middle, &first, &middle, &middle]
        .map(|frame| impairments.apply_rules(T0, Direction::Tx, frame, Origin::Own))
        .into();
    let note = "impairment 1: dropped".to_owned();
    assert_eq!(verdicts[4], Verdict::Modified { note, frames: SmallVec::new() });
    assert!([0, 1, 2, 3, 5].iter().all(|index| verdicts[*index] == Verdict::Pass));
    let row = &impairments.rows()[0];
    assert_eq!((row.id, row.matched, row.hits), (1, 4, 1));
}

#[test]
fn rule_with_nth_and_count_hits_consecutive_frames() {
    assert_eq!(dropped(r#"{"direction": "tx", "action": "drop", "nth": 2, "count": 3}"#, 8), [2, 3, 4]);
    assert_eq!(dropped(r#"{"direction": "tx", "action": "drop"}"#, 3), [1, 2, 3]);
}

#[test]
fn rule_applies_only_if_every_selector_matches() {
    let frame = frame("rc_ack");
    let (ethernet, v6) = (&ARP[..], self::frame("v6_rc_ack"));
    for (selectors, roce, arp, over_ipv6) in [
        ("", true, true, true),
        (r#", "qpn": 11259375"#, true, false, true),
        (r#", "qpn": 5"#, false, false, false),
        (r#", "psn": 1193046"#, true, false, true),
        (r#", "psn": 7"#, false, false, false),
        (r#", "opcode": "RC Acknowledge""#, true, false, true),
        (r#", "opcode": "UC SEND Only""#, false, false, false),
        (r#", "peer": "02:00:00:00:00:02""#, true, false, true),
        (r#", "peer": "02:00:00:00:00:01""#, false, false, false),
        (r#", "peer": "10.77.0.2""#, true, false, false),
        (r#", "peer": "10.77.0.1""#, false, false, false),
        (r#", "peer": "fe80::ff:fe00:2""#, false, false, true),
    ] {
        let rule = format!(r#"{{"direction": "tx", "action": "drop"{selectors}}}"#);
        let hits = |frame: &[u8]| send(&mut rules(&[&rule]), T0, frame).is_empty();
        assert_eq!((hits(&frame), hits(ethernet), hits(&v6)), (roce, arp, over_ipv6), "{selectors}");
    }
}

#[test]
fn peer_selector_matches_source_of_received_frame() {
    let rule = r#"{"direction": "rx", "action": "drop", "peer": "10.77.0.1"}"#;
    let mut impairments = rules(&[rule]);
    assert_eq!(impairments.apply_rules(T0, Direction::Tx, &frame("rc_ack"), Origin::Own), Verdict::Pass);
    assert_ne!(impairments.apply_rules(T0, Direction::Rx, &frame("rc_ack"), Origin::Own), Verdict::Pass);
}

#[test]
fn probability_and_seed_determine_dropped_frames() {
    let rule =
        |seed| format!(r#"{{"direction": "tx", "action": "drop", "probability": 0.05, "seed": {seed}}}"#);
    let hits = dropped(&rule(7), 20_000);
    // The bounds are five standard deviations from the mean.
    assert!((846..=1154).contains(&hits.len()), "{}", hits.len());
    assert_eq!(dropped(&rule(7), 20_000), hits);
    assert_ne!(dropped(&rule(8), 20_000), hits);
    assert_eq!(hits[..8], [23, 38, 80, 81, 108, 187, 217, 228], "a seed must always select the same frames");
    let never = r#"{"direction": "tx", "action": "drop", "probability": 0}"#;
    let always = r#"{"direction": "tx", "action": "drop", "probability": 1}"#;
    assert_eq!((dropped(never, 100).len(), dropped(always, 100).len()), (0, 100));
}

#[test]
fn rules_with_equal_seeds_hit_different_frames() {
    let mut impairments = rules(&[
        r#"{"direction": "tx", "action": "drop", "probability": 0.1, "seed": 1}"#,
        r#"{"direction": "tx", "action": {"duplicate": {}}, "probability": 0.1, "seed": 1}"#,
    ]);
    let frame = frame("rc_ack");
    let copies = (0..1000).filter(|_| send(&mut impairments, T0, &frame).len() == 2).count();
    assert!((60..130).contains(&copies), "{copies}");
}

#[test]
fn duplicate_is_sent_immediately_or_after_delay() {
    let frame = frame("rc_read_request");
    let at_once = r#"{"direction": "tx", "action": {"duplicate": {}}}"#;
    assert_eq!(send(&mut rules(&[at_once]), T0, &frame), [frame.clone(), frame.clone()]);

    let mut later = rules(&[r#"{"direction": "tx", "action": {"duplicate": {"after_us": 500}}}"#]);
    assert_eq!(send(&mut later, T0, &frame), std::slice::from_ref(&frame));
    assert_eq!(later.next_deadline(), Some(after(500)));
    assert_eq!(later.release(after(499), Direction::Tx).map(|on| on.bytes), None);
    assert_eq!(later.release(after(500), Direction::Tx).map(|on| on.bytes), Some(frame));
    assert_eq!(later.release(after(500), Direction::Tx).map(|on| on.bytes), None);
    assert_eq!(later.next_deadline(), None);
}

#[test]
fn delayed_frames_stay_in_order_after_rule_is_cleared() {
    let mut impairments = rules(&[r#"{"direction": "tx", "action": {"delay": {"us": 1000}}}"#]);
    let frames = ["rc_send_first", "rc_send_middle", "rc_send_last"].map(frame);
    for frame in &frames {
        assert_eq!(send(&mut impairments, T0, frame), Vec::<Vec<u8>>::new());
    }
    assert!(impairments.clear(None));
    assert!(!impairments.is_idle());
    let ack = frame("rc_ack");
    assert_eq!(send(&mut impairments, after(999), &ack), [ack]);
    let released: Vec<_> =
        std::iter::from_fn(|| impairments.release(after(1000), Direction::Tx).map(|on| on.bytes)).collect();
    assert_eq!(released, frames);
    assert!(impairments.is_idle());
}

#[test]
fn jitter_varies_within_bounds() {
    let mut impairments =
        rules(&[r#"{"direction": "tx", "action": {"delay": {"us": 100, "jitter_us": 50}}, "seed": 3}"#]);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..200 {
        send(&mut impairments, T0, &ARP);
        let at = impairments.next_deadline().unwrap();
        assert!((after(100)..=after(150)).contains(&at));
        assert!(impairments.release(at, Direction::Tx).is_some());
        seen.insert(at);
    }
    assert!(seen.len() > 25, "{}", seen.len());
}

#[test]
fn reordered_frame_is_sent_after_overtaking_frames() {
    let mut impairments =
        rules(&[r#"{"direction": "tx", "action": {"reorder": {"by": 2}}, "opcode": "SEND First"}"#]);
    let [first, middle, last] = ["rc_send_first", "rc_send_middle", "rc_send_last"].map(frame);
    assert_eq!(send(&mut impairments, T0, &first), Vec::<Vec<u8>>::new());
    assert_eq!(send(&mut impairments, T0, &middle), [middle]);
    assert_eq!(send(&mut impairments, T0, &last), [last, first]);
}

#[test]
fn reordered_frame_is_released_after_timeout() {
    let mut impairments =
        rules(&[r#"{"direction": "tx", "action": {"reorder": {"by": 2, "within_us": 300}}}"#]);
    send(&mut impairments, T0, &ARP);
    assert_eq!(impairments.next_deadline(), Some(after(300)));
    assert_eq!(impairments.release(after(300), Direction::Tx).map(|on| on.bytes), Some(ARP.to_vec()));
}

#[test]
fn corruption_flips_one_bit_and_breaks_icrc() {
    let mut impairments = rules(&[r#"{"direction": "tx", "action": "corrupt", "seed": 5}"#]);
    for name in ["rc_ack", "rc_write_only", "ud_send_only", "cnp"] {
        let good = frame(name);
        for _ in 0..500 {
            let bad = send(&mut impairments, T0, &good).remove(0);
            let bits: u32 = good.iter().zip(&bad).map(|(good, bad)| (good ^ bad).count_ones()).sum();
            assert_eq!((bits, &bad[..42]), (1, &good[..42]), "one bit after the UDP header is flipped");
            assert!(matches!(RoceFrame::parse(&bad), Err(WireError::Icrc { .. })), "{name}: {bad:02x?}");
        }
    }
    let over_ipv6 = send(&mut impairments, T0, &frame("v6_rc_ack")).remove(0);
    assert_eq!(RoceFrame::parse(&over_ipv6), Err(WireError::Checksum { what: "UDP" }));
}

#[test]
fn ce_mark_leaves_icrc_valid() {
    let mut impairments = rules(&[r#"{"direction": "tx", "action": "mark_ce"}"#]);
    for (name, class) in [("rc_send_only_3_bytes", 0x6b), ("rc_ack", 3), ("v6_rc_ack", 3)] {
        let marked = send(&mut impairments, T0, &frame(name)).remove(0);
        let parsed = RoceFrame::parse(&marked).unwrap();
        assert_eq!(parsed.encap.traffic_class, class, "{name}");
        assert_eq!(parsed.packet, RoceFrame::parse(&frame(name)).unwrap().packet);
    }
    assert_eq!(send(&mut impairments, T0, &ARP), [ARP.to_vec()]);
}

#[test]
fn rules_apply_to_vlan_tagged_packets() {
    let tagged = |name| {
        let frame = frame(name);
        [&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat()
    };
    for selector in
        [r#""qpn": 11259375"#, r#""psn": 1193046"#, r#""opcode": "RC Acknowledge""#, r#""peer": "10.77.0.2""#]
    {
        let rule = format!(r#"{{"direction": "tx", "action": "drop", {selector}}}"#);
        assert!(send(&mut rules(&[&rule]), T0, &tagged("rc_ack")).is_empty(), "{selector}");
    }
    let mut impairments = rules(&[r#"{"direction": "tx", "action": "corrupt", "seed": 5}"#]);
    for _ in 0..500 {
        let bad = send(&mut impairments, T0, &tagged("rc_ack")).remove(0);
        assert!(matches!(RoceFrame::parse(&bad), Err(WireError::Icrc { .. })), "{bad:02x?}");
    }
    let mut impairments = rules(&[r#"{"direction": "tx", "action": "mark_ce"}"#]);
    for name in ["rc_ack", "v6_rc_ack"] {
        let marked = send(&mut impairments, T0, &tagged(name)).remove(0);
        assert_eq!(RoceFrame::parse(&marked).unwrap().encap.traffic_class, 3, "{name}");
    }
    let cut_off = &tagged("rc_ack")[..15];
    assert_eq!(send(&mut impairments, T0, cut_off), [cut_off]);
}

#[test]
fn note_lists_effects_of_all_rules() {
    let mut impairments = rules(&[
        r#"{"direction": "tx", "action": "mark_ce"}"#,
        r#"{"direction": "tx", "action": {"delay": {"us": 7}}}"#,
        r#"{"direction": "tx", "action": {"duplicate": {"after_us": 5}}}"#,
    ]);
    let Verdict::Modified { note, frames } =
        impairments.apply_rules(T0, Direction::Tx, &frame("rc_ack"), Origin::Own)
    else {
        panic!("no rule applied")
    };
    assert!(frames.is_empty());
    assert_eq!(
        note,
        "impairment 1: marked Congestion Experienced (CE); impairment 2: delayed by 7 us; \
         impairment 3: duplicated after 5 us"
    );
    let marked = |frame: Option<Vec<u8>>| frame.is_some_and(|frame| frame[15] == 3);
    assert!(marked(impairments.release(after(7), Direction::Tx).map(|on| on.bytes)));
    assert!(marked(impairments.release(after(12), Direction::Tx).map(|on| on.bytes)));
}

#[test]
fn delayed_frames_past_8192_are_dropped() {
    let mut impairments = rules(&[r#"{"direction": "tx", "action": {"delay": {"us": 1000}}}"#]);
    let lost = (0..10_000)
        .filter(|_| match impairments.apply_rules(T0, Direction::Tx, &ARP, Origin::Own) {
            Verdict::Modified { note, .. } => note.ends_with("lost: too many frames are held"),
            Verdict::Pass => false,
        })
        .count();
    assert_eq!(lost, 10_000 - 8192);
}

#[test]
fn rules_get_unique_ids_up_to_limit() {
    let rule = r#"{"direction": "tx", "action": "drop"}"#;
    let mut impairments = rules(&vec![rule; MAX_RULES]);
    let one_more = Rule::try_from(serde_json::from_str::<RuleEntry>(rule).unwrap()).unwrap();
    assert_eq!(impairments.add(one_more.clone()), Err(TooManyRulesError));
    assert!(impairments.clear(Some(3)) && !impairments.clear(Some(3)));
    assert_eq!(impairments.add(one_more.clone()), Ok(65));
    assert!(impairments.clear(None));
    assert_eq!(impairments.add(one_more), Ok(1));
}

#[test]
fn invalid_rule_error_mentions_key() {
    for (rule, error) in [
        (r#""action": "drop", "nth": 0"#, "nth: must be at least 1"),
        (r#""action": "drop", "count": 2"#, "count: requires `nth`"),
        (r#""action": "drop", "nth": 1, "count": 0"#, "count: must be at least 1"),
        (r#""action": "drop", "nth": 2, "probability": 0.5"#, "probability: cannot be combined with `nth`"),
        (r#""action": "drop", "qpn": 16777216"#, "qpn: must fit in 24 bits"),
        (
            r#""action": "drop", "opcode": "SEND""#,
            "opcode: is not an opcode name from IBTA volume 1, table 38",
        ),
        (r#""action": "drop", "peer": "host""#, "peer: is neither a MAC nor an IP address"),
        (r#""action": {"reorder": {"by": 0}}"#, "action.reorder.by: must be between 1 and 1024"),
        (
            r#""action": {"delay": {"us": 60000001}}"#,
            "action: must not delay a frame by more than 60 seconds",
        ),
    ] {
        let entry: RuleEntry = serde_json::from_str(&format!(r#"{{"direction": "tx", {rule}}}"#)).unwrap();
        assert_eq!(Rule::try_from(entry).unwrap_err().to_string(), error);
    }
}
