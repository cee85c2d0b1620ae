# Sourced by the scripts of the action in .github/actions/rdma. Of the repository, the scripts need only ci/action.
set -euo pipefail

die() {
    # GitHub shows this line in the summary of the job.
    printf '::error::%s\n' "$*"
    exit 1
}

# output NAME VALUE: sets an output of this step.
output() {
    printf '%s=%s\n' "$1" "$2" >>"$GITHUB_OUTPUT"
}

# Prints the `guest-lab` options for the guests that the inputs of the action select, one word per line.
guests() {
    printf '%s\n' "$KIND" --count "$COUNT"
    [ -z "${KERNEL-}" ] || printf '%s\n' --kernel "$KERNEL"
}
