"""Sends and receives frames of a guest's network device. Each line of standard input is a request, and each line of
standard output is an answer.

A request is {"do": NAME, ...}, and its answer is {"ok": VALUE} or {"error": TEXT}. NAME is a method of Frames, and the
other keys are the arguments of the method. All frames have an EtherType for experiments (IEEE 802, 88B5), and each
frame carries a mark that identifies it.
"""

import json
import select
import socket
import struct
import sys
import time

ETHERTYPE = 0x88B5
# linux/if_packet.h
SOL_PACKET, ADD_MEMBERSHIP, DROP_MEMBERSHIP = 263, 1, 2
KINDS = {"group": 0, "promiscuous": 1, "all_groups": 2}


def octets(mac):
    return bytes.fromhex(mac.replace(":", ""))


class Frames:
    """The frames of one device."""

    def open(self, device):
        self.index = socket.if_nametoindex(device)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
        self.socket.bind((device, ETHERTYPE))
        self.own = self.socket.getsockname()[4]

    def member(self, kind, mac, on):
        """Enables or disables reception of a group, of all groups or of all frames."""
        group = octets(mac) if mac else b""
        request = struct.pack("IHH8s", self.index, KINDS[kind], len(group), group)
        self.socket.setsockopt(SOL_PACKET, ADD_MEMBERSHIP if on else DROP_MEMBERSHIP, request)

    def send(self, frames):
        """Sends one frame for each pair of MAC and mark."""
        for mac, mark in frames:
            body = struct.pack("!I", mark) + bytes(60)
            self.socket.send(octets(mac) + self.own + struct.pack("!H", ETHERTYPE) + body)

    def marks(self, until, seconds):
        """Receives frames until one has the mark `until`. Returns the marks of all frames before that one."""
        deadline = time.monotonic() + seconds
        found = []
        while True:
            ready, _, _ = select.select([self.socket], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"no frame {until} within {seconds} s, only {found}")
            frame, origin = self.socket.recvfrom(2048)
            if origin[2] == socket.PACKET_OUTGOING:
                continue
            (mark,) = struct.unpack_from("!I", frame, 14)
            if mark == until:
                return found
            found.append(mark)


frames = Frames()
for line in sys.stdin:
    request = json.loads(line)
    try:
        answer = {"ok": getattr(frames, request.pop("do"))(**request)}
    except Exception as error:  # noqa: BLE001 - every error is reported to the lab
        answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), flush=True)
