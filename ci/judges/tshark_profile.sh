#!/usr/bin/env bash
# Checks the Wireshark profile of the package with a capture: Wireshark prints no message while it reads the profile,
# the last column names the queue pair and work request of some packets, and some packets have a colour.
# Usage: tshark_profile.sh FILE.pcapng
set -euo pipefail
[ $# = 1 ] || { echo "usage: $0 FILE.pcapng" >&2; exit 2; }
WIRESHARK_CONFIG_DIR=$(mktemp -d)
export WIRESHARK_CONFIG_DIR
trap 'rm -rf "$WIRESHARK_CONFIG_DIR"' EXIT
mkdir "$WIRESHARK_CONFIG_DIR/profiles"
cp -r "$(dirname "$0")/../../device/package/wireshark" "$WIRESHARK_CONFIG_DIR/profiles/hcad"

# Use PSML, because it contains columns and colours regardless of the terminal.
tshark -C hcad --color -T psml -n -r "$1" -Y 'udp.dstport == 4791' \
    >"$WIRESHARK_CONFIG_DIR/shown" 2>"$WIRESHARK_CONFIG_DIR/said"
if grep -v 'Running as user' "$WIRESHARK_CONFIG_DIR/said"; then
    echo "$1: Wireshark printed the lines above while reading the profile"
    exit 1
fi
named=$(grep -c 'qpn=0x[0-9a-f]* wr=[0-9]' "$WIRESHARK_CONFIG_DIR/shown" || :)
coloured=$(grep -c '<packet.* background=' "$WIRESHARK_CONFIG_DIR/shown" || :)
if [ "$named" = 0 ] || [ "$coloured" = 0 ]; then
    echo "$1: $named packets show a work request, $coloured have a colour"
    exit 1
fi
echo "$1: the profile shows the work request of $named packets and a colour for $coloured"
