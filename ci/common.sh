# Sourced by the entry points: where we are, and how to say what is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# need_command COMMAND PACKAGE: installs the Debian package when we are root, else says how.
need_command() {
    command -v "$1" >/dev/null && return
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing $2 (for $1)"
        { [ -n "$(find /var/lib/apt/lists -maxdepth 1 -name '*Packages*' -mmin -1440 -print -quit)" ] ||
            apt-get -qq update; } &&
            DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "$2" >/dev/null ||
            die "could not install $2"
    else
        die "$1 is missing: run 'sudo apt-get install $2'"
    fi
}

# wait_for SECONDS WHAT COMMAND...: until the command succeeds.
wait_for() {
    local patience=$1 what=$2 end=$((SECONDS + $1))
    shift 2
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || die "$what did not come in $patience s"
        sleep 0.2
    done
}

need_toolchain() {
    command -v cargo >/dev/null || die "cargo is missing: install a Rust toolchain (1.95 or later) with rustup"
    need_command cc gcc
    need_command dpkg-deb dpkg
}

# A Python that can make virtual environments.
need_python() {
    need_command python3 python3
    python3 -c 'import ensurepip' 2>/dev/null || need_command pyvenv python3-venv
}

# What is shipped and what is measured.
build_release() {
    cargo build --quiet --release --workspace --bin hcad --bin hcactl --bin fabric-bench
}

# guest-lab as the tests build it, for it mostly waits, and what it tests as it is shipped.
build_lab() {
    build_release
    cargo build --quiet --workspace --all-features --bin guest-lab
}

lab() {
    HCAD_PROGRAMS=$PWD/target/release target/debug/guest-lab "$@"
}
