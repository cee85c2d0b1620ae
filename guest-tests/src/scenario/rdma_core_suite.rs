//! Runs rdma-core's device tests in a guest and compares the results with the known results for a driver. Unlike in
//! rdma-core's own test runner, each test runs in a separate process.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use agent::wire::{Ask, ExitStatus, ProgramId, Spawn};
use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use crate::report::Report;
use crate::vm::Vm;

const PROGRAM: &str = include_str!("../../guest/rdma_core_tests.py");
/// Timeout for one test. The time for the first test includes loading the suite's modules.
const LINE_TIMEOUT: Duration = Duration::from_secs(200);
const ANSWER_MARGIN: Duration = Duration::from_secs(60);

/// The suite's modules in rdma-core 56 that apply to any device. The others (`test_mlx5_*`, `test_efa*`) test
/// vendor-specific interfaces, and one of them breaks the suite if its vendor's device is absent.
pub(super) const MODULES: &[&str] = &[
    "test_addr",
    "test_atomic",
    "test_cq",
    "test_cq_events",
    "test_cqex",
    "test_cuda_dmabuf",
    "test_device",
    "test_flow",
    "test_fork",
    "test_mr",
    "test_odp",
    "test_parent_domain",
    "test_pd",
    "test_qp",
    "test_qpex",
    "test_rdmacm",
    "test_relaxed_ordering",
    "test_rss_traffic",
    "test_shared_pd",
    "test_srq",
    "test_tag_matching",
];

/// Modules added to rdma-core after version 56.
pub(super) const NEWER_MODULES: &[&str] = &["test_buf", "test_dmah", "test_phc_timestamp"];

/// A test that is expected to fail because of the driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    pub(super) test: &'static str,
    /// The reason, with its location in the driver's source code.
    pub(super) why: &'static str,
}

/// A test, class or module that skips itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Skip {
    pub(super) tests: &'static str,
    /// Substring of the reason that the test prints.
    pub(super) reason: &'static str,
    pub(super) why: &'static str,
}

pub(super) const fn skip(tests: &'static str, reason: &'static str, why: &'static str) -> Skip {
    Skip { tests, reason, why }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) modules: &'static [&'static [&'static str]],
    pub(super) device: &'static str,
    pub(super) failures: &'static [Failure],
    /// Expected skips. If several entries match a test, the first one applies.
    pub(super) skips: &'static [&'static [Skip]],
    /// The tests, named "module.Class.method", that trigger races in the driver if they run in two processes at once.
    pub(super) turns: &'static [&'static str],
}

/// The tests, named "module.Class.method", that need a delay after each SEND. They shrink the completion queue below
/// the number of SENDs in flight, and without the delay, a later completion would not fit, regardless of the device
/// (`irdma_uresize_cq` in uverbs.c, `mthca_resize_cq` in verbs.c).
const DELAYED_TESTS: &[&str] = &["test_cq.CQTest.test_resize_cq"];

/// Prepares a guest for the suite. The disk that follows the root file system's disks must contain the tests, and the
/// RDMA device must exist.
pub(super) async fn prepare(vm: &mut Vm) -> Result<()> {
    // Some tests allocate huge pages before they check the device's features.
    vm.run(&["sysctl", "-q", "vm.nr_hugepages=16"]).await?;
    // A maintainer script of Debian's base-files creates this directory, but is not run here.
    vm.run(&["mkdir", "-p", "/mnt"]).await?;
    vm.run(&["mount", "-o", "ro", "/dev/vdc", "/mnt"]).await.map(drop)
}

/// Runs the suite, with one case per module. The suite's output goes to `log`.
pub(super) async fn run(
    vm: &mut Vm,
    known: Known,
    report: &mut Report,
    hint: &str,
    log: &Path,
) -> Result<()> {
    let mut suite = Suite::start(vm, known, File::create(log)?).await?;
    let mut modules = Vec::new();
    while let Some(module) = suite.next_module() {
        report.case(&module, hint, suite.judge(&module)).await?;
        modules.push(module);
    }
    let missing: Vec<_> =
        known.modules().filter(|name| !modules.iter().any(|module| module == *name)).collect();
    report
        .case("the suite ran all its modules", hint, async {
            ensure!(missing.is_empty(), "no test of {missing:?} ran");
            Ok(())
        })
        .await
}

/// The result of a test, as reported by the program in the guest.
#[derive(Clone, Debug, Deserialize)]
struct Verdict {
    test: String,
    outcome: Outcome,
    /// The reason for the skip, or the error.
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Passed,
    Skipped,
    Failed,
}

struct Suite<'a> {
    vm: &'a mut Vm,
    known: Known,
    program: ProgramId,
    log: File,
    /// The next result, not yet checked.
    next: Option<Verdict>,
}

impl<'a> Suite<'a> {
    async fn start(vm: &'a mut Vm, known: Known, log: File) -> Result<Self> {
        let (turns, delayed) = (known.turns.join(","), DELAYED_TESTS.join(","));
        let mut argv =
            ["python3", "-W", "ignore", "-c", PROGRAM, "/mnt/tests", known.device, &turns, &delayed]
                .map(str::to_owned)
                .to_vec();
        argv.extend(known.modules().map(str::to_owned));
        let program = vm.call(Spawn { argv }).await?.program;
        let mut suite = Self { vm, known, program, log, next: None };
        suite.step().await?;
        Ok(suite)
    }

    /// Returns the module of the next test, or `None` after the last test.
    fn next_module(&self) -> Option<String> {
        self.next.as_ref().map(|verdict| module(&verdict.test).to_owned())
    }

    /// Compares a module's test results with the known ones. Stops at the first result from another module.
    async fn judge(&mut self, name: &str) -> Result<()> {
        let mut wrong = Vec::new();
        while let Some(verdict) = self.next.take_if(|verdict| module(&verdict.test) == name) {
            wrong.extend(self.known.surprise(&verdict));
            self.step().await?;
        }
        ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
        Ok(())
    }

    /// Waits for the next result or for the end of the suite.
    async fn step(&mut self) -> Result<()> {
        let timeout_ms = u32::try_from(LINE_TIMEOUT.as_millis())?;
        let step = Ask { program: self.program, line: None, timeout_ms };
        let line = match self.vm.call_within(LINE_TIMEOUT + ANSWER_MARGIN, step).await {
            Ok(said) => said.line,
            // At the end of the output, the exit status shows whether the program succeeded.
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

impl Known {
    fn modules(&self) -> impl Iterator<Item = &'static str> {
        self.modules.iter().copied().flatten().copied()
    }

    /// Describes how a test's result differs from the expected one, if it does.
    fn surprise(&self, verdict: &Verdict) -> Option<String> {
        let Verdict { test, outcome, text } = verdict;
        let differs = |expected: &str| Some(format!("{test}: {outcome:?}, {expected}: {text}"));
        if let Some(failure) = self.failures.iter().find(|failure| failure.test == test) {
            let is_expected = *outcome == Outcome::Failed;
            return if is_expected {
                None
            } else {
                differs(&format!("although it cannot pass ({})", failure.why))
            };
        }
        let is_one_of = |tests: &str| {
            test.strip_prefix(tests).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let skip = self.skips.iter().copied().flatten().find(|skip| is_one_of(skip.tests));
        match (outcome, skip) {
            (Outcome::Passed, None) => None,
            (Outcome::Skipped, Some(skip)) if text.contains(skip.reason) => None,
            (_, Some(skip)) => differs(&format!("not skipped for {:?} ({})", skip.reason, skip.why)),
            (_, None) => differs("although it should pass"),
        }
    }

    /// Checks that every entry gives a reason and names a module in the suite.
    #[cfg(test)]
    pub(super) fn check(&self) {
        let known = |test: &str| self.modules().any(|name| name == module(test));
        for failure in self.failures {
            assert!(known(failure.test) && !failure.why.is_empty(), "{failure:?}");
        }
        for skip in self.skips.iter().copied().flatten() {
            assert!(known(skip.tests) && !skip.why.is_empty(), "{skip:?}");
        }
    }
}

/// Returns the module in a test's name, such as `test_x` in `tests.test_x.Class.test_name`.
fn module(test: &str) -> &str {
    test.split('.').nth(1).unwrap_or(test)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unexpected_results_are_reported() {
        let verdict = |outcome: &str| -> Verdict {
            let line =
                format!(r#"{{"test":"tests.test_mr.MRTest.test_x","outcome":"{outcome}","text":"no"}}"#);
            serde_json::from_str(&line).unwrap()
        };
        assert_eq!(module(&verdict("passed").test), "test_mr");
        let nothing = Known { modules: &[], device: "", failures: &[], skips: &[], turns: &[] };
        assert_eq!(nothing.surprise(&verdict("passed")), None);
        assert!(nothing.surprise(&verdict("failed")).unwrap().ends_with("although it should pass: no"));
        assert!(nothing.surprise(&verdict("skipped")).is_some());
        const SKIPS: &[Skip] = &[skip("tests.test_mr.MRTest", "no", "why")];
        let skipping = Known { skips: &[&[], SKIPS], ..nothing };
        assert_eq!(skipping.surprise(&verdict("skipped")), None);
        assert!(skipping.surprise(&verdict("passed")).is_some());
    }
}
