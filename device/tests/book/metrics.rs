//! The reference of metrics: what an endpoint without devices says of its families.

use std::fmt::Write as _;

use device::metrics::exposition::Exposition;
use device::metrics::families::expose;

use crate::markdown::cell;

const HEAD: &str = "# Metrics

<!-- Made by `HCAD_UPDATE_BOOK=1 cargo test -p device --test book` from the families themselves. -->

The metrics served to Prometheus at the address in `metrics` of the [configuration](configuration.md#the-file). The label
`device` of a sample is the number of its device. `hcactl counters` shows the same numbers and more, by part of the device.

| metric | kind | |
| --- | --- | --- |
";

pub(crate) fn page() -> String {
    let mut exposition = Exposition::default();
    expose(&mut exposition, &[]);
    let text = exposition.finish();
    let mut page = HEAD.to_owned();
    let mut help = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            help = rest.split_once(' ').unwrap().1;
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            let _ = writeln!(page, "| `{name}` | {kind} | {} |", cell(help));
        }
    }
    page
}
