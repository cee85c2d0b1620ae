//! Bounds-checked access to headers in untrusted bytes.

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::WireError;

/// Splits a header off the front of `bytes`. `what` is the name of the header in error messages.
///
/// # Errors
/// [`WireError::Short`] if `bytes` is too short.
pub(crate) fn view<'a, T>(bytes: &'a [u8], what: &'static str) -> Result<(&'a T, &'a [u8]), WireError>
where
    T: FromBytes + KnownLayout + Immutable + Unaligned,
{
    T::ref_from_prefix(bytes).map_err(|_| WireError::Short { what, need: size_of::<T>(), have: bytes.len() })
}

/// Splits `need` bytes off the front of `bytes`. `what` is their name in error messages.
///
/// # Errors
/// [`WireError::Short`] if `bytes` is too short.
pub(crate) fn split<'a>(
    bytes: &'a [u8],
    need: usize,
    what: &'static str,
) -> Result<(&'a [u8], &'a [u8]), WireError> {
    bytes.split_at_checked(need).ok_or(WireError::Short { what, need, have: bytes.len() })
}
