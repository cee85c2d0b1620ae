//! A small name server on loopback. Tests change its records while it runs.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use hickory_proto::op::{Message, ResponseCode};
use hickory_proto::rr::rdata::{SOA, SRV};
use hickory_proto::rr::{Name, RData, Record};

use super::TIMEOUT;

/// TTL of all records and negative responses, in seconds.
const TTL: u32 = 1;

/// Maximum number of records in a UDP response. To receive more records, a client must use TCP.
const MAX_UDP_RECORDS: usize = 8;

/// The name server. Its threads end with the test process.
pub(crate) struct NameServer {
    pub(crate) addr: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    zone: Mutex<BTreeMap<String, Vec<RData>>>,
    /// Whether every request is answered with SERVFAIL.
    failing: AtomicBool,
    failed: AtomicUsize,
    over_tcp: AtomicUsize,
}

impl NameServer {
    pub(crate) fn start() -> Self {
        // Both protocols use the same port, so it has to be free for both.
        let (tcp, udp) = std::iter::repeat_with(|| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap())
            .find_map(|tcp| UdpSocket::bind(tcp.local_addr().unwrap()).ok().map(|udp| (tcp, udp)))
            .unwrap();
        let addr = udp.local_addr().unwrap();
        let state = Arc::new(State::default());
        let of_tcp = state.clone();
        thread::spawn(move || serve_tcp(&tcp, &of_tcp));
        let of_udp = state.clone();
        thread::spawn(move || serve_udp(&udp, &of_udp));
        Self { addr, state }
    }

    /// Sets the addresses of a host.
    pub(crate) fn set_hosts(&self, name: &str, addresses: &[IpAddr]) {
        let records = addresses.iter().map(|ip| match ip {
            IpAddr::V4(ip) => RData::A((*ip).into()),
            IpAddr::V6(ip) => RData::AAAA((*ip).into()),
        });
        self.set(name, records.collect());
    }

    /// Sets the targets of a service.
    pub(crate) fn set_targets(&self, service: &str, targets: &[(&str, u16)]) {
        let record =
            |(host, port): &(&str, u16)| RData::SRV(SRV::new(0, 0, *port, Name::from_ascii(host).unwrap()));
        self.set(service, targets.iter().map(record).collect());
    }

    /// Sets whether every request is answered with SERVFAIL.
    pub(crate) fn set_failing(&self, failing: bool) {
        self.state.failing.store(failing, Ordering::Release);
    }

    /// Returns the number of requests that were answered with SERVFAIL.
    pub(crate) fn failed(&self) -> usize {
        self.state.failed.load(Ordering::Acquire)
    }

    /// Returns the number of requests that arrived over TCP.
    pub(crate) fn over_tcp(&self) -> usize {
        self.state.over_tcp.load(Ordering::Acquire)
    }

    fn set(&self, name: &str, records: Vec<RData>) {
        self.state.zone.lock().unwrap().insert(name.to_owned(), records);
    }
}

fn serve_udp(socket: &UdpSocket, state: &State) {
    let mut request = [0; 1500];
    loop {
        let (len, from) = socket.recv_from(&mut request).unwrap();
        let mut answer = state.answer(&request[..len]);
        if answer.answers.len() > MAX_UDP_RECORDS {
            answer = answer.truncate();
        }
        // The client may have closed its socket in the meantime.
        let _ = socket.send_to(&answer.to_vec().unwrap(), from);
    }
}

fn serve_tcp(listener: &TcpListener, state: &State) {
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        // RFC 1035, section 4.2.2: each message is preceded by its length. The client closes the connection.
        let mut len = [0; 2];
        while stream.read_exact(&mut len).is_ok() {
            let mut request = vec![0; u16::from_be_bytes(len).into()];
            if stream.read_exact(&mut request).is_err() {
                break;
            }
            state.over_tcp.fetch_add(1, Ordering::Release);
            let answer = state.answer(&request).to_vec().unwrap();
            let len = u16::try_from(answer.len()).unwrap().to_be_bytes();
            // A client that has waited too long closes the connection and sends its request again.
            if stream.write_all(&[&len[..], &answer].concat()).is_err() {
                break;
            }
        }
    }
}

impl State {
    fn answer(&self, request: &[u8]) -> Message {
        let request = Message::from_vec(request).unwrap();
        let query = request.queries[0].clone();
        let mut answer = Message::response(request.metadata.id, request.metadata.op_code);
        answer.metadata.authoritative = true;
        answer.metadata.recursion_desired = request.metadata.recursion_desired;
        answer.add_query(query.clone());
        if self.failing.load(Ordering::Acquire) {
            answer.metadata.response_code = ResponseCode::ServFail;
            self.failed.fetch_add(1, Ordering::Release);
            return answer;
        }
        let name = query.name().to_ascii().to_ascii_lowercase();
        let zone = self.zone.lock().unwrap();
        let records = zone.get(name.trim_end_matches('.'));
        let of_type = |data: &&RData| data.record_type() == query.query_type();
        let found = records.into_iter().flatten().filter(of_type);
        answer.add_answers(found.map(|data| Record::from_rdata(query.name().clone(), TTL, data.clone())));
        if answer.answers.is_empty() {
            // RFC 2308, section 5: the SOA record contains the TTL of a negative response.
            let soa = RData::SOA(SOA::new(Name::root(), Name::root(), 1, 1, 1, 1, TTL));
            answer.authorities.push(Record::from_rdata(Name::root(), TTL, soa));
            if records.is_none() {
                answer.metadata.response_code = ResponseCode::NXDomain;
            }
        }
        answer
    }
}
