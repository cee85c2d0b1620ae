//! Text tables.

mod nic;
mod rdma;

use std::fmt::{Display, Write};

use device::control::message::{DeviceRow, DeviceState, PortState};
use device::fabric::impair::ImpairmentRow;
use device::fabric::ring::MemberRow;
use device::fabric::switch::PeerRow;
use device::frontend::snapshot::{
    Armed, CqRow, EqRow, Fault, IcmRow, IcmTable, LinkRow, MrRow, Peer, QpRow, QueueDirection, QueueRow,
    QueueState, Right, Rows, Service,
};

use crate::sanitize;

/// Columns as wide as their widest cell; the first line is the head.
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

    /// Adds a page of a table, of one device among several if that is said.
    pub(crate) fn add(&mut self, rows: &Rows, of: Option<u16>) {
        let before = self.lines.len();
        self.add_rows(rows);
        let Some(device) = of else { return };
        for (index, line) in self.lines.iter_mut().enumerate().skip(before) {
            line.insert(0, if index == 0 { "DEVICE".to_owned() } else { device.to_string() });
        }
    }

    /// Adds a line of cells; the first one is the head.
    pub(crate) fn line(&mut self, cells: Vec<String>) {
        self.lines.push(cells);
    }

    fn add_rows(&mut self, rows: &Rows) {
        match rows {
            Rows::Qps(rows) => {
                self.head(&[
                    "QPN",
                    "STATE",
                    "SERVICE",
                    "PD",
                    "SEND-PSN",
                    "UNACKED",
                    "EXPECTED",
                    "PEER",
                    "SEND-CQ",
                    "RECV-CQ",
                    "SQ-SLOTS",
                    "SQ-PENDING",
                    "RQ-SLOTS",
                    "REMOTE",
                    "RD-ATOMIC",
                    "DOORBELLS",
                    "SENDS",
                    "RECEIVES",
                    "COMPLETED",
                    "FAILED",
                    "IGNORED",
                ]);
                self.lines.extend(rows.iter().map(qp));
            }
            Rows::Cqs(rows) => {
                self.head(&["CQN", "ENTRIES", "PRODUCER", "ARMED", "EQ", "FAULT"]);
                self.lines.extend(rows.iter().map(cq));
            }
            Rows::Eqs(rows) => {
                self.head(&["EQN", "ENTRIES", "PRODUCER", "ARMED", "VECTOR", "MASK", "OVERFLOWED"]);
                self.lines.extend(rows.iter().map(eq));
            }
            Rows::Mrs(rows) => {
                self.head(&["KEY", "PD", "START", "LENGTH", "PAGES", "RIGHTS"]);
                self.lines.extend(rows.iter().map(mr));
            }
            Rows::Icm(rows) => {
                self.head(&["TABLE", "START", "LENGTH", "BUS"]);
                self.lines.extend(rows.iter().map(icm));
            }
            Rows::Queues(rows) => {
                self.head(&[
                    "QUEUE",
                    "DIRECTION",
                    "STATE",
                    "VSI",
                    "RING",
                    "ENTRIES",
                    "HEAD",
                    "TAIL",
                    "VECTOR",
                    "FRAMES",
                    "BYTES",
                    "DROPPED",
                ]);
                self.lines.extend(rows.iter().map(queue));
            }
            Rows::Link(rows) => {
                self.head(&["ENABLED", "GBPS", "MAC", "MAX-FRAME", "RECEIVED", "SENT", "LOST"]);
                self.lines.extend(rows.iter().map(link));
            }
            Rows::Vsis(rows) => {
                self.head(nic::VSI_HEAD);
                self.lines.extend(rows.iter().map(nic::vsi));
            }
            Rows::Rules(rows) => {
                self.head(nic::RULE_HEAD);
                self.lines.extend(rows.iter().map(nic::rule));
            }
            Rows::Scheduler(rows) => {
                self.head(nic::NODE_HEAD);
                self.lines.extend(rows.iter().map(nic::node));
            }
            Rows::Handles(rows) => {
                self.head(rdma::HANDLE_HEAD);
                self.lines.extend(rows.iter().map(rdma::handle));
            }
            Rows::Groups(rows) => {
                self.head(rdma::GROUP_HEAD);
                self.lines.extend(rows.iter().map(rdma::group));
            }
            Rows::Control(rows) => {
                self.head(rdma::CONTROL_HEAD);
                self.lines.extend(rows.iter().map(rdma::control));
            }
        }
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

/// The devices of a daemon.
pub(crate) fn devices(rows: &[DeviceRow]) -> String {
    let mut text = Text::default();
    text.head(&[
        "ID",
        "INTERFACE",
        "MAC",
        "IPV4",
        "IPV6",
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

/// The peers of a device.
pub(crate) fn peers(rows: &[PeerRow]) -> String {
    let mut text = Text::default();
    text.head(&["ADDRESS", "KIND", "RX-FRAMES", "OVER-RATE", "FOREIGN-MAC", "TX-FRAMES", "MACS"]);
    text.lines.extend(rows.iter().map(crate::peer::cells));
    text.finish()
}

/// The members of the ring that a device is on.
pub(crate) fn members(rows: &[MemberRow]) -> String {
    let mut text = Text::default();
    text.head(&[
        "MEMBER",
        "STATE",
        "RX-FRAMES",
        "FOREIGN",
        "TX-FRAMES",
        "TX-REFUSED",
        "WAITING-BYTES",
        "MACS",
    ]);
    text.lines.extend(rows.iter().map(crate::peer::member_cells));
    text.finish()
}

/// The impairments of a device.
pub(crate) fn impairments(rows: &[ImpairmentRow]) -> String {
    let mut text = Text::default();
    text.head(&["ID", "DIRECTION", "ACTION", "MATCH", "WHEN", "MATCHED", "APPLIED"]);
    text.lines.extend(rows.iter().map(crate::impair::cells));
    text.finish()
}

fn qp(row: &QpRow) -> Vec<String> {
    let counters = &row.counters;
    vec![
        hex(row.qpn),
        row.state.to_string(),
        match row.service {
            Service::Rc => "RC",
            Service::Uc => "UC",
            Service::Ud => "UD",
            Service::Smi => "SMI",
            Service::Gsi => "GSI",
        }
        .to_owned(),
        hex(row.pd),
        hex(row.send_psn),
        hex(row.unacked_psn),
        hex(row.expected_psn),
        or_dash(row.peer.as_ref().map(|Peer { qpn, ip, .. }| format!("{ip} {qpn:#x}"))),
        hex(row.send_cqn),
        hex(row.recv_cqn),
        row.send_slots.to_string(),
        row.send_waiting.to_string(),
        row.recv_slots.to_string(),
        rights(&row.remote_rights),
        format!("{}/{}", row.max_rd_atomic, row.max_dest_rd_atomic),
        counters.doorbells.to_string(),
        counters.sends.to_string(),
        counters.receives.to_string(),
        (counters.sends_completed + counters.receives_completed).to_string(),
        counters.failed.to_string(),
        or_dash(row.ignored.as_ref().map(|ignored| format!("{} {}", ignored.count, ignored.last))),
    ]
}

fn cq(row: &CqRow) -> Vec<String> {
    vec![
        hex(row.cqn),
        row.entries.to_string(),
        row.producer.to_string(),
        match row.armed {
            Armed::No => "no",
            Armed::Any => "any",
            Armed::Solicited => "solicited",
        }
        .to_owned(),
        hex(row.eqn),
        or_dash(row.fault.map(|fault| match fault {
            Fault::Overrun => "overrun",
            Fault::Access => "access",
        })),
    ]
}

fn eq(row: &EqRow) -> Vec<String> {
    vec![
        hex(row.eqn),
        row.entries.to_string(),
        row.producer.to_string(),
        yes(row.armed),
        row.vector.map_or_else(|| "-".to_owned(), |vector| vector.to_string()),
        hex(row.mask),
        yes(row.overflowed),
    ]
}

fn mr(row: &MrRow) -> Vec<String> {
    vec![
        hex(row.key),
        hex(row.pd),
        hex(row.start),
        hex(row.length),
        row.page_bytes.map_or_else(|| "physical".to_owned(), hex),
        rights(&row.rights),
    ]
}

fn icm(row: &IcmRow) -> Vec<String> {
    let table = match row.table {
        IcmTable::Context => "context",
        IcmTable::Tpt => "tpt",
        IcmTable::All => "all",
    };
    vec![table.to_owned(), hex(row.start), hex(row.length), hex(row.bus)]
}

fn queue(row: &QueueRow) -> Vec<String> {
    vec![
        row.queue.to_string(),
        match row.direction {
            QueueDirection::Transmit => "transmit",
            QueueDirection::Receive => "receive",
        }
        .to_owned(),
        match row.state {
            QueueState::Enabled => "enabled",
            QueueState::Stopped => "stopped",
        }
        .to_owned(),
        or_dash(row.vsi),
        hex(row.ring),
        row.entries.to_string(),
        row.head.to_string(),
        row.tail.to_string(),
        or_dash(row.vector),
        row.frames.to_string(),
        row.bytes.to_string(),
        row.dropped.to_string(),
    ]
}

fn link(row: &LinkRow) -> Vec<String> {
    vec![
        yes(row.enabled),
        row.gbps.to_string(),
        row.mac.clone(),
        row.max_frame.to_string(),
        row.received.to_string(),
        row.sent.to_string(),
        row.lost.to_string(),
    ]
}

fn rights(rights: &[Right]) -> String {
    let names: Vec<_> = rights
        .iter()
        .map(|right| match right {
            Right::LocalWrite => "local-write",
            Right::RemoteWrite => "remote-write",
            Right::RemoteRead => "remote-read",
            Right::RemoteAtomic => "remote-atomic",
        })
        .collect();
    or_dash(Some(names.join(",")).filter(|text| !text.is_empty()))
}

fn hex(number: impl Into<u64>) -> String {
    format!("{:#x}", number.into())
}

fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

fn or_dash(text: Option<impl Display>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}
