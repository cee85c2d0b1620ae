//! Ways in which software departs from the document, to be chosen by configuration.

use schemars::JsonSchema;
use serde::Deserialize;

/// How queue positions are counted (`sq_addr`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SqAddr {
    /// In 16-byte units.
    #[default]
    Unit,
    /// Doorbells in slots, links in bytes: the public kernel driver.
    Index,
    /// Found out for each QP: by slot if only that leads to the slot behind the last WQE.
    Auto,
}

/// Options of work queues. The defaults serve the document and the public user library.
///
/// # Spec
/// JingZhao interface, section 12.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct QueueOptions {
    /// J-06, J-07: units of positions in send queues.
    pub sq_addr: SqAddr,
    /// J-08: a user's queue is as long as its memory region, if that is a power of two and no shorter than the QPC
    /// says.
    pub queue_len_from_region: bool,
    /// J-12: clear the link of a user's send WQE once it is read, so that it is not followed again when the slot is
    /// reused.
    pub clear_links: bool,
    /// J-23: mark a receive WQE that has no valid bit as consumed, by a terminator in its first data unit. Without it
    /// such a slot looks posted for ever: messages land in buffers that were not posted again, and a QP in ERR never
    /// ends to flush.
    pub rq_clear: bool,
    /// J-21: no completion for a send WQE without the signalled bit, unless it fails.
    pub honour_c: bool,
    /// Believe the MAC and IP addresses of a ud unit. The public user library does not write them, so that they are
    /// what the buffer held before.
    pub ud_addresses: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            sq_addr: SqAddr::default(),
            queue_len_from_region: true,
            clear_links: true,
            rq_clear: true,
            honour_c: false,
            ud_addresses: true,
        }
    }
}
