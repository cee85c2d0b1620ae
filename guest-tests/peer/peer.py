"""A RoCEv2 peer that sends and receives single packets. scapy builds and parses the packets.

Usage: peer.py BIND_PORT PEER_PORT OWN_MAC OWN_IP PEER_MAC PEER_IP

Ethernet frames travel as UDP datagrams between two ports of the loopback interface. Each request is a line with
a JSON object, and each answer is one line:

{"send": PACKET}                  -> {"ok": null}
{"receive": {"timeout_ms": N}}    -> {"ok": PACKET or null}
{"barrier": null}                 -> {"ok": [PACKET, ...]}: all packets until the HCA has nothing left to send

A packet: {"op": name or number, "qpn", "psn", "ack_req", "solicited", "mig_req", "pkey", "ecn", "bad_icrc", "tver",
"fecn", "becn", "reserved": whether reserved bits of the BTH are set, "ttl", "source": IP address or null for the peer's
own, "pad": pad count or null for the correct one, "cut": number of bytes removed from the end of the frame, "reth":
{"va", "rkey", "len"}, "atomic": {"va", "rkey", "swap_add", "compare"}, "aeth": {"syndrome", "msn"}, "original": number,
"imm": hex, "payload": hex}. The opcode is a number or a name from scapy's table.
"""

import json
import select
import socket
import struct
import sys
import time

from scapy.contrib.roce import BTH, _bth_opcodes
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Raw

ROCE_PORT = 4791
BARRIER_SECONDS = 10
CODES = {name: code for code, name in _bth_opcodes.items()}

RETH = {"RDMA_WRITE_FIRST", "RDMA_WRITE_ONLY", "RDMA_WRITE_ONLY_WITH_IMMEDIATE", "RDMA_READ_REQUEST"}
ATOMIC_ETH = {"COMPARE_SWAP", "FETCH_ADD"}
AETH = {
    "RDMA_READ_RESPONSE_FIRST",
    "RDMA_READ_RESPONSE_LAST",
    "RDMA_READ_RESPONSE_ONLY",
    "ACKNOWLEDGE",
    "ATOMIC_ACKNOWLEDGE",
}


class Peer:
    def __init__(self, bind_port, peer_port, own_mac, own_ip, peer_mac, peer_ip):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", int(bind_port)))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        self.to = ("127.0.0.1", int(peer_port))
        self.own_mac, self.own_ip = own_mac, own_ip
        self.peer_mac, self.peer_ip = peer_mac, peer_ip

    def frame(self, deadline):
        """Returns the next frame, or None after the time limit."""
        ready, _, _ = select.select([self.socket], [], [], max(0, deadline - time.monotonic()))
        return self.socket.recv(65536) if ready else None

    def send(self, packet):
        self.socket.sendto(self.build(packet), self.to)

    def receive(self, how):
        deadline = time.monotonic() + how["timeout_ms"] / 1000
        while frame := self.frame(deadline):
            if packet := self.parse(frame):
                return packet
        return None

    def barrier(self, _):
        """Runs two ARP exchanges. When the HCA answers the second request, it has also answered everything that was sent
        before the first request, regardless of the order in which it serves its protocols within a turn."""
        packets = []
        for _ in range(2):
            request = ARP(op="who-has", hwsrc=self.own_mac, psrc=self.own_ip, pdst=self.peer_ip)
            frame = Ether(src=self.own_mac, dst="ff:ff:ff:ff:ff:ff") / request
            self.socket.sendto(bytes(frame), self.to)
            deadline = time.monotonic() + BARRIER_SECONDS
            while True:
                frame = self.frame(deadline)
                if frame is None:
                    raise TimeoutError(f"no answer to ARP within {BARRIER_SECONDS} s")
                if packet := self.parse(frame):
                    packets.append(packet)
                arp = Ether(frame).getlayer(ARP)
                if arp is not None and arp.op == 2:
                    break
        return packets

    def build(self, packet):
        op = packet["op"]
        body = b""
        if reth := packet.get("reth"):
            body += struct.pack("!QII", reth["va"], reth["rkey"], reth["len"])
        if atomic := packet.get("atomic"):
            body += struct.pack("!QIQQ", atomic["va"], atomic["rkey"], atomic["swap_add"], atomic["compare"])
        if aeth := packet.get("aeth"):
            body += struct.pack("!I", aeth["syndrome"] << 24 | aeth["msn"])
        if packet.get("original") is not None:
            body += struct.pack("!Q", packet["original"])
        if packet.get("imm") is not None:
            body += bytes.fromhex(packet["imm"])
        payload = bytes.fromhex(packet["payload"])
        pad = -len(payload) % 4
        frame = bytes(
            Ether(src=self.own_mac, dst=self.peer_mac)
            / IP(
                src=packet["source"] or self.own_ip, dst=self.peer_ip, flags="DF", ttl=packet["ttl"], tos=packet["ecn"]
            )
            / UDP(sport=0xC123, dport=ROCE_PORT, chksum=0)
            / BTH(
                opcode=CODES[op] if isinstance(op, str) else op,
                padcount=pad if packet["pad"] is None else packet["pad"],
                version=packet["tver"],
                fecn=packet["fecn"],
                becn=packet["becn"],
                resv6=0x3F if packet["reserved"] else 0,
                resv7=0x7F if packet["reserved"] else 0,
                solicited=packet["solicited"],
                migreq=packet["mig_req"],
                pkey=packet["pkey"],
                dqpn=packet["qpn"],
                ackreq=packet["ack_req"],
                psn=packet["psn"],
            )
            / Raw(body + payload + bytes(pad))
        )
        if packet["bad_icrc"]:
            frame = frame[:-1] + bytes([frame[-1] ^ 1])
        return frame[: len(frame) - packet["cut"]]

    def parse(self, frame):
        """Returns the packet in a frame, or None for another protocol. A wrong ICRC is an error."""
        ether = Ether(frame)
        if BTH not in ether:
            return None
        bth = ether[BTH]
        if struct.pack("!I", bth.icrc) != bth.compute_icrc(b""):
            raise ValueError(f"wrong ICRC: {frame.hex()}")
        name = _bth_opcodes.get(bth.opcode)
        operation = (name or "").removeprefix("RC_").removeprefix("UC_").removeprefix("UD_")
        packet = {
            "op": name or bth.opcode,
            "qpn": bth.dqpn,
            "psn": bth.psn,
            "ack_req": bool(bth.ackreq),
            "solicited": bool(bth.solicited),
            "mig_req": bool(bth.migreq),
            "pkey": bth.pkey,
            "ecn": ether[IP].tos & 3,
        }
        start, end = 14 + 4 * ether[IP].ihl + 8 + 12, 14 + ether[IP].len - 4
        body = frame[start:end]
        if operation in RETH:
            va, rkey, length = struct.unpack_from("!QII", body)
            packet["reth"], body = {"va": va, "rkey": rkey, "len": length}, body[16:]
        if operation in ATOMIC_ETH:
            va, rkey, swap_add, compare = struct.unpack_from("!QIQQ", body)
            packet["atomic"] = {"va": va, "rkey": rkey, "swap_add": swap_add, "compare": compare}
            body = body[28:]
        if operation in AETH:
            (aeth,) = struct.unpack_from("!I", body)
            packet["aeth"], body = {"syndrome": aeth >> 24, "msn": aeth & 0xFFFFFF}, body[4:]
        if operation == "ATOMIC_ACKNOWLEDGE":
            packet["original"], body = struct.unpack_from("!Q", body)[0], body[8:]
        if operation.endswith("_WITH_IMMEDIATE"):
            packet["imm"], body = body[:4].hex(), body[4:]
        packet["payload"] = body[: len(body) - bth.padcount].hex()
        return packet


def main(arguments):
    peer = Peer(*arguments)
    actions = {"send": peer.send, "receive": peer.receive, "barrier": peer.barrier}
    print(json.dumps({"ok": "ready"}), flush=True)
    for line in sys.stdin:
        ((action, argument),) = json.loads(line).items()
        try:
            answer = {"ok": actions[action](argument)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


main(sys.argv[1:])
