//! What `hcad` and `hcactl` share: the requests and responses of the control socket, its default path, the text form
//! of an explanation, and the files that both programs read or generate.
//!
//! The crate depends on `card` for the rows and counters in responses. It depends on no front-end, because the rows of
//! front-ends are JSON with a schema that their table describes.

pub mod explain;
pub mod manual;
pub mod message;
pub mod named;
pub mod peer;
pub mod runtime_folder;
pub mod text_file;
