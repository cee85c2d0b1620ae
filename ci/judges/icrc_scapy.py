"""Recomputes the invariant CRC of every RoCEv2 packet in captures with scapy's implementation.

Usage: icrc_scapy.py [--from MAC] [--each N] FILE.pcapng...
With --from, checks only packets from this MAC address. This is for captures in which the other side violates the
protocol on purpose. With --each, checks only the first N packets of each opcode and length. Fails if scapy computes a
different ICRC for a packet, or if there are no RoCE packets. A frame may occur more than once if it was captured at
both ends or retransmitted. Its ICRC is computed only once, because scapy takes about a millisecond per frame.
"""

import argparse
import collections
import multiprocessing
import struct
import sys

from scapy.contrib.roce import BTH
from scapy.layers.l2 import Ether
from scapy.utils import RawPcapNgReader

ROCE_PORT = struct.pack("!H", 4791)


def is_roce(frame):
    """Returns whether an Ethernet frame is UDP to port 4791, over IPv4 without options or over IPv6."""
    if frame[12:14] == b"\x08\x00":
        return frame[23] == 17 and frame[36:38] == ROCE_PORT
    return frame[12:14] == b"\x86\xdd" and frame[20] == 17 and frame[56:58] == ROCE_PORT


def untagged(frame):
    """Returns the frame without its VLAN tag, which the ICRC does not cover."""
    return frame[:12] + frame[16:] if frame[12:14] == b"\x81\x00" else frame


def opcode(frame):
    """Returns the opcode of a RoCE frame, which is the first byte of the BTH."""
    return frame[42] if frame[12:14] == b"\x08\x00" else frame[62]


def roce_frames(paths, source, each):
    """Yields each distinct RoCE frame with its first position.

    If `source` is given, skips frames from other MACs. If `each` is given, yields at most `each` frames of each opcode
    and length.
    """
    seen = set()
    alike = collections.Counter()
    for path in paths:
        count = 0
        for number, (frame, _) in enumerate(RawPcapNgReader(path), start=1):
            frame = untagged(frame)
            if is_roce(frame) and source in (None, frame[6:12]):
                count += 1
                kind = opcode(frame), len(frame)
                if frame not in seen and (each is None or alike[kind] < each):
                    seen.add(frame)
                    alike[kind] += 1
                    yield path, number, frame
        print(f"{path}: {count} RoCE packets", flush=True)


def judge(place):
    """Returns the error of a frame, or None."""
    path, number, frame = place
    packet = Ether(frame)
    if BTH not in packet:
        return f"{path}: packet {number}: scapy finds no BTH in {frame.hex()}"
    bth = packet[BTH]
    found, expected = struct.pack("!I", bth.icrc), bth.compute_icrc(b"")
    if found == expected:
        return None
    return f"{path}: packet {number}: icrc {found.hex()}, scapy computes {expected.hex()}"


def main():
    """Checks the captures, and returns the exit status."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--from", dest="source", type=lambda mac: bytes.fromhex(mac.replace(":", "")))
    options.add_argument("--each", type=int)
    options.add_argument("paths", nargs="+")
    given = options.parse_args()
    total, wrong = 0, 0
    with multiprocessing.Pool() as pool:
        for complaint in pool.imap(judge, roce_frames(given.paths, given.source, given.each), chunksize=256):
            total += 1
            if complaint:
                wrong += 1
                print(complaint)
    print(f"scapy confirms the ICRC of {total - wrong} of {total} distinct packets")
    return 0 if total and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
