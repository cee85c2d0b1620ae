//! Connects all pairs of stations, as in a round-robin tournament. In each round, every station has a partner, and the
//! pairs of the round run concurrently.

use std::net::IpAddr;

use agent::wire::{Remote, Service};
use anyhow::{Context as _, Result, bail};
use tokio::task::JoinSet;

use crate::report::Report;
use crate::scenario::cell::{Cell, Operation};
use crate::scenario::endpoint::jingzhao::{InProcess, Jingzhao};
use crate::scenario::endpoint::stock::Stock;
use crate::scenario::endpoint::{Completion, Endpoint, Link, Message, connect};

/// Messages exchanged by each pair of stations. No length is a multiple of a path MTU.
const WORDS: [(Operation, u32); 4] = [
    (Operation::Send, 20_011),
    (Operation::WriteImm, 100_003),
    (Operation::Read, 65_537),
    (Operation::FetchAdd, 8),
];
const MTU: u16 = 4096;

#[derive(Debug)]
pub(super) enum Station {
    Hca(Jingzhao<InProcess>),
    Rxe(Box<Stock>),
}

/// Runs one case per round. The number of stations must be even.
pub(super) async fn run(
    fabric: &str,
    stations: &mut Vec<Station>,
    report: &mut Report,
    hint: &str,
) -> Result<()> {
    for (number, pairs) in (1..).zip(rounds(stations.len())) {
        let who: Vec<_> = pairs.iter().map(|(a, b)| format!("{}-{}", a + 1, b + 1)).collect();
        let name = format!("{fabric}, round {number}: {} at the same time, both directions", who.join(" "));
        report.case(&name, hint, round(stations, &pairs, number)).await?;
    }
    Ok(())
}

async fn round(stations: &mut Vec<Station>, pairs: &[(usize, usize)], number: u64) -> Result<()> {
    let mut free: Vec<_> = stations.drain(..).map(Some).collect();
    let mut take = |index: usize| free.get_mut(index).and_then(Option::take).context("a station is missing");
    let mut talks = JoinSet::new();
    for &(first, second) in pairs {
        let (mut a, mut b) = (take(first)?, take(second)?);
        let seed = (number << 16 | (first as u64) << 8) << 32;
        talks.spawn(async move {
            let result = talk(&mut a, &mut b, seed).await;
            let result = result.with_context(|| format!("between {} and {}", first + 1, second + 1));
            (result, [(first, a), (second, b)])
        });
    }
    let mut outcome = Ok(());
    let mut back = Vec::new();
    while let Some(talk) = talks.join_next().await {
        let Ok((result, both)) = talk else { bail!("an exchange panicked") };
        outcome = outcome.and(result);
        back.extend(both);
    }
    back.sort_by_key(|(index, _)| *index);
    stations.extend(back.into_iter().map(|(_, station)| station));
    outcome
}

/// Exchanges all messages in both directions on a new connection.
pub(super) async fn talk(a: &mut Station, b: &mut Station, seed: u64) -> Result<()> {
    connect(a, b, Service::Rc, MTU).await?;
    for (n, (operation, len)) in (0..).step_by(2).zip(WORDS) {
        let cell = |n: u64| Cell { service: Service::Rc, operation, len, seed: seed + (n << 32) };
        cell(n).run(a, b).await.with_context(|| format!("{}, forward", operation.name()))?;
        cell(n + 1).run(b, a).await.with_context(|| format!("{}, backward", operation.name()))?;
    }
    Ok(())
}

/// Computes the rounds with the circle method: the last station stays in place, and the others rotate by one place per
/// round.
pub(in super::super) fn rounds(count: usize) -> Vec<Vec<(usize, usize)>> {
    let others = count - 1;
    let partner = |round: usize, place: usize| match place {
        0 => (round, others),
        _ => ((round + place) % others, (round + others - place) % others),
    };
    (0..others).map(|round| (0..count / 2).map(|place| partner(round, place)).collect()).collect()
}

impl Endpoint for Station {
    fn ip(&self) -> IpAddr {
        match self {
            Self::Hca(hca) => hca.ip(),
            Self::Rxe(rxe) => rxe.ip(),
        }
    }

    fn remote(&self, off: u64) -> Remote {
        match self {
            Self::Hca(hca) => hca.remote(off),
            Self::Rxe(rxe) => rxe.remote(off),
        }
    }

    async fn create(&mut self, service: Service) -> Result<u32> {
        match self {
            Self::Hca(hca) => hca.create(service).await,
            Self::Rxe(rxe) => rxe.create(service).await,
        }
    }

    async fn connect(&mut self, link: &Link) -> Result<()> {
        match self {
            Self::Hca(hca) => hca.connect(link).await,
            Self::Rxe(rxe) => rxe.connect(link).await,
        }
    }

    async fn fill(&mut self, off: u64, len: u64, seed: u64) -> Result<()> {
        match self {
            Self::Hca(hca) => hca.fill(off, len, seed).await,
            Self::Rxe(rxe) => rxe.fill(off, len, seed).await,
        }
    }

    async fn verify(&mut self, off: u64, len: u64, seed: u64, position: u64) -> Result<()> {
        match self {
            Self::Hca(hca) => hca.verify(off, len, seed, position).await,
            Self::Rxe(rxe) => rxe.verify(off, len, seed, position).await,
        }
    }

    async fn peek(&mut self, off: u64, len: u32) -> Result<Vec<u8>> {
        match self {
            Self::Hca(hca) => hca.peek(off, len).await,
            Self::Rxe(rxe) => rxe.peek(off, len).await,
        }
    }

    async fn post_recv(&mut self, places: &[(u64, u32)]) -> Result<()> {
        match self {
            Self::Hca(hca) => hca.post_recv(places).await,
            Self::Rxe(rxe) => rxe.post_recv(places).await,
        }
    }

    async fn post_send(&mut self, messages: &[Message]) -> Result<()> {
        match self {
            Self::Hca(hca) => hca.post_send(messages).await,
            Self::Rxe(rxe) => rxe.post_send(messages).await,
        }
    }

    async fn poll(&mut self, count: u32) -> Result<Vec<Completion>> {
        match self {
            Self::Hca(hca) => hca.poll(count).await,
            Self::Rxe(rxe) => rxe.poll(count).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_pair_of_stations_meets_exactly_once() {
        let all = rounds(8);
        assert_eq!(all.len(), 7);
        let mut met = BTreeSet::new();
        for pairs in &all {
            let busy: BTreeSet<_> = pairs.iter().flat_map(|(a, b)| [*a, *b]).collect();
            assert!(busy.into_iter().eq(0..8), "{pairs:?}");
            met.extend(pairs.iter().map(|(a, b)| (*a.min(b), *a.max(b))));
        }
        assert_eq!(met.len(), 28);
    }
}
