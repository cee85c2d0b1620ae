//! Records the short sessions of stock drivers that the `device` crate's tests replay (`device/tests/sessions`).

use anyhow::{Context, Result};

use super::pair::Pair;
use super::{same, storm};
use crate::daemon::Interface;
use crate::lab::Lab;
use crate::report::{Report, line};

/// What the guest does after the driver has bound to the device.
#[derive(Clone, Copy, Debug)]
enum Session {
    /// The guest stays idle.
    Probe,
    /// The guest exchanges messages over an impaired link.
    Loss,
    /// The guest causes one error of each kind.
    Errors,
}

const SESSIONS: [(&str, Interface, Session); 6] = [
    ("mthca-probe", Interface::Mthca, Session::Probe),
    ("mthca-loss", Interface::Mthca, Session::Loss),
    ("mthca-errors", Interface::Mthca, Session::Errors),
    ("e810-probe", Interface::E810, Session::Probe),
    ("e810-loss", Interface::E810, Session::Loss),
    ("e810-errors", Interface::E810, Session::Errors),
];

impl Session {
    async fn perform(self, pair: &mut Pair) -> Result<()> {
        match self {
            Self::Probe => Ok(()),
            Self::Loss => {
                pair.make_wire_bad("0.03", 7).await?;
                for program in ["ibv_rc_pingpong -n 20 -s 4000 -m 512", "ib_read_lat -n 20 -s 3000"] {
                    pair.run(program).await?;
                }
                Ok(())
            }
            Self::Errors => storm::run(pair, 1).await,
        }
    }
}

pub(super) async fn run(lab: &Lab, report: &mut Report) -> Result<()> {
    for (name, interface, session) in SESSIONS {
        let run = lab.new_run(&format!("replay-{name}"))?;
        let hint = format!("console output, logs and records: {}", run.path().display());
        let mut pair = Pair::start(lab, run, interface, false).await.with_context(|| hint.clone())?;
        report.case(name, &hint, session.perform(&mut pair)).await?;
        let files = pair.files();
        report.case(&format!("{name}: the daemons exit cleanly"), &hint, pair.stop()).await?;
        for files in &files {
            report.case(&format!("{name} is replayed"), &hint, same(lab, files, false)).await?;
        }
        line(&format!("      {}", files[0].record.display()))?;
    }
    Ok(())
}
