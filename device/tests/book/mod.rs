//! Checks the documentation: README, ARCHITECTURE, CONTRIBUTING and the book (`device/book`).
//!
//! Generated pages must match the code, links must resolve, pages must stay within their length limits and contain no
//! repetitions, and examples must parse.

#![allow(clippy::unwrap_used, reason = "a panic is how these tests fail")]

mod commands;
mod configuration;
mod documents;
mod examples;
mod limits;
mod links;
mod markdown;
mod metrics;
mod rules;
mod schema;
mod syndromes;

use std::fs;
use std::path::Path;

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Checks a page below `device/book/src` against its expected text. If `HCAD_UPDATE_BOOK` is set, writes the page
/// first.
fn is_current(page: &str, text: &str) {
    let path = Path::new(REPOSITORY).join("device/book/src").join(page);
    if std::env::var_os("HCAD_UPDATE_BOOK").is_some() {
        fs::write(&path, text).unwrap();
    }
    let stored = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        stored == text,
        "{page} is stale; run HCAD_UPDATE_BOOK=1 cargo test -p device --test main book::"
    );
}

#[test]
fn configuration_reference_matches_schema() {
    let schema = schemars::schema_for!(device::config::ConfigFile);
    is_current("reference/configuration.md", &configuration::page(&schema));
}

#[test]
fn metrics_reference_matches_exposed_metrics() {
    is_current("reference/metrics.md", &metrics::page());
}

#[test]
fn limits_page_matches_code() {
    is_current("limits.md", &limits::page());
}

#[test]
fn strict_rule_reference_matches_tables() {
    is_current("reference/rules.md", &rules::page());
}

#[test]
fn syndrome_reference_matches_code() {
    is_current("reference/syndromes.md", &syndromes::page());
}
