//! The sending side of RMPP, which transfers tables to the guest.

use std::collections::VecDeque;
use std::time::Duration;

use engine::Instant;
use protocol::ids::Qpn;
use protocol::mad::header::Header;
use protocol::mad::rmpp::{self, Rmpp};
use protocol::mad::sa::{DATA_LEN, SA_HEADER_LEN, SaMad};
use protocol::mad::{Mad, MadStatus};

use super::Records;

/// Maximum number of transfers. At the limit, a new transfer replaces the oldest.
const MAX_TRANSFERS: usize = 16;

/// Maximum total length of all transfers in bytes. The oldest transfers are dropped to stay within this
/// limit. A single table that exceeds the limit is rejected.
const MAX_BYTES: usize = 1 << 20;

/// Maximum number of segments sent per acknowledgement. The kernel opens a window of 64 segments and acknowledges the
/// last one.
const MAX_BURST: u32 = 64;

/// Retransmission timeout. A transfer is dropped after `TRIES` consecutive timeouts.
const TIMEOUT: Duration = Duration::from_secs(1);
const TRIES: u8 = 4;

#[derive(Clone, Debug)]
struct Transfer {
    to: Qpn,
    /// Headers common to all segments.
    template: Mad,
    tid: u64,
    payload: Vec<u8>,
    acknowledged: u32,
    sent: u32,
    /// Number of the last segment that may be sent.
    window: u32,
    deadline: Instant,
    tries: u8,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Transfers {
    all: VecDeque<Transfer>,
}

impl Transfers {
    /// Starts sending a table and appends its first segment to `out`. The receiver's acknowledgement opens the window.
    ///
    /// # Errors
    /// Fails with NO_RESOURCES (section 15.2.4) if the table is too large.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        to: Qpn,
        template: Mad,
        records: &Records,
        out: &mut Vec<Mad>,
    ) -> Result<(), MadStatus> {
        let stride = records.layout.stride();
        if records.all.len().saturating_mul(stride) > MAX_BYTES {
            return Err(MadStatus::NO_RESOURCES);
        }
        let payload = records
            .all
            .iter()
            .flat_map(|record| record.iter().copied().chain(std::iter::repeat(0)).take(stride));
        let mut template = template;
        let words = u16::try_from(stride / 8).unwrap_or(0);
        SaMad::of_mut(&mut template).set_attribute_offset(words);
        let mut transfer = Transfer {
            to,
            tid: protocol::mad::header(&template).tid,
            template,
            payload: payload.collect(),
            acknowledged: 0,
            sent: 0,
            window: 1,
            deadline: now + TIMEOUT,
            tries: TRIES,
        };
        transfer.send(|mad| out.push(mad));
        self.all.retain(|other| (other.to, other.tid) != (transfer.to, transfer.tid));
        while self.all.len() >= MAX_TRANSFERS || self.bytes() + transfer.payload.len() > MAX_BYTES {
            if self.all.pop_front().is_none() {
                break;
            }
        }
        self.all.push_back(transfer);
        Ok(())
    }

    fn bytes(&self) -> usize {
        self.all.iter().map(|transfer| transfer.payload.len()).sum()
    }

    /// Handles an RMPP packet from the receiver.
    pub(super) fn handle(
        &mut self,
        now: Instant,
        from: Qpn,
        header: &Header,
        rmpp: &Rmpp,
        out: &mut Vec<Mad>,
    ) {
        let Some(at) = self.all.iter().position(|transfer| (transfer.to, transfer.tid) == (from, header.tid))
        else {
            return;
        };
        let Some(transfer) = self.all.get_mut(at) else { return };
        let continues = rmpp.kind == rmpp::ACK && transfer.acknowledge(now, rmpp);
        if continues {
            transfer.send(|mad| out.push(mad));
        } else if matches!(rmpp.kind, rmpp::ACK | rmpp::STOP | rmpp::ABORT) {
            self.all.remove(at);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.all.iter().map(|transfer| transfer.deadline).min()
    }

    /// Handles the timeout of one transfer: retransmits unacknowledged segments, or drops the transfer after too many
    /// timeouts. If other transfers have timed out as well, [`Transfers::next_deadline`] remains in the past.
    // Only one per call, because the segments of two transfers would leave no room for other outputs in `MAX_OUTPUTS`.
    pub(super) fn handle_deadline(&mut self, now: Instant, out: &mut Vec<(Qpn, Mad)>) {
        let Some(at) = self.all.iter().position(|transfer| transfer.deadline <= now) else { return };
        let Some(transfer) = self.all.get_mut(at) else { return };
        transfer.tries = transfer.tries.saturating_sub(1);
        if transfer.tries == 0 {
            self.all.remove(at);
            return;
        }
        transfer.deadline = now + TIMEOUT;
        transfer.sent = transfer.acknowledged;
        let to = transfer.to;
        transfer.send(|mad| out.push((to, mad)));
    }
}

impl Transfer {
    /// Returns the number of segments. An empty table has one segment.
    fn segments(&self) -> u32 {
        u32::try_from(self.payload.len().div_ceil(DATA_LEN)).unwrap_or(u32::MAX).max(1)
    }

    /// Handles an acknowledgement. Returns false if it is invalid or completes the transfer.
    fn acknowledge(&mut self, now: Instant, rmpp: &Rmpp) -> bool {
        // Acknowledging a segment that was not sent is an error, and so is a window that ends before the acknowledged
        // segment (section 13.6.2.3).
        if rmpp.segment > self.sent || rmpp.length_or_window < rmpp.segment {
            return false;
        }
        if rmpp.segment > self.acknowledged {
            self.acknowledged = rmpp.segment;
            self.tries = TRIES;
        }
        self.window = self.window.max(rmpp.length_or_window);
        self.deadline = now + TIMEOUT;
        self.acknowledged < self.segments()
    }

    /// Sends the segments permitted by the window.
    fn send(&mut self, mut out: impl FnMut(Mad)) {
        let end = self.segments().min(self.window).min(self.acknowledged.saturating_add(MAX_BURST));
        while self.sent < end {
            self.sent += 1;
            out(self.segment(self.sent));
        }
    }

    /// Builds segment `number`, counted from 1.
    fn segment(&self, number: u32) -> Mad {
        let at = usize::try_from(number - 1).unwrap_or(usize::MAX).saturating_mul(DATA_LEN);
        let rest = self.payload.get(at..).unwrap_or_default();
        let data = rest.get(..DATA_LEN).unwrap_or(rest);
        let segments = self.segments();
        let (first, last) = (number == 1, number == segments);
        // In the first segment, PayloadLength covers the whole table and the SA headers of all segments. In the last or
        // only segment, it covers just that segment.
        let length = match (first, last) {
            (_, true) => SA_HEADER_LEN + data.len(),
            (true, false) => {
                self.payload.len() + SA_HEADER_LEN * usize::try_from(segments).unwrap_or(usize::MAX)
            }
            (false, false) => 0,
        };
        let mut mad = self.template;
        let sa = SaMad::of_mut(&mut mad);
        sa.set_rmpp(&Rmpp {
            version: rmpp::VERSION,
            kind: rmpp::DATA,
            resp_time: 31,
            first,
            last,
            active: true,
            status: 0,
            segment: number,
            length_or_window: u32::try_from(length).unwrap_or(u32::MAX),
        });
        sa.data = [0; DATA_LEN];
        for (to, from) in sa.data.iter_mut().zip(data) {
            *to = *from;
        }
        mad
    }
}

#[cfg(test)]
mod tests {
    use protocol::mad::record;

    use super::*;

    /// Starts a transfer of `paths` PathRecords with transaction ID `number`.
    fn begin(transfers: &mut Transfers, number: u64, paths: usize) -> Result<(), MadStatus> {
        let mut template = [0; 256];
        protocol::mad::set_header(&mut template, &Header { tid: number, ..Header::default() });
        let records = Records { layout: &record::PATH, all: vec![vec![0; record::PATH.len]; paths] };
        let mut out = Vec::new();
        transfers.begin(Instant::ZERO, Qpn::new(1), template, &records, &mut out)?;
        assert_eq!(out.len(), 1, "only the first segment is sent before an acknowledgement");
        Ok(())
    }

    fn under_way(transfers: &Transfers) -> Vec<u64> {
        transfers.all.iter().map(|transfer| transfer.tid).collect()
    }

    #[test]
    fn oldest_transfer_is_dropped_at_limit() {
        let mut transfers = Transfers::default();
        (0..20).for_each(|number| begin(&mut transfers, number, 1).unwrap());
        assert_eq!(under_way(&transfers), (4..20).collect::<Vec<_>>());

        let third = MAX_BYTES / 3 / record::PATH.stride();
        (20..24).for_each(|number| begin(&mut transfers, number, third).unwrap());
        assert_eq!(under_way(&transfers), [21, 22, 23]);
        begin(&mut transfers, 22, third).unwrap();
        assert_eq!(under_way(&transfers), [21, 23, 22], "a repeated query restarts its transfer");

        let most = MAX_BYTES / record::PATH.stride();
        assert_eq!(begin(&mut transfers, 24, most + 1), Err(MadStatus::NO_RESOURCES));
        assert_eq!(under_way(&transfers), [21, 23, 22], "a rejected transfer uses no space");
        begin(&mut transfers, 24, most).unwrap();
        assert_eq!(under_way(&transfers), [24]);
    }
}
