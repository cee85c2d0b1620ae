//! The host command register (HCR) of JingZhao and mthca. It is seven words long, and writing the last word starts a
//! command.

/// Bus address of the inbox.
pub const INBOX: u64 = 0x1000;
/// Bus address of the outbox.
pub const OUTBOX: u64 = 0x2000;

/// Bit of the command word that is set while the command is running.
pub const GO: u32 = 1 << 23;
/// Bit of the command word that requests an event on completion.
pub const EVENT: u32 = 1 << 22;

/// Returns the last word of a command that completes without an event.
pub fn word(code: u16, op_modifier: u8) -> u32 {
    GO | u32::from(op_modifier) << 12 | u32::from(code)
}

/// Returns the seven words of a command in address order.
pub(crate) fn words(in_param: u64, in_modifier: u32, out_param: u64, token: u16, command: u32) -> [u32; 7] {
    let halves = |value: u64| {
        let [a, b, c, d, low @ ..] = value.to_be_bytes();
        [u32::from_be_bytes([a, b, c, d]), u32::from_be_bytes(low)]
    };
    let ([in_high, in_low], [out_high, out_low]) = (halves(in_param), halves(out_param));
    [in_high, in_low, in_modifier, out_high, out_low, u32::from(token) << 16, command]
}
