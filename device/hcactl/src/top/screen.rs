//! The `hcactl top` screen, which fits a terminal of 80 columns and 24 lines.

use std::cmp::Ordering;

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Row, Table, Widget as _};

use super::sample::{DeviceLine, QpLine, View};
use crate::sanitize;

/// Number of screen lines for the title, the two headings, the separator and the keys.
const FRAME_LINES: u16 = 5;

/// Maximum height of a printed screen, in lines.
const MAX_LINES: u16 = 2000;

const KEYS: &str = "q quit  p pause  s/d sort queue pairs/devices  r reverse  arrows scroll";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeviceOrder {
    Number,
    Sent,
    Received,
    Retransmitted,
    Dropped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QpOrder {
    Requests,
    Waiting,
    Failed,
    Number,
}

/// View settings chosen by the user.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) devices: DeviceOrder,
    pub(super) qps: QpOrder,
    pub(super) reversed: bool,
    pub(super) paused: bool,
    /// Number of queue pairs scrolled out of view at the top.
    pub(super) above: usize,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            devices: DeviceOrder::Number,
            qps: QpOrder::Requests,
            reversed: false,
            paused: false,
            above: 0,
        }
    }
}

impl DeviceOrder {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Number => Self::Sent,
            Self::Sent => Self::Received,
            Self::Received => Self::Retransmitted,
            Self::Retransmitted => Self::Dropped,
            Self::Dropped => Self::Number,
        }
    }

    fn column(self) -> &'static str {
        match self {
            Self::Number => "DEVICE",
            Self::Sent => "SENT/s",
            Self::Received => "RCVD/s",
            Self::Retransmitted => "RETX/s",
            Self::Dropped => "DROP/s",
        }
    }

    /// Compares two devices by the chosen column. Device numbers sort in ascending order, all other columns in
    /// descending order.
    fn compare(self, a: &DeviceLine, b: &DeviceLine) -> Ordering {
        match self {
            Self::Number => a.id.cmp(&b.id),
            Self::Sent => b.sent.total_cmp(&a.sent),
            Self::Received => b.received.total_cmp(&a.received),
            Self::Retransmitted => b.retransmitted.total_cmp(&a.retransmitted),
            Self::Dropped => b.dropped.total_cmp(&a.dropped),
        }
    }
}

impl QpOrder {
    pub(super) fn next(self) -> Self {
        match self {
            Self::Requests => Self::Waiting,
            Self::Waiting => Self::Failed,
            Self::Failed => Self::Number,
            Self::Number => Self::Requests,
        }
    }

    fn column(self) -> &'static str {
        match self {
            Self::Requests => "SENDS/s",
            Self::Waiting => "WAITING",
            Self::Failed => "FAILED",
            Self::Number => "DEVICE QPN",
        }
    }

    /// Compares two queue pairs by the chosen column. Queue pair numbers sort in ascending order, all other columns in
    /// descending order.
    fn compare(self, a: &QpLine, b: &QpLine) -> Ordering {
        match self {
            Self::Requests => (b.sends + b.receives).total_cmp(&(a.sends + a.receives)),
            Self::Waiting => b.waiting.cmp(&a.waiting),
            Self::Failed => b.failed.cmp(&a.failed),
            Self::Number => Ordering::Equal,
        }
        .then((a.device, a.qpn).cmp(&(b.device, b.qpn)))
    }
}

pub(super) fn text(view: &View, title: &str, choice: &Choice, width: u16) -> String {
    let lines = view.devices.len() + view.qps.len();
    let height = u16::try_from(lines).unwrap_or(MAX_LINES).saturating_add(FRAME_LINES).min(MAX_LINES);
    let mut buffer = Buffer::empty(Rect::new(0, 0, width, height));
    let area = buffer.area;
    draw(view, title, choice, area, &mut buffer);
    buffer
        .content()
        .chunks(usize::from(width).max(1))
        .map(|line| {
            line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned() + "\n"
        })
        .collect()
}

pub(super) fn show(view: &View, title: &str, choice: &Choice, frame: &mut Frame<'_>) {
    draw(view, title, choice, frame.area(), frame.buffer_mut());
}

fn draw(view: &View, title: &str, choice: &Choice, area: Rect, to: &mut Buffer) {
    // Devices get up to half of the screen, or more if the queue pairs leave room.
    let devices = u16::try_from(view.devices.len()).unwrap_or(u16::MAX);
    let half = area.height.saturating_sub(FRAME_LINES) / 2;
    let qps = u16::try_from(view.qps.len()).unwrap_or(u16::MAX);
    let room = half.max(area.height.saturating_sub(FRAME_LINES).saturating_sub(qps));
    let [head, upper, between, lower, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(devices.min(room).saturating_add(1)),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let paused = if choice.paused { "  (paused)" } else { "" };
    Line::styled(sanitize::text(&format!("{title}{paused}")), bold).render(head, to);
    device_table(view, choice).render(upper, to);
    let hidden = if view.truncated { " (list truncated)" } else { "" };
    let count = format!("{} queue pairs{hidden}, sorted by {}", view.qps.len(), choice.qps.column());
    Line::styled(count, bold).render(between, to);
    qp_table(view, choice, lower).render(lower, to);
    Line::styled(KEYS, Style::new().fg(Color::DarkGray)).render(keys, to);
}

fn head(names: &'static [&'static str], ordered: &str) -> Row<'static> {
    let cells = names.iter().enumerate().map(|(index, name)| {
        let style = match name.trim() == ordered {
            true => Style::new().add_modifier(Modifier::REVERSED | Modifier::BOLD),
            false => Style::new().add_modifier(Modifier::BOLD),
        };
        let line = Line::styled(*name, style);
        if index < LEFT { line } else { line.right_aligned() }
    });
    Row::new(cells.collect::<Vec<_>>())
}

/// Number of text columns. They come first and are left-aligned. The other columns are right-aligned numbers.
const LEFT: usize = 3;

fn device_table(view: &View, choice: &Choice) -> Table<'static> {
    let mut lines: Vec<_> = view.devices.iter().collect();
    lines.sort_by(|a, b| turned(choice, choice.devices.compare(a, b)));
    let rows = lines.into_iter().map(|line| {
        let words = [line.id.to_string(), sanitize::text(&line.interface), line.state.to_owned()];
        let numbers = [
            line.qps.to_string(),
            rate(line.sent),
            rate(line.received),
            rate(line.packets),
            rate(line.retransmitted),
            rate(line.naks),
            rate(line.dropped),
        ];
        let style = match (line.is_healthy, line.retransmitted + line.naks + line.dropped > 0.0) {
            (false, _) => Style::new().fg(Color::Red),
            (true, true) => Style::new().fg(Color::Yellow),
            (true, false) => Style::new(),
        };
        row(words, numbers).style(style)
    });
    let widths = [6, 9, 10, 6, 7, 7, 7, 6, 6, 6].map(Constraint::Length);
    Table::new(rows, widths).header(head(
        &["DEVICE", "INTERFACE", "STATE", "QPS", "SENT/s", "RCVD/s", "PKTS/s", "RETX/s", "NAKS/s", "DROP/s"],
        choice.devices.column(),
    ))
}

fn qp_table(view: &View, choice: &Choice, area: Rect) -> Table<'static> {
    let mut lines: Vec<_> = view.qps.iter().collect();
    lines.sort_by(|a, b| turned(choice, choice.qps.compare(a, b)));
    let shown = usize::from(area.height.saturating_sub(1));
    let above = choice.above.min(lines.len().saturating_sub(shown));
    let rows = lines.into_iter().skip(above).take(shown).map(|line| {
        let words = [
            format!("{} {:#x}", line.device, line.qpn),
            format!("{} {}", line.service, line.state),
            sanitize::text(&line.peer),
        ];
        let numbers =
            [rate(line.sends), rate(line.receives), line.waiting.to_string(), line.failed.to_string()];
        let style = if line.failed > 0 { Style::new().fg(Color::Red) } else { Style::new() };
        row(words, numbers).style(style)
    });
    let widths = [14, 10, 23, 7, 7, 7, 6].map(Constraint::Length);
    Table::new(rows, widths).header(head(
        &["DEVICE QPN", "STATE", "PEER", "SENDS/s", "RECVS/s", "WAITING", "FAILED"],
        choice.qps.column(),
    ))
}

fn row<const WORDS: usize, const NUMBERS: usize>(
    words: [String; WORDS],
    numbers: [String; NUMBERS],
) -> Row<'static> {
    let words = words.into_iter().map(Line::from);
    let numbers = numbers.into_iter().map(|number| Line::from(number).right_aligned());
    Row::new(words.chain(numbers).collect::<Vec<_>>())
}

fn turned(choice: &Choice, order: Ordering) -> Ordering {
    if choice.reversed { order.reverse() } else { order }
}

/// Formats a rate in five characters.
fn rate(rate: f64) -> String {
    for (unit, scale) in [("G", 1e9), ("M", 1e6), ("K", 1e3)] {
        let scaled = rate / scale;
        if scaled >= 100.0 {
            return format!("{scaled:.0}{unit}");
        }
        if scaled >= 1.0 {
            return format!("{scaled:.1}{unit}");
        }
    }
    // Show a rate below one per second as nonzero.
    if rate > 0.0 && rate < 1.0 { "<1".to_owned() } else { format!("{rate:.0}") }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;

    fn device(id: u16, sent: f64, state: &'static str) -> DeviceLine {
        DeviceLine {
            id,
            interface: "mthca".to_owned(),
            state,
            is_healthy: state == "up",
            qps: 12,
            sent,
            received: 999.4,
            packets: 123_456.0,
            retransmitted: 0.4,
            naks: 0.0,
            dropped: 12.0,
        }
    }

    fn qp(qpn: u32, sends: f64, failed: u64) -> QpLine {
        QpLine {
            device: 1,
            qpn,
            service: "RC",
            state: "RTS".to_owned(),
            peer: "10.77.0.2 0x400012".to_owned(),
            sends,
            receives: 0.0,
            waiting: 16,
            failed,
        }
    }

    fn view() -> View {
        View {
            devices: vec![device(1, 1.25e9, "up"), device(2, 64.0, "down")],
            qps: (0..40).map(|n| qp(0x40_0000 + n, f64::from(n) * 100.0, u64::from(n % 7))).collect(),
            truncated: false,
        }
    }

    fn screen(choice: &Choice) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| show(&view(), "hcad at /run/x, every 1 s", choice, frame)).unwrap();
        let lines = terminal.backend().buffer().content().chunks(80);
        lines.map(|line| line.iter().map(ratatui::buffer::Cell::symbol).collect::<String>()).collect()
    }

    #[test]
    fn screen_fits_80_columns_and_24_lines() {
        let screen = screen(&Choice::default());
        let golden = [
            "hcad at /run/x, every 1 s",
            "DEVICE INTERFACE STATE         QPS  SENT/s  RCVD/s  PKTS/s RETX/s NAKS/s DROP/s",
            "1      mthca     up             12    1.2G     999    123K     <1      0     12",
            "2      mthca     down           12      64     999    123K     <1      0     12",
            "40 queue pairs, sorted by SENDS/s",
            "DEVICE QPN     STATE      PEER                    SENDS/s RECVS/s WAITING FAILED",
            "1 0x400027     RC RTS     10.77.0.2 0x400012         3.9K       0      16      4",
            "1 0x400026     RC RTS     10.77.0.2 0x400012         3.8K       0      16      3",
        ];
        for (line, golden) in screen.iter().zip(golden) {
            assert_eq!(line.trim_end(), golden);
        }
        assert!(screen[22].starts_with("1 0x400017 "), "{}", screen[22]);
        assert_eq!(screen[23].trim_end(), KEYS);
    }

    #[test]
    fn lists_are_sorted_in_chosen_order_and_scrolled() {
        let choice = Choice { qps: QpOrder::Failed, devices: DeviceOrder::Dropped, ..Choice::default() };
        let failed = screen(&choice);
        assert!(failed[6].starts_with("1 0x400006 ") && failed[7].starts_with("1 0x40000d "), "{failed:#?}");
        let numbers =
            screen(&Choice { qps: QpOrder::Number, above: 30, reversed: true, ..Choice::default() });
        assert!(numbers[2].starts_with("2 ") && numbers[3].starts_with("1 "), "{numbers:#?}");
        assert!(
            numbers[22].starts_with("1 0x400000 "),
            "scrolling must stop at the last queue pair: {numbers:#?}"
        );
        let mut order = QpOrder::Requests;
        for _ in 0..4 {
            order = order.next();
        }
        assert_eq!(order, QpOrder::Requests);
    }

    #[test]
    fn screen_renders_at_any_terminal_size() {
        let text = text(&view(), "t", &Choice::default(), 80);
        assert_eq!(text.lines().count(), 40 + 2 + usize::from(FRAME_LINES));
        assert_eq!(text.lines().filter(|line| line.starts_with("1 0x4000")).count(), 40);
        for (width, height) in [(1, 1), (5, 3), (20, 6), (200, 100)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| show(&view(), "t", &Choice::default(), frame)).unwrap();
        }
    }
}
