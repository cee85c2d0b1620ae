//! Connection to a daemon, through its control socket.

use std::io::{self, BufRead, BufReader, Read, Take, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail, ensure};
use control_api::message::{DeviceRow, ListPage, Request, Response, TextPage};
use serde::de::DeserializeOwned;

/// Maximum size of one response in bytes. A page of a table has about 200 kB.
const MAX_ANSWER_LEN: u64 = 16 << 20;

/// Maximum total size of the responses to one command in bytes. The longest table, that of all QPs of a
/// device, takes about 80 MB.
const MAX_ANSWERS_LEN: u64 = 256 << 20;

/// Connection to a daemon.
pub(crate) struct Daemon {
    requests: UnixStream,
    answers: Take<BufReader<UnixStream>>,
}

impl Daemon {
    pub(crate) fn connect(path: &Path) -> anyhow::Result<Self> {
        let connect = || {
            let requests = UnixStream::connect(path)?;
            let answers = BufReader::new(requests.try_clone()?).take(MAX_ANSWERS_LEN);
            io::Result::Ok(Self { requests, answers })
        };
        connect().map_err(|error| {
            anyhow!(
                "cannot connect to {}: {error}; check that hcad is running and uses this control socket (--control-socket, \
                 or `control_socket` in its configuration)",
                path.display()
            )
        })
    }

    /// Begins another command, with a new limit for the size of its responses.
    pub(crate) fn begin(&mut self) {
        self.answers.set_limit(MAX_ANSWERS_LEN);
    }

    /// Sends a request and waits for the response. An error response becomes an error.
    pub(crate) fn ask(&mut self, request: &Request) -> anyhow::Result<Response> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        // If hcad rejects the connection, it writes the reason before it closes.
        let sent = self.requests.write_all(&line);
        let mut answer = Vec::new();
        let received = (&mut self.answers).take(MAX_ANSWER_LEN).read_until(b'\n', &mut answer);
        let too_long = answer.len() as u64 == MAX_ANSWER_LEN || self.answers.limit() == 0;
        ensure!(!too_long, "the response from hcad exceeds the size limit");
        if answer.is_empty() {
            sent.and(received).context("hcad closed the connection")?;
            bail!("hcad closed the connection");
        }
        match serde_json::from_slice(&answer).context("cannot parse the response from hcad")? {
            Response::Error(problem) => bail!(problem),
            response => Ok(response),
        }
    }

    /// Sends a request whose response contains no data.
    pub(crate) fn tell(&mut self, request: &Request) -> anyhow::Result<()> {
        match self.ask(request)? {
            Response::Done {} => Ok(()),
            _ => bail!("unexpected response from hcad"),
        }
    }

    pub(crate) fn devices(&mut self) -> anyhow::Result<Vec<DeviceRow>> {
        match self.ask(&Request::Devices {})? {
            Response::Devices(devices) => Ok(devices),
            _ => bail!("unexpected response from hcad"),
        }
    }

    /// Reads the rows of a table page by page until `take` returns false.
    pub(crate) fn pages<T: DeserializeOwned>(
        &mut self,
        device: u16,
        table: &str,
        mut take: impl FnMut(Vec<T>) -> bool,
    ) -> anyhow::Result<()> {
        self.each_page(device, table, false, |response| {
            let Response::Page(ListPage { rows, next }) = response else { return Ok(None) };
            let rows = rows.get(table).context("hcad sent a different table than requested")?;
            let more = take(serde_json::from_str(rows).context("cannot parse the table rows from hcad")?);
            Ok(Some(next.filter(|_| more)))
        })
    }

    /// Reads a table as text, page by page.
    pub(crate) fn text_pages(
        &mut self,
        device: u16,
        table: &str,
        mut take: impl FnMut(&TextPage),
    ) -> anyhow::Result<()> {
        self.each_page(device, table, true, |response| {
            let Response::Text(page) = response else { return Ok(None) };
            take(&page);
            Ok(Some(page.next))
        })
    }

    /// Requests pages, beginning at index 0, and passes each response to `take`. `take` returns the index of the next
    /// page, if another page follows, or `None` if the response is not a page.
    fn each_page(
        &mut self,
        device: u16,
        table: &str,
        text: bool,
        mut take: impl FnMut(Response) -> anyhow::Result<Option<Option<u64>>>,
    ) -> anyhow::Result<()> {
        let mut from = 0;
        loop {
            let response = self.ask(&Request::List { device, table: table.to_owned(), from, text })?;
            match take(response)?.context("unexpected response from hcad")? {
                None => return Ok(()),
                // `from` must increase, so that hcad cannot keep this loop running forever.
                Some(next) if next > from => from = next,
                Some(_) => bail!("hcad sent the pages of the list in the wrong order"),
            }
        }
    }

    /// Returns the only chosen device, for commands that apply to one device.
    pub(crate) fn choose(&mut self, chosen: &[u16]) -> anyhow::Result<u16> {
        match self.several(chosen)?.as_slice() {
            [only] => Ok(*only),
            [] => bail!("hcad is not serving any devices"),
            several => {
                let ids: Vec<_> = several.iter().map(u16::to_string).collect();
                bail!(
                    "hcad is serving several devices; select one of these with --device: {}",
                    ids.join(", ")
                )
            }
        }
    }

    /// Returns the chosen devices without duplicates, or all devices if none was chosen.
    pub(crate) fn several(&mut self, chosen: &[u16]) -> anyhow::Result<Vec<u16>> {
        if chosen.is_empty() {
            return Ok(self.devices()?.iter().map(|device| device.id).collect());
        }
        let mut several = Vec::new();
        for id in chosen {
            if !several.contains(id) {
                several.push(*id);
            }
        }
        Ok(several)
    }
}
