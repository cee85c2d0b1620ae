//! A model of the user library, based on `public-driver.md`. A program has one QP and one CQ.

use drivers::jingzhao::{data_unit, remote_unit};

use super::super::Machine;
use super::driver::{
    CONTEXT, CQC, Driver, LOCAL_WRITE, MAILBOX, QPC, REMOTE_READ, REMOTE_WRITE, Region, put32,
};

pub(super) const RC: u32 = 0;
pub(super) const UC: u32 = 1;
pub(super) const UD: u32 = 3;

pub(super) const SEND: u8 = 0x0a;
pub(super) const SEND_IMM: u8 = 0x0b;
pub(super) const WRITE: u8 = 0x08;
pub(super) const WRITE_IMM: u8 = 0x09;
pub(super) const READ: u8 = 0x10;

#[derive(Clone, Copy)]
pub(super) struct Caps {
    pub(super) service: u32,
    pub(super) max_wr: u32,
    /// Maximum number of receives; 0 means the same as the maximum number of sends.
    pub(super) max_recv: u32,
    pub(super) max_recv_sges: usize,
    pub(super) max_inline: u32,
    pub(super) log_cqes: u32,
    /// Log2 of the maximum message length of RC and UC QPs. The public driver always writes 31, the
    /// default here.
    pub(super) log_max_msg: u8,
}

impl Caps {
    fn receives(&self) -> u32 {
        if self.max_recv == 0 { self.max_wr } else { self.max_recv }
    }
}

impl Default for Caps {
    fn default() -> Self {
        Self {
            service: RC,
            max_wr: 4,
            max_recv: 0,
            max_recv_sges: 7,
            max_inline: 0,
            log_cqes: 4,
            log_max_msg: 31,
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Wr {
    pub(super) opcode: u8,
    pub(super) imm: [u8; 4],
    pub(super) remote: Option<(u64, u32)>,
    /// Remote QPN and Q_Key.
    pub(super) to: Option<(u32, u32)>,
    /// Elements, each an address in the program's data region and a length.
    pub(super) sges: Vec<(u64, u32)>,
    pub(super) inline: Option<Vec<u8>>,
    pub(super) fence: bool,
    /// Whether to post the request without requesting a completion.
    pub(super) unsignalled: bool,
}

/// A ring of WQEs. The number of slots is a power of two.
struct Ring {
    region: Region,
    log_slot: u32,
    slots: u32,
    /// Number of WQEs posted since RESET.
    head: u32,
}

impl Ring {
    fn at(&self, index: u32) -> u64 {
        u64::from(index & (self.slots - 1)) << self.log_slot
    }
}

pub(super) struct Program {
    pub(super) driver: Driver,
    pub(super) caps: Caps,
    pub(super) data: Region,
    pub(super) pd: u32,
    library_pd: u32,
    pub(super) uar: u32,
    pub(super) cqn: u32,
    pub(super) log_cqes: u32,
    cq: Region,
    consumer: u32,
    pub(super) qpn: u32,
    sq: Ring,
    rq: Ring,
}

impl Program {
    /// Opens the device and creates all objects, but does not connect the QP.
    pub(super) fn start(driver: Driver, caps: Caps) -> Self {
        let mut driver = driver;
        let uar = driver.next_uar;
        driver.next_uar += 1;
        let (library_pd, pd) = (driver.pdns.alloc(), driver.pdns.alloc());
        let access = LOCAL_WRITE | REMOTE_WRITE | REMOTE_READ;
        let data = driver.register(pd, 0x7f00_0000_0678, 0x9000, access);

        let cqn = driver.cqns.alloc();
        let cq = cq_buffer(&mut driver, library_pd, caps.log_cqes);
        driver.use_chunk(CONTEXT, CQC + u64::from(driver.cqns.index(cqn)) * 64);
        driver.sw2hw_cq(cqn, caps.log_cqes, library_pd, cq.key);

        let log_slot = (16 + 16 + caps.max_inline.max(32) + 4).next_power_of_two().ilog2().max(7);
        let ring = |driver: &mut Driver, max_wr: u32, log_slot| {
            let slots = max_wr.next_power_of_two();
            let region = driver.register(pd, 0, u64::from(slots) << log_slot, 0);
            Ring { region, log_slot, slots, head: 0 }
        };
        let (rq, sq) = (ring(&mut driver, caps.receives(), 7), ring(&mut driver, caps.max_wr, log_slot));
        let qpn = driver.qpns.alloc();
        driver.use_chunk(CONTEXT, QPC + u64::from(driver.qpns.index(qpn)) * 256);
        let log_cqes = caps.log_cqes;
        let mut program =
            Self { driver, caps, data, pd, library_pd, uar, cqn, log_cqes, cq, consumer: 0, qpn, sq, rq };
        program.modify(0x19, 1, None);
        program
    }

    /// Moves the QP from INIT to RTS, connected to a peer.
    pub(super) fn connect(&mut self, remote: u32) {
        self.modify(0x1a, 2, Some(remote));
        self.modify(0x1b, 3, Some(remote));
    }

    /// Issues a command with the QP's entire context. The bytes after the context are undefined.
    fn modify(&mut self, op: u32, state: u32, remote: Option<u32>) {
        self.driver.machine.poke(MAILBOX + 0xa4, &[0xa5; 0x5c]);
        let Self { caps, driver, .. } = self;
        let mut context = [0; 0xa4];
        let given = match op {
            // RST2INIT sets the port, and INIT2RTR sets the RNR timer.
            0x19 => 1 << 11,
            0x1a => 1 << 6,
            _ => 0,
        };
        put32(&mut context, 0x00, given);
        put32(&mut context, 0x08, state << 28 | caps.service << 16);
        context[0x0c] = match (state, caps.service) {
            (1, _) => 0,
            (_, UD) => 5 << 5 | 11,
            _ => 3 << 5 | caps.log_max_msg,
        };
        // The slot size in the context is always 128 bytes. The library's slots grow with inline data and may be
        // larger.
        (context[0x0d], context[0x0e]) = (7, 7);
        put32(&mut context, 0x10, self.uar);
        put32(&mut context, 0x14, driver.qpns.index(self.qpn));
        put32(&mut context, 0x18, remote.map_or(0, |remote| driver.qpns.index(remote)));
        put32(&mut context, 0x1c, 1 << 24);
        put32(&mut context, 0x5c, self.pd);
        put32(&mut context, 0x64, self.sq.region.key);
        put32(&mut context, 0x6c, if state == 3 { 0xff_fff0 } else { 0 });
        put32(&mut context, 0x70, self.cqn);
        put32(&mut context, 0x74, self.sq.region.key);
        put32(&mut context, 0x78, caps.max_wr << 7);
        put32(&mut context, 0x7c, if state == 3 { 0xff_fff0 } else { 0 });
        put32(&mut context, 0x84, if state == 1 { 0 } else { 0xff_fff0 });
        put32(&mut context, 0x8c, self.cqn);
        put32(&mut context, 0x90, self.rq.region.key);
        put32(&mut context, 0x94, caps.receives() << 7);
        driver.with_inbox(&context);
        assert_eq!(driver.command(op, 0, MAILBOX, self.qpn, 0), 0, "MODIFY_QP {op:#x}");
    }

    /// Moves the QP to ERR. Like the other state changes, this command has a context in its mailbox.
    pub(super) fn fail(&mut self) {
        self.modify(0x1e, 6, None);
    }

    /// Moves the QP to RESET and then to INIT. The library restarts its rings without clearing them.
    pub(super) fn restart(&mut self) {
        self.modify(0x21, 0, None);
        (self.sq.head, self.rq.head) = (0, 0);
        self.modify(0x19, 1, None);
    }

    /// Advances the empty send ring as if `head` WQEs had been posted since RESET.
    pub(super) fn age(&mut self, head: u32) {
        assert_eq!((self.sq.head, head % self.sq.slots), (0, 0));
        self.sq.head = head;
    }

    /// Calls `ibv_destroy_qp`, `ibv_destroy_cq` and `ibv_dereg_mr`, and returns the driver.
    pub(super) fn end(self) -> Driver {
        let Self { mut driver, .. } = self;
        driver.with_inbox(&[0; 0x100]);
        assert_eq!(driver.command(0x21, 0, MAILBOX, self.qpn, 0), 0, "2RST_QP");
        let index = u64::from(driver.qpns.index(self.qpn));
        driver.qpns.free(self.qpn);
        driver.release_chunk(CONTEXT, QPC + index * 256);
        assert_eq!(driver.command(0x17, 0, 0, self.cqn, 0), 0, "HW2SW_CQ");
        let index = u64::from(driver.cqns.index(self.cqn));
        driver.cqns.free(self.cqn);
        driver.release_chunk(CONTEXT, CQC + index * 64);
        for region in [&self.rq.region, &self.sq.region, &self.cq, &self.data] {
            driver.deregister(region);
        }
        driver.pdns.free(self.pd);
        driver.pdns.free(self.library_pd);
        driver
    }

    /// Resizes the CQ. The library copies the completions that it has not polled yet.
    pub(super) fn resize_cq(&mut self, log_cqes: u32) {
        let new = cq_buffer(&mut self.driver, self.library_pd, log_cqes);
        let mut inbox = [0; 0x40];
        inbox[0] = u8::try_from(log_cqes).unwrap();
        put32(&mut inbox, 4, new.key);
        self.driver.with_inbox(&inbox);
        assert_eq!(self.driver.command(0x2c, 1, MAILBOX, self.cqn, 0), 0, "RESIZE_CQ");
        let mut index = self.consumer;
        while let Some(entry) = self.entry(index) {
            let at = u64::from(index & ((1 << log_cqes) - 1)) * 32;
            self.driver.put(&new.buffer, at, &entry);
            index += 1;
        }
        self.driver.deregister(&self.cq);
        (self.cq, self.log_cqes) = (new, log_cqes);
    }

    /// Posts a linked list of work requests with one doorbell.
    pub(super) fn post_send(&mut self, list: &[Wr]) {
        self.write_sends(list);
        let [first, ..] = list else { return };
        let size = self.wqe(first).len() / 16;
        let head = self.sq.head.wrapping_sub(u32::try_from(list.len()).unwrap());
        let low =
            (head << (self.sq.log_slot - 4)) << 8 | u32::from(first.fence) << 5 | u32::from(first.opcode);
        let high = self.qpn << 8 | u32::try_from(size).unwrap();
        self.driver.machine.ring_doorbell(self.uar.into(), [low, high]);
    }

    /// Writes the WQEs of a list. The last WQE keeps the stale link of its slot.
    fn write_sends(&mut self, list: &[Wr]) {
        let mut previous = None;
        for wr in list {
            let wqe = self.wqe(wr);
            let at = self.sq.at(self.sq.head);
            self.driver.put(&self.sq.region.buffer, at + 8, &wqe[8..]);
            if let Some(previous) = previous {
                let next = u32::try_from(at / 16).unwrap() << 6 | u32::from(wr.opcode);
                let size = u32::try_from(wqe.len() / 16).unwrap();
                let link = [next, 0x80 | u32::from(wr.fence) << 6 | size].map(u32::to_le_bytes).concat();
                self.driver.put(&self.sq.region.buffer, previous, &link);
            }
            previous = Some(at);
            self.sq.head = self.sq.head.wrapping_add(1);
        }
    }

    fn wqe(&self, wr: &Wr) -> Vec<u8> {
        let flags: u32 = if wr.unsignalled { 0 } else { 8 };
        let mut wqe = [&[0; 8][..], &flags.to_le_bytes(), &wr.imm].concat();
        if let Some((va, rkey)) = wr.remote {
            wqe.extend(remote_unit(rkey, va));
        }
        if let Some((qpn, qkey)) = wr.to {
            // The destination LID is 1010h, the LID of every port here. The library does not write the MAC and IP
            // addresses in the unit, which keep stale bytes.
            let mut unit = [0xee; 48];
            unit[..4].copy_from_slice(&(1 << 24 | self.pd).to_le_bytes());
            unit[4..8].copy_from_slice(&[0, 0, 0x10, 0x10]);
            unit[0x20..0x24].copy_from_slice(&qpn.to_le_bytes());
            unit[0x24..0x28].copy_from_slice(&qkey.to_le_bytes());
            wqe.extend(unit);
        }
        for (va, len) in &wr.sges {
            wqe.extend(self.data_unit(*va, *len));
        }
        if let Some(bytes) = &wr.inline {
            wqe.extend((1 << 31 | u32::try_from(bytes.len()).unwrap()).to_le_bytes());
            wqe.extend(bytes);
            wqe.resize(wqe.len().next_multiple_of(16), 0);
        }
        wqe
    }

    fn data_unit(&self, va: u64, len: u32) -> Vec<u8> {
        data_unit(self.data.key, va, len)
    }

    /// Posts a list of receives. There is no doorbell.
    pub(super) fn post_recv(&mut self, list: &[&[(u64, u32)]]) {
        const VALID: u32 = 0x20;
        for (left, sges) in (0..list.len()).rev().zip(list) {
            let at = self.rq.at(self.rq.head);
            let next = u32::try_from(self.rq.at(self.rq.head + 1) / 16).unwrap();
            let size = u32::try_from(sges.len()).unwrap() + 1;
            let link = if left > 0 { [next << 6 | VALID, size] } else { [VALID, 0] };
            self.driver.put(&self.rq.region.buffer, at, &link.map(u32::to_le_bytes).concat());
            let mut units: Vec<u8> = sges.iter().flat_map(|(va, len)| self.data_unit(*va, *len)).collect();
            if sges.len() < self.caps.max_recv_sges {
                units.extend([0; 16]);
            }
            self.driver.put(&self.rq.region.buffer, at + 16, &units);
            self.rq.head += 1;
        }
    }

    fn entry(&mut self, index: u32) -> Option<Vec<u8>> {
        let at = u64::from(index & ((1 << self.log_cqes) - 1)) * 32;
        let entry = self.driver.get(&self.cq.buffer, at, 32);
        (entry[0x1f] & 0x80 == 0).then_some(entry)
    }

    /// Polls one completion and hands the CQE back to hardware. For a receive, also clears the head of its WQE,
    /// including the valid bit.
    pub(super) fn poll(&mut self) -> Option<Vec<u8>> {
        let entry = self.entry(self.consumer)?;
        let at = u64::from(self.consumer & ((1 << self.log_cqes) - 1)) * 32;
        self.driver.put(&self.cq.buffer, at + 0x1f, &[0x80]);
        self.consumer += 1;
        let is_send = if entry[0x1c] >= 0xfe { entry[0x1c] == 0xff } else { entry[0x1d] != 0 };
        let wqe = u32::from_le_bytes(entry[0x18..0x1c].try_into().unwrap());
        assert_eq!(entry[..4], self.qpn.to_le_bytes(), "cq_clean compares the full QPN");
        if !is_send {
            assert!(wqe >> self.rq.log_slot < self.rq.slots, "the WQE is in the receive ring");
            self.driver.put(&self.rq.region.buffer, wqe.into(), &[0; 16]);
        }
        Some(entry)
    }

    pub(super) fn put(&mut self, va: u64, bytes: &[u8]) {
        self.driver.put(&self.data.buffer, va, bytes);
    }

    pub(super) fn get(&mut self, va: u64, len: usize) -> Vec<u8> {
        self.driver.get(&self.data.buffer, va, len)
    }

    pub(super) fn machine(&mut self) -> &mut Machine {
        &mut self.driver.machine
    }

    /// Returns the bus address of the QP's context.
    pub(super) fn context(&self) -> u64 {
        self.driver.icm(CONTEXT, QPC + u64::from(self.driver.qpns.index(self.qpn)) * 256)
    }
}

/// Registers a CQ buffer in protection domain `pd`. Hardware owns all of its entries.
fn cq_buffer(driver: &mut Driver, pd: u32, log_cqes: u32) -> Region {
    let region = driver.register(pd, 0, 32 << log_cqes, LOCAL_WRITE);
    for index in 0..1 << log_cqes {
        driver.put(&region.buffer, index * 32 + 0x1f, &[0x80]);
    }
    region
}
