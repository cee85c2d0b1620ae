#!/usr/bin/env bash
# Wireshark's dissector as judge of captures: every UDP packet to port 4791 must be dissected as InfiniBand, with a
# known opcode, nothing malformed and no data left over that it cannot name.
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: $0 FILE.pcapng..." >&2; exit 2; }

status=0
for file in "$@"; do
    # One line a packet: protocols, opcode, malformed marker.
    table=$(tshark -n -r "$file" -Y 'udp.dstport == 4791' -T fields -E separator='|' \
        -e frame.number -e frame.protocols -e infiniband.bth.opcode -e _ws.malformed -e _ws.expert.message 2>/dev/null)
    [ -n "$table" ] || { echo "$file: no RoCE packets"; status=1; continue; }
    awk -F'|' -v file="$file" '
        BEGIN {
            split("SEND_FIRST SEND_MIDDLE SEND_LAST SEND_LAST_IMM SEND_ONLY SEND_ONLY_IMM WRITE_FIRST WRITE_MIDDLE " \
                  "WRITE_LAST WRITE_LAST_IMM WRITE_ONLY WRITE_ONLY_IMM READ_REQUEST READ_RESPONSE_FIRST " \
                  "READ_RESPONSE_MIDDLE READ_RESPONSE_LAST READ_RESPONSE_ONLY ACK ATOMIC_ACK CMP_SWAP FETCH_ADD", name, " ")
        }
        $2 !~ /infiniband/     { print file ": packet " $1 " is not dissected as InfiniBand: " $2; bad = 1; next }
        $4 != ""               { print file ": packet " $1 " is malformed: " $5; bad = 1; next }
        $3 % 32 > 20           { print file ": packet " $1 " has unknown opcode " $3; bad = 1; next }
        $5 != ""               { print file ": packet " $1 ": " $5; bad = 1; next }
                               { count[$3]++; total++ }
        END {
            printf "%s: %d RoCE packets", file, total
            for (code = 0; code < 256; code++)
                if (code in count) printf ", %s %d", name[code % 32 + 1], count[code]
            print ""
            exit bad
        }' <<<"$table" || status=1
done
exit $status
