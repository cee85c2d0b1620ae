#!/usr/bin/env bash
# Wireshark as judge of the profile that the package ships: it is read without a complaint, its columns are there, and the
# last one names queue pairs and work requests of a capture of hcad. Usage: tshark_profile.sh FILE.pcapng
set -euo pipefail
[ $# = 1 ] || { echo "usage: $0 FILE.pcapng" >&2; exit 2; }
WIRESHARK_CONFIG_DIR=$(mktemp -d)
export WIRESHARK_CONFIG_DIR
trap 'rm -rf "$WIRESHARK_CONFIG_DIR"' EXIT
mkdir "$WIRESHARK_CONFIG_DIR/profiles"
cp -r "$(dirname "$0")/../../device/package/wireshark" "$WIRESHARK_CONFIG_DIR/profiles/hcad"

# As PSML, which has columns and colours whatever the terminal is.
tshark -C hcad --color -T psml -n -r "$1" -Y 'udp.dstport == 4791' \
    >"$WIRESHARK_CONFIG_DIR/shown" 2>"$WIRESHARK_CONFIG_DIR/said"
if grep -v 'Running as user' "$WIRESHARK_CONFIG_DIR/said"; then
    echo "$1: Wireshark has something to say of the profile"
    exit 1
fi
named=$(grep -c 'qpn=0x[0-9a-f]* wr=[0-9]' "$WIRESHARK_CONFIG_DIR/shown" || :)
coloured=$(grep -c '<packet.* background=' "$WIRESHARK_CONFIG_DIR/shown" || :)
if [ "$named" = 0 ] || [ "$coloured" = 0 ]; then
    echo "$1: $named packets with a work request, $coloured with a colour"
    exit 1
fi
echo "$1: by the profile, $named packets name their work request, $coloured have a colour"
