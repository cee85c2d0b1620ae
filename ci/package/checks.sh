# Sourced by scripts that run on a system whose process 1 is systemd. Each script sets `subject`, which `check` prints
# before the name of the case.
passed=0

# check NAME COMMAND...: runs the command as a case and prints one line. If the command fails, also prints its output,
# the system log and a summary line for ci/test's tally, and exits.
check() {
    local what=$1 log
    shift
    if log=$("$@" 2>&1); then
        passed=$((passed + 1))
        echo "ok    $subject: $what"
    else
        printf 'FAIL  %s: %s\n%s\n' "$subject" "$what" "$log"
        journalctl --no-pager -n 80 -u 'hcad@*' -u 'virt*' -u 'libvirt*'
        echo "$passed passed, 1 failed, 0 skipped"
        exit 1
    fi
}
# until_true SECONDS COMMAND...: repeats the command until it succeeds, for at most SECONDS seconds.
until_true() {
    local end=$((SECONDS + $1))
    shift
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "timed out: $*"; return 1; }
        sleep 0.1
    done
}
property() { systemctl show --value -p "$1" "$2"; }
