//! Code that `hcad` and `hcactl` share: the requests and responses of the control socket, its default path, the text
//! form of an explanation, the reader for text files, and the generator of man pages.
//!
//! The crate depends on `card` for the rows and counters in responses. It does not depend on any front-end: responses
//! contain the rows of a front-end as JSON, which this crate does not parse.

pub mod explain;
pub mod manual;
pub mod message;
pub mod named;
pub mod peer;
pub mod runtime_folder;
pub mod text_file;
