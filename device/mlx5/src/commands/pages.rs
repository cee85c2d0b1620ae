//! Guest pages: QUERY_PAGES and MANAGE_PAGES.
//!
//! # Spec
//! mlx5 interface, section 5.1.

use protocol::hca::mlx5::input::Pages;
use protocol::hca::mlx5::pages::{
    ManagePages, ManagedPages, PageOperation, PageUse, QueryPages, RequestedPages,
};

use super::{Output, nothing};
use crate::check::{Check, Rejection};
use crate::function::Enabled;

const ADDRESS_LEN: usize = 8;

/// Requests 0 pages, because the device keeps contexts in its own memory.
pub(super) fn query(query: &QueryPages) -> Result<Output, Rejection> {
    PageUse::from_code(query.purpose).ok_or_else(|| Check::PageUse.rejects(query.purpose))?;
    Ok(RequestedPages::new(0).emit().to_vec())
}

pub(super) fn manage(
    enabled: &mut Enabled,
    manage: &ManagePages,
    list: Pages<'_>,
    output_len: usize,
) -> Result<Output, Rejection> {
    if manage.function != 0 {
        return Err(Check::Function.rejects(manage.function));
    }
    match PageOperation::from_code(manage.operation) {
        Some(PageOperation::CannotGive) => Ok(nothing()),
        Some(PageOperation::Give) => enabled.pages.give(manage.count, list).map(|()| nothing()),
        Some(PageOperation::Take) => {
            // Return only as many pages as the output can list, since the driver could not recover any others.
            let room = output_len.saturating_sub(ManagedPages::LEN) / ADDRESS_LEN;
            let wanted = usize::try_from(manage.count).unwrap_or(usize::MAX);
            let returned = enabled.pages.take(wanted.min(room));
            // Cannot fail: the maximum output length limits the number of addresses.
            let count = u32::try_from(returned.len()).unwrap_or(0);
            let mut output = ManagedPages { count }.emit().to_vec();
            output.extend(returned.iter().flat_map(|page| page.get().to_be_bytes()));
            Ok(output)
        }
        None => Err(Check::PageOperation.rejects(manage.operation)),
    }
}
