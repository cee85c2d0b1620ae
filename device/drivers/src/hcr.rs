//! The command register of JingZhao and mthca: seven words, of which the last one starts a command.

/// Bus address of the mailbox that drivers fill.
pub const INBOX: u64 = 0x1000;
/// Bus address of the mailbox that devices fill.
pub const OUTBOX: u64 = 0x2000;

/// Of a command word: the device owns the register until the command is done.
pub const GO: u32 = 1 << 23;
/// Of a command word: its end is told by an event.
pub const EVENT: u32 = 1 << 22;

/// The word that starts a command whose end is polled for.
pub fn word(code: u16, op_modifier: u8) -> u32 {
    GO | u32::from(op_modifier) << 12 | u32::from(code)
}

/// The words in the order of their addresses.
pub(crate) fn words(in_param: u64, in_modifier: u32, out_param: u64, token: u16, command: u32) -> [u32; 7] {
    let halves = |value: u64| {
        let [a, b, c, d, low @ ..] = value.to_be_bytes();
        [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(low)]
    };
    let ([in_high, in_low], [out_high, out_low]) = (halves(in_param), halves(out_param));
    [in_high, in_low, in_modifier, out_high, out_low, u32::from(token) << 16, command]
}
