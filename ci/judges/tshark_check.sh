#!/usr/bin/env bash
# Checks captures with Wireshark's dissector. It must dissect every UDP packet to port 4791 as InfiniBand with a known
# opcode, without malformed parts or unknown data. With --from, checks only packets from the given MAC address, for
# captures in which the other side violates the protocol on purpose.
set -euo pipefail
packets='udp.dstport == 4791'
if [ "${1-}" = --from ]; then
    packets="$packets && eth.src == $2"
    shift 2
fi
[ $# -gt 0 ] || { echo "usage: $0 [--from MAC] FILE.pcapng..." >&2; exit 2; }

# Wireshark guesses the protocol above InfiniBand from a payload's first bytes, and reports a packet as malformed if the
# guess is wrong. For example, it reports any SEND that is too short for RPC over RDMA as a malformed RPC message. The
# payloads here carry no such protocol, so the heuristics are disabled. A separate configuration directory also excludes
# the user's settings.
WIRESHARK_CONFIG_DIR=$(mktemp -d)
export WIRESHARK_CONFIG_DIR
trap 'rm -rf "$WIRESHARK_CONFIG_DIR"' EXIT
printf '%s,0\n' drbd_rdma eth_over_ib fc_infiniband iser_infiniband lnet_ib mellanox_eoib nvme_rdma rpcrdma_infiniband \
    sdp_infiniband smb_direct_infiniband smcr_infiniband >"$WIRESHARK_CONFIG_DIR/heuristic_protos"

# check FILE: prints the number of packets in the file, or the errors.
check() {
    local file=$1 table
    # Each packet has one line with its protocols, its opcode and a marker for malformed parts. A UDP checksum of zero
    # is accepted even over IPv6, because soft-RoCE omits the checksum there as well.
    table=$(tshark -n -o udp.check_checksum:TRUE -o udp.ignore_ipv6_zero_checksum:TRUE -r "$file" -Y "$packets" -T fields -E separator='|' \
        -e frame.number -e frame.protocols -e infiniband.bth.opcode -e _ws.malformed -e _ws.expert.severity \
        -e _ws.expert.message 2>/dev/null) || { echo "$file: tshark cannot read the whole file"; return 1; }
    [ -n "$table" ] || { echo "$file: no RoCE packets"; return 1; }
    awk -F'|' -v file="$file" '
        # Returns whether any severity in the list exceeds 1048576, the severity of packet comments in Wireshark.
        function remarks(list,    n, i, severity) {
            n = split(list, severity, ",")
            for (i = 1; i <= n; i++) if (severity[i] > 1048576) return 1
            return 0
        }
        BEGIN {
            rc = "SEND_FIRST SEND_MIDDLE SEND_LAST SEND_LAST_IMM SEND_ONLY SEND_ONLY_IMM WRITE_FIRST WRITE_MIDDLE " \
                 "WRITE_LAST WRITE_LAST_IMM WRITE_ONLY WRITE_ONLY_IMM READ_REQUEST READ_RESPONSE_FIRST " \
                 "READ_RESPONSE_MIDDLE READ_RESPONSE_LAST READ_RESPONSE_ONLY ACK ATOMIC_ACK CMP_SWAP FETCH_ADD - " \
                 "SEND_LAST_INV SEND_ONLY_INV"
            count_rc = split(rc, words, " ")
            for (i = 1; i <= count_rc; i++) {
                if (words[i] != "-") name[i - 1] = words[i]
                if (words[i] != "-") name[160 + i - 1] = "XRC_" words[i]
                if (i <= 12) name[32 + i - 1] = "UC_" words[i]
            }
            name[96 + 4] = "UD_SEND_ONLY"
            name[96 + 5] = "UD_SEND_ONLY_IMM"
            name[129] = "CNP"
        }
        $2 !~ /:infiniband/    { print file ": packet " $1 " is not dissected as InfiniBand: " $2; bad = 1; next }
        $4 != ""               { print file ": packet " $1 " is malformed: " $6; bad = 1; next }
        !($3 in name)          { print file ": packet " $1 " has unknown opcode " $3; bad = 1; next }
        remarks($5)            { print file ": packet " $1 ": " $6; bad = 1; next }
                               { count[$3]++; total++ }
        END {
            printf "%s: %d RoCE packets", file, total
            for (code = 0; code < 256; code++)
                if (code in count) printf ", %s %d", name[code], count[code]
            print ""
            exit bad
        }' <<<"$table"
}
export -f check
export packets
printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" bash -c 'check "$1"' check
