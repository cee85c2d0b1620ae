//! Tests what a compromised process can do. A process in the same sandbox as `hcad` tries the operations in the two
//! tables of `device/book/src/security.md`. The operations in the first table must fail, and those in the second table
//! must succeed. The last row of the second table ("everything else") is not tested. The process runs as the test's
//! user and, if that user is root, also as another user.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::c_long;
use std::fs::{self, File};
use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Command;

use card::vfio::server::Listener;
use device::config::Config;
use device::confinement;
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use rustix::fs::{AtFlags, CWD, Mode, fchmod, unlinkat};
use rustix::net::{AddressFamily, SocketType, socket, socketpair};
use rustix::process::{getegid, geteuid};
use serde_json::{Value, json};

use crate::common::landlock_abi;

/// Environment variables that make a child process run a probe.
const FOLDER: &str = "HCAD_PROBE_FOLDER";
const OUTSIDE: &str = "HCAD_PROBE_OUTSIDE";
const USER: &str = "HCAD_PROBE_USER";

const NOBODY: u32 = 65_534;

/// A compromised process, with files and sockets that it tries to access.
struct Intruder {
    /// Directory that holds the process's sockets.
    folder: PathBuf,
    /// Directory that belongs to the same user but is not in the configuration.
    outside: PathBuf,
    /// Datagram socket created before the sandbox, like the one that `hcad` has if the service manager sets
    /// `NOTIFY_SOCKET`.
    notify: UnixDatagram,
    has_landlock: bool,
    /// Whether Landlock controls which Unix sockets the process can connect or send datagrams to. This requires ABI 9.
    has_landlock_for_sockets: bool,
    /// Whether Landlock restricts TCP, which requires ABI 4.
    has_landlock_for_tcp: bool,
}

impl Intruder {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Runs `probe` in a separate process as the current user and, if that is root, also as another user.
fn run(test: &str, more: Value, probe: fn(&Intruder)) {
    if let (Some(folder), Some(outside)) = (std::env::var_os(FOLDER), std::env::var_os(OUTSIDE)) {
        let user = std::env::var(USER).ok().map(|user| user.parse().unwrap());
        return probe(&confine(Path::new(&folder), Path::new(&outside), user, more));
    }
    let users: &[Option<u32>] = if geteuid().is_root() { &[None, Some(NOBODY)] } else { &[None] };
    for user in users {
        let (folder, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        prepare(folder.path(), *user);
        let _sockets = prepare_outside(outside.path(), *user);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", &format!("confinement_probes::{test}"), "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder.path())
            .env(OUTSIDE, outside.path());
        command.envs(user.map(|user| (USER, user.to_string()))).env_remove("XDG_RUNTIME_DIR");
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "as {user:?}:\n{}", said.concat());
        assert!(said[0].contains("1 passed"), "as {user:?}: no such test:\n{}", said.concat());
    }
}

/// Creates `old.pcapng`, where the process writes its trace, and files that the process must not access.
fn prepare(folder: &Path, user: Option<u32>) {
    fs::create_dir(folder.join("below")).unwrap();
    for name in ["secret", ".bashrc", "below/notes", "old.pcapng"] {
        fs::write(folder.join(name), "precious").unwrap();
    }
    give(folder, &["", "below", "secret", ".bashrc", "below/notes", "old.pcapng"], user);
}

/// Creates a file and two sockets that stand in for another program's. The returned sockets must stay open.
fn prepare_outside(folder: &Path, user: Option<u32>) -> (UnixListener, UnixDatagram) {
    fs::write(folder.join("notes"), "precious").unwrap();
    let stream = UnixListener::bind(folder.join("stream.sock")).unwrap();
    let datagrams = UnixDatagram::bind(folder.join("datagrams.sock")).unwrap();
    give(folder, &["", "notes", "stream.sock", "datagrams.sock"], user);
    (stream, datagrams)
}

/// Makes `user`, if given, the owner of the named files in a directory.
fn give(folder: &Path, names: &[&str], user: Option<u32>) {
    for name in names {
        chown(folder.join(name), user, user).unwrap();
    }
}

/// Returns a group that the confined process belongs to.
fn group() -> u32 {
    if geteuid().is_root() { NOBODY } else { getegid().as_raw() }
}

/// Confines the process as `hcad` does before it serves its first guest.
fn confine(folder: &Path, outside: &Path, user: Option<u32>, more: Value) -> Intruder {
    if let Some(user) = user {
        setgroups(&[]).unwrap();
        setgid(Gid::from_raw(user)).unwrap();
        setuid(Uid::from_raw(user)).unwrap();
    }
    let mut config = json!({
        "control_socket": folder.join("control.sock"),
        "devices": [{
            "id": 1,
            "frontend": { "jingzhao": {} },
            "fabric": { "udp": { "bind": "127.0.0.1:0", "peers": [] } },
            "socket_path": folder.join("hca.sock"),
            "capture": folder.join("new.pcapng"),
            "trace": { "file": folder.join("old.pcapng") },
        }],
    });
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    let config = Config::from_text(&config.to_string(), Path::new("hcad.json")).unwrap();
    let (abi, notify) = (landlock_abi(), UnixDatagram::unbound().unwrap());
    let dns_ports = config.dns.servers.iter().map(SocketAddr::port).collect();
    confinement::begin(&config, None, &dns_ports).unwrap();
    std::mem::forget(Listener::bind(&folder.join("control.sock")).unwrap());
    confinement::complete();
    let has_landlock = confinement::is_in_force();
    Intruder {
        folder: folder.to_owned(),
        outside: outside.to_owned(),
        notify,
        has_landlock,
        has_landlock_for_sockets: has_landlock && abi >= 9,
        has_landlock_for_tcp: has_landlock && abi >= 4,
    }
}

/// Declares a test for each group of operations.
macro_rules! probes {
    ($($name:ident $(with $more:tt)?: $probe:expr;)+) => {
        $(
            #[test]
            fn $name() {
                let more = probes!(@more $($more)?);
                run(stringify!($name), more, $probe);
            }
        )+
    };
    (@more) => { json!({}) };
    (@more $more:tt) => { json!($more) };
}

/// Checks that a system call fails with `error`.
#[track_caller]
fn refused(call: c_long, arguments: [c_long; 6], error: i32) {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: callers pass numbers, or pointers to values that outlive the call.
    let result = unsafe { libc::syscall(call, a, b, c, d, e, f) };
    assert_eq!((result, io::Error::last_os_error().raw_os_error()), (-1, Some(error)));
}

#[track_caller]
fn missing(calls: &[c_long]) {
    calls.iter().for_each(|call| refused(*call, [0; 6], libc::ENOSYS));
}

/// Checks that Landlock rejected the operation, if the kernel supports Landlock.
#[track_caller]
fn denied<T>(intruder: &Intruder, result: io::Result<T>) {
    if intruder.has_landlock {
        let error = result.err().expect("Landlock should reject the operation").raw_os_error();
        assert!(matches!(error, Some(libc::EACCES | libc::EXDEV)), "{error:?}");
    }
}

/// Checks that Landlock rejected the operation if the kernel has ABI 9 or later, and that it succeeded otherwise.
#[track_caller]
fn denied_from_abi_9<T>(intruder: &Intruder, result: io::Result<T>) {
    match intruder.has_landlock_for_sockets {
        true => denied(intruder, result),
        false => drop(result.unwrap()),
    }
}

fn write_to(path: &Path) -> io::Result<File> {
    File::options().write(true).open(path)
}

probes! {
    cannot_execute_programs: |_| missing(&[libc::SYS_execve, libc::SYS_execveat]);
    cannot_create_processes: |_| {
        missing(&[libc::SYS_clone3, libc::SYS_unshare, libc::SYS_setns]);
        refused(libc::SYS_clone, [libc::SIGCHLD.into(), 0, 0, 0, 0, 0], libc::ENOSYS);
    };
    cannot_map_executable_memory: |_| {
        let protection = c_long::from(libc::PROT_READ | libc::PROT_EXEC);
        let flags = c_long::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        refused(libc::SYS_mmap, [0, 4096, protection, flags, -1, 0], libc::ENOSYS);
        refused(libc::SYS_mprotect, [0, 4096, protection, 0, 0, 0], libc::ENOSYS);
    };
    cannot_access_other_processes: |_| {
        missing(&[
            libc::SYS_ptrace, libc::SYS_kill, libc::SYS_tkill, libc::SYS_process_vm_readv,
            libc::SYS_process_vm_writev, libc::SYS_pidfd_open, libc::SYS_pidfd_getfd, libc::SYS_kcmp,
            libc::SYS_pidfd_send_signal,
        ]);
        refused(libc::SYS_tgkill, [1, 1, 0, 0, 0, 0], libc::ENOSYS);
        refused(libc::SYS_prlimit64, [1, 0, 0, 0, 0, 0], libc::ENOSYS);
    };
    cannot_use_other_kernel_interfaces: |_| missing(&[
        libc::SYS_mount, libc::SYS_bpf, libc::SYS_io_uring_setup, libc::SYS_userfaultfd, libc::SYS_keyctl,
        libc::SYS_add_key, libc::SYS_perf_event_open, libc::SYS_init_module, libc::SYS_kexec_load, libc::SYS_reboot,
        libc::SYS_seccomp, libc::SYS_personality, libc::SYS_chroot, libc::SYS_pivot_root, libc::SYS_settimeofday,
        libc::SYS_sethostname, libc::SYS_fanotify_init, libc::SYS_name_to_handle_at, libc::SYS_open_by_handle_at,
    ]);
    cannot_change_user: |_| missing(&[
        libc::SYS_setuid, libc::SYS_setgid, libc::SYS_setresuid, libc::SYS_setresgid, libc::SYS_setfsuid,
        libc::SYS_setfsgid, libc::SYS_setgroups, libc::SYS_capset,
    ]);
    has_no_capabilities: |_| {
        missing(&[libc::SYS_capget, libc::SYS_capset]);
        let udp = socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
        let len: libc::c_int = 1 << 16;
        // SAFETY: the option is a number of this length and outlives the call. Setting it needs CAP_NET_ADMIN.
        let result = unsafe {
            libc::setsockopt(udp.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, (&raw const len).cast(), 4)
        };
        assert_eq!((result, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EPERM)));
    };
    cannot_change_file_modes: |intruder| {
        let file = File::options().append(true).open(intruder.path("new.pcapng")).unwrap();
        assert_eq!(fchmod(&file, Mode::from_raw_mode(0o4755)), Err(rustix::io::Errno::NOSYS));
        missing(&[libc::SYS_fchmod, libc::SYS_fchmodat]);
        #[cfg(target_arch = "x86_64")]
        missing(&[libc::SYS_chmod, libc::SYS_creat, libc::SYS_mkdir, libc::SYS_mknod]);
        missing(&[libc::SYS_mkdirat, libc::SYS_mknodat, libc::SYS_openat2, libc::SYS_fsetxattr]);
    };
    creates_files_only_for_owner: |intruder| {
        for (index, mode) in [0o4600, 0o2600, 0o1600, 0o700, 0o640, 0o604].into_iter().enumerate() {
            let path = intruder.path("control.files").join(index.to_string());
            let made = File::options().write(true).create_new(true).mode(mode).open(path);
            assert_eq!(made.unwrap_err().raw_os_error(), Some(libc::ENOSYS), "{mode:o}");
        }
        let path = intruder.path("control.files/x");
        File::options().write(true).create_new(true).mode(0o600).open(&path).unwrap();
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o7777, 0o600);
    };
    cannot_change_file_owners: |_| {
        missing(&[libc::SYS_fchown, libc::SYS_fchownat]);
        #[cfg(target_arch = "x86_64")]
        missing(&[libc::SYS_chown, libc::SYS_lchown]);
    };
    cannot_read_other_files: |intruder| {
        for name in ["secret", ".bashrc", "below/notes"] {
            denied(intruder, File::open(intruder.path(name)));
        }
        denied(intruder, File::open("/etc/passwd"));
        denied(intruder, File::open("/proc/self/mem"));
        denied(intruder, fs::read_dir("/etc"));
    };
    cannot_write_other_files: |intruder| {
        for name in ["secret", ".bashrc", "below/notes"] {
            denied(intruder, write_to(&intruder.path(name)));
            assert_eq!(fs::metadata(intruder.path(name)).unwrap().len(), 8, "{name}");
        }
    };
    cannot_create_files_beside_sockets: |intruder| {
        for name in ["x", ".bash_profile", "below/x"] {
            let file = File::options().write(true).create_new(true).mode(0o600).open(intruder.path(name));
            denied(intruder, file);
        }
    };
    can_write_configured_files: |intruder| {
        for name in ["old.pcapng", "new.pcapng"] {
            write_to(&intruder.path(name)).unwrap();
        }
    };
    cannot_rename_or_link_files: |_| {
        missing(&[libc::SYS_renameat2, libc::SYS_linkat, libc::SYS_symlinkat, libc::SYS_truncate]);
        #[cfg(target_arch = "x86_64")]
        missing(&[libc::SYS_rename, libc::SYS_link, libc::SYS_symlink, libc::SYS_renameat]);
    };
    cannot_remove_directories: |intruder| {
        let removed = unlinkat(CWD, intruder.path("below"), AtFlags::REMOVEDIR);
        denied(intruder, removed.map_err(io::Error::from));
    };
    cannot_remove_files_outside_sandbox: |intruder| {
        denied(intruder, fs::remove_file(intruder.outside.join("notes")));
        denied(intruder, UnixListener::bind(intruder.outside.join("x")));
    };
    can_replace_files_beside_sockets: |intruder| {
        for name in ["secret", "below/notes"] {
            fs::remove_file(intruder.path(name)).unwrap();
            UnixListener::bind(intruder.path(name)).unwrap();
        }
    };
    can_stat_files_outside_sandbox: |intruder| {
        assert_eq!(fs::metadata(intruder.outside.join("notes")).unwrap().len(), 8);
    };
    can_chown_only_to_configured_group with { "socket_group": group() }: |intruder| {
        let (path, group) = (intruder.path("secret"), group());
        // Landlock does not restrict O_PATH.
        let file = File::options().read(true).custom_flags(libc::O_PATH).open(&path).unwrap();
        let change = |user: u32, group: u32| {
            let fd = file.as_raw_fd();
            // SAFETY: the path is zero-terminated, and all other arguments are numbers.
            let result = unsafe { libc::fchownat(fd, c"".as_ptr(), user, group, libc::AT_EMPTY_PATH) };
            if result == 0 { None } else { io::Error::last_os_error().raw_os_error() }
        };
        let same = u32::MAX;
        assert_eq!(change(same, group), None);
        assert_eq!(change(same, group + 1), Some(libc::ENOSYS));
        assert_eq!(change(NOBODY - 1, group), Some(libc::ENOSYS));
        assert_eq!(fs::metadata(&path).unwrap().gid(), group);
    };
    cannot_connect_stream_sockets: |intruder| {
        let error = UnixStream::connect(intruder.path("control.sock")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOSYS));
    };
    can_connect_stream_sockets_with_ring with { "confinement": { "ring": true } }: |intruder| {
        UnixStream::connect(intruder.path("control.sock")).unwrap();
    };
    landlock_abi_9_limits_ring_connections with { "confinement": { "ring": true } }: |intruder| {
        denied_from_abi_9(intruder, UnixStream::connect(intruder.outside.join("stream.sock")));
    };
    landlock_abi_9_limits_notify_socket: |intruder| {
        let sent = intruder.notify.send_to(b"x", intruder.outside.join("datagrams.sock"));
        denied_from_abi_9(intruder, sent);
    };
    can_send_udp_to_any_address: |_| {
        // The configuration has no peers, so the destination is not a configured address.
        let [from, to] = ["127.0.0.1:0", "127.0.0.2:0"].map(|address| UdpSocket::bind(address).unwrap());
        from.send_to(b"x", to.local_addr().unwrap()).unwrap();
        assert_eq!(to.recv(&mut [0; 2]).unwrap(), 1);
    };
    can_connect_only_to_name_server_ports with {
        "confinement": { "dns": true }, "dns": { "servers": ["127.0.0.1:1"] }
    }: |intruder| {
        // Nothing listens on these ports.
        let error = |port: u16| TcpStream::connect(("127.0.0.1", port)).unwrap_err().raw_os_error();
        assert_eq!(error(1), Some(libc::ECONNREFUSED));
        let restricts_tcp = intruder.has_landlock_for_tcp;
        assert_eq!(error(2), Some(if restricts_tcp { libc::EACCES } else { libc::ECONNREFUSED }));
        assert_eq!(socket(AddressFamily::NETLINK, SocketType::RAW, None).map(drop), Err(rustix::io::Errno::NOSYS));
    };
    cannot_create_unix_datagram_sockets: |_| {
        assert_eq!(UnixDatagram::unbound().unwrap_err().raw_os_error(), Some(libc::ENOSYS));
        for kind in [SocketType::DGRAM, SocketType::SEQPACKET, SocketType::RAW] {
            let pair = socketpair(AddressFamily::UNIX, kind, rustix::net::SocketFlags::empty(), None);
            assert_eq!(pair.unwrap_err(), rustix::io::Errno::NOSYS);
            assert_eq!(socket(AddressFamily::UNIX, kind, None).unwrap_err(), rustix::io::Errno::NOSYS);
        }
    };
    probe_socket_cannot_send_data: |intruder| {
        // Only the probe socket can connect. Find its descriptor.
        let connects = |fd: i32| {
            let mut address = [0_u8; 110];
            address[0] = 1;
            let path = intruder.path("none");
            address[2..][..path.as_os_str().len()].copy_from_slice(path.as_os_str().as_bytes());
            // SAFETY: the address has this length, and any descriptor number is permitted.
            let result = unsafe { libc::connect(fd, address.as_ptr().cast(), 110) };
            assert_eq!(result, -1);
            io::Error::last_os_error().raw_os_error() != Some(libc::ENOSYS)
        };
        let probes: Vec<_> = (0..64).filter(|fd| connects(*fd)).collect();
        let [probe] = probes[..] else { panic!("{probes:?}") };
        let stream = UnixStream::pair().unwrap().0;
        refused(libc::SYS_close, [probe.into(), 0, 0, 0, 0, 0], libc::ENOSYS);
        refused(libc::SYS_dup3, [stream.as_raw_fd().into(), probe.into(), 0, 0, 0, 0], libc::ENOSYS);
        // SAFETY: the duplicate is owned by this code.
        let copy = unsafe { OwnedFd::from_raw_fd(libc::dup(probe)) };
        assert!(rustix::net::send(&copy, b"x", rustix::net::SendFlags::NOSIGNAL).is_err());
    };
    cannot_use_network_protocols_except_udp: |_| {
        let nosys = Err(rustix::io::Errno::NOSYS);
        for (family, kind) in [
            (AddressFamily::INET, SocketType::STREAM),
            (AddressFamily::INET6, SocketType::STREAM),
            (AddressFamily::INET, SocketType::RAW),
            (AddressFamily::NETLINK, SocketType::RAW),
            (AddressFamily::PACKET, SocketType::RAW),
            (AddressFamily::VSOCK, SocketType::STREAM),
        ] {
            assert_eq!(socket(family, kind, None).map(drop), nosys, "{family:?}");
        }
        socket(AddressFamily::INET, SocketType::DGRAM, None).unwrap();
    };
    cannot_use_udp_without_udp_fabric with {
        "confinement": { "udp": false },
        "devices": [{ "id": 1, "frontend": { "jingzhao": {} }, "fabric": { "local": {} },
            "socket_path": "/nonexistent/hca.sock" }]
    }: |_| {
        for family in [AddressFamily::INET, AddressFamily::INET6] {
            let made = socket(family, SocketType::DGRAM, None);
            assert_eq!(made.map(drop), Err(rustix::io::Errno::NOSYS));
        }
    };
    can_create_sockets_for_added_devices: |intruder| {
        let later = intruder.path("later.sock");
        // Leave a socket file behind, as a killed process does.
        drop(UnixListener::bind(&later).unwrap());
        let listener = Listener::bind(&later).unwrap();
        assert_eq!(fs::metadata(&later).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(Listener::bind(&later).is_err(), "a socket in use is not replaced");
        drop(listener);
        assert!(!later.exists());
    };
}
