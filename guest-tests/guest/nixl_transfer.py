"""Transfers memory between two NIXL agents with NIXL's UCX backend, and prints a digest of each transfer's content.

The arguments are `target` and a TCP port, or `initiator`, the target's port and its address. The agents exchange their
metadata through NIXL's own TCP connection, and everything else through NIXL's notifications. For each transfer, both
programs print the transfer's name and a digest of the memory that its descriptors cover, in descriptor order. The
output of the two programs must be equal.
"""

import hashlib
import random
import sys
import time

import numpy
from nixl_cu12 import nixl_agent, nixl_agent_config

ROLE, PORT = sys.argv[1], int(sys.argv[2])
PEER = "initiator" if ROLE == "target" else "target"
# Time limit in seconds for the peer's next step, in an emulated guest.
LIMIT = 600
MIB = 1 << 20
# Size of each agent's memory region: 64 MiB of data, plus the gaps between descriptors.
REGION = 66 * MIB

SIZES = [1, 2, 3, 7, 8, 63, 64, 65, 255, 256, 1023, 4095, 4096, 4097, 65535, 65536, 65537, MIB - 1, MIB + 1]
# For each transfer: its name, the sizes of its descriptors, and the size of the gap between them. An odd gap makes the
# addresses unaligned.
TRANSFERS = [
    ("1 byte", [1], 1),
    ("sizes from 1 byte to 1 MiB", SIZES, 13),
    ("256 blocks of 4 KiB in random order", [4096] * 256, 4096),
    ("64 MiB in 16 descriptors", [4 * MIB] * 16, 4093),
    ("64 MiB in one descriptor", [64 * MIB], 0),
]


class Side:
    """An agent and its registered memory."""

    def __init__(self):
        port = PORT if ROLE == "target" else 0
        self.agent = nixl_agent(ROLE, nixl_agent_config(enable_listen_thread=True, listen_port=port))
        self.memory = numpy.zeros(REGION, numpy.uint8)
        self.address = self.memory.ctypes.data
        self.registered = self.agent.register_memory([(self.address, REGION, 0, "")], "DRAM")
        self.received = []

    def connect(self):
        """Exchanges metadata and addresses with the peer, and returns the address of the peer's memory."""
        if ROLE == "initiator":
            address = sys.argv[3]
            self.agent.fetch_remote_metadata(PEER, address, PORT)
            self.agent.send_local_metadata(address, PORT)
        poll("the peer's metadata", lambda: self.agent.check_remote_metadata(PEER))
        self.notify(f"memory {self.address}")
        return int(self.wait_for("memory").split()[1])

    def notify(self, text):
        self.agent.send_notif(PEER, text.encode())

    def wait_for(self, start):
        """Waits for the next notification, which must start with `start`, and returns the notification."""

        def arrived():
            self.received += self.agent.get_new_notifs().get(PEER, [])
            return self.received

        poll(f"the notification {start!r}", arrived)
        text = self.received.pop(0).decode()
        if not text.startswith(start):
            raise SystemExit(f"received the notification {text!r} instead of {start!r}")
        return text

    def move(self, operation, own, other, notification):
        """Executes a transfer. `own` and `other` are lists of address and size."""
        agent = self.agent
        mine = agent.prep_xfer_dlist("NIXL_INIT_AGENT", [(*piece, 0) for piece in own], "DRAM")
        theirs = agent.prep_xfer_dlist(PEER, [(*piece, 0) for piece in other], "DRAM")
        indices = list(range(len(own)))
        transfer = agent.make_prepped_xfer(operation, mine, indices, theirs, indices, notification.encode())
        state = agent.transfer(transfer)

        def ended():
            nonlocal state
            state = agent.check_xfer_state(transfer) if state == "PROC" else state
            return state != "PROC"

        poll("the end of the transfer", ended)
        if state != "DONE":
            raise SystemExit(f"the transfer ended with {state}")
        for handle in (transfer, mine, theirs):
            handle.release()

    def close(self):
        if ROLE == "initiator":
            self.agent.remove_remote_agent(PEER)
            self.agent.invalidate_local_metadata(sys.argv[3], PORT)
        else:
            poll("the peer to disconnect", lambda: not self.agent.check_remote_metadata(PEER))
        self.agent.deregister_memory(self.registered)


def poll(what, condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"timed out after {LIMIT} s waiting for {what}")
        time.sleep(0.001)


def layout(role, name, sizes, gap):
    """Returns the offset and size of each descriptor. The offsets in the two agents' memory differ."""
    offsets, next_offset = [], gap if role == "target" else 2 * gap
    for size in sizes:
        offsets.append((next_offset, size))
        next_offset += size + gap
    if "random" in name:
        random.Random(role).shuffle(offsets)
    return offsets


def content(number, length):
    """Returns the content of this agent's memory before a transfer.

    The bytes are odd in one agent and even in the other, so that a transfer changes every byte of its destination.
    """
    is_target = ROLE == "target"
    drawn = numpy.random.default_rng(2 * number + is_target).bytes(length)
    return numpy.frombuffer(drawn, numpy.uint8) & 0xFE | numpy.uint8(is_target)


def check(name, memory, before, pieces, is_source):
    """Prints the digest of the descriptors, and checks that no other memory has changed."""
    digest = hashlib.sha256()
    for offset, size in pieces:
        piece = memory[offset : offset + size]
        digest.update(piece)
        if not is_source:
            # Undo the transfer in the descriptor, so that the comparison below finds only changes outside descriptors.
            piece[:] = before[offset : offset + size]
    if not numpy.array_equal(memory[: len(before)], before):
        raise SystemExit(f"{name}: memory outside the descriptors has changed")
    print(f"{name}: {digest.hexdigest()}", flush=True)


def run(side):
    other_memory = side.connect()
    number = 0
    for name, sizes, gap in TRANSFERS:
        own, other = layout(ROLE, name, sizes, gap), layout(PEER, name, sizes, gap)
        for operation in ("WRITE", "READ"):
            before = content(number, max(offset + size for offset, size in own) + gap)
            side.memory[: len(before)] = before
            if ROLE == "target":
                side.notify(f"ready {number}")
                side.wait_for(f"moved {number}")
            else:
                side.wait_for(f"ready {number}")
                mine = [(side.address + offset, size) for offset, size in own]
                theirs = [(other_memory + offset, size) for offset, size in other]
                side.move(operation, mine, theirs, f"moved {number}")
            is_source = (operation == "WRITE") == (ROLE == "initiator")
            check(f"{operation} {name}", side.memory, before, own, is_source)
            number += 1
    if ROLE == "target":
        side.notify("finished")
    else:
        side.wait_for("finished")
    side.close()


run(Side())
