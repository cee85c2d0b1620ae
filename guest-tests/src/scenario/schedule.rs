//! Schedules scenarios. Some must run alone, and the others run in parallel.
//!
//! A guest needs its CPUs mainly while booting and then mostly waits. A single scenario therefore uses little more than
//! one CPU. Parallel scenarios use the other CPUs.

use std::num::NonZeroUsize;

use anyhow::Result;
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};

use super::Scenario;
use crate::lab::Lab;
use crate::report::Report;

/// Runs the scenarios that may run in parallel, up to `side_by_side` at a time, and then the others one by one. If
/// `side_by_side` is 1, all scenarios run one by one in the given order.
///
/// # Errors
/// Fails if an outcome cannot be printed.
pub async fn run(
    scenarios: &[&'static Scenario],
    side_by_side: NonZeroUsize,
    lab: &Lab,
    report: &mut Report,
) -> Result<()> {
    let (beside, alone) = split(scenarios, side_by_side);
    let run = |scenario: &'static Scenario| {
        let mut own = report.beside();
        async move {
            scenario.run(lab, &mut own).await?;
            Ok::<_, anyhow::Error>(own.counts())
        }
    };
    let counts: Vec<_> =
        stream::iter(beside).map(run).buffer_unordered(side_by_side.get()).try_collect().await?;
    for counts in counts {
        report.add(counts);
    }
    for scenario in alone {
        scenario.run(lab, report).await?;
    }
    Ok(())
}

fn split(
    scenarios: &[&'static Scenario],
    side_by_side: NonZeroUsize,
) -> (Vec<&'static Scenario>, Vec<&'static Scenario>) {
    scenarios.iter().partition(|scenario| side_by_side.get() > 1 && !scenario.alone)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusive_scenarios_run_alone() {
        let named = |name| Scenario::named(name).unwrap();
        let wanted = [named("speed-guests"), named("boot"), named("nic-speed"), named("mthca-probe")];
        let names = |list: Vec<&'static Scenario>| list.iter().map(|s| s.name).collect::<Vec<_>>();
        let (beside, alone) = split(&wanted, NonZeroUsize::new(2).unwrap());
        assert_eq!(names(beside), ["boot", "mthca-probe"]);
        assert_eq!(names(alone), ["speed-guests", "nic-speed"]);
        let (beside, alone) = split(&wanted, NonZeroUsize::MIN);
        assert!(beside.is_empty());
        assert_eq!(names(alone), ["speed-guests", "boot", "nic-speed", "mthca-probe"]);
    }
}
