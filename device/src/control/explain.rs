//! What a queue pair waits for, in words.

use std::fmt::Write as _;
use std::time::Duration;

use engine::{
    AccessError, Blocked, DropReason, EndedBy, Expecting, Queue, Service, Situation, Status, Unanswered,
};

use crate::frontend::snapshot::QpState;
use crate::hca::Explanation;

/// A line for each thing that is to be said of the queue pair `qpn`.
pub fn lines(qpn: u32, explanation: &Explanation) -> Vec<String> {
    let Explanation { situation, ignored } = explanation;
    let mut lines = match situation {
        Some(situation) => of(qpn, situation),
        None => {
            vec![format!("QP {qpn:#x}: there is none, or it is in RESET: doorbells and packets are ignored")]
        }
    };
    if let Some(ignored) = ignored {
        let times = times(ignored.count);
        lines.push(format!("ignored: {times}, the last time for {}", ignored.last.name()));
    }
    lines
}

fn of(qpn: u32, situation: &Situation) -> Vec<String> {
    let service = match situation.service {
        Service::Rc => "RC",
        Service::Uc => "UC",
        Service::Ud => "UD",
        Service::Smi => "QP0",
        Service::Gsi => "QP1",
    };
    let draining = situation.send == Blocked::Draining;
    let state = QpState::of(situation.state, draining);
    let mut lines = vec![format!("QP {qpn:#x}: {service}, {state}")];
    if let Some(ended) = &situation.ended {
        lines.push(format!("stopped {} ago: {}", time(ended.ago), ended_by(&ended.by)));
    }
    lines.push(format!("requester: {}", requester(situation)));
    if let Some(unanswered) = &situation.unanswered {
        lines.push(format!("unanswered: {}", without_answer(unanswered)));
    }
    lines.push(format!("responder: {}", responder(situation)));
    lines.push(match situation.heard {
        Some(heard) => format!("peer: last heard {} ago", time(heard)),
        None => "peer: never heard".to_owned(),
    });
    lines
}

fn requester(situation: &Situation) -> String {
    match situation.send {
        Blocked::State => "cannot send in this state, and ignores doorbells; it can from RTS on".into(),
        Blocked::Ended => "sends nothing any more; what is posted completes as flushed".into(),
        Blocked::NothingPosted if situation.unanswered.is_some() => {
            "all that was announced is sent; it waits for the peer's answer".into()
        }
        Blocked::NothingPosted => {
            "waits for its software: nothing is posted that a doorbell announced".into()
        }
        Blocked::Turn => "nothing is in its way: the next packet leaves with its turn".into(),
        Blocked::Congestion { left } => {
            format!("slowed down by the peer's notifications of congestion; goes on in {}", time(left))
        }
        Blocked::ReceiverNotReady { left, refusals, most } => format!(
            "receiver not ready (RNR): the peer has no receive request posted; refused {} of {}, asks again in {}",
            times(refusals.into()),
            at_most(most),
            time(left)
        ),
        Blocked::AskedAgain { refusals, most } => format!(
            "receiver not ready (RNR): refused {} of {}, has asked again and waits for the answer",
            times(refusals.into()),
            at_most(most)
        ),
        Blocked::Credits { beyond } => format!(
            "credits: the peer says that it has no receive request for the next message, which is {beyond} beyond \
             those it has"
        ),
        Blocked::Fence { older } => format!("fence: the next request waits for {}", requests(older)),
        Blocked::Invalidation { older } => {
            format!("the next request ends a key, and waits for {} that may need it", requests(older))
        }
        Blocked::Reads { most } => {
            format!("as many READs and atomics are unanswered as may be (max_rd_atomic {most})")
        }
        Blocked::ReadPieces => "a long READ waits for the piece before the newest".into(),
        Blocked::Window { in_flight, most } => {
            format!("window: {} without an answer, of at most {most}", packets(in_flight))
        }
        Blocked::PacketNumbers => "half of all packet numbers are unanswered".into(),
        Blocked::Requests { most } => format!("as many requests are under way as may be ({most})"),
        Blocked::Failed { status, older } => {
            format!("the next request will fail ({}) once {} are done", status_words(status), requests(older))
        }
        Blocked::Draining => "drains: what was begun is not answered, and nothing new begins".into(),
        Blocked::Drained => {
            "drained: nothing is under way, and nothing begins until it is in RTS again".into()
        }
    }
}

fn without_answer(unanswered: &Unanswered) -> String {
    let Unanswered { oldest, packets: count, requests: open, waiting, retries, most_retries, timeout } =
        *unanswered;
    let mut text = format!(
        "{} from PSN {oldest:#x} on, of {}; silent for {}; sent again {} of {most_retries}",
        packets(count),
        if open == 1 { "1 request".to_owned() } else { format!("{open} requests") },
        time(waiting),
        times(retries.into())
    );
    let _ = match timeout {
        Some(left) if retries >= most_retries => write!(text, ", fails in {}", time(left)),
        Some(left) => write!(text, ", the next time in {}", time(left)),
        None => Ok(()),
    };
    text
}

fn responder(situation: &Situation) -> String {
    let mut text = match situation.receive {
        Expecting::State => "drops packets in this state; it receives from RTR on".to_owned(),
        Expecting::Ended => "drops packets".into(),
        Expecting::Message { .. } if situation.service.is_datagram() => "waits for datagrams".into(),
        Expecting::Message { psn } => format!("waits for the peer's next message, PSN {psn:#x}"),
        Expecting::Rest { psn, received } => {
            format!("has {received} bytes of a message, and waits for the rest from PSN {psn:#x} on")
        }
        Expecting::Missing { psn } => {
            format!("misses PSN {psn:#x}: younger packets came, and the peer was told")
        }
        Expecting::ReceiveRequest { psn, refusals } => format!(
            "waits for its software: no receive request is posted for the message at PSN {psn:#x}; told the peer \
             so (RNR) {}",
            times(refusals.into())
        ),
    };
    if situation.answers > 0 {
        let _ = write!(text, "; owes {} answers", situation.answers);
    }
    text
}

fn ended_by(by: &EndedBy) -> String {
    match by {
        EndedBy::Software => "its software moved it to ERR".into(),
        EndedBy::Send(status) => format!("a request failed: {}", status_words(*status)),
        EndedBy::Peer { reason, cause } => {
            let cause = cause.map(|cause| format!(": {}", cause_words(cause))).unwrap_or_default();
            format!("{}{cause}", drop_words(*reason))
        }
        EndedBy::Queue(Queue::Send) => "its send queue cannot be read".into(),
        EndedBy::Queue(Queue::Recv) => "its receive queue cannot be read".into(),
    }
}

fn status_words(status: Status) -> String {
    match status {
        Status::LocalLength => "local length error".into(),
        Status::LocalQpOperation => "local QP operation error: a request that cannot be executed".into(),
        Status::LocalProtection(cause) => format!("local protection error: {}", cause_words(cause)),
        Status::MemoryManagement(cause) => format!("memory management error: {}", cause_words(cause)),
        Status::Flushed => "flushed".into(),
        Status::BadResponse => "the peer's answer made no sense".into(),
        Status::RemoteInvalidRequest => "the peer refused it as invalid".into(),
        Status::RemoteAccess => "the peer refused the access".into(),
        Status::RemoteOperational => "the peer could not execute it".into(),
        Status::RetryExceeded => "the peer did not answer, and the retries are used up".into(),
        Status::RnrRetryExceeded => "the peer had no receive request, and the RNR retries are used up".into(),
        Status::RemoteInvalidRdRequest => "the peer refused it as an invalid RD request".into(),
    }
}

/// Those that end a connection; the others by their name.
fn drop_words(reason: DropReason) -> &'static str {
    match reason {
        DropReason::InvalidRequest => "the peer's request was invalid",
        DropReason::TooLong => "the peer's message was longer than its receive request",
        DropReason::NoAccess => "the peer was refused access",
        DropReason::BadReceive => "the receive request of the peer's message could not be used",
        other => other.name(),
    }
}

fn cause_words(cause: AccessError) -> &'static str {
    match cause {
        AccessError::Key => "no region or window has the key",
        AccessError::Invalid => "the key is allocated or invalidated, and not valid now",
        AccessError::Kind => "the key is of a kind that this is not for",
        AccessError::Pd => "the key belongs to another protection domain",
        AccessError::Qp => "the window belongs to another queue pair",
        AccessError::Right => "the key does not grant the right",
        AccessError::Bounds => "the range is not inside the region",
        AccessError::Unmapped => "the region's memory cannot be reached by the device",
        AccessError::Valid => "the key is valid, and has to be invalidated first",
        AccessError::Bound => "windows are bound to the region",
    }
}

fn at_most(most: Option<u8>) -> String {
    most.map_or_else(|| "any number".to_owned(), |most| most.to_string())
}

fn times(count: u64) -> String {
    match count {
        1 => "once".to_owned(),
        2 => "twice".to_owned(),
        count => format!("{count} times"),
    }
}

fn packets(count: u32) -> String {
    if count == 1 { "1 packet".to_owned() } else { format!("{count} packets") }
}

fn requests(count: u32) -> String {
    if count == 1 { "1 older request".to_owned() } else { format!("{count} older requests") }
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
    use crate::telemetry::monitor::Ignored;
    use crate::telemetry::reason::{InterfaceReason, Reason};

    const IDLE: Situation = Situation {
        state: State::Rts,
        service: Service::Rc,
        heard: None,
        ended: None,
        send: Blocked::NothingPosted,
        unanswered: None,
        receive: Expecting::Message { psn: 0x900 },
        answers: 0,
    };

    fn said(situation: Situation) -> Vec<String> {
        lines(0x15, &Explanation { situation: Some(situation), ignored: None })
    }

    #[test]
    fn an_idle_queue_pair_waits_for_its_software_and_its_peer() {
        assert_eq!(
            said(IDLE),
            [
                "QP 0x15: RC, RTS",
                "requester: waits for its software: nothing is posted that a doorbell announced",
                "responder: waits for the peer's next message, PSN 0x900",
                "peer: never heard",
            ]
        );
    }

    #[test]
    fn a_silent_peer_is_told_with_its_numbers() {
        let unanswered = Unanswered {
            oldest: 0x100,
            packets: 2,
            requests: 1,
            waiting: Duration::from_millis(1500),
            retries: 3,
            most_retries: 7,
            timeout: Some(Duration::from_micros(640)),
        };
        let heard = Some(Duration::from_secs(2));
        let lines = said(Situation { unanswered: Some(unanswered), heard, ..IDLE });
        assert_eq!(lines[1], "requester: all that was announced is sent; it waits for the peer's answer");
        assert_eq!(
            lines[2],
            "unanswered: 2 packets from PSN 0x100 on, of 1 request; silent for 1.5 s; sent again 3 times of 7, \
             the next time in 640 us"
        );
        assert_eq!(lines[4], "peer: last heard 2.0 s ago");
    }

    #[test]
    fn both_ends_of_a_missing_receive_request_say_so() {
        let left = Duration::from_micros(600);
        let send = Blocked::ReceiverNotReady { left, refusals: 2, most: Some(6) };
        assert_eq!(
            said(Situation { send, ..IDLE })[1],
            "requester: receiver not ready (RNR): the peer has no receive request posted; refused twice of 6, asks \
             again in 600 us"
        );
        let receive = Expecting::ReceiveRequest { psn: 0x100, refusals: 1 };
        assert_eq!(
            said(Situation { receive, ..IDLE })[2],
            "responder: waits for its software: no receive request is posted for the message at PSN 0x100; told the \
             peer so (RNR) once"
        );
    }

    #[test]
    fn what_ended_it_is_told_with_its_cause() {
        let by = EndedBy::Send(Status::LocalProtection(AccessError::Pd));
        let ended = Some(Ended { ago: Duration::from_secs(3), by });
        assert_eq!(
            said(Situation { state: State::Err, ended, send: Blocked::Ended, ..IDLE })[1],
            "stopped 3.0 s ago: a request failed: local protection error: the key belongs to another protection \
             domain"
        );
    }

    #[test]
    fn a_number_without_queue_pair_has_its_doorbells() {
        let ignored = Ignored { count: 2, last: Reason::Interface(InterfaceReason::QpReset) };
        assert_eq!(
            lines(0x15, &Explanation { situation: None, ignored: Some(ignored) }),
            [
                "QP 0x15: there is none, or it is in RESET: doorbells and packets are ignored",
                "ignored: twice, the last time for qp_reset",
            ]
        );
    }

    /// Numbers keep their unit, and nothing is lost on the way to `hcactl`.
    #[test]
    fn programs_get_the_same_with_microseconds() {
        let left = Duration::from_micros(600);
        let send = Blocked::ReceiverNotReady { left, refusals: 2, most: None };
        let explanation = Explanation { situation: Some(Situation { send, ..IDLE }), ignored: None };
        let value = serde_json::to_value(explanation).unwrap();
        let expected = serde_json::json!({ "left_us": 600, "refusals": 2, "most": null });
        assert_eq!(value["situation"]["send"]["receiver_not_ready"], expected);
        assert_eq!(serde_json::from_value::<Explanation>(value).unwrap(), explanation);
    }
}
