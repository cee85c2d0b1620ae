#!/usr/bin/env bash
# icrc_scapy.py with a scapy of a pinned version, from a private virtual environment.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
scapy=2.8.0
venv=$here/../../target/venv-scapy-$scapy
if ! [ -e "$venv/ready" ]; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" --quiet --disable-pip-version-check install "scapy==$scapy"
    touch "$venv/ready"
fi
exec "$venv/bin/python" "$here/icrc_scapy.py" "$@"
