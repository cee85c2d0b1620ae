"""Sends bytes by sockets of a family to another guest, or receives them; prints their checksum.

Arguments: rds or smc, send or receive, address of the sender, of the receiver, number of bytes.
"""

import hashlib
import random
import socket
import sys

FAMILY, ROLE, SENDER, RECEIVER, TOTAL = *sys.argv[1:5], int(sys.argv[5])
PORT = 4000
MESSAGE = 32768
# Messages of RDS that are sent before an answer: a socket takes no more when its own buffer or the peer's is full.
WINDOW = 4
# A socket of RDS that is closed forgets what it has not sent yet.
GOODBYE_SECONDS = 5
AF_RDS = 21
AF_SMC = 43


def content():
    """All messages."""
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


def send_smc(total):
    with socket.socket(AF_SMC, socket.SOCK_STREAM, 0) as own:
        own.connect((RECEIVER, PORT))
        for message in content():
            own.sendall(message)
            total.update(message)


def receive_smc(total):
    with socket.socket(AF_SMC, socket.SOCK_STREAM, 0) as listener:
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
