//! Fuzzes the MADs that the management agents receive from the guest (through MAD_IFC and queue pairs) and from the
//! fabric.
//!
//! Two HCAs share a fabric. After every input, each port must answer requests from its own software, every exchange
//! must end, and memory use must stay bounded.

use card::identity::Identity;
use card::management::{
    Counters, Datagram, Management, MkeyCheck, NodeProfile, Output, PERMISSIVE_LID, SM_LID, View,
};
use engine::Instant;
use protocol::ids::{Lid, Qpn};
use protocol::mad::{MAD_LEN, Mad};

use super::input::Input;

/// Maximum number of operations in one run.
const OPERATIONS: usize = 256;
/// Maximum number of datagrams that one operation can trigger. A full RMPP window triggers the most.
const CONSEQUENCES: usize = 512;

const PROFILE: NodeProfile = NodeProfile {
    vendor_id: 0x0002c9,
    device_id: 0x6274,
    revision: 0xa0,
    gids: 32,
    pkeys: 64,
    mtu: 4,
    capabilities: 0,
    opened_by_software: true,
    always_answers_perf: false,
};

/// Management classes with their versions, and the methods and attributes that they define.
const CLASSES: [(u8, u8); 6] = [(1, 1), (0x81, 1), (3, 2), (4, 1), (7, 2), (9, 1)];
const METHODS: [u8; 12] = [1, 2, 3, 5, 6, 7, 0x12, 0x13, 0x14, 0x15, 0x81, 0x92];
const ATTRIBUTES: [u16; 24] = [
    0x01, 0x02, 0x03, 0x10, 0x11, 0x12, 0x14, 0x15, 0x16, 0x17, 0x18, 0x19, 0x1b, 0x1d, 0x20, 0x30, 0x31,
    0x33, 0x35, 0x36, 0x38, 0x39, 0xf3, 0xff00,
];

struct Fabric {
    hcas: [Management; 2],
    /// For each HCA, whether its software receives datagrams for QP0 and QP1.
    listening: [bool; 2],
    view: View,
}

pub fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let hca = |lid| Management::new(Identity::from_lid(Lid::new(lid)), PROFILE);
    let mut fabric = Fabric { hcas: [hca(1), hca(2)], listening: [false; 2], view: View::default() };
    for hca in &mut fabric.hcas {
        hca.open_port(&fabric.view);
    }
    for _ in 0..OPERATIONS {
        let Some(operation) = input.next_byte() else { break };
        fabric.operate(operation, &mut input);
        fabric.settle();
    }
    fabric.check_node_info();
}

impl Fabric {
    fn operate(&mut self, operation: u8, input: &mut Input<'_>) {
        let (hca, listening) = match operation & 1 {
            0 => (&mut self.hcas[0], &mut self.listening[0]),
            _ => (&mut self.hcas[1], &mut self.listening[1]),
        };
        match operation >> 1 & 15 {
            0..=3 => {
                let check = if operation & 0x40 == 0 { MkeyCheck::Ignore } else { MkeyCheck::Enforce };
                let request = mad(input);
                if let Some(answer) = hca.mad_ifc(&self.view, &request, check) {
                    assert!(answer[3] & 0x80 != 0, "a reply must have the response bit set");
                    assert_eq!(
                        answer[8..16],
                        request[8..16],
                        "a reply must have its request's transaction ID"
                    );
                }
            }
            4..=7 => {
                let sent = Datagram {
                    source: hca.lid(),
                    source_qp: qpn(input),
                    destination: if input.byte() & 1 == 0 { SM_LID } else { PERMISSIVE_LID },
                    destination_qp: qpn(input),
                    mad: mad(input),
                };
                hca.handle_guest(&self.view, &Identity::from_lid(hca.lid()).into(), &sent);
            }
            8..=11 => {
                let received = Datagram {
                    source: lid(input),
                    source_qp: qpn(input),
                    destination: if input.byte() & 3 == 0 { PERMISSIVE_LID } else { hca.lid() },
                    destination_qp: Qpn::new(u32::from(input.byte() & 1)),
                    mad: mad(input),
                };
                let _ = hca.handle_wire(&self.view, &received, *listening, &mut || true);
            }
            12 => {
                let nanos = u64::from(input.word()) << (input.byte() % 8);
                let now = self.view.now.as_nanos().saturating_add(nanos);
                self.view.now = Instant::from_nanos(now);
                self.view.counters = Counters {
                    receive_packets: now,
                    receive_octets: now.wrapping_mul(64),
                    pkey_violations: now,
                    ..Counters::default()
                };
                hca.handle_deadline(&self.view);
            }
            13 => hca.set_link(input.byte() & 1 == 0, &self.view),
            14 => match input.byte() % 4 {
                0 => hca.reset(),
                1 => hca.close_port(),
                _ => hca.open_port(&self.view),
            },
            _ => *listening = !*listening,
        }
    }

    fn settle(&mut self) {
        for _ in 0..CONSEQUENCES {
            let Some((from, output)) = (0..2).find_map(|from| Some((from, self.hcas[from].poll_output()?)))
            else {
                return;
            };
            match output {
                Output::ToFabric(datagram) => {
                    let to = 1 - from;
                    let for_it = [self.hcas[to].lid(), PERMISSIVE_LID].contains(&datagram.destination);
                    if for_it && self.hcas[to].is_active() {
                        let _ =
                            self.hcas[to]
                                .handle_wire(&self.view, &datagram, self.listening[to], &mut || true);
                    }
                }
                Output::Link(up) => self.hcas[from].set_link(up, &self.view),
                Output::ToGuest(_) => {}
            }
        }
        panic!("every exchange must end");
    }

    fn check_node_info(&mut self) {
        for hca in &mut self.hcas {
            let mut request = [0; MAD_LEN];
            request[..4].copy_from_slice(&[1, 1, 1, 1]);
            request[17] = 0x11;
            let answer = hca
                .mad_ifc(&self.view, &request, MkeyCheck::Ignore)
                .expect("the port replies to its own software");
            assert_eq!(
                (&answer[4..6], answer[66]),
                (&[0, 0][..], 1),
                "the reply must be the NodeInfo of a channel adapter"
            );
        }
    }
}

/// Returns a MAD that is valid about half the time.
fn mad(input: &mut Input<'_>) -> Mad {
    let mut mad = [0; MAD_LEN];
    let (class, version) = CLASSES[usize::from(input.byte()) % CLASSES.len()];
    let method = METHODS[usize::from(input.byte()) % METHODS.len()];
    let attribute = ATTRIBUTES[usize::from(input.byte()) % ATTRIBUTES.len()];
    mad[..4].copy_from_slice(&[1, class, version, method]);
    mad[8] = input.byte();
    // With this transaction ID, the MAD can be a response to one of the first queries sent by an agent.
    if mad[8] == b'h' {
        mad[8..12].copy_from_slice(b"hcad");
        mad[15] = input.byte() % 32;
    }
    mad[16..18].copy_from_slice(&attribute.to_be_bytes());
    mad[23] = input.byte();
    if class == 0x81 {
        mad[32..36].fill(0xff);
        mad[6..8].copy_from_slice(&[input.byte() % 5, input.byte() % 4]);
        for (hop, port) in (129..133).zip([1, 2, 1, 2]) {
            (mad[hop], mad[hop + 64]) = (port, port);
        }
    }
    // These bytes are the component mask or, in a directed-route SMP, the first reserved bytes.
    mad[53..56].copy_from_slice(&[input.byte(), input.byte(), input.byte()]);
    // Overwrite random bytes.
    for _ in 0..input.byte() % 4 {
        let at = usize::from(input.byte());
        for (to, from) in mad[at..].iter_mut().zip(input.bytes(64)) {
            *to = *from;
        }
    }
    mad
}

fn lid(input: &mut Input<'_>) -> Lid {
    match input.byte() % 4 {
        0 => Lid::new(input.half()),
        low => Lid::new(u16::from(low)),
    }
}

fn qpn(input: &mut Input<'_>) -> Qpn {
    match input.byte() % 4 {
        0 => Qpn::new(input.word()),
        low => Qpn::new(u32::from(low & 1)),
    }
}
