# Sourced by scripts that run commands in a clean Debian root filesystem, as if on another machine. The root filesystem
# has a copy of this checkout, this machine's Rust toolchain, and this machine's configuration of package registries.
# `ci/common.sh` must be sourced first. `inside` requires the variable `root`, the path of the root filesystem.

# Environment variables that configure the clients of package registries. The certificates are placed at a path to which
# no package writes.
certificates=/etc/ssl/host.crt
environment=()
while IFS= read -r line; do environment+=("$line"); done < <(
    env | grep -E '^(CARGO_(HTTP|NET|SOURCE|REGISTR)[A-Z0-9_]*|PIP_[A-Z_]*|(http|https|no)_proxy|(HTTP|HTTPS|NO)_PROXY)=' |
        grep -vE '^PIP_(CERT|FIND_LINKS)=')
for variable in SSL_CERT_FILE PIP_CERT CARGO_HTTP_CAINFO; do environment+=("$variable=$certificates"); done

# furnish ROOT: creates the user `user` and a mount point for the toolchain. Copies the checkout and the configuration
# of package registries into the root filesystem.
furnish() {
    local root=$1 home
    mkdir -p "$root/opt/rust" "$root/etc/ssl"
    cp --dereference "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$root$certificates"
    cp --dereference /etc/resolv.conf /etc/hosts "$root/etc/"
    apt-config dump Acquire >"$root/etc/apt/apt.conf.d/99host"
    [ ! -e /etc/pip.conf ] || cp /etc/pip.conf "$root/etc/"
    chroot "$root" useradd --create-home user
    for home in root home/user; do
        mkdir -p "$root/$home/hcad" "$root/$home/.cargo" "$root/$home/.config"
        for file in .cargo/config.toml .config/pip; do
            [ ! -e "$HOME/$file" ] || cp -r "$HOME/$file" "$root/$home/$file"
        done
        git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --ignore-failed-read -c |
            tar -C "$root/$home/hcad" -x
    done
    chroot "$root" chown -R user: /home/user
}

# enter ROOT TOOLCHAIN USER ENVIRONMENT... COMMAND...: runs the command in its own namespaces, with this root. Uses
# pivot_root instead of chroot, because a process inside a chroot cannot create a user namespace.
enter() {
    local root=$1 toolchain=$2 user=$3
    shift 3
    mount --make-rprivate /
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    [ -z "${no_kvm:-}" ] || [ ! -e /dev/kvm ] || mount --bind "$root/etc/kvm" "$root/dev/kvm"
    mount --bind "$toolchain" "$root/opt/rust"
    cd "$root"
    pivot_root . .
    umount --lazy .
    cd "$(getent passwd "$user" | cut -d: -f6)/hcad"
    local home=${PWD%/hcad} path=/opt/rust/bin:/usr/local/bin:/usr/bin:/bin
    [ "$user" != root ] || path=$path:/usr/sbin:/sbin
    exec setpriv --reuid="$user" --regid="$user" --init-groups \
        env -i HOME="$home" USER="$user" LANG=C.UTF-8 PATH="$path" "$@"
}
toolchain=$(rustc --print sysroot)
# inside USER COMMAND...: runs the command in $root. If no_kvm is exported and not empty, /dev/kvm is replaced by a file
# with mode 0, which only root can open.
inside() {
    unshare --mount --pid --fork --kill-child bash -euc "$(declare -f enter); enter \"\$@\"" enter \
        "$root" "$toolchain" "$1" "${environment[@]}" "${@:2}"
}

# make_program_root NAME PACKAGES: makes $root with the packages, and with the lab's programs in /opt/programs, as if
# from a release of hcad. $root has no toolchain, and is removed when the script exits.
make_program_root() {
    local suite archive
    program_folder=$(mktemp -d -p "${TMPDIR:-/var/tmp}" "hcad-$1.XXXXXX")
    trap 'rm -rf --one-file-system "$program_folder"' EXIT
    # Use this machine's release, because the programs are linked with its libraries.
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    archive=${XDG_CACHE_HOME:-$HOME/.cache}/hcad-lab/$1-root-1-$suite.tar
    make_root "$archive" "$suite" "$2" "deb $(debian_site) $suite main"
    root=$program_folder/root toolchain=$program_folder/none
    mkdir "$root" "$toolchain"
    tar -C "$root" -xf "$archive" --exclude='./dev/*'
    furnish "$root"
    install -m 0 /dev/null "$root/etc/kvm"
    mkdir "$root/opt/programs"
    cp target/debug/{hcad,hcactl,guest-lab} "$root/opt/programs/"
}
