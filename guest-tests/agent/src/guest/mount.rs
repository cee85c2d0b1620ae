//! Mounts the guest's file systems.

use std::ffi::CString;
use std::io;

use anyhow::{Context as _, Result};

pub(crate) fn mount(
    source: &str,
    target: &str,
    kind: &str,
    flags: libc::c_ulong,
    options: &str,
) -> Result<()> {
    let mount = || -> io::Result<()> {
        let [source, target, kind, options] = [source, target, kind, options].map(CString::new);
        let (source, target, kind, options) = (source?, target?, kind?, options?);
        // SAFETY: all strings outlive the call.
        let result = unsafe {
            libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, options.as_ptr().cast())
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    mount().with_context(|| format!("cannot mount {source} on {target}"))
}
