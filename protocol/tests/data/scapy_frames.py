"""Prints scapy_frames.txt: RoCEv2 frames whose checksums and ICRC scapy computed.

python3 -m venv venv && venv/bin/pip install scapy==2.8.0 && venv/bin/python scapy_frames.py > scapy_frames.txt

scapy does not support RETH, DETH, AtomicETH, ImmDt or IETH, so this program packs their bytes field by field, in the
order of IBTA volume 1, section 9.3. scapy builds everything around them.
"""
import struct

import scapy
from scapy.all import IP, UDP, Ether, IPv6, Raw
from scapy.contrib.roce import BTH, cnp

SRC, DST = '02:00:00:00:00:01', '02:00:00:00:00:02'
IMM = bytes.fromhex('11223344')


def v4(tos=0):
    return (Ether(src=SRC, dst=DST) / IP(src='10.77.0.1', dst='10.77.0.2', tos=tos, ttl=64, id=0, flags='DF')
            / UDP(sport=0xc123, dport=4791, chksum=0))


def v6(tc=0):
    return (Ether(src=SRC, dst=DST) / IPv6(src='fe80::ff:fe00:1', dst='fe80::ff:fe00:2', tc=tc, hlim=255)
            / UDP(sport=0xc123, dport=4791))


def pay(n, first=0):
    return bytes((first + i * 7) & 0xff for i in range(n))


def reth(va, rkey, length):
    return struct.pack('>QII', va, rkey, length)


def aeth(syndrome, msn):
    return struct.pack('>I', syndrome << 24 | msn)


def fr(name, shell, opcode, ext=b'', p=b'', psn=0x123456, **flags):
    pad = -len(p) % 4
    bth = BTH(opcode=opcode, dqpn=0xabcdef, psn=psn, pkey=0xffff, padcount=pad, **flags)
    return name, bytes(shell / bth / Raw(ext + p + bytes(pad)))


FRAMES = [
    fr('rc_send_first', v4(), 0x00, p=pay(64)),
    fr('rc_send_middle', v4(), 0x01, p=pay(64, 1), psn=0xffffff),
    fr('rc_send_last', v4(), 0x02, p=pay(17), ackreq=1, solicited=1),
    fr('rc_send_last_imm', v4(), 0x03, IMM, pay(2), ackreq=1),
    fr('rc_send_only_empty', v4(), 0x04, ackreq=1, psn=0),
    fr('rc_send_only_3_bytes', v4(tos=0x6a), 0x04, p=pay(3), ackreq=1, migreq=1),
    fr('rc_send_only_imm', v4(), 0x05, IMM, pay(8), ackreq=1, solicited=1),
    fr('rc_write_first', v4(), 0x06, reth(0xfedcba9876543210, 0xdeadbeef, 128), pay(64)),
    fr('rc_write_last_imm', v4(), 0x09, IMM, pay(1), ackreq=1),
    fr('rc_write_only', v4(), 0x0a, reth(0x1000, 0x223, 5), pay(5), ackreq=1),
    fr('rc_write_only_imm', v4(), 0x0b, reth(0x1000, 0x223, 4)+IMM, pay(4), ackreq=1),
    fr('rc_read_request', v4(), 0x0c, reth(0x7f0012345678, 0x223, 0x60000), ackreq=1),
    fr('rc_read_response_first', v4(), 0x0d, aeth(0x1f, 7), pay(64)),
    fr('rc_read_response_middle', v4(), 0x0e, p=pay(64, 9)),
    fr('rc_read_response_only', v4(), 0x10, aeth(0x1f, 0x800001), pay(6)),
    fr('rc_ack', v4(), 0x11, aeth(0x1f, 0x10203)),
    fr('rc_nak_sequence', v4(), 0x11, aeth(0x60, 0xffffff)),
    fr('rc_rnr_nak', v4(), 0x11, aeth(0x2c, 1)),
    fr('rc_atomic_ack', v4(), 0x12, aeth(0x1f, 3)+struct.pack('>Q', 0x0102030405060708)),
    fr('rc_compare_swap', v4(), 0x13, struct.pack('>QIQQ', 0x2000, 0x77, 0x1111111122222222, 0x3333333344444444), ackreq=1),
    fr('rc_fetch_add', v4(), 0x14, struct.pack('>QIQQ', 0x2008, 0x77, 1, 0), ackreq=1),
    fr('rc_send_only_invalidate', v4(), 0x17, struct.pack('>I', 0x55667788), pay(4), ackreq=1),
    fr('uc_write_middle_congested', v4(tos=3), 0x27, p=pay(4), fecn=1, becn=1),
    fr('ud_send_only', v4(), 0x64, struct.pack('>II', 0x11111111, 0x00000123), pay(20)),
    fr('ud_send_only_imm', v4(), 0x65, struct.pack('>II', 0x80010000, 0x00fffffe)+IMM, pay(7)),
    fr('rc_reserved_15', v4(), 0x15, p=pay(4)),
    fr('v6_rc_send_only', v6(), 0x04, p=pay(13), ackreq=1),
    fr('v6_rc_write_only', v6(tc=0x6a), 0x0a, reth(0x1000, 0x223, 32), pay(32), ackreq=1),
    fr('v6_rc_ack', v6(), 0x11, aeth(0x1f, 1)),
    ('cnp', bytes(v4() / cnp(0xabcdef))),
]

print(f'# RoCEv2 frames made by scapy {scapy.__version__} (scapy.contrib.roce), see scapy_frames.py: name, bytes.')
for name, frame in FRAMES:
    print(name, frame.hex())
