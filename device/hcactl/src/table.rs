//! Formats rows as aligned text tables.

use std::fmt::Write as _;

use card::fabric::impair::ImpairmentRow;
use card::fabric::ring::MemberRow;
use card::fabric::switch::PeerRow;
use card::frontend::table::or_dash;
use control_api::message::{DeviceRow, DeviceState, PortState, TableRow, TextPage};
use serde::Serialize;

use crate::sanitize;

/// A text table. Each column is as wide as its widest cell, and the first line is the heading.
#[derive(Default)]
pub(crate) struct Text {
    lines: Vec<Vec<String>>,
}

impl Text {
    fn head(&mut self, names: &[&str]) {
        if self.lines.is_empty() {
            self.lines.push(names.iter().map(|name| (*name).to_owned()).collect());
        }
    }

    /// Adds a page of a table. If the table covers several devices, `of` is the number of the device that the rows
    /// belong to.
    pub(crate) fn add(&mut self, page: &TextPage, of: Option<u16>) {
        let with_device = |device: Option<String>, cells: &[String]| {
            device.into_iter().chain(cells.iter().cloned()).collect::<Vec<_>>()
        };
        if self.lines.is_empty() {
            self.lines.push(with_device(of.map(|_| "DEVICE".to_owned()), &page.columns));
        }
        let device = of.map(|device| device.to_string());
        self.lines.extend(page.lines.iter().map(|cells| with_device(device.clone(), cells)));
    }

    pub(crate) fn line(&mut self, cells: Vec<String>) {
        self.lines.push(cells);
    }

    pub(crate) fn finish(mut self) -> String {
        for cell in self.lines.iter_mut().flatten() {
            *cell = sanitize::text(cell);
        }
        let mut widths: Vec<usize> = Vec::new();
        for line in &self.lines {
            widths.resize(widths.len().max(line.len()), 0);
            for (width, cell) in widths.iter_mut().zip(line) {
                *width = (*width).max(cell.len());
            }
        }
        let mut text = String::new();
        for line in &self.lines {
            let mut padded = String::new();
            for (cell, width) in line.iter().zip(&widths) {
                let _ = write!(padded, "{cell:width$}  ");
            }
            text += padded.trim_end();
            text.push('\n');
        }
        text
    }
}

pub(crate) fn devices(rows: &[DeviceRow]) -> String {
    let mut text = Text::default();
    text.head(&[
        "ID",
        "INTERFACE",
        "MAC",
        "DEVICE-IPV4",
        "DEVICE-IPV6",
        "STATE",
        "RESTARTS",
        "PORT",
        "VMM",
        "SOCKET",
        "CAPTURE",
        "TRACE",
        "RECORD",
    ]);
    text.lines.extend(rows.iter().map(|row| {
        let path = |path: &Option<std::path::PathBuf>| or_dash(path.as_ref().map(|path| path.display()));
        vec![
            row.id.to_string(),
            row.interface.clone(),
            row.mac.clone(),
            row.ipv4.to_string(),
            row.ipv6.to_string(),
            match row.state {
                DeviceState::Running => "running",
                DeviceState::Restarting => "restarting",
                DeviceState::NotAnswering => "not responding",
            }
            .to_owned(),
            row.restarts.to_string(),
            match row.port {
                Some(PortState::Up) => "up",
                Some(PortState::Down) if row.port_disabled => "disabled",
                Some(PortState::Down) => "down",
                None => "-",
            }
            .to_owned(),
            if row.connected { "connected" } else { "none" }.to_owned(),
            path(&row.socket),
            path(&row.capture),
            path(&row.trace),
            path(&row.record),
        ]
    }));
    text.finish()
}

fn page<T>(columns: &[&str], rows: &[T], cells: impl Fn(&T) -> Vec<String>) -> TextPage {
    let columns = columns.iter().map(|name| (*name).to_owned()).collect();
    TextPage { columns, lines: rows.iter().map(cells).collect(), next: None }
}

pub(crate) fn peers(rows: &[PeerRow]) -> TextPage {
    let columns = ["ADDRESS", "KIND", "RX-FRAMES", "OVER-RATE", "FOREIGN-MAC", "TX-FRAMES", "MACS", "NAME"];
    page(&columns, rows, crate::peer::cells)
}

pub(crate) fn members(rows: &[MemberRow]) -> TextPage {
    let columns =
        ["MEMBER", "STATE", "RX-FRAMES", "FOREIGN", "TX-FRAMES", "TX-REFUSED", "WAITING-BYTES", "MACS"];
    page(&columns, rows, crate::peer::member_cells)
}

pub(crate) fn impairments(rows: &[ImpairmentRow]) -> TextPage {
    page(&["ID", "DIRECTION", "ACTION", "MATCH", "WHEN", "MATCHED", "APPLIED"], rows, crate::impair::cells)
}

/// A row of a list that can cover several devices, as JSON.
#[derive(Serialize)]
pub(crate) struct RowOf<T> {
    #[serde(flatten)]
    pub(crate) row: T,
    /// Number of the device, if the list covers several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<u16>,
}

pub(crate) fn tables(rows: &[TableRow]) -> String {
    let mut text = Text::default();
    text.head(&["TABLE", "CONTENTS"]);
    text.lines.extend(rows.iter().map(|row| vec![row.name.clone(), row.help.clone()]));
    text.finish()
}
