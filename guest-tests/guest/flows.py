"""Sends datagrams of many flows, each from a different random port.

Usage: flows.py ADDRESS PORT FLOWS DATAGRAMS
"""

import random
import socket
import sys

address, port, flows, datagrams = sys.argv[1], *map(int, sys.argv[2:])
for own in random.sample(range(10_000, 60_000), flows):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind(("", own))
        for _ in range(datagrams):
            sender.sendto(bytes(100), (address, port))
