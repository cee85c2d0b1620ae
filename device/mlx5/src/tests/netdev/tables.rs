//! Tests the tables of netdev objects and the explanations of stuck queues that `hcactl` shows.

use super::*;

#[test]
fn tables_show_queues_and_steering() {
    let mut net = Net::new();
    let rqtn = net.create_rqt(&[net.rqn; 3]);
    let fields = hash_fields();
    let tir = TirContext { dispatch: 1, rqtn, hash_function: 2, fields, ..TirContext::default() };
    let tirn = net.create_tir(tir);
    let last = net.create_flow_table(56, 0x88b5, Destination::Tir(tirn));
    net.create_flow_table(55, 0x88b5, Destination::Table(last));
    net.post_receive(&[1522]);
    net.driver.receive(&plain(2, 60));
    net.driver.receive(&plain(2, 61));
    net.post(&net.wqe(EthernetSegment::default(), &plain(2, 100), 0));
    net.driver.frames();
    assert_eq!(net.driver.table("sqs"), ["0x4000 idle - 0x40 1 1 64 0 1 100 0"]);
    assert_eq!(net.driver.table("rqs"), ["0x4001 no_receive - 0x41 1 1 64 1 1 60 1"]);
    assert_eq!(net.driver.table("tirs"), ["1 - 1 1 toeplitz src_ipv4,tcp_dst_port none"]);
    assert_eq!(net.driver.table("rqts"), ["1 3 256 0x4001:3"]);
    assert_eq!(
        net.driver.table("flow-tables"),
        ["1 56 no 16 1 1 drop 0", "2 55 yes 16 1 1 drop 0"],
        "the frame from the SQ matches too"
    );
    assert_eq!(net.driver.table("flow-groups"), ["1 1 2 5 ether_type 1", "2 2 2 5 ether_type 1"]);
    assert_eq!(
        net.driver.table("flow-entries"),
        ["1 3 1 ether_type=0x88b5 tir=1 0x7 3 -", "2 3 2 ether_type=0x88b5 table=1 0x7 3 -"]
    );
    assert_eq!(net.driver.table("link")[0].split(' ').next(), Some("yes"));
}

fn hash_fields() -> protocol::hca::mlx5::tir::HashFields {
    protocol::hca::mlx5::tir::HashFields { source_ip: true, destination_port: true, ..<_>::default() }
}

#[test]
fn flow_table_rows_are_listed_from_any_index() {
    let mut net = Net::new();
    let tirn = net.create_direct_tir();
    let tables = [55, 54].map(|level| net.create_flow_table(level, 0x0806, Destination::Tir(tirn)).get());
    let indices = |name, from| {
        let rows = serde_json::to_value(net.driver.page(name, from).rows).unwrap();
        let rows: Vec<_> = rows.as_array().unwrap().iter().map(|row| row["table"].clone()).collect();
        rows
    };
    let at = |table: u32, index: u64| u64::from(table) << 32 | index;
    let [first, second] = tables;
    for name in ["flow-groups", "flow-entries"] {
        assert_eq!(indices(name, at(first, 3)), [first, second], "{name}");
        assert_eq!(indices(name, at(first, 6)), [second], "{name}");
        assert_eq!(indices(name, at(second, 2)), [second], "{name}");
        assert!(indices(name, at(second, 6)).is_empty() && indices(name, u64::MAX).is_empty(), "{name}");
    }
    assert_eq!(
        indices("flow-groups", at(first, 5)),
        [first, second],
        "a page may start at a group's last index"
    );
    assert_eq!(indices("flow-entries", at(first, 4)), [second]);
}

#[test]
fn stuck_queues_are_explained() {
    let mut net = Net::new();
    let (sqn, rqn) = (net.sqn.get(), net.rqn.get());
    let explain = |net: &Net, number| net.driver.explain(number).join("\n");
    assert!(explain(&net, rqn).contains("no TIR or RQT names the RQ"), "{}", explain(&net, rqn));
    net.create_direct_tir();
    net.driver.receive(&plain(2, 60));
    assert_eq!(
        net.driver.explain(rqn),
        [
            "RQ 0x4001: ready, but the last frame found no posted receive and was dropped",
            "frames: 0 received (0 bytes), 1 dropped"
        ]
    );
    net.key = Lkey::new(0x7700);
    net.post(&net.wqe(EthernetSegment::default(), &plain(2, 14), 60));
    net.driver.frames();
    assert_eq!(
        net.driver.explain(sqn),
        [
            "SQ 0x4000: in the error state; posted work requests complete with a flush error",
            "stopped: WQE at block 0x0 failed with syndrome LOCAL_PROT_ERR",
            "frames: 0 sent (0 bytes), 0 dropped"
        ]
    );
    assert_eq!(net.driver.table("sqs"), ["0x4000 flushing 0x0:LOCAL_PROT_ERR 0x40 1 1 64 0 0 0 0"]);
    net.restart_sq();
    assert!(explain(&net, sqn).starts_with("SQ 0x4000: ready; all announced work requests are done"));
    assert!(net.driver.explain(0x4002).is_empty());
}
