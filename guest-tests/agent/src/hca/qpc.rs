//! The QP context image: the mailbox of the MODIFY_QP commands and QUERY_QP.
//!
//! The driver keeps one image per queue pair. For each transition, it changes the affected fields and sends the whole
//! image, as the public driver (`ib_hgrnic`) does.
//!
//! # Spec
//! JingZhao interface, sections 4.3 and 10.2 to 10.6; vector 14.7.

use anyhow::Result;

use super::layout::{get32, put32};
use crate::error::bad_step;
use crate::wire::{Changes, Hex, Path, QpAttributes, Service};

/// Length of the image in bytes.
pub(crate) const LEN: usize = 0xc0;

/// Attribute bits of opt_param_mask, numbered as in the interface document.
mod mask {
    pub(super) const EN_SQD_ASYNC_NOTIFY: u32 = 1 << 2;
    pub(super) const ACCESS_FLAGS: u32 = 1 << 3;
    pub(super) const PKEY_INDEX: u32 = 1 << 4;
    pub(super) const PORT: u32 = 1 << 5;
    pub(super) const QKEY: u32 = 1 << 6;
    pub(super) const AV: u32 = 1 << 7;
    pub(super) const PATH_MTU: u32 = 1 << 8;
    pub(super) const TIMEOUT: u32 = 1 << 9;
    pub(super) const RETRY_CNT: u32 = 1 << 10;
    pub(super) const RNR_RETRY: u32 = 1 << 11;
    pub(super) const RQ_PSN: u32 = 1 << 12;
    pub(super) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(super) const SQ_PSN: u32 = 1 << 16;
    pub(super) const DEST_QPN: u32 = 1 << 20;
}

/// State codes, as encoded in the image of a MODIFY_QP command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Sqd = 5,
}

/// Log2 of the largest message size, 2^31 bytes.
const LOG_MAX_MESSAGE: u32 = 31;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) cqn: u32,
    /// lkey of the queue's buffer.
    pub(crate) lkey: u32,
    /// Length of the buffer in bytes.
    pub(crate) len: u32,
    /// Log2 of the slot size in bytes.
    pub(crate) log_slot: u8,
}

/// Attributes that never change during the lifetime of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fixed {
    pub(crate) service: Service,
    pub(crate) qpn: u32,
    pub(crate) pd: u32,
    pub(crate) uar_page: u16,
    pub(crate) sq: Queue,
    pub(crate) rq: Queue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Image(pub(crate) [u8; LEN]);

impl Image {
    /// Creates an image with only the fixed fields.
    pub(crate) fn new(fixed: &Fixed) -> Self {
        let service = match fixed.service {
            Service::Rc => 0,
            Service::Uc => 1,
            Service::Ud => 3,
        };
        let mut image = Self([0; LEN]);
        image.put(0x08, service << 16);
        let slots = u32::from(fixed.rq.log_slot) << 16 | u32::from(fixed.sq.log_slot) << 8;
        image.put(0x0c, LOG_MAX_MESSAGE << 24 | slots);
        image.put(0x10, u32::from(fixed.uar_page));
        image.put(0x14, fixed.qpn);
        image.put(0x5c, fixed.pd);
        image.put(0x64, fixed.sq.lkey);
        for (offset, queue) in [(0x70, fixed.sq), (0x8c, fixed.rq)] {
            image.put(offset, queue.cqn);
            image.put(offset + 4, queue.lkey);
            image.put(offset + 8, queue.len);
        }
        image
    }

    pub(crate) fn prepare_init(&mut self, pkey_index: u8, qkey: u32) {
        self.start(State::Init, mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS | mask::QKEY);
        self.set_pkey_index(pkey_index);
        self.put(0x98, qkey);
    }

    pub(crate) fn prepare_rtr(
        &mut self,
        remote_qpn: u32,
        mtu: u16,
        psn: u32,
        rnr_timer: u8,
        path: &Path,
    ) -> Result<()> {
        self.start(
            State::Rtr,
            mask::AV | mask::PATH_MTU | mask::DEST_QPN | mask::RQ_PSN | mask::MIN_RNR_TIMER,
        );
        self.0[0x0c] = mtu_code(mtu)? << 5 | (self.0[0x0c] & 0x1f);
        self.put(0x18, remote_qpn & 0xff_ffff);
        self.put(0x84, u32::from(rnr_timer & 0x1f) << 24 | psn & 0xff_ffff);
        self.set_path(path)
    }

    pub(crate) fn prepare_rts(&mut self, psn: u32, timeout: u8, retry: u8, rnr_retry: u8) {
        self.start(State::Rts, mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::SQ_PSN);
        self.set_retries(Some(timeout), Some(retry), Some(rnr_retry));
        self.put(0x6c, psn & 0xff_ffff);
        self.put(0x7c, psn & 0xff_ffff);
    }

    pub(crate) fn prepare_sqd(&mut self, notify: bool) {
        self.start(State::Sqd, if notify { mask::EN_SQD_ASYNC_NOTIFY } else { 0 });
    }

    /// Prepares a transition that changes only the attributes in `changes`.
    pub(crate) fn prepare_changes(&mut self, next: State, changes: &Changes) -> Result<()> {
        let Changes { pkey_index, qkey, rnr_timer, timeout, retry, rnr_retry, path } = *changes;
        let bits = [
            (pkey_index.is_some(), mask::PKEY_INDEX),
            (qkey.is_some(), mask::QKEY),
            (rnr_timer.is_some(), mask::MIN_RNR_TIMER),
            (timeout.is_some(), mask::TIMEOUT),
            (retry.is_some(), mask::RETRY_CNT),
            (rnr_retry.is_some(), mask::RNR_RETRY),
            (path.is_some(), mask::AV),
        ];
        self.start(next, bits.into_iter().filter(|(given, _)| *given).fold(0, |all, (_, bit)| all | bit));
        pkey_index.into_iter().for_each(|index| self.set_pkey_index(index));
        qkey.into_iter().for_each(|qkey| self.put(0x98, qkey));
        rnr_timer.into_iter().for_each(|timer| self.0[0x84] = timer & 0x1f);
        self.set_retries(timeout, retry, rnr_retry);
        path.iter().try_for_each(|path| self.set_path(path))
    }

    fn set_pkey_index(&mut self, index: u8) {
        const PORT: u32 = 1 << 24;
        self.put(0x1c, PORT | u32::from(index & 0x7f));
    }

    fn set_retries(&mut self, timeout: Option<u8>, retry: Option<u8>, rnr_retry: Option<u8>) {
        // The RNR retry count and the timeout can be in either the upper or the lower bits of their bytes (interface
        // document, J-14). This driver uses the upper bits.
        rnr_retry.into_iter().for_each(|count| self.0[0x20] = (count & 7) << 5);
        timeout.into_iter().for_each(|code| self.0[0x24] = (code & 0x1f) << 3);
        retry.into_iter().for_each(|count| self.put(0x68, u32::from(count & 7) << 16));
    }

    fn set_path(&mut self, path: &Path) -> Result<()> {
        let local = |lid: Option<u16>, mac: Option<[u8; 6]>, what| match (lid, mac) {
            (Some(_), Some(_)) => Err(bad_step(format!("{what} LID and MAC share a field"))),
            (Some(lid), None) => Ok((lid, 0)),
            (None, Some([a, b, c, d, e, f])) => {
                Ok((u16::from_be_bytes([e, f]), u32::from_be_bytes([a, b, c, d])))
            }
            (None, None) => Ok((0, 0)),
        };
        let (destination, dmac) = local(path.dlid, path.dmac, "destination")?;
        let (source, smac) = local(path.slid, path.smac, "source")?;
        self.put(0x28, u32::from(path.sl & 0xf) << 28);
        self.put(0x3c, u32::from(destination) << 16 | u32::from(source));
        self.put(0x40, smac);
        self.put(0x44, dmac);
        self.put(0x48, path.sip.map_or(0, u32::from));
        self.put(0x4c, path.dip.map_or(0, u32::from));
        self.0[0x2c..0x3c].copy_from_slice(&path.dgid.unwrap_or_default());
        self.0[0x21] = if path.dgid.is_some() { 0x80 } else { 0 };
        Ok(())
    }

    fn start(&mut self, next: State, mask: u32) {
        self.put(0x00, mask);
        self.put(0x08, self.get(0x08) & 0x0fff_ffff | (next as u32) << 28);
    }

    fn put(&mut self, offset: usize, value: u32) {
        put32(&mut self.0, offset, value);
    }

    fn get(&self, offset: usize) -> u32 {
        get32(&self.0, offset)
    }
}

/// Parses the output mailbox of QUERY_QP.
pub(crate) fn attributes(outbox: Vec<u8>) -> QpAttributes {
    let word = |offset| get32(&outbox, offset);
    let byte = |offset: usize| outbox.get(offset).copied().unwrap_or(0);
    QpAttributes {
        state: byte(0x08) >> 4,
        mtu_code: byte(0x0c) >> 5,
        remote_qpn: word(0x18) & 0xff_ffff,
        next_send_psn: word(0x6c) & 0xff_ffff,
        unacked_psn: word(0x7c) & 0xff_ffff,
        expected_psn: word(0x84) & 0xff_ffff,
        raw: Hex(outbox),
    }
}

fn mtu_code(bytes: u16) -> Result<u8> {
    match bytes {
        256 => Ok(1),
        512 => Ok(2),
        1024 => Ok(3),
        2048 => Ok(4),
        4096 => Ok(5),
        _ => Err(bad_step(format!("{bytes} is not a path MTU (256 to 4096, a power of two)"))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_bytes::hex;
    use super::*;

    fn fixed() -> Fixed {
        Fixed {
            service: Service::Rc,
            qpn: 5,
            pd: 3,
            uar_page: 1,
            sq: Queue { cqn: 1, lkey: 0x21, len: 0x4000, log_slot: 7 },
            rq: Queue { cqn: 2, lkey: 0x22, len: 0x4000, log_slot: 7 },
        }
    }

    #[test]
    fn init2rtr_matches_specification_vector() {
        let mut image = Image::new(&fixed());
        image.prepare_init(0, 0);
        image.prepare_rtr(9, 1024, 0x12_3456, 12, &Path::default()).unwrap();
        // The vector contains the public driver's mask, so use that mask here.
        image.put(0, 0x40);
        let mut expected = hex("00 00 00 40 00 00 00 00 20 00 00 00 7F 07 07 00
             00 00 00 01 00 00 00 05 00 00 00 09 01 00 00 00");
        expected.resize(0x50, 0);
        expected.extend(hex("00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 03
             00 00 00 00 00 00 00 21 00 00 00 00 00 00 00 00
             00 00 00 01 00 00 00 21 00 00 40 00 00 00 00 00
             00 00 00 00 0C 12 34 56 00 00 00 00 00 00 00 02
             00 00 00 22 00 00 40 00 00 00 00 00 00 00 00 00"));
        expected.resize(LEN, 0);
        assert_eq!(image.0.as_slice(), expected);
    }

    #[test]
    fn macs_and_ips_fill_address_words() {
        let mut image = Image::new(&fixed());
        let path = Path {
            dmac: Some([0x02, 0, 0, 0, 0x12, 0x34]),
            smac: Some([0x02, 0, 0, 0, 0x56, 0x78]),
            dip: Some([10, 77, 0, 2].into()),
            sip: Some([10, 77, 0, 1].into()),
            ..Path::default()
        };
        image.prepare_rtr(9, 256, 0, 0, &path).unwrap();
        let expected = hex("12 34 56 78 02 00 00 00 02 00 00 00 0A 4D 00 01 0A 4D 00 02");
        assert_eq!(image.0[0x3c..0x50], expected);
    }

    #[test]
    fn rtr2rts_writes_psns_and_retry_fields() {
        let mut image = Image::new(&fixed());
        image.prepare_rts(0xff_fff0, 14, 5, 3);
        assert_eq!(image.0[0x6c..0x70], [0, 0xff, 0xff, 0xf0]);
        assert_eq!(image.0[0x7c..0x80], [0, 0xff, 0xff, 0xf0]);
        assert_eq!((image.0[0x20], image.0[0x24], image.0[0x69]), (3 << 5, 14 << 3, 5));
        assert_eq!(image.0[0x08] >> 4, 3);
    }

    #[test]
    fn change_sets_only_requested_attributes() {
        let mut image = Image::new(&fixed());
        image.prepare_init(0, 0x11);
        let before = image.clone();
        let changes = Changes { qkey: Some(0x8899_aabb), rnr_timer: Some(7), ..Changes::default() };
        image.prepare_changes(State::Sqd, &changes).unwrap();
        assert_eq!(image.0[0x00..0x04], [0x00, 0x00, 0x80, 0x40]);
        assert_eq!((image.0[0x08] >> 4, image.0[0x84]), (5, 7));
        assert_eq!(image.0[0x98..0x9c], [0x88, 0x99, 0xaa, 0xbb]);
        assert_eq!(image.0[0x0c..0x84], before.0[0x0c..0x84]);
    }

    #[test]
    fn rts2sqd_mask_requests_drain_event() {
        let mut image = Image::new(&fixed());
        image.prepare_sqd(true);
        assert_eq!((image.0[0x03], image.0[0x08] >> 4), (4, 5));
        image.prepare_sqd(false);
        assert_eq!(image.0[0x03], 0);
    }
}
