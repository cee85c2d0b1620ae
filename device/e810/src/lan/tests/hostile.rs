//! Runs a hostile driver that makes random register writes and posts random descriptors. The device and another
//! driver's queues must keep working.

use protocol::hca::e810::ring_address::RingAddress;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::*;

/// End of the hostile driver's address range. The rest belongs to the bystander, a well-behaved driver.
const HOSTILE: u64 = MEMORY / 2;

/// Queue number used by the bystander for both its transmit queue and its receive queue.
const BYSTANDER: u16 = QUEUES - 1;

const BYSTANDER_TRANSMIT: u64 = HOSTILE + 0x1000;
const BYSTANDER_RECEIVE: u64 = HOSTILE + 0x2000;
const BYSTANDER_BUFFER: u64 = HOSTILE + 0x4000;

struct Hostile {
    bench: Bench,
    dice: ChaCha8Rng,
    frames: Vec<Vec<u8>>,
    /// Number of frames that the bystander has sent and received so far.
    round: u16,
    /// Number of frames that the hostile driver has sent.
    sent: usize,
    /// Number of times the device has reported a driver violation.
    violations: usize,
}

impl Hostile {
    fn new(seed: u64) -> Self {
        let mut bench = Bench::new();
        let context = |ring: u64| TxContext {
            ring: RingAddress::new(Iova::new(ring)),
            ring_len: 64,
            vsi: VSI,
            ..TxContext::default()
        };
        bench.lan.add_transmit(BYSTANDER, context(BYSTANDER_TRANSMIT)).unwrap();
        // The ring has 64 long descriptors with 2 KiB buffers. The FCS is stripped, and the maximum frame length is
        // 9728 bytes.
        let ring = u128::from(BYSTANDER_RECEIVE >> 7) << 32;
        let words = [ring | 64 << 89 | 16 << 102 | 1 << 116 | 1 << 117, 9728 << 46];
        let words: Vec<_> = words.iter().flat_map(|half| half.to_le_bytes()).collect();
        for (index, word) in (0..).zip(words.as_chunks().0) {
            bench.write(Register::QrxContext(index, BYSTANDER), u32::from_le_bytes(*word));
        }
        bench.write(Register::QrxCtrl(BYSTANDER), 1);
        let frames = [include_str!("receive.json"), include_str!("transmit.json")]
            .iter()
            .flat_map(|text| text.split('"').filter(|part| part.len() > 100))
            .map(bytes)
            .collect();
        Self { bench, dice: ChaCha8Rng::seed_from_u64(seed), frames, round: 0, sent: 0, violations: 0 }
    }

    fn flip(&mut self, odds: u32) -> bool {
        self.dice.random_range(0..odds) == 0
    }

    fn address(&mut self) -> u64 {
        match self.dice.random_range(0..20) {
            0 => self.dice.next_u64(),
            1 => MEMORY - self.dice.random_range(0..0x1000),
            2 => HOSTILE - 1 - self.dice.random_range(0..64),
            _ => self.dice.random_range(0..HOSTILE - 0x1_0000),
        }
    }

    fn queue(&mut self) -> u16 {
        if self.flip(50) {
            self.dice.random_range(QUEUES..0x3fff)
        } else {
            self.dice.random_range(0..BYSTANDER)
        }
    }

    /// Returns an index near the start of a ring, or a random number.
    fn index(&mut self) -> u32 {
        if self.flip(40) { self.dice.next_u32() } else { self.dice.random_range(0..64) }
    }

    /// Returns a descriptor for a valid frame.
    fn valid_frame(&mut self) -> [u8; 16] {
        let (at, size) = (self.dice.random_range(0..HOSTILE - 0x1_0000), self.dice.random_range(17..1500u64));
        [at.to_le_bytes(), (size << 34 | 3 << 4).to_le_bytes()].as_flattened().try_into().unwrap()
    }

    /// Returns a random descriptor that is often valid, or nearly so.
    fn descriptor(&mut self) -> [u8; 16] {
        let first = self.address();
        let second = match self.dice.random_range(0..6) {
            0 => self.dice.next_u64(),
            1 => {
                let (mss, len) = (self.dice.random_range(0..3000u64), self.dice.random_range(0..9000u64));
                return [
                    self.dice.next_u64().to_le_bytes(),
                    (mss << 50 | len << 30 | u64::from(self.dice.random_range(0..128u8)) << 4 | 1)
                        .to_le_bytes(),
                ]
                .as_flattened()
                .try_into()
                .unwrap();
            }
            2 => 8,
            _ => {
                let command = u64::from(self.dice.random_range(0..0x800u16)) | u64::from(!self.flip(4));
                let size = self.dice.random_range(0..2000u64);
                let lengths = self.dice.random_range(0..0x4_0000u64);
                let usual = 7 | 5 << 7 | 5 << 14;
                size << 34 | if self.flip(2) { usual << 16 } else { lengths << 16 } | command << 4
            }
        };
        [first.to_le_bytes(), second.to_le_bytes()].as_flattened().try_into().unwrap()
    }

    fn act(&mut self) {
        let queue = self.queue();
        match self.dice.random_range(0..12) {
            0 => {
                let context = TxContext {
                    ring: RingAddress::new(Iova::new(self.address())),
                    ring_len: if self.flip(10) { self.dice.random_range(0..0x2000) } else { 64 },
                    vsi: self.dice.random_range(0..4),
                    ..TxContext::default()
                };
                let _ = self.bench.lan.add_transmit(queue, context);
            }
            1 => {
                self.bench.lan.remove_transmit(queue);
            }
            2..=4 => {
                // Write 64 descriptors to the queue's ring, or to address 0 if the queue is disabled.
                let at = self.bench.lan.queues().find(|row| row.queue == queue).map(|row| row.ring);
                let valid_frame = self.flip(2);
                for index in 0..64 {
                    let descriptor = if valid_frame { self.valid_frame() } else { self.descriptor() };
                    let at = at.unwrap_or_default().wrapping_add(index * 16);
                    if at < HOSTILE - 16 {
                        self.bench.memory.poke(at, &descriptor);
                    }
                }
                let tail = self.index();
                self.bench.lan.write(Register::QtxCommDbell(queue), tail);
            }
            5 => {
                let (index, value) = (self.dice.random_range(0..8), self.dice.next_u32());
                self.bench.lan.write(Register::QrxContext(index, queue), value);
            }
            6 => {
                let ring = u128::from(self.address() >> 7) << 32 | 64 << 89;
                let sizes = u128::from(self.dice.random_range(0..0x1000u32)) << 102;
                let words = [ring | sizes | 3 << 116, u128::from(self.dice.random_range(0..0x3fffu32)) << 46];
                let words: Vec<_> = words.iter().flat_map(|half| half.to_le_bytes()).collect();
                for (index, word) in (0..).zip(words.as_chunks().0) {
                    self.bench.lan.write(Register::QrxContext(index, queue), u32::from_le_bytes(*word));
                }
                self.bench.lan.write(Register::QrxCtrl(queue), 1);
            }
            7 => {
                let value = u32::from(!self.flip(3));
                self.bench.lan.write(Register::QrxCtrl(queue), value);
            }
            8 => {
                let tail = self.index();
                self.bench.lan.write(Register::QrxTail(queue), tail);
            }
            9 if self.flip(100) => {
                let register = [Register::GlMdetRx, Register::GlMdetTxPqm, Register::GlMdetTxTclan];
                register.into_iter().for_each(|register| self.bench.write(register, u32::MAX));
            }
            _ => {
                let mut frame = self.frames[self.dice.random_range(0..self.frames.len())].clone();
                if self.flip(3) {
                    let at = self.dice.random_range(0..frame.len());
                    frame[at] = self.dice.random();
                }
                frame.truncate(self.dice.random_range(14..=frame.len()));
                let Ok(layers) = Layers::parse(&frame) else { return };
                let offload = RxOffload { strip_tag: self.flip(2), hash: None };
                let guest = (&self.bench.memory, &mut self.bench.monitor);
                self.bench.lan.receive(guest, (VSI, queue), &frame, &layers, offload);
            }
        }
    }

    fn settle(&mut self) {
        for _ in 0..200 {
            let mut out = Vec::new();
            let guest = (&self.bench.memory, &mut self.bench.monitor);
            if self.bench.lan.poll_frame(guest, &mut out).is_none() {
                assert!(out.is_empty(), "the buffer must stay empty if no frame is sent");
                break;
            }
            self.sent += 1;
            assert!((60..=9724).contains(&out.len()), "a frame of {} bytes was sent", out.len());
        }
        let causes = self.bench.lan.take_causes();
        assert!(causes.len() <= 2 * usize::from(QUEUES));
        self.violations += usize::from(self.bench.lan.take_malicious());
    }

    /// Sends and receives a frame on the bystander's queues.
    fn bystander(&mut self) {
        let memory = &self.bench.memory;
        let mark = self.round.to_le_bytes();
        let frame: Vec<u8> =
            [&[2; 12][..], &[0x88, 0xb5], &mark].concat().into_iter().chain([7; 50]).collect();
        let (slot, next) = (u64::from(self.round % 64), u32::from((self.round + 1) % 64));
        memory.poke(BYSTANDER_BUFFER, &frame);
        let second: u64 = (frame.len() as u64) << 34 | 3 << 4;
        let descriptor = [BYSTANDER_BUFFER.to_le_bytes(), second.to_le_bytes()];
        memory.poke(BYSTANDER_TRANSMIT + slot * 16, descriptor.as_flattened());
        memory.poke(BYSTANDER_RECEIVE + slot * 32, (BYSTANDER_BUFFER + 0x1000).to_le_bytes().as_slice());
        self.bench.write(Register::QtxCommDbell(BYSTANDER), next);
        self.bench.write(Register::QrxTail(BYSTANDER), next);

        // The queues are served round-robin, so poll until the bystander's frame appears.
        let sent = (0..500).find_map(|_| {
            let mut out = Vec::new();
            let guest = (&self.bench.memory, &mut self.bench.monitor);
            self.bench.lan.poll_frame(guest, &mut out);
            (out == frame).then_some(out)
        });
        assert!(sent.is_some(), "round {}: the bystander's frame must be sent", self.round);
        let layers = Layers::parse(&frame).unwrap();
        let guest = (&self.bench.memory, &mut self.bench.monitor);
        let offload = RxOffload { strip_tag: false, hash: None };
        self.bench.lan.receive(guest, (VSI, BYSTANDER), &frame, &layers, offload);
        let mut received = vec![0; frame.len()];
        self.bench.memory.read(Iova::new(BYSTANDER_BUFFER + 0x1000), &mut received).unwrap();
        assert_eq!(received, frame, "round {}: the bystander must receive its frame", self.round);
        self.round += 1;
    }
}

#[test]
fn hostile_driver_harms_only_its_own_queues() {
    for seed in 0..8 {
        println!("seed {seed}");
        let mut hostile = Hostile::new(seed);
        for step in 0..4000 {
            hostile.act();
            if step % 3 == 0 {
                hostile.settle();
            }
            if step % 100 == 0 {
                hostile.bystander();
            }
        }
        let received =
            hostile.bench.read(Register::GlvUprc(VSI)) + hostile.bench.read(Register::GlvMprc(VSI));
        let (sent, violations) = (hostile.sent, hostile.violations);
        println!("sent {sent}, received {received}, violations {violations}");
        assert!(
            sent > 100 && received > 100 && violations > 100,
            "the run must exercise transmission, reception and violations"
        );
    }
}
