#!/usr/bin/env bash
# Runs icrc_scapy.py with a pinned version of scapy, in a private virtual environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/../../guest-tests/peer/python")
exec "$python" "$here/icrc_scapy.py" "$@"
