# Sourced by the entry points: where we are, and what they need.
#
# A script names the programs it runs, and their Debian packages, in lines that begin as the next one does. Every script
# needs these: a C compiler that can link, and what the lab unpacks packages with.
# Needs: linking=gcc,libc6-dev dpkg-deb=dpkg certificates=ca-certificates
set -euo pipefail
script=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# has NEED: whether there is a program of this name, or what these words stand for.
has() {
    local made status=0
    case $1 in
    # gcc only recommends the C library's development files, without which it compiles and does not link.
    linking)
        made=$(mktemp)
        echo 'int main(void) { return 0; }' | cc -x c -o "$made" - 2>/dev/null || status=1
        rm -f "$made"
        return $status
        ;;
    venv) python3 -c 'import ensurepip' 2>/dev/null ;;
    certificates) [ -e "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" ] || [ ! -e /etc/debian_version ] ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

# need NEED=PACKAGE,...: as root installs the Debian packages of what is missing, else names all of them at once.
need() {
    local pair packages=() components=() update=
    for pair in "$@"; do
        has "${pair%%=*}" && continue
        case $pair in
        *=rustup:*) components+=("${pair##*:}") ;;
        *) IFS=, read -ra more <<<"${pair#*=}" && packages+=("${more[@]}") ;;
        esac
    done
    [ -n "$(find /var/lib/apt/lists -maxdepth 1 -name '*Packages*' -mmin -1440 -print -quit 2>/dev/null)" ] || update=1
    if [ ${#packages[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing ${packages[*]}" >&2
        [ -z "$update" ] || apt-get -qq update || die "apt-get update failed"
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" >/dev/null ||
            die "could not install ${packages[*]}"
        packages=()
    fi
    local told=()
    has cargo || told+=("cargo: install a Rust toolchain, 1.95 or later, with rustup")
    [ ${#components[@]} = 0 ] || ! has cargo || told+=("rustup component add ${components[*]}")
    [ ${#packages[@]} = 0 ] ||
        told+=("${update:+sudo apt-get update && }sudo apt-get install --no-install-recommends ${packages[*]}")
    [ ${#told[@]} = 0 ] || die "missing on this machine:$(printf '\n    %s' "${told[@]}")"
}

# need_of SCRIPT...: all that they need, unless whoever runs them has seen to that.
need_of() {
    local needs
    [ -z "${HCAD_NEEDS_MET-}" ] || return 0
    mapfile -t needs < <(sed -n 's/^# Needs: //p' ci/common.sh "$@" | tr ' ' '\n' | awk 'NF && !seen[$0]++')
    need "${needs[@]}"
    export HCAD_NEEDS_MET=1
}

# What tests need and this machine may refuse is tried once, before the first of them: each of these is the reason why not,
# or empty. Steps and guest-lab skip by them.
find_limits() {
    [ -z "${HCAD_LIMITS_FOUND-}" ] || return 0
    export HCAD_LIMITS_FOUND=1 HCAD_NO_NETNS HCAD_NO_MOUNTS HCAD_NO_ROOT
    HCAD_NO_NETNS=$(why_not no network namespaces try_network)
    HCAD_NO_MOUNTS=$(why_not no mounts in user namespaces try_mount)
    HCAD_NO_ROOT=$(why_not no root with namespaces try_root)
}

# why_not WORD... COMMAND: nothing, or in one line that these are not to be had, and what the command said last.
why_not() {
    local said command=${*: -1}
    said=$($command 2>&1) || printf '%s here: %s' "${*:1:$#-1}" "$(tail -n 1 <<<"${said:-it says nothing}")"
}

# What the lab's networks are made of.
try_network() (
    name=hcad-try-$$
    [ -e /dev/net/tun ] || { echo "there is no /dev/net/tun"; exit 1; }
    ip netns add "$name" || exit 1
    trap 'ip netns del "$name"' EXIT
    ip netns exec "$name" sh -c 'ip link add br0 type bridge && ip link add one type veth peer two &&
        ip link add vx0 type vxlan id 1 dstport 4789 local 127.0.0.1 && ip tuntap add dev tap0 mode tap'
)
try_mount() {
    unshare --user --map-root-user --mount mount -t tmpfs -o size=64k none /mnt
}
try_root() {
    [ "$(id -u)" = 0 ] || { echo "not run as root"; return 1; }
    unshare --mount --pid --fork true
}

# Packages of roots come from where this machine has its own from.
debian_site() {
    apt-get indextargets --format '$(SITE)' 'Created-By: Packages' \
        "Codename: $(. /etc/os-release && echo "$VERSION_CODENAME")" | head -n 1
}

# make_root FILE SUITE PACKAGES ARGUMENT...: an archive of a minimal Debian with these packages, made once, for mmdebstrap's
# further arguments.
make_root() {
    local file=$1 suite=$2 packages=$3
    shift 3
    [ ! -e "$file" ] || return 0
    mkdir -p "${file%/*}"
    mmdebstrap --quiet --format=tar --variant=minbase --include="$packages" "$suite" "$file.new" "$@"
    mv "$file.new" "$file"
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

# ci/test asks for all its steps at once.
[ "${script##*/}" = test ] || need_of "$script"
