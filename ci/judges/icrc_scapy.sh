#!/usr/bin/env bash
# icrc_scapy.py with a scapy of a pinned version, from a private virtual environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=$("$here/../../guest-tests/peer/python")
exec "$python" "$here/icrc_scapy.py" "$@"
