//! The host command register (HCR). It is seven words long. A write to the last word starts a command if the go bit is
//! set.

use protocol::hca::hcr::{CommandState, CommandWord, HcrWord, PendingCommand};
use protocol::hca::status::CmdStatus;

/// Words 00h to 14h, and the state of the command unit.
#[derive(Debug)]
pub struct Hcr {
    /// The words as last written, in address order.
    parameters: [u32; 6],
    state: CommandState,
}

impl Default for Hcr {
    fn default() -> Self {
        Self { parameters: [0; 6], state: CommandState::Fresh }
    }
}

impl Hcr {
    pub fn read(&self, word: HcrWord) -> u32 {
        const TOKEN: u32 = 0xffff_0000;
        match (word, self.parameters.get(word as usize)) {
            (HcrWord::Token, Some(value)) => value & TOKEN,
            (_, Some(value)) => *value,
            (_, None) => self.state.word().into_bits(),
        }
    }

    pub fn state(&self) -> CommandState {
        self.state
    }

    /// Writes a word. If the write starts a command, returns the command. The caller must report the command's
    /// completion to [`Hcr::finish`]. Writes during a command are ignored.
    pub fn write(&mut self, word: HcrWord, value: u32) -> Option<PendingCommand> {
        if matches!(self.state, CommandState::Executing(_)) {
            return None;
        }
        if let Some(parameter) = self.parameters.get_mut(word as usize) {
            *parameter = value;
            return None;
        }
        let command = CommandWord::from_bits(value);
        if !command.go() {
            return None;
        }
        self.state = CommandState::Executing(command);
        let [in_high, in_low, in_modifier, out_high, out_low, token] = self.parameters;
        let wide = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        Some(PendingCommand {
            in_param: wide(in_high, in_low),
            in_modifier,
            out_param: wide(out_high, out_low),
            // Only the upper half of the word is used.
            token: (token >> 16) as u16,
            command,
        })
    }

    /// Stores a command's immediate result in out_param.
    pub fn answer(&mut self, out_param: u64) {
        let [.., high, low, _] = &mut self.parameters;
        let halves = [out_param >> 32, out_param & u64::from(u32::MAX)];
        [*high, *low] = halves.map(|half| u32::try_from(half).unwrap_or(0));
    }

    /// Completes the running command, if any.
    pub fn finish(&mut self, status: CmdStatus) {
        if let CommandState::Executing(command) = self.state {
            self.state = CommandState::Finished(command, status);
        }
    }

    /// Resets all words (device reset).
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY_DEV_LIM: u32 = 0x0080_0003;

    fn started(value: u32) -> (Hcr, PendingCommand) {
        let mut hcr = Hcr::default();
        for (word, value) in HcrWord::ALL.into_iter().zip([1, 2, 3, 4, 5, 0xffff_1234]) {
            assert_eq!(hcr.write(word, value), None);
        }
        let pending = hcr.write(HcrWord::Command, value).expect("the go bit must start a command");
        (hcr, pending)
    }

    #[test]
    fn go_bit_captures_all_parameters() {
        let (hcr, pending) = started(QUERY_DEV_LIM);
        assert_eq!((pending.in_param, pending.out_param), (0x1_0000_0002, 0x4_0000_0005));
        assert_eq!((pending.in_modifier, pending.token, pending.command.op()), (3, 0xffff, 3));
        assert_eq!(hcr.read(HcrWord::Token), 0xffff_0000);
        assert_eq!(hcr.read(HcrWord::OutParamLow), 5);
    }

    #[test]
    fn status_replaces_go_bit_after_command() {
        let (mut hcr, _) = started(QUERY_DEV_LIM);
        assert_eq!(hcr.read(HcrWord::Command), 0x0080_0003);
        hcr.finish(CmdStatus::Ok);
        assert_eq!(hcr.read(HcrWord::Command), 0x0000_0003);
        let (mut hcr, _) = started(0x0080_0055);
        hcr.finish(CmdStatus::BadOp);
        assert_eq!(hcr.read(HcrWord::Command), 0x0200_0055);
    }

    #[test]
    fn immediate_result_is_in_out_param() {
        let (mut hcr, _) = started(QUERY_DEV_LIM);
        hcr.answer(0x1234_5678_9abc_def0);
        assert_eq!(hcr.read(HcrWord::OutParamHigh), 0x1234_5678);
        assert_eq!(hcr.read(HcrWord::OutParamLow), 0x9abc_def0);
        assert_eq!((hcr.read(HcrWord::InModifier), hcr.read(HcrWord::Token)), (3, 0xffff_0000));
    }

    #[test]
    fn writes_during_command_are_ignored() {
        let (mut hcr, _) = started(QUERY_DEV_LIM);
        assert_eq!(hcr.write(HcrWord::InModifier, 99), None);
        assert_eq!(hcr.write(HcrWord::Command, 0x0080_0006), None);
        hcr.finish(CmdStatus::Ok);
        assert_eq!((hcr.read(HcrWord::InModifier), hcr.read(HcrWord::Command)), (3, 3));
    }

    #[test]
    fn command_word_without_go_bit_has_no_effect() {
        let mut hcr = Hcr::default();
        assert_eq!(hcr.write(HcrWord::Command, 0x0200_0003), None);
        assert_eq!(hcr.read(HcrWord::Command), 0);
    }
}
