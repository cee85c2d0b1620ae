# Sourced by the scripts that make the files of a release. These scripts run on any machine and do not need the hosting
# service.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

out=target/release-files
mkdir -p "$out"
version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)
# All files get the time of the last commit, so that two builds of the same commit produce identical files.
changed=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

# archive FILE FOLDER: makes a compressed archive of a directory. Each path in the archive starts with the directory's
# name.
archive() {
    tar --create --file "$1" --auto-compress --directory "$(dirname "$2")" --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$changed" "$(basename "$2")"
    echo "$1"
}
