# Sourced by the scripts that make the files of a release. Each of them runs on any machine, without the hosting service.
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

out=target/release-files
mkdir -p "$out"
version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' Cargo.toml)
# Files have the time of the last commit, so that a build of the same commit has the same files.
changed=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

# archive FILE FOLDER: makes a compressed archive of a directory, with its name as the first part of all paths.
archive() {
    tar --create --file "$1" --auto-compress --directory "$(dirname "$2")" --sort=name --owner=0 --group=0 --numeric-owner \
        --mtime="@$changed" "$(basename "$2")"
    echo "$1"
}
