"""Groups the samples of ci/guest-profile by thread and activity. Reads the output of perf script on standard input.

Usage: guest_profile.py FILE PROCESSORS. FILE is the output of ib_send_lat, whose typical latency is half a round trip.
"""

import collections
import re
import sys

# Prefixes of thread names, and the roles of these threads.
THREADS = (
    ("CPU ", "QEMU, virtual CPU"),
    ("hca", "hcad"),
    ("swapper", "idle"),
    ("qemu", "QEMU, other"),
    ("ld-linux", "QEMU, other"),
)

# Activities of the kernel, with substrings of their symbols. A sample belongs to the first activity that matches one of
# its kernel symbols.
KERNEL = (
    ("messages of vfio-user", ("unix_stream", "sock_alloc_send", "unix_poll")),
    ("the fabric's UDP", ("udp_", "udpv6_", "inet_send", "inet_recv", "__dev_queue_xmit")),
    ("eventfds", ("eventfd",)),
    ("waiting and waking", ("epoll", "poll", "futex", "schedule", "do_idle", "nanosleep", "hrtimer", "select")),
)

SYMBOL = re.compile(r"\s*([0-9a-f]+) (.*) \(([^()]*(?:\([^()]*\))?[^()]*)\)$")


def activity(thread, symbols):
    """Returns the activity that a sample shows. `symbols` lists the sample's symbols, innermost first."""
    address, name, dso = symbols[0]
    if address >> 63:
        kernel = [name for address, name, _ in symbols if address >> 63]
        for what, parts in KERNEL:
            if any(part in name for name in kernel for part in parts):
                return f"kernel: {what}"
        return "kernel: other"
    if thread.startswith("hca"):
        return "the device"
    # Guest code that QEMU has translated is in no program file. perf attributes it to /tmp/perf-PID.map or to anonymous
    # memory.
    made = any(part in dso.lower() for part in ("/perf-", "jit", "anon"))
    return "translated guest code" if made else "emulation"


def samples(lines):
    """Yields each sample as its thread and its symbols."""
    thread, symbols = None, []
    for line in lines:
        line = line.rstrip("\n")
        if not line:
            if thread is not None and symbols:
                yield thread, symbols
            thread, symbols = None, []
        elif thread is None:
            thread = line.strip()
        elif found := SYMBOL.match(line):
            symbols.append((int(found[1], 16), found[2], found[3]))
    if thread is not None and symbols:
        yield thread, symbols


def main():
    """Prints the time that each activity takes in a round trip."""
    client, processors = sys.argv[1], int(sys.argv[2])
    rows = [line.split() for line in open(client, encoding="utf-8")]
    # The columns are size, iterations, minimum, maximum and typical latency.
    typical = [float(row[4]) for row in rows if len(row) > 5 and row[0] == "64" and row[1].isdigit()]
    if not typical:
        sys.exit(f"no figures in {client}")
    counts = collections.Counter()
    for thread, symbols in samples(sys.stdin):
        kind = next((kind for start, kind in THREADS if thread.startswith(start)), "other")
        counts[kind, "" if kind in ("idle", "other") else activity(thread, symbols)] += 1
    total = sum(counts.values())
    trip = 2 * typical[0]
    print(f"a round trip takes {trip:.1f} us, or {processors * trip:.1f} us of CPU time on {processors} CPUs:")
    for (kind, what), count in counts.most_common():
        spent = count / total * processors * trip
        if spent >= 0.05:
            print(f"{spent:7.1f} us  {100 * count / total:4.1f} %  {kind}{': ' if what else ''}{what}")


if __name__ == "__main__":
    main()
