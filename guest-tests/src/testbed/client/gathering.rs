//! Synchronises a command that runs in guests on several hosts. The command starts once all guests are ready, and no
//! guest stops before the command has ended in all of them.
//!
//! Guest 0 listens on a TCP port that all guests, including guest 0, connect to. A message is a JSON object on a single
//! line. If a connection closes before the guest's command has ended, the guest has failed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::testbed::node::Node;
use crate::testbed::protocol::{receive, send};

/// Timeout for connecting to guest 0, and again for waiting until all guests have booted.
const LIMIT: Duration = Duration::from_secs(600);
/// How long a connection may take to send its first message.
const FIRST_MESSAGE: Duration = Duration::from_secs(10);
/// Interval between attempts to connect to guest 0.
const RETRY: Duration = Duration::from_millis(200);
/// Maximum total length of the messages on a connection to guest 0. A guest sends three short ones.
const LONGEST: u64 = 4096;
/// Maximum number of connections that have not sent their first message.
const MOST_UNKNOWN: usize = 64;

/// A message to guest 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Report {
    Join {
        job: String,
        rank: u8,
        size: u8,
    },
    /// The guest has booted.
    Ready,
    /// The command has ended with the given exit status.
    Ended(u8),
}

/// A message from guest 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Notice {
    AllReady,
    AllEnded,
    /// The command in a guest has failed with `status`. If that is `None`, the guest was lost.
    Failed {
        rank: u8,
        status: Option<u8>,
    },
    Rejected(String),
}

/// This guest's connection to guest 0.
pub(super) struct Gathering {
    writer: OwnedWriteHalf,
    notices: mpsc::Receiver<Notice>,
    /// The tasks that read notices and, in guest 0, serve the other guests.
    _tasks: JoinSet<()>,
}

/// Listens for the other guests, if this is guest 0.
///
/// # Errors
/// Fails if the port is in use.
pub(super) async fn listen(node: &Node) -> Result<Option<TcpListener>> {
    if node.rank != 0 {
        return Ok(None);
    }
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, node.port)).await;
    let context = || format!("cannot listen on TCP port {}; --port selects another port", node.port);
    listener.with_context(context).map(Some)
}

impl Gathering {
    /// Connects to guest 0. `listener` is the result of [`listen`].
    ///
    /// # Errors
    /// Fails if guest 0 does not listen in time.
    pub(super) async fn join(node: &Node, listener: Option<TcpListener>) -> Result<Self> {
        let mut tasks = JoinSet::new();
        if let Some(listener) = listener {
            tasks.spawn(serve(listener, node.job.clone(), node.size()));
        }
        let (reader, mut writer) = connect(node).await?.into_split();
        let join = Report::Join { job: node.job.clone(), rank: node.rank, size: node.size() };
        send(&mut writer, &join).await.context("guest 0 has closed the connection")?;
        let (sender, notices) = mpsc::channel(4);
        tasks.spawn(async move {
            let mut reader = BufReader::new(reader);
            while let Ok(Some(notice)) = receive::<Notice>(&mut reader).await {
                if sender.send(notice).await.is_err() {
                    return;
                }
            }
        });
        Ok(Self { writer, notices, _tasks: tasks })
    }

    /// Waits until all guests are ready.
    ///
    /// # Errors
    /// Fails if a guest fails or is not ready in time.
    pub(super) async fn ready(&mut self) -> Result<()> {
        send(&mut self.writer, &Report::Ready).await.context("guest 0 has failed")?;
        let notice = timeout(LIMIT, self.notice());
        match notice
            .await
            .with_context(|| format!("not all guests were ready within {} s", LIMIT.as_secs()))?
        {
            Notice::AllReady => Ok(()),
            other => Err(failure(&other)),
        }
    }

    /// Waits until another guest has failed and returns the reason. This future is cancel-safe.
    pub(super) async fn failed(&mut self) -> anyhow::Error {
        failure(&self.notice().await)
    }

    /// Reports the command's exit status. If it is 0, waits until the command has ended in all guests.
    ///
    /// # Errors
    /// Fails if the report cannot be sent. With status 0, also fails if the command fails in another guest.
    pub(super) async fn end(&mut self, status: u8) -> Result<()> {
        send(&mut self.writer, &Report::Ended(status)).await.context("guest 0 has failed")?;
        match self.notice().await {
            Notice::AllEnded => Ok(()),
            // This guest has just reported its own failure.
            Notice::Failed { .. } if status != 0 => Ok(()),
            other => Err(failure(&other)),
        }
    }

    /// Returns the next notice. If the connection to guest 0 is lost, returns a notice that guest 0 failed.
    async fn notice(&mut self) -> Notice {
        self.notices.recv().await.unwrap_or(Notice::Failed { rank: 0, status: None })
    }
}

fn failure(notice: &Notice) -> anyhow::Error {
    match notice {
        Notice::Failed { rank, status: Some(status) } => {
            anyhow!("the command failed in the guest of rank {rank} with exit status {status}")
        }
        Notice::Failed { rank, status: None } => anyhow!("the guest of rank {rank} was lost"),
        Notice::Rejected(reason) => anyhow!("guest 0 rejected this guest: {reason}"),
        Notice::AllReady | Notice::AllEnded => anyhow!("guest 0 sent an unexpected message"),
    }
}

async fn connect(node: &Node) -> Result<TcpStream> {
    let host = node.hosts.first().context("no host")?;
    let deadline = Instant::now() + LIMIT;
    loop {
        let attempt = async {
            let ip = node.ip_of(host).await?;
            anyhow::Ok(TcpStream::connect((ip, node.port)).await?)
        };
        match timeout(FIRST_MESSAGE, attempt).await {
            Ok(Ok(stream)) => return Ok(stream),
            // Guest 0 may start later, so retry until the deadline.
            error if Instant::now() >= deadline => {
                let error = error.map_or_else(
                    |_| "no reply".to_owned(),
                    |tried| match tried {
                        Ok(_) => String::new(),
                        Err(error) => format!("{error:#}"),
                    },
                );
                bail!("cannot connect to guest 0 on TCP port {} of {host}: {error}", node.port);
            }
            _ => sleep(RETRY).await,
        }
    }
}

/// An event on a guest's connection.
enum Event {
    /// The channel reports whether the guest is accepted.
    Joined(u8, OwnedWriteHalf, oneshot::Sender<bool>),
    Reported(u8, Report),
    Closed(u8),
}

/// Serves the guests until the command has ended in all of them.
async fn serve(listener: TcpListener, job: String, size: u8) {
    let (events, mut next) = mpsc::channel(usize::from(size));
    let mut connections = JoinSet::new();
    let mut state = State { size, ..State::default() };
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                while connections.try_join_next().is_some() {}
                if let Ok((stream, _)) = accepted
                    && connections.len() < MOST_UNKNOWN + usize::from(size)
                {
                    connections.spawn(converse(stream, job.clone(), size, events.clone()));
                }
            }
            Some(event) = next.recv() => {
                if state.handle(event).await {
                    return;
                }
            }
        }
    }
}

/// Receives messages from one guest.
async fn converse(stream: TcpStream, job: String, size: u8, events: mpsc::Sender<Event>) {
    let (reader, mut writer): (OwnedReadHalf, _) = stream.into_split();
    let mut reader = BufReader::new(reader.take(LONGEST));
    let Ok(Ok(Some(first))) = timeout(FIRST_MESSAGE, receive::<Report>(&mut reader)).await else { return };
    let rank = match first {
        Report::Join { job: of, rank, size: n } if of == job && n == size && rank < size => rank,
        _ => {
            let reason = "it belongs to another testbed; --port selects another port".to_owned();
            // The connection may be closed already.
            let _ = send(&mut writer, &Notice::Rejected(reason)).await;
            return;
        }
    };
    let (accept, accepted) = oneshot::channel();
    if events.send(Event::Joined(rank, writer, accept)).await.is_err() || !accepted.await.unwrap_or(false) {
        return;
    }
    while let Ok(Some(report)) = receive::<Report>(&mut reader).await {
        if events.send(Event::Reported(rank, report)).await.is_err() {
            return;
        }
    }
    // The receiver is dropped once the command has ended in all guests.
    let _ = events.send(Event::Closed(rank)).await;
}

/// The progress of all guests.
#[derive(Default)]
struct State {
    size: u8,
    writers: BTreeMap<u8, OwnedWriteHalf>,
    ready: BTreeSet<u8>,
    ended: BTreeSet<u8>,
    failed: Option<Notice>,
}

impl State {
    /// Returns whether the command has ended in all guests.
    async fn handle(&mut self, event: Event) -> bool {
        match event {
            Event::Joined(rank, mut writer, accept) => {
                let is_new = !self.writers.contains_key(&rank);
                let rejected = || Notice::Rejected(format!("another guest already has rank {rank}"));
                let notice = if is_new { self.failed.clone() } else { Some(rejected()) };
                if let Some(notice) = &notice {
                    // The connection may be closed already.
                    let _ = send(&mut writer, notice).await;
                }
                if is_new {
                    self.writers.insert(rank, writer);
                }
                // The connection's task may have been cancelled.
                let _ = accept.send(is_new);
            }
            Event::Reported(rank, Report::Ready) => {
                if self.ready.insert(rank) && self.ready.len() == usize::from(self.size) {
                    self.announce(&Notice::AllReady).await;
                }
            }
            Event::Reported(rank, Report::Ended(status)) => {
                self.ended.insert(rank);
                if status != 0 {
                    self.fail(Notice::Failed { rank, status: Some(status) }).await;
                }
            }
            Event::Reported(_, Report::Join { .. }) => {}
            Event::Closed(rank) => {
                if self.ended.insert(rank) {
                    self.fail(Notice::Failed { rank, status: None }).await;
                }
            }
        }
        let all = self.ended.len() == usize::from(self.size);
        if all && self.failed.is_none() {
            self.announce(&Notice::AllEnded).await;
        }
        all
    }

    /// Reports the first failure to all guests.
    async fn fail(&mut self, notice: Notice) {
        if self.failed.is_none() {
            self.announce(&notice).await;
            self.failed = Some(notice);
        }
    }

    /// Sends a notice to all guests. Guest 0 comes last, since it may exit as soon as it receives the notice.
    async fn announce(&mut self, notice: &Notice) {
        for writer in self.writers.values_mut().rev() {
            // The guest may have disconnected already.
            let _ = send(writer, notice).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connects `size` guests on this machine to each other.
    async fn gather(size: usize) -> Vec<Gathering> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let mut node = Node {
            rank: 0,
            hosts: vec!["localhost".into(); size],
            port: listener.local_addr().unwrap().port(),
            job: "7.0".into(),
        };
        let mut all = vec![Gathering::join(&node, Some(listener)).await.unwrap()];
        for rank in 1..size {
            node.rank = u8::try_from(rank).unwrap();
            all.push(Gathering::join(&node, None).await.unwrap());
        }
        all
    }

    /// Connects another guest to the same guest 0 and returns the error that it receives.
    async fn stranger(gathering: &Gathering, job: &str, rank: u8) -> anyhow::Error {
        let port = gathering.writer.peer_addr().unwrap().port();
        let node = Node { rank, hosts: vec!["localhost".into(); 2], port, job: job.into() };
        Gathering::join(&node, None).await.unwrap().ready().await.unwrap_err()
    }

    #[tokio::test]
    async fn guests_start_and_end_together() {
        let mut all = gather(3).await;
        let [a, b, c] = all.as_mut_slice() else { panic!() };
        let (x, y, z) = tokio::join!(a.ready(), b.ready(), c.ready());
        assert!(x.is_ok() && y.is_ok() && z.is_ok());
        let (x, y, z) = tokio::join!(a.end(0), b.end(0), c.end(0));
        assert!(x.is_ok() && y.is_ok() && z.is_ok());
    }

    #[tokio::test]
    async fn failure_of_one_guest_reaches_all() {
        let mut all = gather(3).await;
        let [a, b, c] = all.as_mut_slice() else { panic!() };
        let (ended, of_a, of_c) = tokio::join!(b.end(3), a.failed(), c.end(0));
        ended.unwrap();
        let expected = "the command failed in the guest of rank 1 with exit status 3";
        assert_eq!((of_a.to_string(), of_c.unwrap_err().to_string()), (expected.into(), expected.into()));
    }

    #[tokio::test]
    async fn lost_guest_fails_all_others() {
        let mut all = gather(2).await;
        drop(all.pop());
        assert_eq!(all[0].ready().await.unwrap_err().to_string(), "the guest of rank 1 was lost");
        let mut all = gather(2).await;
        drop(all.remove(0));
        assert_eq!(all[0].failed().await.to_string(), "the guest of rank 0 was lost");
    }

    #[tokio::test]
    async fn guest_with_wrong_job_or_duplicate_rank_is_rejected() {
        let mut all = gather(2).await;
        let error = stranger(&all[0], "8.0", 1).await.to_string();
        assert!(error.contains("another testbed"), "{error}");
        let error = stranger(&all[0], "7.0", 1).await.to_string();
        assert!(error.contains("already has rank 1"), "{error}");
        // The rejected guests do not affect the others.
        let [a, b] = all.as_mut_slice() else { panic!() };
        let (x, y) = tokio::join!(a.ready(), b.ready());
        assert!(x.is_ok() && y.is_ok());
    }
}
