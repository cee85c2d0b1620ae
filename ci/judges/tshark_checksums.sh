#!/usr/bin/env bash
# Uses Wireshark's dissector to check the frames that a NIC sent. No IP, ICMP, TCP or UDP checksum may be wrong, and
# each of these protocols must occur. Received frames are not checked, because their sender may be a kernel that
# computes checksums itself. If such a kernel retransmits a segment while the first copy is still queued, it changes the
# header in the buffer that both copies share, so that the checksum of the first copy is wrong.
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: $0 FILE.pcapng..." >&2; exit 2; }

# Use a separate configuration directory to exclude the user's settings.
WIRESHARK_CONFIG_DIR=$(mktemp -d)
export WIRESHARK_CONFIG_DIR
trap 'rm -rf "$WIRESHARK_CONFIG_DIR"' EXIT

status=0
for file in "$@"; do
    # Each frame has one line with the state of each checksum: 1 is correct and 0 is wrong. The field is empty if the
    # frame has no such checksum, or is a fragment other than the last. For nested packets, the field refers to the
    # outer packet.
    table=$(tshark -n -o ip.check_checksum:TRUE -o tcp.check_checksum:TRUE -o udp.check_checksum:TRUE \
        -r "$file" -T fields -E separator='|' -E occurrence=f \
        -e frame.number -e ip.checksum.status -e icmp.checksum.status -e icmpv6.checksum.status \
        -e tcp.checksum.status -e udp.checksum.status -e vlan.id -e frame.packet_flags_direction)
    # Keep only sent frames, according to the flags in the capture.
    table=$(awk -F'|' '$8 ~ /2$/' <<<"$table")
    awk -F'|' -v file="$file" '
        BEGIN { split("IP ICMP ICMPv6 TCP UDP", name, " ") }
        {
            for (i = 1; i <= 5; i++) {
                if ($(i + 1) == 1) right[i]++
                if ($(i + 1) == "0") {
                    print file ": frame " $1 " has a wrong checksum: " name[i]; wrong++
                }
            }
            if ($7 != "") tagged++
            if (wrong > 20) exit
        }
        END {
            printf "%s: %d frames, %d of them tagged; correct checksums:", file, NR, tagged
            for (i = 1; i <= 5; i++) {
                printf " %s %d", name[i], right[i]
                if (!right[i]) { printf " (none)"; wrong++ }
            }
            print ""
            exit wrong > 0
        }' <<<"$table" || status=1
    # Print up to three wrong frames in full, because the capture may have been deleted by the time this output is read.
    wrong=$(awk -F'|' '{ for (i = 2; i <= 6; i++) if ($i == "0") { print $1; if (++n == 3) exit; next } }' <<<"$table")
    for frame in $wrong; do
        tshark -n -r "$file" -o ip.check_checksum:TRUE -o tcp.check_checksum:TRUE -o udp.check_checksum:TRUE -Y "frame.number == $frame" -V -x
    done
done
exit $status
