//! Charts of the results: bandwidth by message size, and message rate by number of queue pairs. Both also show
//! references, such as raw UDP.

use std::ops::Range;
use std::path::Path;

use anyhow::{Result, anyhow};
use clap::ValueEnum as _;
use plotters::prelude::*;

use crate::pair::Wire;
use crate::report::Figures;
use crate::runs::{parse_size, size};
use crate::scale::QPS;
use crate::yardstick::SIZES;

const SIZE: (u32, u32) = (860, 520);
const FONT: &str = "sans-serif";

#[derive(Debug)]
struct Line {
    title: String,
    color: RGBColor,
    /// Whether the line shows hcad rather than a reference. Only hcad's lines have markers.
    ours: bool,
    points: Vec<(f64, f64)>,
}

struct Picture<'a> {
    title: &'a str,
    x: (&'a str, &'a dyn Fn(f64) -> String),
    y: (&'a str, &'a dyn Fn(f64) -> String),
    lines: Vec<Line>,
}

const OURS: [RGBColor; 3] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115)];
const THEIRS: [RGBColor; 2] = [RGBColor(90, 90, 90), RGBColor(204, 121, 167)];

/// Draws every chart that has an hcad line with at least two points.
pub(crate) fn draw(folder: &Path, figures: &Figures) -> Result<()> {
    let bandwidth = Picture {
        title: "RDMA WRITE bandwidth between two HCAs, one queue pair",
        x: ("message size in bytes", &|bytes| label_size(bytes)),
        y: ("MB/s", &label),
        lines: bandwidths(figures),
    };
    let rates = Picture {
        title: "Rate of 64-byte SENDs between two HCAs",
        x: ("number of queue pairs", &label),
        y: ("messages/s", &label),
        lines: rates(figures),
    };
    for (name, picture) in [("bandwidth.svg", bandwidth), ("rate.svg", rates)] {
        if picture.lines.iter().any(|line| line.ours && line.points.len() > 1) {
            std::fs::create_dir_all(folder)?;
            picture.draw(&folder.join(name)).map_err(|error| anyhow!("drawing {name}: {error}"))?;
        }
    }
    Ok(())
}

fn bandwidths(figures: &Figures) -> Vec<Line> {
    let by_name = |prefix: &str, suffix: &str| {
        let point = |figure: &crate::report::Figure| {
            let len = figure.name.strip_prefix(prefix)?.strip_suffix(suffix)?;
            Some((number(parse_size(len)?), figure.value))
        };
        let mut points: Vec<_> = figures.all.iter().filter_map(point).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let mut lines = Vec::new();
    for (wire, color) in Wire::value_variants().iter().zip(OURS) {
        let points = by_name(&format!("{}rc_write_", wire.prefix()), "_bw");
        lines.push(Line { title: format!("WRITE, {}", wire.title()), color, ours: true, points });
    }
    // UDP is measured with at most 4 KiB per datagram. A longer message takes several datagrams, so the chart shows the
    // 4 KiB bandwidth for it.
    let mut udp = by_name("udp_", "_bw");
    if let Some(&(_, most)) = udp.last() {
        let longer = SIZES.map(|len| number(len.into())).into_iter().filter(|&len| len > 4096.0);
        udp.extend(longer.map(|len| (len, most)));
    }
    lines.push(Line { title: "raw UDP with GSO".into(), color: THEIRS[0], ours: false, points: udp });
    let mut copied = by_name("memcpy_", "_bw");
    copied.retain(|point| point.0 <= number(8 << 20));
    lines.push(Line { title: "memcpy, one thread".into(), color: THEIRS[1], ours: false, points: copied });
    lines.retain(|line| !line.points.is_empty());
    lines
}

fn rates(figures: &Figures) -> Vec<Line> {
    let mut counts = QPS;
    counts.sort_unstable();
    let mut lines = Vec::new();
    for (wire, color) in Wire::value_variants().iter().zip(OURS) {
        let point = |count: usize| {
            let name = format!("{}scale_rc_send_64b_rate_{count}qp", wire.prefix());
            Some((number(count as u64), figures.value(&name)?))
        };
        let points: Vec<_> = counts.into_iter().filter_map(point).collect();
        lines.push(Line { title: format!("SEND, {}", wire.title()), color, ours: true, points });
    }
    let across = |value: f64| counts.map(|count| (number(count as u64), value)).to_vec();
    for ((name, title), color) in
        [("udp_64b_rate", "raw UDP with GSO"), ("udp_64b_nogso_rate", "raw UDP")].into_iter().zip(THEIRS)
    {
        let points = figures.value(name).map(across).unwrap_or_default();
        lines.push(Line { title: title.into(), color, ours: false, points });
    }
    lines.retain(|line| !line.points.is_empty());
    lines
}

impl Picture<'_> {
    fn draw(&self, path: &Path) -> Result<(), Box<dyn std::error::Error + '_>> {
        let area = SVGBackend::new(path, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let (x, y) = (extent(points().map(|p| p.0), 1.0), extent(points().map(|p| p.1), 1.5));
        let mut chart = ChartBuilder::on(&area)
            .caption(self.title, (FONT, 20))
            .margin(12)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d(x.log_scale().base(4.0), y.log_scale())?;
        chart
            .configure_mesh()
            .max_light_lines(0)
            .bold_line_style(BLACK.mix(0.12))
            .x_desc(self.x.0)
            .y_desc(self.y.0)
            .x_label_formatter(&|value| (self.x.1)(*value))
            .y_label_formatter(&|value| (self.y.1)(*value))
            .label_style((FONT, 14))
            .axis_desc_style((FONT, 15))
            .draw()?;
        for line in &self.lines {
            let color = line.color;
            let style = color.stroke_width(if line.ours { 3 } else { 2 });
            let series = chart.draw_series(LineSeries::new(line.points.iter().copied(), style))?;
            series.label(&line.title).legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
            if line.ours {
                chart.draw_series(line.points.iter().map(|&point| Circle::new(point, 4, color.filled())))?;
            }
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .margin(12)
            .legend_area_size(30)
            .label_font((FONT, 14))
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        area.present()?;
        Ok(())
    }
}

/// Returns the range of the values, extended by a margin.
fn extent(values: impl Iterator<Item = f64> + Clone, room: f64) -> Range<f64> {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    let most = values.fold(0.0, f64::max);
    least / room..most * room
}

/// Formats a number for display, such as 1, 10k or 2.5M.
fn label(value: f64) -> String {
    match value {
        _ if value >= 1e6 => format!("{}M", value / 1e6),
        _ if value >= 1e4 => format!("{}k", value / 1e3),
        _ => format!("{value}"),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a label")]
fn label_size(bytes: f64) -> String {
    size(bytes.max(0.0) as u64)
}

#[expect(clippy::cast_precision_loss, reason = "a position in a chart")]
const fn number(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Figure, Reference};

    fn figures(names: &[(&str, f64)]) -> Figures {
        let reference = Reference { name: "udp_4k_bw".into(), value: 1.0 };
        let all =
            names.iter().map(|&(name, value)| Figure::new(name, "MB/s", &[value], &reference)).collect();
        Figures { all }
    }

    #[test]
    fn points_are_selected_by_name_and_sorted_by_length() {
        let figures = figures(&[
            ("udp_4k_bw", 9.0),
            ("udp_4k_nogso_bw", 1.0),
            ("ring_rc_write_1m_bw", 7.0),
            ("ring_rc_write_64b_bw", 2.0),
            ("ring_rc_write_1m_spread_bw", 6.0),
            ("ring_rc_send_1m_bw", 5.0),
            ("memcpy_16m_bw", 30.0),
        ]);
        let lines = bandwidths(&figures);
        let titles: Vec<_> = lines.iter().map(|line| line.title.as_str()).collect();
        assert_eq!(titles, ["WRITE, ring", "raw UDP with GSO"]);
        assert_eq!(lines[0].points, [(64.0, 2.0), (1_048_576.0, 7.0)]);
        assert_eq!(lines[1].points.len(), 1 + 5, "the UDP bandwidth is repeated for longer messages");
    }

    #[test]
    fn pictures_are_drawn_only_for_measured_series() {
        let folder = tempfile::tempdir().unwrap();
        draw(folder.path(), &figures(&[("udp_4k_bw", 9.0)])).unwrap();
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            0,
            "no chart is drawn without figures for hcad"
        );
        let figures = figures(&[
            ("udp_64b_rate", 5e6),
            ("ring_scale_rc_send_64b_rate_16qp", 1e6),
            ("ring_scale_rc_send_64b_rate_1qp", 7e5),
        ]);
        draw(folder.path(), &figures).unwrap();
        let text = std::fs::read_to_string(folder.path().join("rate.svg")).unwrap();
        for part in ["messages/s", "number of queue pairs", "SEND, ring", "raw UDP with GSO"] {
            assert!(text.contains(part), "{part}");
        }
    }

    #[test]
    fn sizes_are_labelled_with_units() {
        assert_eq!([1.0, 1000.0, 20_000.0, 2.5e6].map(label), ["1", "1000", "20k", "2.5M"]);
        assert_eq!(label_size(65536.0), "64k");
    }
}
