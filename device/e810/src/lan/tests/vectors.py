"""Generates the test vectors transmit.json and receive.json.

Scapy (2.8.0) builds the frames, including lengths and checksums. CRC32c is checked against the crc32c package. Run the
script in this directory, with both packages installed.
"""
import json

from scapy.all import *
from scapy.layers.vxlan import VXLAN
from scapy.layers.sctp import SCTP, SCTPChunkData
import crc32c as c32
A, B = "02:00:00:00:00:01", "02:00:00:00:00:02"
E = lambda t: Ether(dst=B, src=A, type=t)
ip4 = lambda proto, **k: IP(src="10.77.0.1", dst="10.77.0.2", ttl=64, proto=proto, flags="DF", **k)
ip6 = lambda nh, **k: IPv6(src="2001:db8::1", dst="2001:db8::2", hlim=64, nh=nh, **k)
def pay(n, seed=7):
    x, out = seed, bytearray()
    for _ in range(n):
        x = (x * 5 + 113) & 0xff ^ (len(out) >> 8)
        out.append(x & 0xff)
    return bytes(out)
IPV6, IPV4, IPV4C = 0x20, 0x40, 0x60
TCPT, SCTPT, UDPT = 0x100, 0x200, 0x300
TAG = 8
cases = []
def case(name, command, lengths, given, frames, tag=0, tunnel=None, tag2=None, cut=None):
    frames = [bytes(f) for f in frames]
    frames = [f + bytes(max(0, 60 - len(f))) for f in frames]
    cases.append(dict(name=name, command=command, mac=lengths[0], ip=lengths[1], l4=lengths[2], tag=tag, tag2=tag2,
        tunnel=tunnel, payload_len=cut[0] if cut else None, mss=cut[1] if cut else None,
        given=bytes(given).hex(), frames=[f.hex() for f in frames]))
def zero(raw, *fields):
    raw = bytearray(raw)
    for at, n in fields: raw[at:at+n] = bytes(n)
    return bytes(raw)

# Checksum offload. The device ignores the old value of the checksum field.
f = bytes(E(0x800)/ip4(6)/TCP(sport=1000, dport=2000, seq=1, ack=2, flags="PA")/pay(333))
case("TCP over IPv4", 1 | IPV4 | TCPT, (14, 20, 20), zero(f, (50, 2)), [f])
f = bytes(E(0x86dd)/ip6(6)/TCP(sport=1000, dport=2000, seq=1, ack=2, flags="A", options=[("Timestamp", (1, 2)), ("NOP", 0), ("NOP", 0)])/pay(1000))
case("TCP with options over IPv6", 1 | IPV6 | TCPT, (14, 40, 32), zero(f, (14+40+16, 2)), [f])
f = bytes(E(0x800)/ip4(17)/UDP(sport=53, dport=3000)/pay(77))
case("UDP over IPv4", 1 | IPV4 | UDPT, (14, 20, 8), zero(f, (40, 2)), [f])
f = bytes(E(0x86dd)/ip6(17)/UDP(sport=53, dport=3000)/pay(1))
case("UDP over IPv6, an odd byte", 1 | IPV6 | UDPT, (14, 40, 8), zero(f, (60, 2)), [f])
# The payload is the checksum that the datagram would have with a payload of zeros. The sum is therefore 0xffff, and the
# computed checksum is 0, which UDP transmits as 0xffff.
base = bytes(E(0x800)/ip4(17)/UDP(sport=53, dport=3000)/b"\0\0")
have = int.from_bytes(base[40:42], "big")
f = bytes(E(0x800)/ip4(17)/UDP(sport=53, dport=3000)/have.to_bytes(2, "big"))
assert f[40:42] == b"\xff\xff", f[40:42]
case("UDP whose checksum would be 0", 1 | IPV4 | UDPT, (14, 20, 8), zero(f, (40, 2)), [f])
f = bytes(E(0x800)/ip4(6)/TCP(sport=1, dport=2, seq=5, flags="A"))
case("short TCP, padded by software with nonzero bytes", 1 | IPV4 | TCPT, (14, 20, 20),
     zero(f, (50, 2)) + b"\x5a" * 6, [f + b"\x5a" * 6])
f = bytes(E(0x800)/ip4(6)/TCP(sport=1, dport=2, seq=5, flags="A"))
case("short TCP", 1 | IPV4 | TCPT, (14, 20, 20), zero(f, (50, 2)), [f])
for name, l3, t, n, ipt in [("IPv4", ip4(132), 0x800, 20, IPV4), ("IPv6", ip6(132), 0x86dd, 40, IPV6)]:
    f = bytes(E(t)/l3/SCTP(sport=7, dport=8, tag=0x01020304)/SCTPChunkData(data=pay(200), tsn=9))
    at = 14 + n
    want = c32.crc32c(zero(f[at:], (8, 4))).to_bytes(4, "little")
    assert f[at+8:at+12] == want, "scapy and the crc32c library agree"
    case("SCTP over " + name, 1 | ipt | SCTPT, (14, n, 12), zero(f, (at + 8, 4)), [f])
f = bytes(E(0x800)/ip4(1, options=[IPOption_RR(length=7, routers=["0.0.0.0"])])/ICMP()/pay(64))
ihl = (f[14] & 15) * 4
case("IPv4 header with options only", 1 | IPV4C, (14, ihl, 0), zero(f, (24, 2)), [f])
f = bytes(E(0x86dd)/ip6(0)/IPv6ExtHdrHopByHop(options=[RouterAlert(value=0)], nh=60)/IPv6ExtHdrDestOpt(options=[PadN(optdata=b"\0\0\0\0")], nh=6)/TCP(sport=9, dport=10, flags="S"))
case("TCP behind extension headers", 1 | IPV6 | TCPT, (14, 56, 20), zero(f, (14 + 56 + 16, 2)), [f])

# VLAN tags.
f = E(0x800)/ip4(6)/TCP(sport=1000, dport=2000, flags="PA")/pay(100)
g = Ether(dst=B, src=A, type=0x8100)/Dot1Q(prio=3, vlan=5, type=0x800)/f[IP]
case("TCP with a tag inserted", 1 | TAG | IPV4 | TCPT, (14, 20, 20), zero(bytes(f), (50, 2)), [bytes(g)], tag=0x6005)
g = Ether(dst=B, src=A, type=0x88a8)/Dot1Q(vlan=7, type=0x8100)/Dot1Q(prio=3, vlan=5, type=0x800)/f[IP]
case("TCP with two tags inserted", 1 | TAG | IPV4 | TCPT, (14, 20, 20), zero(bytes(f), (50, 2)), [bytes(g)], tag=0x6005, tag2=7)
f = Ether(dst="ff:ff:ff:ff:ff:ff", src=A, type=0x806)/ARP(hwsrc=A, psrc="10.77.0.1", pdst="10.77.0.2")
g = Ether(dst="ff:ff:ff:ff:ff:ff", src=A, type=0x8100)/Dot1Q(vlan=5, type=0x806)/f[ARP]
case("ARP with a tag inserted", 1 | TAG, (0, 0, 0), bytes(f), [bytes(g)], tag=5)
case("ARP as it is", 1, (0, 0, 0), bytes(f), [bytes(f)])
f = Ether(dst=B, src=A, type=0x8100)/Dot1Q(vlan=9, type=0x800)/ip4(17)/UDP(sport=1, dport=2)/pay(50)
case("UDP after a VLAN tag added by software", 1 | IPV4 | UDPT, (18, 20, 8), zero(bytes(f), (44, 2)), [bytes(f)])

# TCP segmentation.
P = pay(250)
def tcp(seq, flags, **k): return TCP(sport=1000, dport=2000, seq=seq & 0xffffffff, ack=77, window=500, flags=flags, **k)
opts = [("NOP", 0), ("NOP", 0), ("Timestamp", (1, 2))]
def pieces(build, n=len(P), mss=100):
    out = []
    for i, at in enumerate(range(0, n, mss)):
        flags = "A" + ("C" if i == 0 else "") + ("FP" if at + mss >= n else "")
        out.append(bytes(build(i, at, P[at:at+mss], flags)))
    return out
S = 0xffffffb0
fs = pieces(lambda i, at, p, fl: E(0x800)/ip4(6, id=(0xfffe + i) & 0xffff)/tcp(S + at, fl, options=opts)/p)
g = bytes(E(0x800)/ip4(6, id=0xfffe)/tcp(S, "FPAC", options=opts)/P)
case("TCP over IPv4, segmented", 1 | IPV4C | TCPT, (14, 20, 32), zero(g, (16, 2), (24, 2), (50, 2)), fs, cut=(250, 100))
fs = pieces(lambda i, at, p, fl: E(0x86dd)/ip6(6)/tcp(S + at, fl)/p)
g = bytes(E(0x86dd)/ip6(6)/tcp(S, "FPAC")/P)
case("TCP over IPv6, segmented", 1 | IPV6 | TCPT, (14, 40, 20), zero(g, (18, 2), (70, 2)), fs, cut=(250, 100))
fs = pieces(lambda i, at, p, fl: Ether(dst=B, src=A, type=0x8100)/Dot1Q(vlan=5, type=0x800)/ip4(6, id=i)/tcp(S + at, fl)/p)
g = bytes(E(0x800)/ip4(6, id=0)/tcp(S, "FPAC")/P)
case("TCP with a tag inserted, segmented", 1 | TAG | IPV4C | TCPT, (14, 20, 20), zero(g, (16, 2), (24, 2), (50, 2)), fs, tag=5, cut=(250, 100))
g1 = bytes(E(0x800)/ip4(6, id=3)/tcp(S, "FPAC")/P[:64])
case("TCP over IPv4, one segment", 1 | IPV4C | TCPT, (14, 20, 20), zero(g1, (16, 2), (24, 2), (50, 2)), [g1], cut=(64, 100))

# UDP segmentation.
fs = pieces(lambda i, at, p, fl: E(0x800)/ip4(17, id=10 + i)/UDP(sport=5, dport=6)/p)
g = bytes(E(0x800)/ip4(17, id=10)/UDP(sport=5, dport=6)/P)
case("UDP over IPv4, segmented", 1 | IPV4C | UDPT, (14, 20, 8), zero(g, (16, 2), (24, 2), (40, 2)), fs, cut=(250, 100))
fs = pieces(lambda i, at, p, fl: E(0x86dd)/ip6(17)/UDP(sport=5, dport=6)/p)
g = bytes(E(0x86dd)/ip6(17)/UDP(sport=5, dport=6)/P)
case("UDP over IPv6, segmented", 1 | IPV6 | UDPT, (14, 40, 8), zero(g, (18, 2), (60, 2)), fs, cut=(250, 100))

# Tunnels.
inner = lambda **k: Ether(dst="02:aa:00:00:00:02", src="02:aa:00:00:00:01")
i4 = lambda proto, **k: IP(src="192.168.1.1", dst="192.168.1.2", ttl=33, proto=proto, **k)
i6 = lambda nh, **k: IPv6(src="fd00::1", dst="fd00::2", nh=nh, **k)
out4 = lambda proto, **k: IP(src="10.77.0.1", dst="10.77.0.2", proto=proto, **k)
out6 = lambda nh: IPv6(src="2001:db8::1", dst="2001:db8::2", nh=nh)
fs = pieces(lambda i, at, p, fl: E(0x800)/out4(17, id=100 + i)/UDP(sport=40000, dport=4789, chksum=0)/VXLAN(vni=42, flags=8)/inner()/i4(6, id=200 + i)/tcp(S + at, fl)/p)
g = bytes(E(0x800)/out4(17, id=100)/UDP(sport=40000, dport=4789, chksum=0)/VXLAN(vni=42, flags=8)/inner()/i4(6, id=200)/tcp(S, "FPAC")/P)
t = dict(ip=3, ip_len=20, kind=1, len=30, udp_checksum=False)
at = 14 + 20 + 30
case("TCP in VXLAN without checksum over IPv4, segmented", 1 | IPV4C | TCPT, (14, 20, 20),
     zero(g, (16, 2), (24, 2), (38, 2), (at + 2, 2), (at + 10, 2), (at + 36, 2)), fs, tunnel=t, cut=(250, 100))
fs = pieces(lambda i, at, p, fl: E(0x86dd)/out6(17)/UDP(sport=40000, dport=4789)/VXLAN(vni=42, flags=8)/inner()/i6(6)/tcp(S + at, fl)/p)
g = bytes(E(0x86dd)/out6(17)/UDP(sport=40000, dport=4789)/VXLAN(vni=42, flags=8)/inner()/i6(6)/tcp(S, "FPAC")/P)
t = dict(ip=1, ip_len=40, kind=1, len=30, udp_checksum=True)
at = 14 + 40 + 30
case("TCP in VXLAN with checksum over IPv6, segmented", 1 | IPV6 | TCPT, (14, 40, 20),
     zero(g, (18, 2), (58, 4), (at + 4, 2), (at + 56, 2)), fs, tunnel=t, cut=(250, 100))
fs = pieces(lambda i, at, p, fl: E(0x800)/out4(47, id=100 + i)/GRE(proto=0x86dd)/i6(6)/tcp(S + at, fl)/p)
g = bytes(E(0x800)/out4(47, id=100)/GRE(proto=0x86dd)/i6(6)/tcp(S, "FPAC")/P)
t = dict(ip=3, ip_len=20, kind=2, len=4, udp_checksum=False)
at = 14 + 20 + 4
case("TCP in GRE, segmented", 1 | IPV6 | TCPT, (14, 40, 20), zero(g, (16, 2), (24, 2), (at + 4, 2), (at + 56, 2)), fs, tunnel=t, cut=(250, 100))
fs = pieces(lambda i, at, p, fl: E(0x800)/out4(4, id=100 + i)/i4(17, id=5 + i)/UDP(sport=5, dport=6)/p)
g = bytes(E(0x800)/out4(4, id=100)/i4(17, id=5)/UDP(sport=5, dport=6)/P)
t = dict(ip=3, ip_len=20, kind=0, len=0, udp_checksum=False)
case("UDP in IP in IP, segmented", 1 | IPV4C | UDPT, (14, 20, 8), zero(g, (16, 2), (24, 2), (36, 2), (44, 2), (60, 2)), fs, tunnel=t, cut=(250, 100))
g = bytes(E(0x800)/out4(17, id=100)/UDP(sport=40000, dport=4789, chksum=0)/VXLAN(vni=42, flags=8)/inner()/i4(6, id=200)/tcp(1, "PA")/P)
t = dict(ip=2, ip_len=20, kind=1, len=30, udp_checksum=False)
at = 14 + 20 + 30
case("TCP in VXLAN with outer headers built by software", 1 | IPV4 | TCPT, (14, 20, 20), zero(g, (at + 36, 2)), [g], tunnel=t)

def write(name, rows):
    with open(name, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


write("transmit.json", cases)

# Received frames: the frame, its packet type (section 8.5), whether its checksums were verified, and the errors.
got = []
def take(name, frame, ptype, done, ip_bad=False, l4_bad=False, headers=None, damage=None):
    frame = bytearray(bytes(frame))
    if damage is not None: frame[damage] ^= 0x10
    got.append(dict(name=name, frame=bytes(frame).hex(), packet_type=ptype, done=done, ipv4_error=ip_bad, l4_error=l4_bad, headers=headers))
four = lambda p, **k: E(0x800)/ip4(p, **k)
six = lambda p, **k: E(0x86dd)/ip6(p, **k)
tcp0 = lambda: TCP(sport=1, dport=2, flags="A", options=opts)/pay(99)
take("ARP", Ether(dst="ff:ff:ff:ff:ff:ff", src=A)/ARP(psrc="1.1.1.1", pdst="1.1.1.2"), 1, False)
take("LLDP", Ether(dst="01:80:c2:00:00:0e", src=A, type=0x88cc)/pay(50), 1, False)
take("TCP over IPv4", four(6)/tcp0(), 26, True, headers=66)
take("TCP over IPv4, padded", bytes(four(6)/TCP(sport=1, dport=2)) + b"\x5a" * 6, 26, True, headers=54)
take("TCP over IPv4, a wrong byte", four(6)/tcp0(), 26, True, l4_bad=True, headers=66, damage=80)
take("TCP over IPv4, a wrong address", four(6)/tcp0(), 26, True, ip_bad=True, l4_bad=True, headers=66, damage=27)
take("TCP over IPv4, a wrong time to live", four(6)/tcp0(), 26, True, ip_bad=True, headers=66, damage=22)
take("UDP over IPv4", four(17)/UDP(sport=1, dport=2)/pay(31), 24, True, headers=42)
take("UDP over IPv4, a wrong byte", four(17)/UDP(sport=1, dport=2)/pay(31), 24, True, l4_bad=True, headers=42, damage=60)
take("UDP over IPv4 without checksum", four(17)/UDP(sport=1, dport=2, chksum=0)/pay(31), 24, True, headers=42)
take("UDP over IPv4, shorter than its packet", four(17)/UDP(sport=1, dport=2, len=20)/pay(31), 24, False, headers=42)
take("SCTP over IPv4", four(132)/SCTP(sport=1, dport=2)/SCTPChunkData(data=pay(40)), 27, True, headers=46)
take("SCTP over IPv4, a wrong byte", four(132)/SCTP(sport=1, dport=2)/SCTPChunkData(data=pay(40)), 27, True, l4_bad=True, headers=46, damage=70)
take("ICMP", four(1)/ICMP()/pay(56), 28, True, headers=34)
take("ICMP, a wrong byte", four(1)/ICMP()/pay(56), 28, True, l4_bad=True, headers=34, damage=70)
take("a fragment", E(0x800)/IP(src="10.77.0.1", dst="10.77.0.2", proto=6, flags="MF")/tcp0(), 22, False, headers=34)
take("a fragment with a wrong header", E(0x800)/IP(src="10.77.0.1", dst="10.77.0.2", proto=6, frag=9)/pay(64), 22, True, ip_bad=True, headers=34, damage=22)
take("GRE over IPv4", four(47)/GRE()/pay(40), 23, False, headers=34)
take("TCP over IPv6", six(6)/tcp0(), 92, True, headers=86)
take("TCP over IPv6, a wrong address", six(6)/tcp0(), 92, True, l4_bad=True, headers=86, damage=30)
take("UDP over IPv6", six(17)/UDP(sport=1, dport=2)/pay(31), 90, True, headers=62)
take("UDP over IPv6 without checksum", six(17)/UDP(sport=1, dport=2, chksum=0)/pay(31), 90, False, headers=62)
take("SCTP over IPv6", six(132)/SCTP(sport=1, dport=2)/SCTPChunkData(data=pay(40)), 93, True, headers=66)
take("ICMPv6", six(58)/ICMPv6EchoRequest(data=pay(56)), 94, True, headers=54)
take("ICMPv6, a wrong byte", six(58)/ICMPv6EchoRequest(data=pay(56)), 94, True, l4_bad=True, headers=54, damage=70)
take("a fragment of IPv6", six(44)/IPv6ExtHdrFragment(nh=17, offset=9)/pay(64), 88, False, headers=62)
take("something else over IPv6", six(89)/pay(64), 89, False, headers=54)
take("TCP over IPv6 behind extension headers", six(0)/IPv6ExtHdrHopByHop(options=[RouterAlert(value=0)], nh=6)/tcp0(), 92, True, headers=94)
take("TCP over IPv4 in a VLAN", Ether(dst=B, src=A, type=0x8100)/Dot1Q(vlan=5, prio=3, type=0x800)/ip4(6)/tcp0(), 26, True, headers=70)
write("receive.json", got)
