"""Attaches an XDP program to a network device's driver until SIGINT arrives: xdp.py ACTION DEVICE.

ACTION is pass, drop, or tx, which returns each packet to its sender. Prints a line once the program is attached.
"""

import ctypes
import signal
import socket
import struct
import sys

# The system call number of bpf(2) on x86-64, and constants from linux/bpf.h and linux/if_link.h.
BPF, PROG_LOAD, LINK_CREATE, PROG_TYPE_XDP, ATTACH_XDP, DRIVER_MODE = 321, 5, 28, 6, 37, 4
DROP, PASS, TX = 1, 2, 3

MOVE, MOVE_IMMEDIATE, ADD_IMMEDIATE, EXIT = 0xBF, 0xB7, 0x07, 0x95
LOAD_32, LOAD_16, STORE_32, STORE_16, JUMP_ABOVE = 0x61, 0x69, 0x63, 0x6B, 0x2D


def instruction(code, target=0, source=0, offset=0, immediate=0):
    return struct.pack("=BBhi", code, source << 4 | target, offset, immediate)


def finish(action):
    return [instruction(MOVE_IMMEDIATE, 0, immediate=action), instruction(EXIT)]


def swap_addresses():
    """Exchanges the MAC addresses. Packets without a whole header are dropped."""
    packet, end, limit = 2, 3, 4
    # (register, instruction to load, instruction to store, old offset, new offset)
    parts = [
        (5, LOAD_32, STORE_32, 0, 6),
        (6, LOAD_16, STORE_16, 4, 10),
        (7, LOAD_32, STORE_32, 6, 0),
        (8, LOAD_16, STORE_16, 10, 4),
    ]
    body = [instruction(load, part, packet, old) for part, load, _, old, _ in parts]
    body += [instruction(store, packet, part, new) for part, _, store, _, new in parts]
    body += finish(TX)
    return [
        instruction(LOAD_32, packet, 1, 0),
        instruction(LOAD_32, end, 1, 4),
        instruction(MOVE, limit, packet),
        instruction(ADD_IMMEDIATE, limit, immediate=14),
        instruction(JUMP_ABOVE, limit, end, len(body)),
        *body,
        *finish(DROP),
    ]


def call(command, attributes):
    library = ctypes.CDLL(None, use_errno=True)
    text = ctypes.create_string_buffer(attributes.ljust(144, b"\0"), 144)
    result = library.syscall(BPF, command, text, 144)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"bpf command {command}")
    return result


action, device = sys.argv[1:]
program = {"pass": finish(PASS), "drop": finish(DROP), "tx": swap_addresses()}[action]
code = ctypes.create_string_buffer(b"".join(program))
licence = ctypes.create_string_buffer(b"Dual BSD/GPL")
load = struct.pack("=IIQQ", PROG_TYPE_XDP, len(program), ctypes.addressof(code), ctypes.addressof(licence))
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
link = struct.pack("=IIII", call(PROG_LOAD, load), socket.if_nametoindex(device), ATTACH_XDP, DRIVER_MODE)
call(LINK_CREATE, link)
print("attached", flush=True)
# The program is detached when this process exits.
signal.sigwait([signal.SIGINT])
