//! Eight-byte doorbells that 32-bit software writes with two stores.

use card::frontend::reason::{NO_REGISTER, WIDTH};
use card::telemetry::reason::IgnoreReason;

/// The most recent first half of each doorbell register in each UAR page. Each page has its own halves, so that
/// processes cannot complete each other's doorbells.
#[derive(Debug)]
pub struct SplitDoorbells<const REGISTERS: usize>(Vec<[[u8; 4]; REGISTERS]>);

impl<const REGISTERS: usize> SplitDoorbells<REGISTERS> {
    /// Creates zeroed halves for `pages` UAR pages. The BAR is at most 16 MiB long, which bounds the number of pages.
    pub fn new(pages: u64) -> Self {
        Self(vec![[[0; 4]; REGISTERS]; usize::try_from(pages).unwrap_or(0)])
    }

    pub fn has_page(&self, page: u32) -> bool {
        self.0.get(page as usize).is_some()
    }

    /// Clears all halves (device reset).
    pub fn reset(&mut self) {
        self.0.fill([[0; 4]; REGISTERS]);
    }

    /// Returns the most recent first half of a register, or zeros if none has been written since the last reset.
    pub fn first_half(&self, page: u32, register: usize) -> [u8; 4] {
        self.0.get(page as usize).and_then(|halves| halves.get(register)).copied().unwrap_or_default()
    }

    /// Handles a store to a register. `second` is set if the store starts at the second half of the register. Returns
    /// the doorbell if the store completes it. An 8-byte store does not change the stored first half, because another
    /// CPU may have written the first half of a doorbell but not yet the second.
    ///
    /// # Errors
    /// The store is ignored if the register does not exist or does not support this width.
    pub fn store(
        &mut self,
        page: u32,
        register: usize,
        second: bool,
        data: &[u8],
    ) -> Result<Option<[u8; 8]>, IgnoreReason> {
        let half = self.0.get_mut(page as usize).and_then(|halves| halves.get_mut(register));
        let half = half.ok_or(NO_REGISTER)?;
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
            _ => Err(WIDTH),
        }
    }
}
