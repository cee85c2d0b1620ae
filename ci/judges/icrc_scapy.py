"""Recomputes the invariant CRC of every RoCEv2 packet in captures with scapy's implementation.

Usage: icrc_scapy.py FILE.pcapng...
Fails on a packet whose ICRC scapy computes otherwise, and on captures without RoCE packets.
"""

import struct
import sys

from scapy.contrib.roce import BTH
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapNgReader

ROCE_PORT = struct.pack("!H", 4791)


def is_roce(frame):
    """Whether an Ethernet frame is UDP to port 4791, over IPv4 without options or over IPv6."""
    if frame[12:14] == b"\x08\x00":
        return frame[23] == 17 and frame[36:38] == ROCE_PORT
    return frame[12:14] == b"\x86\xdd" and frame[20] == 17 and frame[56:58] == ROCE_PORT


def main(paths):
    total, wrong = 0, 0
    for path in paths:
        count = 0
        for number, (frame, _) in enumerate(RawPcapNgReader(path), start=1):
            if not is_roce(frame):
                continue
            count += 1
            packet = Ether(frame)
            if BTH not in packet:
                wrong += 1
                print(f"{path}: packet {number}: scapy finds no BTH in {frame.hex()}")
                continue
            bth = packet[BTH]
            found, expected = struct.pack("!I", bth.icrc), bth.compute_icrc(b"")
            if found != expected:
                wrong += 1
                print(f"{path}: packet {number}: icrc {found.hex()}, scapy computes {expected.hex()}")
        print(f"{path}: {count} RoCE packets")
        total += count
    print(f"scapy agrees with {total - wrong} of {total} ICRCs")
    return 0 if total and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
