//! rdma-core's own tests for devices, run in a guest as their own runner does, but for a process for each.

mod pinned;

use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

use agent::wire::{Ask, ExitStatus, ProgramId, Spawn};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use self::pinned::{FAILURES, MODULES, SKIPS};
use super::super::stock_pair::StockNode;
use crate::lab::Lab;
use crate::report::Report;
use crate::vm::Vm;

const PROGRAM: &str = include_str!("../../../guest/rdma_core_tests.py");
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
    while let Some(module) = suite.next_module() {
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
    // Some tests want huge pages first and look at what the device can do then.
    node.vm.run(&["sysctl", "-q", "vm.nr_hugepages=16"]).await?;
    // Debian's base-files makes it when it is configured; our root is unpacked only.
    node.vm.run(&["mkdir", "-p", "/mnt"]).await?;
    node.vm.run(&["mount", "-o", "ro", "/dev/vdc", "/mnt"]).await.map(drop)
}

/// What became of a test, as the program in the guest tells it.
#[derive(Clone, Debug, Deserialize)]
struct Verdict {
    test: String,
    outcome: Outcome,
    /// Why it skipped itself, or what went wrong.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Passed,
    Skipped,
    Failed,
}

/// The suite while it runs.
struct Suite<'a> {
    vm: &'a mut Vm,
    program: ProgramId,
    log: File,
    /// The first of the module that is to be judged next.
    next: Option<Verdict>,
}

impl<'a> Suite<'a> {
    async fn start(vm: &'a mut Vm, log: File) -> Result<Self> {
        let mut argv =
            ["python3", "-W", "ignore", "-c", PROGRAM, "/mnt/tests", "mthca0"].map(str::to_owned).to_vec();
        argv.extend(MODULES.iter().map(|&module| module.to_owned()));
        let program = vm.call(Spawn { argv }).await?.program;
        let mut suite = Self { vm, program, log, next: None };
        suite.step().await?;
        Ok(suite)
    }

    /// The module of the next test, or none when the last has been run.
    fn next_module(&self) -> Option<String> {
        self.next.as_ref().map(|verdict| module(&verdict.test).to_owned())
    }

    /// Follows the tests of a module to the first of another, and compares what became of them with what is pinned.
    async fn judge(&mut self, name: &str) -> Result<()> {
        let mut wrong = Vec::new();
        while let Some(verdict) = self.next.take_if(|verdict| module(&verdict.test) == name) {
            wrong.extend(surprise(&verdict));
            self.step().await?;
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }

    /// Waits for the next verdict, or the end.
    async fn step(&mut self) -> Result<()> {
        let timeout_ms = u32::try_from(LINE_TIMEOUT.as_millis())?;
        let step = Ask { program: self.program, line: None, timeout_ms };
        let line = match self.vm.call_within(LINE_TIMEOUT + ANSWER_MARGIN, step).await {
            Ok(said) => said.line,
            // It has no more to say; whether it ended well is its status.
            Err(error) => {
                let end = crate::tools::wait(self.vm, self.program, LINE_TIMEOUT).await?;
                ensure!(end.status == ExitStatus::Code(0), "{error:#}: {:?}: {}", end.status, end.stderr);
                self.next = None;
                return Ok(());
            }
        };
        writeln!(self.log, "{line}")?;
        self.next = Some(serde_json::from_str(&line).with_context(|| line.clone())?);
        Ok(())
    }
}

/// How the outcome of a test differs from what is pinned for it.
fn surprise(verdict: &Verdict) -> Option<String> {
    let Verdict { test, outcome, text } = verdict;
    let differs = |expected: &str| Some(format!("{test}: {outcome:?}, {expected}: {text}"));
    if let Some(failure) = FAILURES.iter().find(|failure| failure.test == test) {
        let is_expected = *outcome == Outcome::Failed;
        return if is_expected {
            None
        } else {
            differs(&format!("though it could not pass ({})", failure.why))
        };
    }
    let is_one_of =
        |tests: &str| test.strip_prefix(tests).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    match (outcome, SKIPS.iter().find(|skip| is_one_of(skip.tests))) {
        (Outcome::Passed, None) => None,
        (Outcome::Skipped, Some(skip)) if text.contains(skip.reason) => None,
        (_, Some(skip)) => differs(&format!("not skipped for {:?} ({})", skip.reason, skip.why)),
        (_, None) => differs("though it should pass"),
    }
}

/// `test_x` of `tests.test_x.Class.test_name`.
fn module(test: &str) -> &str {
    test.split('.').nth(1).unwrap_or(test)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_pinned_may_differ_from_passing() {
        let verdict = |outcome: &str| -> Verdict {
            let line =
                format!(r#"{{"test":"tests.test_mr.MRTest.test_x","outcome":"{outcome}","text":"no"}}"#);
            serde_json::from_str(&line).unwrap()
        };
        assert_eq!(module(&verdict("passed").test), "test_mr");
        assert_eq!(surprise(&verdict("passed")), None);
        assert!(surprise(&verdict("failed")).unwrap().ends_with("though it should pass: no"));
        assert!(surprise(&verdict("skipped")).is_some());
    }

    #[test]
    fn what_is_pinned_names_modules_that_are_run_and_says_why() {
        let known = |test: &str| MODULES.contains(&module(test));
        for failure in FAILURES {
            assert!(known(failure.test) && !failure.why.is_empty(), "{failure:?}");
        }
        for skip in SKIPS {
            assert!(known(skip.tests) && !skip.why.is_empty(), "{skip:?}");
        }
    }
}
