//! The system call filter (seccomp).
//!
//! Unlisted calls fail with ENOSYS, which makes a libc that tries a newer call fall back to an older one. Killing the
//! process instead would take down the HCAs of all its guests. Either way, an attacker cannot execute another program,
//! affect another process, or use an unlisted kernel interface.

use std::collections::BTreeMap;
use std::os::fd::RawFd;

use rustix::process::getpid;
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

use super::{Missing, Outcome};

/// Calls that are harmless with any arguments and calls that only access files. Landlock restricts the file accesses.
const ANY_ARGUMENTS: &[i64] = &[
    // Data transfer.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_lseek,
    libc::SYS_dup,
    libc::SYS_pipe2,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_flock,
    // Files. umask sets the mode of a socket file, and unlinkat removes the file when its server ends.
    libc::SYS_unlinkat,
    libc::SYS_umask,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_statfs,
    libc::SYS_readlinkat,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    // Sockets. Their address families are restricted below.
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    // Waiting and time.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_ppoll,
    libc::SYS_eventfd2,
    libc::SYS_nanosleep,
    libc::SYS_sched_yield,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_gettimeofday,
    libc::SYS_restart_syscall,
    // Memory. None of these calls can make memory executable.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mincore,
    libc::SYS_msync,
    libc::SYS_memfd_create,
    libc::SYS_fallocate,
    // Threads.
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_set_tid_address,
    libc::SYS_rseq,
    libc::SYS_membarrier,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    // Information about the process and the system.
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getrusage,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_getrandom,
];

/// Older forms of the calls above, present only on x86-64.
#[cfg(target_arch = "x86_64")]
const LEGACY_CALLS: &[i64] = &[
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_access,
    libc::SYS_readlink,
    libc::SYS_unlink,
    libc::SYS_pipe,
    libc::SYS_poll,
    libc::SYS_epoll_wait,
    libc::SYS_time,
];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY_CALLS: &[i64] = &[];

/// `fcntl` operations for descriptor flags, duplicating descriptors, memory file seals and pipe capacities.
const FCNTL: &[i32] = &[
    libc::F_GETFD,
    libc::F_SETFD,
    libc::F_GETFL,
    libc::F_SETFL,
    libc::F_DUPFD,
    libc::F_DUPFD_CLOEXEC,
    libc::F_GET_SEALS,
    libc::F_ADD_SEALS,
    libc::F_GETPIPE_SZ,
];

#[expect(
    clippy::cast_possible_truncation,
    reason = "requests are 32 bits wide, whatever type libc gives them"
)]
/// `ioctl` requests for non-blocking mode, close-on-exec and FIONREAD, for libc's `isatty` checks on the standard
/// streams, and for tap interfaces.
const IOCTL: &[u32] = &[
    libc::FIONBIO as u32,
    libc::FIOCLEX as u32,
    libc::FIONREAD as u32,
    libc::TCGETS as u32,
    libc::TUNSETIFF as u32,
    libc::TUNGETIFF as u32,
    libc::SIOCGIFMTU as u32,
];

/// `prctl` operations that read or set the thread name, name memory mappings, read the auxiliary vector (which contains
/// the page size, for example), and set the timer slack.
const PRCTL: &[i32] =
    &[libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA, PR_GET_AUXV, libc::PR_SET_TIMERSLACK];

/// Value from `linux/prctl.h`. The libc crate does not define the constant.
const PR_GET_AUXV: i32 = 0x4155_5856;

/// Settings that determine the permitted calls.
#[derive(Clone, Debug)]
pub(super) struct Permitted {
    /// Groups that sockets may be assigned to.
    pub(super) groups: Vec<u32>,
    /// Whether devices may use rings. The members of a ring connect to each other's sockets.
    pub(super) ring: bool,
    pub(super) udp: bool,
    /// Whether the process may send DNS queries: over UDP, and over TCP if a reply is too long for a datagram.
    pub(super) dns: bool,
    /// Descriptor of the socket that probes whether other sockets are in use. It may connect but cannot send data.
    pub(super) probe: Option<RawFd>,
}

/// Applies the filter to all current and future threads.
pub(super) fn restrict(permitted: &Permitted) -> Outcome<()> {
    use seccompiler::Error;

    let filter = filter(permitted).map_err(|error| Missing::Refused(error.to_string()))?;
    seccompiler::apply_filter_all_threads(&filter).map_err(|error| match error {
        Error::Seccomp(error)
            if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP)) =>
        {
            Missing::Kernel
        }
        error => Missing::Refused(error.to_string()),
    })
}

fn filter(permitted: &Permitted) -> Result<BpfProgram, BackendError> {
    let architecture: TargetArch = std::env::consts::ARCH.try_into()?;
    let mut rules = BTreeMap::new();
    for call in ANY_ARGUMENTS.iter().chain(LEGACY_CALLS) {
        rules.insert(*call, Vec::new());
    }
    if permitted.ring || permitted.dns {
        // The filter cannot inspect the destination. It permits only Unix and UDP sockets, and TCP sockets for DNS. The
        // destination is restricted by Landlock if the kernel supports that. Otherwise, only file permissions restrict
        // it, and nothing restricts TCP connections.
        rules.insert(libc::SYS_connect, Vec::new());
    }
    if permitted.probe.is_none() {
        rules.extend([libc::SYS_close, libc::SYS_dup3].map(|call| (call, Vec::new())));
        #[cfg(target_arch = "x86_64")]
        rules.insert(libc::SYS_dup2, Vec::new());
    }
    for (call, alternatives) in limited(permitted) {
        let alternatives = alternatives.into_iter().map(|conditions| {
            let conditions = conditions.into_iter().map(|Condition { argument, is, value }| {
                SeccompCondition::new(argument, SeccompCmpArgLen::Dword, is, value.into())
            });
            SeccompRule::new(conditions.collect::<Result<_, _>>()?)
        });
        rules.insert(call, alternatives.collect::<Result<_, _>>()?);
    }
    let refusal = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    SeccompFilter::new(rules, refusal, SeccompAction::Allow, architecture)?.try_into()
}

/// A condition on the value of an argument. Only the lower 32 bits are compared; in all checked arguments, the upper
/// bits are unused or zero.
struct Condition {
    argument: u8,
    is: SeccompCmpOp,
    value: u32,
}

/// Returns the calls that are permitted only with certain arguments. Each call has a list of alternatives and is
/// permitted if all conditions of at least one alternative are met.
fn limited(permitted: &Permitted) -> Vec<(i64, Vec<Vec<Condition>>)> {
    let masked = |argument, mask: i32, value: i32| Condition {
        argument,
        is: SeccompCmpOp::MaskedEq(mask.cast_unsigned().into()),
        value: value.cast_unsigned(),
    };
    let is = |argument, value| vec![masked(argument, -1, value)];
    let one_of = |argument, values: &[i32]| values.iter().map(|value| is(argument, *value)).collect();
    // The upper bits of a socket type are flags.
    let socket = |family, kind| vec![masked(0, -1, family), masked(1, 0xf, kind)];
    // Only the owner may have access to created files, and they may be neither executable nor setuid.
    let open = |flags, mode| {
        let made = libc::O_CREAT | (libc::O_TMPFILE & !libc::O_DIRECTORY);
        vec![vec![masked(flags, made, 0)], vec![masked(mode, !0o600, 0)]]
    };
    let given = |group: &u32| {
        vec![masked(2, -1, -1), masked(3, -1, group.cast_signed()), masked(4, -1, libc::AT_EMPTY_PATH)]
    };
    // TCP sockets are permitted only for DNS. Raw and netlink sockets are not permitted, nor are Unix datagram sockets,
    // which can send each message to a different destination.
    let mut sockets = vec![socket(libc::AF_UNIX, libc::SOCK_STREAM)];
    for (kind, is_permitted) in
        [(libc::SOCK_DGRAM, permitted.udp || permitted.dns), (libc::SOCK_STREAM, permitted.dns)]
    {
        if is_permitted {
            sockets.extend([libc::AF_INET, libc::AF_INET6].map(|family| socket(family, kind)));
        }
    }
    let mut calls = vec![
        (libc::SYS_openat, open(2, 3)),
        #[cfg(target_arch = "x86_64")]
        (libc::SYS_open, open(1, 2)),
        (libc::SYS_socket, sockets),
        (libc::SYS_socketpair, vec![socket(libc::AF_UNIX, libc::SOCK_STREAM)]),
        (libc::SYS_fcntl, one_of(1, FCNTL)),
        (
            libc::SYS_ioctl,
            IOCTL
                .iter()
                .map(|request| vec![Condition { argument: 1, is: SeccompCmpOp::Eq, value: *request }])
                .collect(),
        ),
        (libc::SYS_prctl, one_of(0, PRCTL)),
        // New and changed mappings must not be executable.
        (libc::SYS_mmap, vec![vec![masked(2, libc::PROT_EXEC, 0)]]),
        (libc::SYS_mprotect, vec![vec![masked(2, libc::PROT_EXEC, 0)]]),
        // New threads are permitted, but not new processes. clone3 is not listed because its arguments are in memory,
        // which a filter cannot inspect. If clone3 fails with ENOSYS, a libc uses clone instead.
        (libc::SYS_clone, vec![vec![masked(0, libc::CLONE_THREAD, libc::CLONE_THREAD)]]),
        // Signals and resource limits are permitted only for this process.
        (libc::SYS_tgkill, vec![is(0, getpid().as_raw_nonzero().get())]),
        (libc::SYS_prlimit64, vec![is(0, 0)]),
    ];
    if let Some(probe) = permitted.probe {
        // `connect` is permitted for the probe's descriptor number, which must therefore keep referring to the probe.
        let other = |argument| {
            let value = probe.cast_unsigned();
            vec![vec![Condition { argument, is: SeccompCmpOp::Ne, value }]]
        };
        calls.extend([(libc::SYS_close, other(0)), (libc::SYS_dup3, other(1))]);
        #[cfg(target_arch = "x86_64")]
        calls.push((libc::SYS_dup2, other(1)));
        if !permitted.ring && !permitted.dns {
            calls.push((libc::SYS_connect, vec![is(0, probe)]));
        }
    }
    // fchownat assigns the sockets of devices added at run time to a configured group. An empty list of alternatives
    // would permit the call with any arguments.
    if !permitted.groups.is_empty() {
        calls.push((libc::SYS_fchownat, permitted.groups.iter().map(given).collect()));
    }
    calls
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::{TcpListener, UdpSocket};
    use std::thread;

    use super::*;

    const GROUP: u32 = 4711;

    /// Runs `test` in a new thread with the filter applied only to that thread.
    fn confined<T: Send + 'static>(test: impl FnOnce() -> T + Send + 'static) -> T {
        let filter =
            filter(&Permitted { groups: vec![GROUP], ring: false, udp: true, dns: false, probe: None })
                .unwrap();
        let thread = thread::spawn(move || {
            seccompiler::apply_filter(&filter).unwrap();
            test()
        });
        thread.join().unwrap()
    }

    #[test]
    fn forbidden_system_calls_return_enosys() {
        let errors = confined(|| {
            let refused = [
                ("execve", libc::SYS_execve),
                ("execveat", libc::SYS_execveat),
                ("clone3", libc::SYS_clone3),
                ("ptrace", libc::SYS_ptrace),
                ("process_vm_readv", libc::SYS_process_vm_readv),
                ("process_vm_writev", libc::SYS_process_vm_writev),
                ("kill", libc::SYS_kill),
                ("mount", libc::SYS_mount),
                ("unshare", libc::SYS_unshare),
                ("setns", libc::SYS_setns),
                ("bpf", libc::SYS_bpf),
                ("io_uring_setup", libc::SYS_io_uring_setup),
                ("userfaultfd", libc::SYS_userfaultfd),
                ("perf_event_open", libc::SYS_perf_event_open),
                ("keyctl", libc::SYS_keyctl),
                ("init_module", libc::SYS_init_module),
                ("setuid", libc::SYS_setuid),
                ("connect", libc::SYS_connect),
                ("fchmod", libc::SYS_fchmod),
                ("fchmodat", libc::SYS_fchmodat),
                ("openat2", libc::SYS_openat2),
                ("seccomp", libc::SYS_seccomp),
                // A system call number that has not been assigned yet.
                ("unknown", 100_000),
            ];
            refused.map(|(name, call)| {
                // SAFETY: with all arguments zero, each of these calls fails or has no effect, even if it is permitted.
                let result = unsafe { libc::syscall(call, 0, 0, 0, 0, 0, 0) };
                (name, result, io::Error::last_os_error().raw_os_error())
            })
        });
        for (name, result, error) in errors {
            assert_eq!((result, error), (-1, Some(libc::ENOSYS)), "{name}");
        }
    }

    #[test]
    fn filter_rejects_tcp_fork_and_executable_memory() {
        let (tcp, udp, child) = confined(|| {
            // SAFETY: a child created despite the filter exits immediately.
            let child = unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::_exit(0);
                }
                child
            };
            (TcpListener::bind("127.0.0.1:0").map(drop), UdpSocket::bind("127.0.0.1:0").map(drop), child)
        });
        assert_eq!(tcp.unwrap_err().raw_os_error(), Some(libc::ENOSYS));
        udp.unwrap();
        assert_eq!(child, -1);

        let executable = |protection: i32| {
            confined(move || {
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                // SAFETY: the kernel chooses the address of the anonymous mapping, which is never accessed.
                let page = unsafe { libc::mmap(std::ptr::null_mut(), 4096, protection, flags, -1, 0) };
                page == libc::MAP_FAILED
            })
        };
        assert!(!executable(libc::PROT_READ | libc::PROT_WRITE));
        assert!(executable(libc::PROT_READ | libc::PROT_EXEC));
    }

    #[test]
    fn fchown_is_permitted_only_to_configured_group() {
        let errors = confined(|| {
            let anybody = u32::MAX;
            [(anybody, GROUP), (anybody, GROUP + 1), (0, GROUP)].map(|(user, group)| {
                let path = c"".as_ptr();
                // SAFETY: the path is zero-terminated, all other arguments are numbers, and the descriptor
                // does not exist.
                let result = unsafe { libc::fchownat(1 << 30, path, user, group, libc::AT_EMPTY_PATH) };
                assert_eq!(result, -1);
                io::Error::last_os_error().raw_os_error()
            })
        });
        assert_eq!(errors, [Some(libc::EBADF), Some(libc::ENOSYS), Some(libc::ENOSYS)]);
    }

    #[test]
    fn new_threads_are_confined() {
        let error = confined(|| {
            thread::spawn(|| TcpListener::bind("127.0.0.1:0").map(drop)).join().unwrap().unwrap_err()
        });
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
    }
}
