//! Explains what a queue pair is waiting for.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::time::Duration;

use card::frontend::snapshot::{self, QpState};
use card::hca::Explanation;
use card::telemetry::monitor::IgnoredRow;
use engine::{
    AccessError, DropReason, EndedBy, Expecting, QpStatus, Queue, Service, Status, Unanswered, WaitReason,
};

/// The queue pair does not exist or is in RESET, which leaves nothing to explain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownQpError {
    qpn: u32,
    /// Doorbells and packets that the device has ignored.
    ignored: Option<IgnoredRow>,
}

impl fmt::Display for UnknownQpError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "QP {:#x} does not exist or is in RESET", self.qpn)?;
        match &self.ignored {
            Some(IgnoredRow { count, last }) => {
                write!(f, "; ignored doorbells and packets: {count}, most recent reason: {last}")
            }
            None => Ok(()),
        }
    }
}

impl Error for UnknownQpError {}

/// Returns the lines that explain the queue pair or NIC queue with the number `qpn`.
///
/// # Errors
/// Fails if the queue does not exist or if the queue pair is in RESET.
pub fn lines(qpn: u32, explanation: &Explanation) -> Result<Vec<String>, UnknownQpError> {
    let mut lines = match (&explanation.situation, &explanation.queue) {
        (Some(situation), _) => of(qpn, situation),
        (None, Some(queue)) => queue.clone(),
        (None, None) => return Err(UnknownQpError { qpn, ignored: explanation.ignored.clone() }),
    };
    if let Some(IgnoredRow { count, last }) = &explanation.ignored {
        lines.push(format!("ignored: {}, most recent reason: {last}", times(*count)));
    }
    Ok(lines)
}

fn of(qpn: u32, situation: &QpStatus) -> Vec<String> {
    let service = match situation.service {
        // On the wire, these QPs are numbered 0 and 1, regardless of their numbers in the device.
        Service::Smi => "QP0",
        Service::Gsi => "QP1",
        other => snapshot::Service::from(other).name(),
    };
    let draining = situation.send == WaitReason::Draining;
    let state = QpState::of(situation.state, draining);
    let mut lines = vec![format!("QP {qpn:#x}: {service}, {state}")];
    if let Some(ended) = &situation.ended {
        lines.push(format!("stopped {} ago: {}", time(ended.ago), ended_by(&ended.by)));
    }
    lines.push(format!("requester: {}", requester(situation)));
    if let Some(unanswered) = &situation.unanswered {
        lines.push(format!("unanswered: {}", without_answer(unanswered)));
    }
    if situation.retransmitted > 0 {
        let count = count_of(situation.retransmitted, "packet");
        lines.push(format!("retransmitted: {count} since RESET, after ACK timeouts, NAKs and RNR NAKs"));
    }
    lines.push(format!("responder: {}", responder(situation)));
    lines.push(match situation.last_packet {
        Some(age) => format!("peer: last packet received {} ago", time(age)),
        None => "peer: no packet received yet".to_owned(),
    });
    lines
}

fn requester(situation: &QpStatus) -> String {
    match situation.send {
        WaitReason::NoSendQueue => "none: an XRC target only responds".into(),
        WaitReason::State => {
            "cannot send in this state, and doorbells are ignored; modify the QP to RTS".into()
        }
        WaitReason::Ended => "stopped; posted requests complete with a flush error".into(),
        WaitReason::NothingPosted if situation.unanswered.is_some() => {
            "all posted requests have been sent; waiting for the peer to acknowledge them".into()
        }
        WaitReason::NothingPosted => "idle: no doorbell has announced further requests".into(),
        WaitReason::Turn => "ready: waiting for its turn to send the next packet".into(),
        WaitReason::Congestion { left } => {
            format!("throttled by congestion notification packets (CNPs); resumes in {}", time(left))
        }
        WaitReason::ReceiverNotReady { left, refusals, most } => format!(
            "receiver not ready (RNR): the peer has no receive request posted; rejected {}, {}, next retry in {}",
            times(refusals.into()),
            limit(most),
            time(left)
        ),
        WaitReason::AskedAgain { refusals, most } => format!(
            "receiver not ready (RNR): rejected {}, {}; retry sent, waiting for the response",
            times(refusals.into()),
            limit(most)
        ),
        WaitReason::Credits { beyond } => format!(
            "out of credits: the next message waits until the peer advertises {}",
            count_of(beyond.into(), "more receive request")
        ),
        WaitReason::Fence { older } => format!("fence: the next request waits for {}", requests(older)),
        WaitReason::Invalidation { older } => {
            format!("local invalidate: the next request waits for {} that may use the key", requests(older))
        }
        WaitReason::Reads { most } => {
            format!("limit of outstanding READs and atomics reached (max_rd_atomic {most})")
        }
        WaitReason::ReadPieces => "long READ: the next part waits for the response to an earlier part".into(),
        WaitReason::Window { in_flight, most } => {
            format!("window full: {} unacknowledged, limit {most}", packets(in_flight))
        }
        WaitReason::PacketNumbers => "PSN window full: half of all PSNs are unacknowledged".into(),
        WaitReason::Requests { most } => format!("limit of outstanding requests reached ({most})"),
        WaitReason::Failed { status, older } => {
            format!(
                "waiting for {} to complete; the next request will then fail ({})",
                requests(older),
                status_words(status)
            )
        }
        WaitReason::Draining => {
            "draining (SQD): waiting for outstanding requests to complete; new requests are not started"
                .into()
        }
        WaitReason::Drained => {
            "drained (SQD): no requests are outstanding; modify the QP to RTS to continue".into()
        }
    }
}

fn without_answer(unanswered: &Unanswered) -> String {
    let Unanswered { oldest, packets: count, requests: open, waiting, retries, most_retries, timeout } =
        *unanswered;
    let mut text = format!(
        "{} of {}, starting at PSN {oldest:#x}; no progress for {}; {retries} of {most_retries} retries used",
        packets(count),
        count_of(open.into(), "request"),
        time(waiting)
    );
    let _ = match timeout {
        Some(left) if retries >= most_retries => write!(text, ", fails in {}", time(left)),
        Some(left) => write!(text, ", next retry in {}", time(left)),
        None => Ok(()),
    };
    text
}

fn responder(situation: &QpStatus) -> String {
    let mut text = match situation.receive {
        Expecting::NoReceive => "none: an XRC initiator only sends".to_owned(),
        Expecting::State => "drops packets in this state; modify the QP to RTR to receive".to_owned(),
        Expecting::Ended => "drops packets".into(),
        Expecting::Message { .. } if situation.service.is_datagram() => "waiting for datagrams".into(),
        Expecting::Message { psn } => format!("waiting for the peer's next message, PSN {psn:#x}"),
        Expecting::Rest { psn, received } => {
            format!("received {received} bytes of a message; waiting for the rest, starting at PSN {psn:#x}")
        }
        Expecting::Missing { psn } => {
            format!("PSN {psn:#x} is missing: later packets have arrived, and a NAK was sent")
        }
        Expecting::ReceiveRequest { psn, refusals, waiting } => format!(
            "no receive request is posted for the message at PSN {psn:#x}; RNR NAK sent {}, first {} ago",
            times(refusals.into()),
            time(waiting)
        ),
    };
    if situation.answers > 0 {
        let _ = write!(text, "; {} pending", count_of(situation.answers.into(), "response"));
    }
    text
}

fn ended_by(by: &EndedBy) -> String {
    match by {
        EndedBy::Software => "software modified the QP to ERR".into(),
        EndedBy::Send(status) => format!("a request failed: {}", status_words(*status)),
        EndedBy::Peer { reason, cause } => {
            let cause = cause.map(|cause| format!(": {}", cause_words(cause))).unwrap_or_default();
            format!("{}{cause}", drop_words(*reason))
        }
        EndedBy::Queue(Queue::Send) => "cannot read the send queue".into(),
        EndedBy::Queue(Queue::Recv) => "cannot read the receive queue".into(),
    }
}

fn status_words(status: Status) -> String {
    match status {
        Status::LocalLength => "local length error".into(),
        Status::LocalQpOperation => "local QP operation error: the request cannot be executed".into(),
        Status::LocalProtection(cause) => format!("local protection error: {}", cause_words(cause)),
        Status::MemoryManagement(cause) => format!("memory management error: {}", cause_words(cause)),
        Status::Flushed => "flushed".into(),
        Status::BadResponse => "bad response from the peer".into(),
        Status::RemoteInvalidRequest => "remote invalid request error: the peer rejected the request".into(),
        Status::RemoteAccess => "remote access error: the peer denied access".into(),
        Status::RemoteOperational => "remote operation error: the peer could not execute the request".into(),
        Status::RetryExceeded => "retry limit exceeded: no response from the peer".into(),
        Status::RnrRetryExceeded => "RNR retry limit exceeded: the peer had no receive request posted".into(),
        Status::RemoteInvalidRdRequest => "remote invalid RD request error".into(),
    }
}

/// Describes a drop reason. Reasons that cannot end a connection are described only by their names.
fn drop_words(reason: DropReason) -> &'static str {
    match reason {
        DropReason::InvalidRequest => "the peer's request was invalid",
        DropReason::TooLong => "the peer's message was longer than the receive request",
        DropReason::NoAccess => "the peer was denied access",
        DropReason::BadReceive => "the receive request for the peer's message was invalid",
        other => other.name(),
    }
}

fn cause_words(cause: AccessError) -> &'static str {
    match cause {
        AccessError::Key => "no memory region or window has this key",
        AccessError::Invalid => {
            "the key is not valid: it was allocated but never registered, or has been invalidated"
        }
        AccessError::Kind => "the key has the wrong type for this operation",
        AccessError::Pd => "the key belongs to another protection domain",
        AccessError::Qp => "the window belongs to another queue pair",
        AccessError::Right => "the key does not grant the required access right",
        AccessError::Bounds => "the access exceeds the bounds of the region or window",
        AccessError::Unmapped => "the memory of the region is not mapped for DMA",
        AccessError::Valid => "the key is still valid and must be invalidated first",
        AccessError::Bound => "memory windows are still bound to the region",
        AccessError::Indirection => "the key's lists of keys are nested too deeply or are too long",
    }
}

fn limit(most: Option<u8>) -> String {
    most.map_or_else(|| "no limit".to_owned(), |most| format!("limit {most}"))
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    }
}

/// Returns a count with its noun, in the plural unless the count is 1.
fn count_of(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

fn packets(count: u32) -> String {
    count_of(count.into(), "packet")
}

fn requests(count: u32) -> String {
    count_of(count.into(), "older request")
}

fn time(duration: Duration) -> String {
    let micros = duration.as_micros();
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        _ => format!("{:.1} s", duration.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use engine::{Ended, State};

    use super::*;

    const IDLE: QpStatus = QpStatus {
        state: State::Rts,
        service: Service::Rc,
        last_packet: None,
        ended: None,
        send: WaitReason::NothingPosted,
        unanswered: None,
        retransmitted: 0,
        receive: Expecting::Message { psn: 0x900 },
        answers: 0,
    };

    fn explained(situation: QpStatus) -> Vec<String> {
        lines(0x15, &Explanation { situation: Some(situation), ignored: None, queue: None }).unwrap()
    }

    #[test]
    fn explanation_of_idle_qp_gives_wait_reason() {
        assert_eq!(
            explained(IDLE),
            [
                "QP 0x15: RC, RTS",
                "requester: idle: no doorbell has announced further requests",
                "responder: waiting for the peer's next message, PSN 0x900",
                "peer: no packet received yet",
            ]
        );
    }

    #[test]
    fn explanation_of_xrc_qp_shows_none_for_missing_side() {
        let initiator = QpStatus { service: Service::XrcIni, receive: Expecting::NoReceive, ..IDLE };
        let lines = explained(initiator);
        assert_eq!(
            (&*lines[0], &*lines[2]),
            ("QP 0x15: XRC INI, RTS", "responder: none: an XRC initiator only sends")
        );
        let target = QpStatus { service: Service::XrcTgt, send: WaitReason::NoSendQueue, ..IDLE };
        let lines = explained(target);
        assert_eq!(
            (&*lines[0], &*lines[1]),
            ("QP 0x15: XRC TGT, RTS", "requester: none: an XRC target only responds")
        );
    }

    #[test]
    fn explanation_of_silent_peer_gives_psn_and_retries() {
        let unanswered = Unanswered {
            oldest: 0x100,
            packets: 2,
            requests: 1,
            waiting: Duration::from_millis(1500),
            retries: 3,
            most_retries: 7,
            timeout: Some(Duration::from_micros(640)),
        };
        let last_packet = Some(Duration::from_secs(2));
        let unanswered = Some(unanswered);
        let lines = explained(QpStatus { unanswered, retransmitted: 12, last_packet, ..IDLE });
        assert_eq!(
            lines[1],
            "requester: all posted requests have been sent; waiting for the peer to acknowledge them"
        );
        assert_eq!(
            lines[2],
            "unanswered: 2 packets of 1 request, starting at PSN 0x100; no progress for 1.5 s; 3 of 7 retries used, next retry in 640 us"
        );
        assert_eq!(lines[3], "retransmitted: 12 packets since RESET, after ACK timeouts, NAKs and RNR NAKs");
        assert_eq!(lines[5], "peer: last packet received 2.0 s ago");
    }

    #[test]
    fn missing_receive_request_is_explained_at_both_ends() {
        let left = Duration::from_micros(600);
        let send = WaitReason::ReceiverNotReady { left, refusals: 2, most: Some(6) };
        assert_eq!(
            explained(QpStatus { send, ..IDLE })[1],
            "requester: receiver not ready (RNR): the peer has no receive request posted; rejected twice, limit 6, next retry in 600 us"
        );
        let receive = Expecting::ReceiveRequest { psn: 0x100, refusals: 1, waiting: Duration::from_secs(2) };
        assert_eq!(
            explained(QpStatus { receive, ..IDLE })[2],
            "responder: no receive request is posted for the message at PSN 0x100; RNR NAK sent once, first 2.0 s ago"
        );
    }

    #[test]
    fn explanation_of_failed_qp_gives_cause() {
        let by = EndedBy::Send(Status::LocalProtection(AccessError::Pd));
        let ended = Some(Ended { ago: Duration::from_secs(3), by });
        assert_eq!(
            explained(QpStatus { state: State::Err, ended, send: WaitReason::Ended, ..IDLE })[1],
            "stopped 3.0 s ago: a request failed: local protection error: the key belongs to another protection \
             domain"
        );
    }

    #[test]
    fn unknown_qp_error_reports_ignored_doorbells() {
        let error = |ignored| {
            lines(0x15, &Explanation { situation: None, ignored, queue: None }).unwrap_err().to_string()
        };
        assert_eq!(error(None), "QP 0x15 does not exist or is in RESET");
        assert_eq!(
            error(Some(IgnoredRow { count: 2, last: "qp_reset".to_owned() })),
            "QP 0x15 does not exist or is in RESET; ignored doorbells and packets: 2, most recent reason: qp_reset"
        );
    }

    #[test]
    fn last_line_counts_ignored_doorbells() {
        let ignored = Some(IgnoredRow { count: 2, last: "no_receive".to_owned() });
        let lines = lines(0x15, &Explanation { situation: Some(IDLE), ignored, queue: None }).unwrap();
        assert_eq!(lines.last().unwrap(), "ignored: twice, most recent reason: no_receive");
    }

    #[test]
    fn explanation_of_nic_queue_comes_from_device() {
        let queue = Some(vec!["RQ 0x4001: ready".to_owned()]);
        let ignored = Some(IgnoredRow { count: 2, last: "foreign_page".to_owned() });
        let lines = lines(0x4001, &Explanation { situation: None, ignored, queue }).unwrap();
        assert_eq!(lines, ["RQ 0x4001: ready", "ignored: twice, most recent reason: foreign_page"]);
    }

    /// `hcactl` reads durations from JSON, where they must keep their precision.
    #[test]
    fn json_durations_keep_microseconds() {
        let left = Duration::from_micros(600);
        let send = WaitReason::ReceiverNotReady { left, refusals: 2, most: None };
        let explanation =
            Explanation { situation: Some(QpStatus { send, ..IDLE }), ignored: None, queue: None };
        let value = serde_json::to_value(&explanation).unwrap();
        let expected = serde_json::json!({ "left_us": 600, "refusals": 2, "most": null });
        assert_eq!(value["situation"]["send"]["receiver_not_ready"], expected);
        assert_eq!(serde_json::from_value::<Explanation>(value).unwrap(), explanation);
    }
}
