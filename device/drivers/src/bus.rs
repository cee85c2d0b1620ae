//! What a driver reaches.

/// One PCI function, and the guest memory that it shares with its driver.
pub trait Bus {
    /// Stores to config space.
    fn configure(&mut self, offset: u64, bytes: &[u8]);

    /// Stores to BAR `bar`, 0 to 5, in one access.
    fn store(&mut self, bar: u8, offset: u64, bytes: &[u8]);

    /// Loads from BAR `bar`, 0 to 5, in one access.
    fn load<const LEN: usize>(&mut self, bar: u8, offset: u64) -> [u8; LEN];

    /// Writes guest memory from this bus address on.
    fn poke(&mut self, at: u64, bytes: &[u8]);

    /// Reads guest memory from this bus address on.
    fn peek(&mut self, at: u64, len: usize) -> Vec<u8>;

    /// How often the function has raised an MSI-X vector since the last look; never, if nobody listens.
    fn interrupts(&mut self, _vector: usize) -> u64 {
        0
    }

    /// Lets the function decode accesses to its BARs and master the bus: full power, by the PMCSR, which is at 44h of all our
    /// devices, and the command register. Whoever had the device before may have left it in D3.
    fn enable(&mut self) {
        self.configure(0x44, &[0, 0]);
        self.configure(4, &[6, 0]);
    }
}
