//! Helpers for tests that inspect or modify recordings.
#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::Cursor;

use super::chunk;
use super::codec::encode;
use super::entry::{Content, Entry};
use super::header::MAGIC;
use super::reader::Reader;

fn reader(record: &[u8]) -> Reader {
    Reader::new(Box::new(Cursor::new(record.to_vec()))).unwrap()
}

/// Returns the step number of each write by the device.
pub fn steps_with_writes(record: &[u8]) -> Vec<u64> {
    let mut reader = reader(record);
    let (mut step, mut writes) = (0, Vec::new());
    while let Some(entry) = reader.peek().unwrap() {
        match entry {
            Entry::Input(_) => step += 1,
            Entry::Write { .. } => writes.push(step),
            _ => {}
        }
        reader.advance();
    }
    writes
}

/// Returns the recording with one bit inverted in write number `nth`, counting from 0.
pub fn flip_bit_of_write(record: &[u8], nth: usize) -> Vec<u8> {
    let mut reader = reader(record);
    let mut altered = MAGIC.to_vec();
    chunk::write(&mut altered, &serde_json::to_vec(reader.header()).unwrap()).unwrap();
    let mut writes = 0;
    while let Some(entry) = reader.peek().unwrap() {
        let mut bytes = Vec::new();
        match entry {
            Entry::Write { iova, data, done } => {
                let mut short = Vec::new();
                let data = match data {
                    data if writes != nth => data,
                    Content::Digest { len, xxh3 } => Content::Digest { len, xxh3: xxh3 ^ 1 },
                    Content::Bytes(data) => {
                        short.extend_from_slice(data);
                        short[0] ^= 1;
                        Content::Bytes(&short)
                    }
                };
                writes += 1;
                encode(&Entry::Write { iova, data, done }, &mut bytes);
            }
            other => encode(&other, &mut bytes),
        }
        chunk::write(&mut altered, &bytes).unwrap();
        reader.advance();
    }
    altered
}
