//! Code shared by `hcad` and `hcactl`: control socket requests and responses, the default socket paths, the text
//! printed by `hcactl explain`, readers for text files and JSON objects, and a man page generator.
//!
//! The crate depends on `card` for the rows and counters in responses. It does not depend on any front-end. A response
//! contains a front-end's rows as JSON text, which this crate does not parse.

pub mod explain;
pub mod manual;
pub mod message;
pub mod named;
pub mod peer;
pub mod runtime_folder;
pub mod text_file;
pub mod unique_keys;
