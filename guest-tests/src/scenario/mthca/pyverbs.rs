//! rdma-core's own tests for devices, run by their own runner in a guest.

mod pinned;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use agent::wire::{Ask, ProgramId, Spawn};
use anyhow::{Context, Result, ensure};

use self::pinned::{FAILURES, MODULES, SKIPS, is_of_another_vendor};
use super::super::stock_pair::StockNode;
use crate::lab::Lab;
use crate::report::Report;
use crate::vm::Vm;

/// One test; loading all of them, uncompiled, comes before the first.
const LINE_TIMEOUT: Duration = Duration::from_secs(200);
const ANSWER_MARGIN: Duration = Duration::from_secs(20);

pub(in super::super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    let run = lab.new_run("mthca-pyverbs")?;
    let hint = format!("consoles, logs and the suite's output: {}", run.path().display());
    let tests = lab.rdma_core_tests().await?;
    let mut node = StockNode::start_alone(lab, &run, vec![tests]).await.with_context(|| hint.clone())?;
    report.case("the port is active", &hint, prepare(&mut node)).await?;
    let mut suite = Suite::start(&mut node.vm, File::create(run.file("suite.log"))?).await?;
    let mut modules = Vec::new();
    while let Some(module) = suite.next_module().await? {
        report.case(&module, &hint, suite.judge(&module)).await?;
        modules.push(module);
    }
    let missing: Vec<_> =
        MODULES.iter().filter(|name| !modules.iter().any(|module| module == *name)).collect();
    report
        .case("the suite went through all its modules", &hint, async {
            ensure!(missing.is_empty(), "no test of {missing:?} was run");
            Ok(())
        })
        .await?;
    report.case("no kernel warned of anything", &hint, node.no_warnings()).await?;
    report.case("the daemon ends with success on SIGTERM", &hint, node.stop()).await
}

/// What the suite wants to find: the device, its port, an address for `rdma_cm`.
async fn prepare(node: &mut StockNode) -> Result<()> {
    node.load().await?;
    super::ipoib::up(node).await?;
    node.vm.run(&["mount", "-o", "ro", "/dev/vdc", "/mnt"]).await.map(drop)
}

/// What became of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    Skipped(String),
    /// `FAIL` or `ERROR`.
    Failed,
}

/// The suite while it runs.
struct Suite<'a> {
    vm: &'a mut Vm,
    program: ProgramId,
    log: File,
    /// The test whose name was printed last.
    current: Option<String>,
    outcomes: BTreeMap<String, Outcome>,
}

impl<'a> Suite<'a> {
    async fn start(vm: &'a mut Vm, log: File) -> Result<Self> {
        let command = "cd /tmp && exec python3 -u /mnt/tests/run_tests.py -v --dev mthca0 --port 1 2>&1";
        let argv = ["sh", "-c", command].map(str::to_owned).to_vec();
        let program = vm.call(Spawn { argv }).await?.program;
        Ok(Self { vm, program, log, current: None, outcomes: BTreeMap::new() })
    }

    /// The module of the next test, or none when the last has been run.
    async fn next_module(&mut self) -> Result<Option<String>> {
        loop {
            if let Some(name) = &self.current {
                return Ok(Some(module(name).to_owned()));
            }
            if !self.step().await? {
                return Ok(None);
            }
        }
    }

    /// Follows the tests of a module to the first of another, and compares what became of them with what is pinned.
    async fn judge(&mut self, name: &str) -> Result<()> {
        while self.current.as_deref().is_some_and(|test| module(test) == name) {
            if !self.step().await? {
                break;
            }
        }
        let of_module = self.outcomes.iter().filter(|(test, _)| module(test) == name);
        let wrong: Vec<_> = of_module.filter_map(|(test, outcome)| surprise(test, outcome)).collect();
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }

    /// Takes one line; false when the tests are over.
    async fn step(&mut self) -> Result<bool> {
        let timeout_ms = u32::try_from(LINE_TIMEOUT.as_millis())?;
        let step = Ask { program: self.program, line: None, timeout_ms };
        let line = self.vm.call_within(LINE_TIMEOUT + ANSWER_MARGIN, step).await?.line;
        writeln!(self.log, "{line}")?;
        // The details of failures follow, then the counts.
        if line.starts_with("=====") || line.starts_with("-----") {
            self.current = None;
            self.rest().await?;
            return Ok(false);
        }
        if let Some(test) = named(&line) {
            self.current = Some(test.to_owned());
        }
        if let (Some(test), Some(outcome)) = (&self.current, outcome(&line)) {
            self.outcomes.insert(test.clone(), outcome);
        }
        Ok(true)
    }

    /// Writes what the suite says at its end to the log.
    async fn rest(&mut self) -> Result<()> {
        let end = crate::tools::wait(self.vm, self.program, LINE_TIMEOUT).await?;
        self.log.write_all(end.stdout.as_bytes()).context("writing the suite's output")
    }
}

/// How the outcome of a test differs from what is pinned for it.
fn surprise(test: &str, outcome: &Outcome) -> Option<String> {
    let differs = |expected: &str| Some(format!("{test}: {outcome:?}, {expected}"));
    if let Some(failure) = FAILURES.iter().find(|failure| failure.test == test) {
        let is_expected = *outcome == Outcome::Failed;
        return if is_expected {
            None
        } else {
            differs(&format!("though it could not pass: {}", failure.why))
        };
    }
    let is_one_of =
        |tests: &str| test.strip_prefix(tests).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    match (outcome, SKIPS.iter().find(|skip| is_one_of(skip.tests))) {
        (Outcome::Passed, None) => None,
        (Outcome::Skipped(reason), Some(skip)) if reason.contains(skip.reason) => None,
        (_, Some(skip)) => differs(&format!("not skipped for {:?}: {}", skip.reason, skip.why)),
        (Outcome::Skipped(_), None) if is_of_another_vendor(test) => None,
        (_, None) => differs("though it should pass"),
    }
}

/// `test_x` of `tests.test_x.Class.test_name`.
fn module(test: &str) -> &str {
    test.split('.').nth(1).unwrap_or(test)
}

/// The test a line begins with, as the runner writes it: `test_name (tests.test_x.Class.test_name)`.
fn named(line: &str) -> Option<&str> {
    let (name, rest) = line.split_once(" (")?;
    let (test, _) = rest.split_once(')')?;
    (!name.contains(' ') && test.starts_with("tests.")).then_some(test)
}

/// The outcome a line ends with. What a test prints itself may come between its name and that.
fn outcome(line: &str) -> Option<Outcome> {
    let end = line.rsplit_once(" ... ").map_or(line, |(_, end)| end);
    match end {
        "ok" => Some(Outcome::Passed),
        "FAIL" | "ERROR" => Some(Outcome::Failed),
        _ => {
            let reason = end.strip_prefix("skipped ")?;
            Some(Outcome::Skipped(reason.trim_matches(['\'', '"']).to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_named_in_one_line_and_judged_in_the_same_or_a_later_one() {
        let line = "test_open_dev (tests.test_device.DeviceTest.test_open_dev)";
        assert_eq!(named(line), Some("tests.test_device.DeviceTest.test_open_dev"));
        assert_eq!(outcome(line), None);
        assert_eq!(outcome("Test ibv_open_device() ... ok"), Some(Outcome::Passed));
        let line = "test_dm (tests.test_mr.MRTest.test_dm) ... skipped 'No device memory'";
        assert_eq!(named(line), Some("tests.test_mr.MRTest.test_dm"));
        assert_eq!(outcome(line), Some(Outcome::Skipped("No device memory".into())));
        assert_eq!(outcome("ERROR"), Some(Outcome::Failed));
        assert_eq!(named("see (tests.x)"), Some("tests.x"));
        assert_eq!(module("tests.test_mr.MRTest.test_dm"), "test_mr");
    }

    #[test]
    fn what_is_pinned_names_modules_that_are_run_and_says_why() {
        let known = |test: &str| MODULES.contains(&module(test)) || is_of_another_vendor(test);
        for failure in FAILURES {
            assert!(known(failure.test) && !failure.why.is_empty(), "{failure:?}");
        }
        for skip in SKIPS {
            assert!(known(skip.tests) && !skip.why.is_empty(), "{skip:?}");
        }
    }
}
