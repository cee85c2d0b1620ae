# Sourced by the scripts in ci. Makes the repository's root the working directory, and checks that the programs needed
# by the script are installed.
#
# A script lists the programs that it runs, with their Debian packages, in comment lines that start with "Needs:". Every
# script needs a C compiler that can link, and the programs that the lab uses to download and unpack packages.
# Needs: linking=gcc,libc6-dev dpkg-deb=dpkg certificates=ca-certificates
set -euo pipefail
script=$(realpath "$0")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# Incremental compilation makes a first build slower, so it is disabled. A target directory that already has incremental
# builds keeps them, because disabling them would rebuild the workspace.
[ -e "${CARGO_TARGET_DIR:-target}/debug/incremental" ] || export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}

die() {
    printf 'error: %s\n' "$*" >&2
    exit 1
}

# has NEED: succeeds if the program NEED is installed. A NEED that has its own case below is not a program.
has() {
    local made status=0
    case $1 in
    # Debian's gcc cannot link without the C library's development files, but does not depend on their package.
    linking)
        made=$(mktemp)
        echo 'int main(void) { return 0; }' | cc -x c -o "$made" - 2>/dev/null || status=1
        rm -f "$made"
        return $status
        ;;
    rust-std-*) [ -d "$(rustc --print target-libdir --target "${1#rust-std-}" 2>/dev/null)" ] ;;
    venv) python3 -c 'import ensurepip' 2>/dev/null ;;
    # The development files of libibverbs, and its providers.
    verbs) cc -E -x c - <<<'#include <infiniband/verbs.h>' >/dev/null 2>&1 && compgen -G '/usr/lib*/*/libibverbs/*.so' >/dev/null ;;
    certificates) [ -e "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" ] || [ ! -e /etc/debian_version ] ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

# need NEED=PACKAGE,...: if the user is root, installs the Debian packages of missing programs. Installs missing targets of
# the Rust toolchain. If anything is still missing, exits with one message that lists everything to install.
need() {
    local pair packages=() components=() targets=() update=
    for pair in "$@"; do
        has "${pair%%=*}" && continue
        case $pair in
        *=rustup:*) components+=("${pair##*:}") ;;
        *=target:*) targets+=("${pair##*:}") ;;
        *) IFS=, read -ra more <<<"${pair#*=}" && packages+=("${more[@]}") ;;
        esac
    done
    [ -n "$(find /var/lib/apt/lists -maxdepth 1 -name '*Packages*' -mmin -1440 -print -quit 2>/dev/null)" ] || update=1
    if [ ${#packages[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "installing Debian packages: ${packages[*]}" >&2
        [ -z "$update" ] || apt-get -qq update || die "apt-get update failed; see its output above"
        DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${packages[@]}" >/dev/null ||
            die "apt-get cannot install ${packages[*]}"
        packages=()
    fi
    if [ ${#targets[@]} -gt 0 ] && command -v rustup >/dev/null; then
        echo "installing Rust targets: ${targets[*]}" >&2
        ! rustup target add "${targets[@]}" >&2 || targets=()
    fi
    local missing=()
    has cargo || missing+=("(install a Rust toolchain, 1.95 or later, with rustup)")
    [ ${#components[@]} = 0 ] || ! has cargo || missing+=("rustup component add ${components[*]}")
    [ ${#targets[@]} = 0 ] || ! has cargo || missing+=("rustup target add ${targets[*]}")
    [ ${#packages[@]} = 0 ] ||
        missing+=("${update:+sudo apt-get update && }sudo apt-get install --no-install-recommends ${packages[*]}")
    [ ${#missing[@]} = 0 ] ||
        die "required programs are not installed. To install them, run:$(printf '\n    %s' "${missing[@]}")"
}

# need_of SCRIPT...: calls `need` with everything that these scripts need, unless a parent script has already done so.
need_of() {
    local needs
    [ -z "${HCAD_NEEDS_MET-}" ] || return 0
    mapfile -t needs < <(sed -n 's/^# Needs: //p' ci/common.sh "$@" | tr ' ' '\n' | awk 'NF && !seen[$0]++')
    need "${needs[@]}"
    export HCAD_NEEDS_MET=1
}

# Determines, once before the first test, which features this machine permits. Each feature has a variable, which is
# empty if the feature is available, and otherwise states why it is not. Steps and guest-lab skip tests that need an
# unavailable feature.
find_limits() {
    [ -z "${HCAD_LIMITS_FOUND-}" ] || return 0
    export HCAD_LIMITS_FOUND=1 HCAD_NO_NETNS HCAD_NO_MOUNTS HCAD_NO_ROOT
    HCAD_NO_NETNS=$(why_not network namespaces try_network)
    HCAD_NO_MOUNTS=$(why_not mounts in user namespaces try_mount)
    HCAD_NO_ROOT=$(why_not root privileges and namespaces try_root)
}

# why_not WORD... COMMAND: runs the command. If it fails, prints that WORD... are not available, and the last line of
# the command's output.
why_not() {
    local output command=${*: -1}
    output=$($command 2>&1) ||
        printf '%s are not available on this machine: %s' "${*:1:$#-1}" "$(tail -n 1 <<<"${output:-no message}")"
}

# Creates one network device of each type that the lab uses.
try_network() (
    name=hcad-try-$$
    [ -e /dev/net/tun ] || { echo "/dev/net/tun does not exist"; exit 1; }
    ip netns add "$name" || exit 1
    trap 'ip netns del "$name"' EXIT
    ip netns exec "$name" sh -c 'ip link add br0 type bridge && ip link add one type veth peer two &&
        ip link add vx0 type vxlan id 1 dstport 4789 local 127.0.0.1 && ip tuntap add dev tap0 mode tap'
)
try_mount() {
    unshare --user --map-root-user --mount mount -t tmpfs -o size=64k none /mnt
}
try_root() {
    [ "$(id -u)" = 0 ] || { echo "the user is not root"; return 1; }
    unshare --mount --pid --fork true
}

# Prints the URL of the Debian mirror that this machine uses.
debian_site() {
    apt-get indextargets --format '$(SITE)' 'Created-By: Packages' \
        "Codename: $(. /etc/os-release && echo "$VERSION_CODENAME")" | sed -n 1p
}

# make_root FILE SUITE PACKAGES ARGUMENT...: if FILE does not exist, creates it as an archive of a minimal Debian with
# these packages. Passes each ARGUMENT to mmdebstrap.
make_root() {
    local file=$1 suite=$2 packages=$3
    shift 3
    [ ! -e "$file" ] || return 0
    echo "creating $file with mmdebstrap" >&2
    mkdir -p "${file%/*}"
    mmdebstrap --quiet --format=tar --variant=minbase --include="$packages" "$suite" "$file.new" "$@"
    mv "$file.new" "$file"
}

# wait_for SECONDS WHAT COMMAND...: repeats the command until it succeeds. Exits with an error if this takes too long.
wait_for() {
    local timeout=$1 what=$2 end=$((SECONDS + $1))
    shift 2
    until "$@"; do
        [ "$SECONDS" -lt "$end" ] || die "timed out after $timeout s waiting for $what"
        sleep 0.2
    done
}

# build ARGUMENT...: runs cargo build. Shows progress if standard error is a terminal, and prints only errors otherwise.
build() {
    if [ -t 2 ]; then cargo build "$@"; else cargo build --quiet "$@"; fi
}

# build_shown ARGUMENT...: runs cargo build and always shows progress. Without a terminal, prints a line every 20
# seconds, without control characters.
build_shown() {
    local begun=$SECONDS log=target/ci/build.log ticker status=0
    if [ -t 2 ]; then
        CARGO_TERM_COLOR=auto cargo build "$@" || die "cargo build failed; see its output above"
    else
        mkdir -p target/ci
        : >"$log"
        report_build "$log" "$begun" &
        ticker=$!
        cargo build "$@" 2>"$log" || status=$?
        kill "$ticker" 2>/dev/null || :
        wait "$ticker" 2>/dev/null || :
        [ $status = 0 ] || { tail -n 60 "$log" >&2; die "cargo build failed; see $log for its full output"; }
    fi
    echo "   built in $((SECONDS - begun)) s"
}

# report_build LOG BEGUN: every 20 seconds, until this script exits, prints the progress of the build that writes LOG.
report_build() {
    local compiled all=
    while sleep 20 >/dev/null 2>&1 && kill -0 $$ 2>/dev/null; do
        compiled=$(grep -c '^ *Compiling ' "$1" || :)
        if [ "$compiled" = 0 ]; then
            echo "   $((SECONDS - $2)) s: $(grep -c '^ *Downloaded ' "$1" || :) crates downloaded"
            continue
        fi
        # Once crates are downloaded, cargo can list them. The total is approximate, because a crate is compiled twice
        # if a build script also uses it.
        [ -n "$all" ] || all=$(cargo tree --offline -p device -p hcactl -p guest-tests -e normal,build --prefix none 2>/dev/null |
            cut -d' ' -f1,2 | sort -u | wc -l)
        echo "   $((SECONDS - $2)) s: $compiled of about $all crates compiled"
    done
}

# Builds the programs that are shipped or measured. This takes minutes because of link-time optimisation.
build_release() {
    build --release --workspace --bin hcad --bin hcactl --bin fabric-bench
}

# build_tested ARGUMENT...: builds programs with the profile and the features of `cargo test`, so that `cargo test` does
# not build them again. The targets include a test, because cargo would otherwise select different features of
# dependencies.
build_tested() {
    build --workspace --all-features --test seeds "$@"
}

# Builds the programs that the lab runs.
build_lab() {
    build_tested --bin hcad --bin hcactl --bin guest-lab
}

lab() {
    target/debug/guest-lab "$@"
}

# ci/test calls need_of itself, once for all its steps.
[ "${script##*/}" = test ] || need_of "$script"
