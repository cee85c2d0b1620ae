"""Sends bytes to another guest through sockets of one address family, or receives them. Prints the checksum.

The arguments are `rds` or `smc`, `send` or `receive`, the sender's address, the receiver's address, and the number of
bytes.
"""

import hashlib
import random
import socket
import struct
import sys

FAMILY, ROLE, SENDER, RECEIVER, TOTAL = *sys.argv[1:5], int(sys.argv[5])
PORT = 4000
MESSAGE = 32768
# Maximum number of unanswered RDS messages. It keeps the buffers of both sockets from filling up, because a socket
# accepts no messages while a buffer is full.
WINDOW = 4
# Time in seconds for which the receiver waits for the sender's goodbye before it closes its socket. Closing an RDS
# socket drops its unsent messages, including the last answer.
GOODBYE_SECONDS = 5
AF_RDS = 21
# Python lacks the address family AF_SMC, but TCP sockets with this protocol number are equivalent.
IPPROTO_SMC = 256
NETLINK_GENERIC = 16
NLM_F_REQUEST, NLM_F_ACK, NLMSG_ERROR = 1, 4, 2
GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 0x10, 3, 1, 2
SMC_NETLINK_ADD_UEID, SMC_NLA_EID_TABLE_ENTRY = 10, 1


def content():
    """Yields all messages."""
    draw = random.Random(TOTAL)
    left = TOTAL
    while left:
        size = min(MESSAGE, left)
        yield draw.randbytes(size)
        left -= size


def send_rds(total):
    own = socket.socket(AF_RDS, socket.SOCK_SEQPACKET)
    own.bind((SENDER, PORT))
    unanswered = 0
    for message in content():
        own.sendto(message, (RECEIVER, PORT))
        total.update(message)
        unanswered += 1
        if unanswered == WINDOW:
            own.recv(1)
            unanswered = 0
    own.sendto(b"goodbye", (RECEIVER, PORT))


def receive_rds(total):
    own = socket.socket(AF_RDS, socket.SOCK_SEQPACKET)
    own.bind((RECEIVER, PORT))
    print("ready")
    left, unanswered = TOTAL, 0
    while left:
        message = own.recv(MESSAGE)
        total.update(message)
        left -= len(message)
        unanswered += 1
        if unanswered == WINDOW:
            own.sendto(b".", (SENDER, PORT))
            unanswered = 0
    own.settimeout(GOODBYE_SECONDS)
    try:
        own.recv(MESSAGE)
    except TimeoutError:
        pass


def ask_kernel(family, command, kind, text):
    """Sends a generic netlink command with a string attribute, and returns the attributes of the answer."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_GENERIC) as kernel:
        attribute = struct.pack("=HH", 4 + len(text), kind) + text + bytes(-len(text) % 4)
        request = struct.pack("=BBxx", command, 1) + attribute
        kernel.send(struct.pack("=IHHII", 16 + len(request), family, NLM_F_REQUEST | NLM_F_ACK, 0, 0) + request)
        answer = kernel.recv(65536)
    if struct.unpack_from("=H", answer, 4)[0] == NLMSG_ERROR:
        if error := -struct.unpack_from("=i", answer, 16)[0]:
            raise OSError(error, f"netlink family {family:#x} refuses command {command}")
        return {}
    attributes, at = {}, 20
    while at < struct.unpack_from("=I", answer)[0]:
        length, kind = struct.unpack_from("=HH", answer, at)
        attributes[kind] = answer[at + 4 : at + length]
        at += (length + 3) & ~3
    return attributes


def name_smc_domain():
    """Sets this guest's enterprise ID. Peers with the same ID can use version 2 of SMC-R, which supports RoCEv2."""
    found = ask_kernel(GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_NAME, b"SMC_GEN_NETLINK\0")
    family = struct.unpack("=H", found[CTRL_ATTR_FAMILY_ID])[0]
    ask_kernel(family, SMC_NETLINK_ADD_UEID, SMC_NLA_EID_TABLE_ENTRY, b"HCAD".ljust(32) + b"\0")


def send_smc(total):
    name_smc_domain()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_SMC) as own:
        own.connect((RECEIVER, PORT))
        for message in content():
            own.sendall(message)
            total.update(message)


def receive_smc(total):
    name_smc_domain()
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_SMC) as listener:
        listener.bind((RECEIVER, PORT))
        listener.listen(1)
        print("ready")
        own = listener.accept()[0]
        with own:
            while message := own.recv(MESSAGE):
                total.update(message)


checksum = hashlib.md5()
{
    ("rds", "send"): send_rds,
    ("rds", "receive"): receive_rds,
    ("smc", "send"): send_smc,
    ("smc", "receive"): receive_smc,
}[FAMILY, ROLE](checksum)
print(checksum.hexdigest())
