use card::frontend::snapshot::{RuleAction, RuleCast, RuleOrigin, RuleRecipe, RuleRow};

use super::*;

fn rows(driver: &Driver, from: u64) -> Vec<RuleRow> {
    driver.0.rule_rows(from).map(|(_, row)| row).collect()
}

fn row(rule: u16, recipe: RuleRecipe, action: RuleAction, vsis: &[u16]) -> RuleRow {
    RuleRow {
        rule,
        recipe,
        from: None,
        mac: None,
        vlan: None,
        ether_type: None,
        cast: None,
        action,
        vsi_count: vsis.len(),
        vsis: vsis.to_vec(),
        loopback: false,
        lan: false,
    }
}

#[test]
fn rule_rows_show_match_fields_and_actions() {
    let mut driver = Driver::new();
    driver.add(Rule::mac(ME, to_vsi(1) | LOOPBACK));
    driver.admit(5, &[1, 2]);
    driver.add(Rule::new(FROM_VSI, ETHER_TYPE, DROP).ether_type(0x88cc));
    driver.add(Rule::new(FROM_PORT, PROMISCUOUS_VLAN, to_vsi(2) | LAN).dst(ANY_MULTICAST).vid(9));
    driver.add(Rule::new(FROM_VSI, DEFAULT, to_vsi(2)));
    let expected = [
        RuleRow {
            mac: Some("02:e8:10:00:00:01".to_owned()),
            loopback: true,
            ..row(1, RuleRecipe::Mac, RuleAction::Forward, &[1])
        },
        RuleRow { vlan: Some(5), ..row(2, RuleRecipe::Vlan, RuleAction::Admit, &[1, 2]) },
        RuleRow {
            from: Some(RuleOrigin::Vsi(1)),
            ether_type: Some(0x88cc),
            ..row(3, RuleRecipe::EtherType, RuleAction::Drop, &[])
        },
        RuleRow {
            from: Some(RuleOrigin::Port),
            cast: Some(RuleCast::Multicast),
            vlan: Some(9),
            lan: true,
            ..row(4, RuleRecipe::PromiscuousVlan, RuleAction::Forward, &[2])
        },
        RuleRow { from: Some(RuleOrigin::AnyVsi), ..row(5, RuleRecipe::Default, RuleAction::Forward, &[2]) },
    ];
    assert_eq!(rows(&driver, 0), expected);
    assert_eq!(rows(&driver, 4), expected[3..]);
    assert_eq!(rows(&driver, u64::MAX), []);
    driver.free_vsi(2);
    let after = row(5, RuleRecipe::Default, RuleAction::Nothing, &[]);
    assert_eq!(rows(&driver, 5), [RuleRow { from: Some(RuleOrigin::AnyVsi), ..after }]);
}

#[test]
fn vsi_and_scheduler_rows_start_at_requested_index() {
    let mut driver = Driver::new();
    driver.update(2, |context| context.switch.vlan_prune = true);
    let vsis: Vec<_> = driver.0.vsi_rows(0).map(|(_, row)| (row.vsi, row.vlan_prune, row.loopback)).collect();
    assert_eq!(vsis, [(1, false, true), (2, true, true), (769, false, false)]);
    assert_eq!(driver.0.vsi_rows(2).count(), 2);
    let parents: Vec<_> = driver.0.node_rows(0).map(|(_, row)| row.parent).collect();
    assert_eq!(parents, [None, Some(1), Some(2), Some(3), Some(4), Some(5), Some(6), Some(7), Some(8)]);
    assert_eq!(driver.0.node_rows(9).count(), 1);
    assert_eq!(driver.0.node_rows(u64::MAX).count(), 0);
}
