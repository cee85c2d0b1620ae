//! Tables of a device's objects, for display to an operator.
//!
//! Each table defines its own name and columns, and the form of its rows in JSON and in text. `hcactl list` can
//! therefore print any table, including those of new front-ends. Rows are copies, and reading them does not block the
//! device.

use std::any::Any;
use std::fmt::{Debug, Display};

use engine::Engine;
use serde::{Serialize, Serializer};
use serde_json::value::{RawValue, to_raw_value};

use crate::net::address::Addresses;
use crate::telemetry::monitor::Monitor;

/// Maximum number of rows in a [`Page`].
///
/// The number is limited because the device thread copies the rows between two iterations of its event loop.
pub const PAGE_ROWS: usize = 256;

/// Description of a table.
#[derive(Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// Name in requests and responses of the control socket.
    pub name: &'static str,
    /// One-line description of the table.
    pub help: &'static str,
    /// Column headings in the text form.
    pub columns: &'static [&'static str],
}

/// A row of a table. Its field names appear in the JSON form, so they are part of the public interface.
pub trait Row: Serialize + Debug + Send + 'static {
    /// Description of the row's table.
    const TABLE: &'static TableSpec;

    /// Returns the text of each column.
    fn cells(&self) -> Vec<String>;

    /// Adds the monitor's counters for the object that the row describes.
    fn add_observed(&mut self, monitor: &Monitor) {
        let _ = monitor;
    }
}

/// A table of the front-end `F`.
pub struct Table<F> {
    /// Description of the table.
    pub spec: &'static TableSpec,
    /// Returns the page that starts at [`TableContext::from`]. The function must not read guest memory or affect the
    /// guest, and it must skip unused indices cheaply.
    pub page: fn(&F, &TableContext<'_>) -> Page,
}

impl<F> Table<F> {
    pub const fn new(spec: &'static TableSpec, page: fn(&F, &TableContext<'_>) -> Page) -> Self {
        Self { spec, page }
    }
}

/// Where a page starts, and the state that its rows need from outside the front-end.
#[derive(Clone, Copy)]
pub struct TableContext<'a> {
    /// The engine, which holds the dynamic state of QPs.
    pub engine: &'a Engine,
    /// Addresses of the fabric's ports.
    pub addresses: &'a Addresses,
    /// Counters of ignored doorbells, packets and frames.
    pub monitor: &'a Monitor,
    /// Index of the first row: 0, or [`Page::next`] of the previous page.
    pub from: u64,
}

impl TableContext<'_> {
    /// Returns the index of the first row; `None` if it does not fit in 32 bits.
    pub fn first(&self) -> Option<u32> {
        u32::try_from(self.from).ok()
    }

    /// Builds a page from rows with their indices. `entries` starts with the first row of the page.
    pub fn page<I: Into<u64>, T: Row>(&self, entries: impl Iterator<Item = (I, T)>) -> Page {
        let mut entries = entries;
        let rows = entries.by_ref().take(PAGE_ROWS).map(|(_, row)| row).collect();
        Page { rows: self.rows(rows), next: entries.next().map(|(index, _)| index.into()) }
    }

    /// Builds the only page of a table that has one row.
    pub fn single<T: Row>(&self, row: T) -> Page {
        Page { rows: self.rows(vec![row]), next: None }
    }

    fn rows<T: Row>(&self, mut rows: Vec<T>) -> Rows {
        for row in &mut rows {
            row.add_observed(self.monitor);
        }
        Rows { table: T::TABLE, rows: Some(Box::new(rows)) }
    }
}

/// Consecutive rows of a table.
#[derive(Debug)]
pub struct Page {
    /// At most [`PAGE_ROWS`] rows.
    pub rows: Rows,
    /// Index where the next page starts; `None` if this is the last page. Pages are copied at different times, so
    /// together they can miss rows created in the meantime, or contain rows that have since been removed.
    pub next: Option<u64>,
}

impl Page {
    /// Creates the single, empty page of a table that the device does not support.
    pub const fn empty(table: &'static TableSpec) -> Self {
        Self { rows: Rows { table, rows: None }, next: None }
    }
}

/// Rows of one table, serialised as a JSON array.
#[derive(Debug)]
pub struct Rows {
    table: &'static TableSpec,
    /// The rows; `None` if the device does not support the table.
    rows: Option<Box<dyn AnyRows>>,
}

impl Rows {
    pub const fn table(&self) -> &'static TableSpec {
        self.table
    }

    pub fn len(&self) -> usize {
        self.rows.as_ref().map_or(0, |rows| rows.len())
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the text of every cell, row by row.
    pub fn cells(&self) -> Vec<Vec<String>> {
        self.rows.as_ref().map(|rows| rows.cells()).unwrap_or_default()
    }

    /// Returns the rows if they are of type `T`, or an empty vector otherwise.
    pub fn of<T: Row>(self) -> Vec<T> {
        let rows: Option<Box<dyn Any>> = self.rows.map(|rows| rows as Box<dyn Any>);
        rows.and_then(|rows| rows.downcast::<Vec<T>>().ok()).map(|rows| *rows).unwrap_or_default()
    }
}

impl Serialize for Rows {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match &self.rows {
            None => to.collect_seq::<[(); 0]>([]),
            Some(rows) => rows.json().map_err(<S::Error as serde::ser::Error>::custom)?.serialize(to),
        }
    }
}

/// Type-erased rows of a table.
trait AnyRows: Any + Debug + Send {
    fn len(&self) -> usize;

    fn cells(&self) -> Vec<Vec<String>>;

    fn json(&self) -> serde_json::Result<Box<RawValue>>;
}

impl<T: Row> AnyRows for Vec<T> {
    fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn cells(&self) -> Vec<Vec<String>> {
        self.iter().map(Row::cells).collect()
    }

    fn json(&self) -> serde_json::Result<Box<RawValue>> {
        to_raw_value(self)
    }
}

/// Formats a cell in hexadecimal.
pub fn hex(number: impl Into<u64>) -> String {
    format!("{:#x}", number.into())
}

/// Formats a yes-or-no cell.
pub fn yes(is: bool) -> String {
    if is { "yes" } else { "no" }.to_owned()
}

/// Formats an optional cell.
pub fn or_dash(text: Option<impl Display>) -> String {
    text.map_or_else(|| "-".to_owned(), |text| text.to_string())
}
