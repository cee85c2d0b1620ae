use protocol::hca::e810::admin::vsi::{ClassQueues, Strip};

use super::*;

const PF: u8 = 2;

fn named(number: u16) -> VsiParameters {
    VsiParameters { number, number_valid: true, ..VsiParameters::default() }
}

/// Returns a context like the ones drivers use to add a VSI: queues 4 to 7, tag stripping, loopback allowed. Only the
/// security section is marked as valid.
fn context() -> VsiContext {
    let mut context = VsiContext { sections: Sections::SECURITY, ..VsiContext::default() };
    context.switch = SwitchSection { allow_loopback: true, lan: true, ..SwitchSection::default() };
    context.security.destination_override = true;
    context.vlan.transmit = 3;
    context.queues.mapping[..2].copy_from_slice(&[4, 4]);
    context.queues.classes[0] = ClassQueues { first: 0, log2_count: 2 };
    context
}

fn add(vsis: &mut Vsis) -> VsiNumber {
    let parameters = VsiParameters { kind: PF, ..VsiParameters::default() };
    VsiNumber::new(vsis.add(&parameters, &mut context().emit()).unwrap().number)
}

#[test]
fn vsi_numbers_start_at_one() {
    let mut vsis = Vsis::default();
    let parameters = VsiParameters { kind: PF, ..VsiParameters::default() };
    let first = vsis.add(&parameters, &mut context().emit());
    assert_eq!(
        first,
        Ok(VsiResponse { number: 1, used: 1, free: 767 }),
        "the response must match run73-all.aq.gz"
    );
    assert_eq!(add(&mut vsis).get(), 2);
    assert_eq!(vsis.free(&named(1)), Ok(VsiResponse { number: 0x8001, used: 1, free: 767 }));
    assert_eq!(vsis.free(&named(1)).unwrap_err().status, AdminStatus::NoEntry);
    assert_eq!(add(&mut vsis).get(), 1);
}

#[test]
fn rejects_vsis_past_advertised_limit() {
    let mut vsis = Vsis::default();
    for _ in 0..MAX_VSIS {
        add(&mut vsis);
    }
    let parameters = VsiParameters { kind: PF, ..VsiParameters::default() };
    let refused = vsis.add(&parameters, &mut context().emit()).unwrap_err();
    assert_eq!(refused.status, AdminStatus::NoSpace);
    assert_eq!(
        vsis.iter().count(),
        usize::from(MAX_VSIS) + 1,
        "the default VSI does not count towards the limit"
    );
}

#[test]
fn rejects_unknown_vsis() {
    let mut vsis = Vsis::default();
    let of_virtual_function = vsis.add(&VsiParameters::default(), &mut context().emit());
    assert_eq!(of_virtual_function.unwrap_err().status, AdminStatus::Invalid);
    let parameters = VsiParameters { kind: PF, ..VsiParameters::default() };
    assert_eq!(vsis.add(&parameters, &mut [0; 127]).unwrap_err().status, AdminStatus::Invalid);
    assert_eq!(vsis.iter().count(), 1, "only the default VSI exists");

    add(&mut vsis);
    let unmarked = VsiParameters { number_valid: false, ..named(1) };
    for parameters in [named(2), unmarked] {
        let refused = vsis.update(&parameters, &mut context().emit()).unwrap_err();
        assert_eq!(refused.status, AdminStatus::NoEntry);
        assert_eq!(vsis.free(&parameters).unwrap_err().status, AdminStatus::NoEntry);
    }
}

#[test]
fn default_vsi_is_never_freed() {
    let mut vsis = Vsis::default();
    assert!(!vsis.has_added());
    assert_eq!(vsis.free(&named(769)).unwrap_err().status, AdminStatus::NotPermitted);
    let default = vsis.get(VsiNumber::new(769)).unwrap();
    assert_eq!((default.queues.receive_queue(0), default.queues.len(), default.switch.lan), (0, 1, true));
}

#[test]
fn new_vsi_ignores_section_flags() {
    let mut vsis = Vsis::default();
    let number = add(&mut vsis);
    let vsi = vsis.get(number).unwrap();
    assert!(vsi.switch.allow_loopback && vsi.security.destination_override);
    assert_eq!((vsi.queues.len(), vsi.vlan.strip), (4, Strip::VlanAndPriority));
}

#[test]
fn update_vsi_applies_only_valid_sections() {
    let mut other = VsiContext::default();
    other.switch.vlan_prune = true;
    other.security.mac_anti_spoof = true;
    other.vlan.strip = Strip::Keep;
    other.queues.mapping[0] = 9;
    other.options.rdma_filter = true;
    let cases = [
        (Sections::SWITCH, [true, false, false, false, false]),
        (Sections::SECURITY, [false, true, false, false, false]),
        (Sections::VLAN, [false, false, true, false, false]),
        (Sections::QUEUES, [false, false, false, true, false]),
        (Sections::OPTIONS, [false, false, false, false, true]),
        (Sections::SWITCH | Sections::OPTIONS, [true, false, false, false, true]),
        (Sections::empty(), [false; 5]),
    ];
    for (sections, taken) in cases {
        let mut vsis = Vsis::default();
        let number = add(&mut vsis);
        vsis.update(&named(number.get()), &mut VsiContext { sections, ..other }.emit()).unwrap();
        let vsi = vsis.get(number).unwrap();
        let seen = [
            vsi.switch.vlan_prune,
            vsi.security.mac_anti_spoof,
            vsi.vlan.strip == Strip::Keep,
            vsi.queues.receive_queue(0) == 9,
            vsi.has_rdma_filter(),
        ];
        assert_eq!(seen, taken, "{sections:?}");
        assert_eq!(vsi.switch.allow_loopback, !sections.contains(Sections::SWITCH), "{sections:?}");
    }
}

#[test]
fn queue_index_wraps_in_both_mappings() {
    let mut section = context().queues;
    let queues = |section| {
        let map = QueueMap(section);
        [0, 1, 3, 4, 65535].map(|index| map.receive_queue(index))
    };
    assert_eq!(queues(section), [4, 5, 7, 4, 7]);
    section.classes[0].first = 2;
    assert_eq!(queues(section), [6, 7, 9, 6, 9]);
    section.scattered = true;
    section.mapping[2..6].copy_from_slice(&[30, 10, 20, 40]);
    assert_eq!(queues(section), [30, 10, 40, 30, 40]);
}

#[test]
fn vlan_mode_selects_permitted_frames() {
    let mut vsis = Vsis::default();
    let number = add(&mut vsis);
    for (transmit, untagged, tagged) in [(1, true, false), (2, false, true), (3, true, true), (0, true, true)]
    {
        let vsi = vsis.get_mut(number).unwrap();
        vsi.vlan.transmit = transmit;
        assert_eq!((vsi.may_send(false), vsi.may_send(true)), (untagged, tagged), "mode {transmit}");
    }
}

#[test]
fn port_vlan_requires_enabled_insertion() {
    let mut vsis = Vsis::default();
    let number = add(&mut vsis);
    let vsi = vsis.get_mut(number).unwrap();
    vsi.vlan.port_tag = 0x6005;
    assert_eq!(vsi.port_tag(), None);
    vsi.vlan.insert_port_tag = true;
    assert_eq!(vsi.port_tag().map(|tag| (tag.vid(), tag.priority())), Some((5, 3)));
}
