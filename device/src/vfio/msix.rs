//! MSI-X vectors: eventfds given by the client, one per vector.

/// Raises the vectors of one function.
#[derive(Debug, Default)]
pub struct Interrupts {}

impl Interrupts {
    /// Signals `vector`. Unknown, unset or masked vectors are not an error: nothing is sent, or the pending bit is
    /// set.
    pub fn raise(&mut self, vector: u16) {
        let _ = vector;
    }
}
