//! Tokens prove that a message comes from the member named as its sender.
//!
//! A token is sent to the socket that is named after the member's MAC. Only the process that listens on this socket can
//! read the token. A message that echoes the token must therefore come from that process, whatever other ring members
//! claim.

use std::collections::VecDeque;
use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU64;

use protocol::ids::MacAddr;

/// Maximum number of valid tokens per member. At the limit, a new token invalidates the oldest one.
const MAX_OF_MEMBER: usize = 4;

/// Maximum number of valid tokens across all members.
const MAX: usize = 512;

/// A nonce, never 0. In a message, 0 stands for the absence of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token(NonZeroU64);

impl Token {
    /// Returns the token with this value, or `None` if the value is 0.
    pub(super) fn new(number: u64) -> Option<Self> {
        NonZeroU64::new(number).map(Self)
    }

    pub(super) fn get(self) -> u64 {
        self.0.get()
    }
}

/// Tokens that have been sent and are still valid.
#[derive(Debug, Default)]
pub(super) struct Tokens {
    /// Valid tokens and the members to which they were sent, oldest first.
    sent: VecDeque<(MacAddr, Token)>,
    /// Randomly keyed hash function. Each token is the hash of a counter, `made`.
    random: RandomState,
    made: u64,
}

impl Tokens {
    /// Creates a token to send to a member's socket.
    pub(super) fn make(&mut self, mac: MacAddr) -> Option<Token> {
        self.made += 1;
        let token = Token::new(self.random.hash_one(self.made))?;
        let of_member = self.sent.iter().filter(|(other, _)| *other == mac).count();
        let oldest = match of_member >= MAX_OF_MEMBER {
            true => self.sent.iter().position(|(other, _)| *other == mac),
            false => Some(0).filter(|_| self.sent.len() >= MAX),
        };
        oldest.and_then(|oldest| self.sent.remove(oldest));
        self.sent.push_back((mac, token));
        Some(token)
    }

    /// Returns whether a message that echoes the token `echoed` comes from the process that owns the socket for `mac`.
    pub(super) fn proves(&self, mac: MacAddr, echoed: Option<Token>) -> bool {
        echoed.is_some_and(|token| self.sent.contains(&(mac, token)))
    }

    /// Invalidates the token that established a link, and all earlier tokens of the same member. Later tokens stay
    /// valid, because they were already in flight when the link was established.
    pub(super) fn spend(&mut self, mac: MacAddr, token: Option<Token>) {
        let spent = self.sent.iter().position(|(other, sent)| *other == mac && Some(*sent) == token);
        let Some(spent) = spent else { return };
        let newer = self.sent.split_off(spent + 1);
        self.revoke(mac);
        self.sent.extend(newer);
    }

    /// Invalidates all tokens of a member.
    pub(super) fn revoke(&mut self, mac: MacAddr) {
        self.sent.retain(|(other, _)| *other != mac);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    #[test]
    fn token_is_bound_to_member_until_spent() {
        let mut tokens = Tokens::default();
        let (of_a, of_b) = (tokens.make(A), tokens.make(B));
        assert!(of_a.is_some() && of_a != of_b);
        assert!(tokens.proves(A, of_a) && tokens.proves(B, of_b));
        assert!(!tokens.proves(B, of_a) && !tokens.proves(A, None) && !tokens.proves(A, Token::new(7)));
        let newer = tokens.make(A);
        tokens.spend(A, of_a);
        assert!(!tokens.proves(A, of_a) && tokens.proves(B, of_b) && tokens.proves(A, newer));
        tokens.revoke(A);
        assert!(!tokens.proves(A, newer) && tokens.proves(B, of_b));
    }

    #[test]
    fn tokens_are_limited_per_member_and_in_total() {
        let mut tokens = Tokens::default();
        let first = tokens.make(B);
        for _ in 0..1000 {
            tokens.make(A);
        }
        assert!(tokens.proves(B, first) && tokens.sent.len() == 1 + MAX_OF_MEMBER);
        for n in 0..1000_u16 {
            let [hi, lo] = n.to_be_bytes();
            tokens.make(MacAddr([6, 0, 0, 0, hi, lo]));
        }
        assert_eq!(tokens.sent.len(), MAX);
    }
}
