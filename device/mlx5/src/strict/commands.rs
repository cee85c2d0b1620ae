//! Checks commands before they execute.

use std::collections::BTreeSet;

use card::frontend::strict::Findings;
use card::memory::GuestMemory;
use protocol::hca::mlx5::device::{Teardown, TeardownProfile};
use protocol::hca::mlx5::input::{Command, Pages};
use protocol::hca::mlx5::pages::PageOperation;
use protocol::ids::Iova;

use super::queues;
use super::rules::{PAGE_GIVEN_TWICE, TEARDOWN_IN_USE};
use crate::function::Function;
use crate::resources::Resources;

/// Checks a command before it executes. The findings are reported only if the command succeeds.
pub(in super::super) fn command(function: &Function, command: &Command<'_>, dma: &GuestMemory) -> Findings {
    let mut found = Findings::default();
    let Function::Enabled(enabled) = function else { return found };
    if let Command::ManagePages(manage, pages) = command
        && PageOperation::from_code(manage.operation) == Some(PageOperation::Give)
    {
        given(enabled.pages.held(), manage.count, *pages, &mut found);
    }
    if let Some(resources) = enabled.resources.as_deref() {
        // Of the TEARDOWN_HCA profiles, only `Graceful` requires that no objects exist.
        const GRACEFUL: Teardown = Teardown { profile: TeardownProfile::Graceful.code() };
        if matches!(command, Command::TeardownHca(GRACEFUL) | Command::DisableHca(_)) {
            teardown(resources, command.opcode().name(), &mut found);
        }
        queues::created(resources, command, dma, &mut found);
    }
    found
}

/// Checks pages that software gives to the device. `held` lists the pages that the device already holds.
fn given(held: &[Iova], count: u32, pages: Pages<'_>, found: &mut Findings) {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let mut known: BTreeSet<Iova> = held.iter().copied().collect();
    if let Some(page) = pages.iter().take(count).find(|page| !known.insert(*page)) {
        found.add(
            &PAGE_GIVEN_TWICE,
            format!("MANAGE_PAGES gives the device the page at {page}, which it already has"),
        );
    }
}

fn teardown(resources: &Resources, name: &str, found: &mut Findings) {
    let counts = [
        ("QPs", resources.qps.count()),
        ("SRQs", resources.srqs.count()),
        ("CQs", resources.cqs.count()),
        ("EQs", resources.eqs.count()),
        ("keys", resources.mkeys.count()),
        ("PDs", resources.pds.count()),
        ("UAR pages", resources.uars.count()),
        ("XRC domains", resources.xrcds.count()),
        ("transport domains", resources.domains.count()),
        ("counter sets", resources.counter_sets.count()),
        ("flow tables", resources.steering.tables()),
        ("flow counters", resources.steering.counters()),
        ("SQs and RQs", resources.netdev.queues.count()),
        ("TIRs", resources.netdev.tirs.count()),
        ("TISs", resources.netdev.tiss.count()),
        ("RQTs", resources.netdev.rqts.count()),
    ];
    let left: Vec<_> = counts
        .iter()
        .filter(|(_, count)| *count != 0)
        .map(|(name, count)| format!("{name}: {count}"))
        .collect();
    if !left.is_empty() {
        found.add(&TEARDOWN_IN_USE, format!("{name} while objects exist ({})", left.join(", ")));
    }
}
