//! A driver's interface to its device.

/// A PCI function, and guest memory shared with its driver.
pub trait Bus {
    /// Writes to config space.
    fn configure(&mut self, offset: u64, bytes: &[u8]);

    /// Writes to BAR `bar` (0 to 5) in a single access.
    fn store(&mut self, bar: u8, offset: u64, bytes: &[u8]);

    /// Reads from BAR `bar` (0 to 5) in a single access.
    fn load<const LEN: usize>(&mut self, bar: u8, offset: u64) -> [u8; LEN];

    /// Writes to guest memory at bus address `at`.
    fn poke(&mut self, at: u64, bytes: &[u8]);

    /// Reads guest memory at bus address `at`.
    fn peek(&mut self, at: u64, len: usize) -> Vec<u8>;

    /// Returns the number of times that the function has raised an MSI-X vector since the last call. Always returns 0
    /// if interrupts are not observed.
    fn interrupts(&mut self, _vector: usize) -> u64 {
        0
    }

    /// Gives the device time to work while the driver polls for a result. Returns false if more time would not help.
    fn wait(&mut self) -> bool {
        std::thread::yield_now();
        true
    }

    /// Moves the function to power state D0 and enables memory space and bus mastering. A previous owner may have left
    /// the function in D3. In all of this project's devices, the PMCSR is at 44h.
    fn enable(&mut self) {
        self.configure(0x44, &[0, 0]);
        self.configure(4, &[6, 0]);
    }
}
