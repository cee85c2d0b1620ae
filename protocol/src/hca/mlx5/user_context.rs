//! DevX user contexts: how user programs send their own commands.
//!
//! # Spec
//! mlx5 interface, section 23.

use bitflags::bitflags;

use crate::describe::{Field, Visitor, show_flags};
use crate::ids::UserId;
use crate::layout;

bitflags! {
    /// Rights of a user context.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct UserRights: u32 {
        /// Permits creating SQs, which send raw Ethernet frames.
        const RAW_TRANSMIT = 1 << 0;
        const _ = !0;
    }
}

impl From<u32> for UserRights {
    fn from(bits: u32) -> Self {
        Self::from_bits_retain(bits)
    }
}

impl From<UserRights> for u32 {
    fn from(rights: UserRights) -> Self {
        rights.bits()
    }
}

impl Field for UserRights {
    fn show(&self, name: &str, to: &mut dyn Visitor) {
        show_flags(self, name, to);
    }
}

/// User on whose behalf the kernel sends a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum User {
    /// The kernel itself, for its own objects.
    Kernel,
    /// The kernel, for an object that all user contexts may refer to.
    Shared,
    /// A program that has opened the device with DevX.
    Context(UserId),
}

impl User {
    const SHARED: u16 = 0xffff;

    /// Decodes the user field of a command header.
    pub const fn from_code(code: u16) -> Self {
        match code {
            0 => Self::Kernel,
            Self::SHARED => Self::Shared,
            context => Self::Context(UserId::new(context)),
        }
    }

    /// Returns the code used in command headers.
    pub const fn code(self) -> u16 {
        match self {
            Self::Kernel => 0,
            Self::Shared => Self::SHARED,
            Self::Context(user) => user.get(),
        }
    }
}

layout! {
    /// Input of the CREATE_UCTX command.
    pub struct CreateUctx[64] big_endian {
        @0x10  rights: UserRights as u32,
    }
}

layout! {
    /// Output of CREATE_UCTX and input of DESTROY_UCTX.
    pub struct UctxNumber[16] big_endian {
        /// User context number, never 0.
        @0x0a  user: UserId,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::words;
    use super::*;

    #[test]
    fn user_context_fields_are_at_specified_offsets() {
        let create = CreateUctx { rights: UserRights::RAW_TRANSMIT };
        assert_eq!(create.emit(), words(&[(0x10, 1)]));
        assert_eq!(UctxNumber { user: UserId::new(0x102) }.emit(), words(&[(0x08, 0x102)]));
    }

    #[test]
    fn user_codes_0_and_ffff_denote_kernel_and_shared() {
        let users = [0, 1, 0xfffe, 0xffff].map(User::from_code);
        let context = |number| User::Context(UserId::new(number));
        assert_eq!(users, [User::Kernel, context(1), context(0xfffe), User::Shared]);
        assert_eq!(users.map(User::code), [0, 1, 0xfffe, 0xffff]);
    }
}
