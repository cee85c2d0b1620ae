//! Imports figures that guest-lab's scenarios measure in guests.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::report::{Figure, Figures, print};

/// Each scenario, with the name of the results file in its run directory.
const SCENARIOS: [(&str, &str); 2] = [("speed-guests", "speed.jsonl"), ("nic-speed", "speed.jsonl")];

pub(crate) fn measure(figures: &mut Figures) -> Result<()> {
    let programs = std::env::current_exe()?;
    let release = programs.parent().context("this program is in a directory")?;
    let lab = release.with_file_name("debug").join("guest-lab");
    for (scenario, file) in SCENARIOS {
        let mut command = Command::new(&lab);
        command.args(["run", scenario]).env("HCAD_PROGRAMS", release);
        let status = command.status().with_context(|| {
            format!("cannot start {}; build it with 'cargo build --bin guest-lab'", lab.display())
        })?;
        // Import the figures even if a case failed. Failures are reported when the scenarios run as tests.
        if !status.success() {
            print(&format!("guest-lab run {scenario} exited with {status}; its figures are used anyway"));
        }
        let path = Path::new("target/lab").join(scenario).join("latest").join(file);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        figures.all.extend(parse(&text)?);
    }
    Ok(())
}

fn parse(text: &str) -> Result<Vec<Figure>> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let figures = lines.map(|line| serde_json::from_str(line).with_context(|| line.to_owned()));
    let figures = figures.collect::<Result<Vec<Figure>>>()?;
    ensure!(!figures.is_empty(), "the scenario wrote no figures");
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scenario_figures_are_imported() {
        let line = r#"{"name":"guest_e810_tcp_rr_rate","value":900.5,"unit":"round trips/s","against":"virtio-net","reference":1000.0,"ratio":0.9005,"spread":[890.0,910.0]}"#;
        let figures = parse(&format!("{line}\n\n{line}\n")).unwrap();
        assert_eq!(figures.len(), 2);
        assert_eq!((figures[0].name.as_str(), figures[0].ratio), ("guest_e810_tcp_rr_rate", 0.9005));
        assert!(parse("").is_err());
    }
}
