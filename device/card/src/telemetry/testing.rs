//! An in-memory output for tests of traces, records and logs.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::trace::{Trace, TraceFormat};

#[derive(Clone, Debug, Default)]
pub struct Written(Arc<Mutex<Vec<u8>>>);

impl Written {
    /// Creates a trace that writes to this output and has a fixed clock.
    pub fn trace(&self, format: TraceFormat) -> Trace {
        Trace::new(Box::new(self.clone()), Path::new("test"), format, "hca1")
            .with_clock(|| Duration::from_micros(1_500_000))
    }

    pub fn bytes(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
