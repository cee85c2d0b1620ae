//! Doorbells of eight bytes that some software writes in two stores.

use crate::telemetry::reason::InterfaceReason;

/// First halves that wait for their second ones: one for each UAR page and register, so that one user's halves never
/// meet another's.
#[derive(Debug)]
pub struct SplitDoorbells<const REGISTERS: usize>(Vec<[[u8; 4]; REGISTERS]>);

impl<const REGISTERS: usize> SplitDoorbells<REGISTERS> {
    /// For so many pages. Bound: the size of the BAR is configured, at most 16 MiB.
    pub fn new(pages: u64) -> Self {
        Self(vec![[[0; 4]; REGISTERS]; usize::try_from(pages).unwrap_or(0)])
    }

    /// Whether there is such a page.
    pub fn has_page(&self, page: u32) -> bool {
        self.0.get(page as usize).is_some()
    }

    /// Forgets all of them (device reset).
    pub fn reset(&mut self) {
        self.0.fill([[0; 4]; REGISTERS]);
    }

    /// The half that waits in a page; zeros without one.
    pub fn first_half(&self, page: u32, register: usize) -> [u8; 4] {
        self.0.get(page as usize).and_then(|halves| halves.get(register)).copied().unwrap_or_default()
    }

    /// Takes a store to a register, or to its `second` half: the doorbell, once it is whole. One that is stored whole
    /// leaves a first half alone: another CPU may be between its two. `None`: it was a first half.
    ///
    /// # Errors
    /// There is no such register, or it has no such width.
    pub fn store(
        &mut self,
        page: u32,
        register: usize,
        second: bool,
        data: &[u8],
    ) -> Result<Option<[u8; 8]>, InterfaceReason> {
        let half = self.0.get_mut(page as usize).and_then(|halves| halves.get_mut(register));
        let half = half.ok_or(InterfaceReason::NoRegister)?;
        match (data, second) {
            (&[a, b, c, d, e, f, g, h], false) => Ok(Some([a, b, c, d, e, f, g, h])),
            (&[a, b, c, d], false) => {
                *half = [a, b, c, d];
                Ok(None)
            }
            (&[e, f, g, h], true) => {
                let [a, b, c, d] = *half;
                Ok(Some([a, b, c, d, e, f, g, h]))
            }
            _ => Err(InterfaceReason::Width),
        }
    }
}
