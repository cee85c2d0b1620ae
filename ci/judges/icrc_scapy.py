"""Recomputes the invariant CRC of every RoCEv2 packet in captures with scapy's implementation.

Usage: icrc_scapy.py [--from MAC] FILE.pcapng...
With --from, checks only packets from this MAC address. This is for captures in which the other side violates the
protocol on purpose. Fails if scapy computes a different ICRC for a packet, or if there are no RoCE packets. A frame may
occur more than once if it was captured at both ends or retransmitted. Its ICRC is computed only once, because scapy
takes about a millisecond per frame.
"""

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


def roce_frames(paths, source):
    """Yields each distinct RoCE frame with its first position. If `source` is given, skips frames from other MACs."""
    seen = set()
    for path in paths:
        count = 0
        for number, (frame, _) in enumerate(RawPcapNgReader(path), start=1):
            frame = untagged(frame)
            if is_roce(frame) and source in (None, frame[6:12]):
                count += 1
                if frame not in seen:
                    seen.add(frame)
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


def main(arguments):
    source, paths = None, arguments
    if arguments[:1] == ["--from"]:
        source, paths = bytes.fromhex(arguments[1].replace(":", "")), arguments[2:]
    total, wrong = 0, 0
    with multiprocessing.Pool() as pool:
        for complaint in pool.imap(judge, roce_frames(paths, source), chunksize=256):
            total += 1
            if complaint:
                wrong += 1
                print(complaint)
    print(f"scapy confirms the ICRC of {total - wrong} of {total} distinct packets")
    return 0 if total and not wrong else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
