"""A user-space driver, with planted bugs, for the HCA that ib_mthca supports. Each line of standard input is a request,
and each line of standard output is an answer.

A request is {"do": NAME}, and its answer is {"ok": VALUE} or {"error": TEXT}. NAME is a method of Driver. Each method
that can be requested resets the HCA and makes the mistake that its docstring describes. Everything before the mistake
is correct. Section numbers refer to the mthca interface.
"""

import ctypes
import glob
import json
import mmap
import struct
import sys
import time

HUGE = 2 << 20
PAGE = 4096
HCR, EQ_ARM, EQ_SET_CI, RESET = 0x80680, 0x80A04, 0x80B00, 0xF0010
GO = 1 << 23
UAR = 2
EQN, CQN, QPN, PD = 1, 8, 8, 1
# Number and size of send queue slots, number of CQ entries, and number of EQ entries.
SLOTS, SLOT, CQES, EQES = 8, 64, 16, 128
SEND, UC = 0x0A, 1
# Indices of doorbell records. Each UAR page has one page of doorbell records.
ARM, SQ, RQ, CI = 0, 1, 510, 511
# ICM addresses of the tables, which have one page each.
QPC, SRQC, CQC, EQC, MPT, MTT, UARC = (0x100000 + n * 0x10000 for n in range(7))
# MPT indices. A key is the index rotated by eight bits.
ALL, EQ_MR, CQ_MR, QP_MR = 2, 3, 4, 5
LIMIT = 10


def key(index):
    return index << 8


def find(resource):
    """Returns the sysfs file of a resource of the HCA. No kernel driver may be bound to the HCA."""
    for device in glob.glob("/sys/bus/pci/devices/*"):
        with open(f"{device}/vendor") as vendor, open(f"{device}/device") as number:
            if (vendor.read().strip(), number.read().strip()) == ("0x15b3", "0x6274"):
                return f"{device}/{resource}"
    raise RuntimeError("no HCA")


class Bar:
    """The registers of a BAR. Each register is written and read with a single access."""

    def __init__(self, resource):
        with open(find(resource), "r+b", buffering=0) as file:
            self.bytes = mmap.mmap(file.fileno(), 0)

    def store(self, offset, value):
        ctypes.c_uint32.from_buffer(self.bytes, offset).value = int.from_bytes(struct.pack(">I", value), "little")

    def load(self, offset):
        value = ctypes.c_uint32.from_buffer(self.bytes, offset).value
        return struct.unpack(">I", value.to_bytes(4, "little"))[0]

    def store8(self, offset, data):
        ctypes.c_uint64.from_buffer(self.bytes, offset).value = int.from_bytes(data, "little")


class Memory:
    """A huge page, which is contiguous on the bus and never moves."""

    def __init__(self):
        with open("/proc/sys/vm/nr_hugepages", "w") as pages:
            pages.write("1")
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE | 0x40000
        self.bytes = mmap.mmap(-1, HUGE, flags)
        self.bytes[0] = 1
        address = ctypes.addressof(ctypes.c_char.from_buffer(self.bytes))
        with open("/proc/self/pagemap", "rb") as pagemap:
            pagemap.seek(address // PAGE * 8)
            (entry,) = struct.unpack("<Q", pagemap.read(8))
        self.bus = (entry & (1 << 55) - 1) * PAGE
        self.used = 0

    def clear(self):
        self.bytes[:] = bytes(HUGE)
        self.used = 0

    def page(self, count=1):
        """Allocates pages and returns their offset."""
        self.used += count * PAGE
        return self.used - count * PAGE

    def write(self, at, data):
        self.bytes[at : at + len(data)] = data


class Driver:
    def __init__(self):
        with open(find("enable"), "w") as enable:
            enable.write("1")
        with open(find("config"), "r+b", buffering=0) as config:
            config.seek(4)
            (command,) = struct.unpack("<H", config.read(2))
            config.seek(4)
            # Enable memory space and bus mastering.
            config.write(struct.pack("<H", command | 6))
        self.bar0, self.bar2, self.memory = Bar("resource0"), Bar("resource2"), Memory()

    def issue(self, op, in_param=0, modifier=0, out=0, op_modifier=0):
        """Writes a command (section 2.2)."""
        words = struct.pack(">QIQI", in_param, modifier, out, 0xFFFF0000)
        for n in range(6):
            (word,) = struct.unpack_from(">I", words, 4 * n)
            self.bar0.store(HCR + 4 * n, word)
        self.bar0.store(HCR + 0x18, GO | op_modifier << 12 | op)

    def finish(self):
        """Waits until a command has completed, and returns its status."""
        end = time.monotonic() + LIMIT
        while (word := self.bar0.load(HCR + 0x18)) & GO:
            if time.monotonic() > end:
                raise RuntimeError("the go bit is still set: the command did not complete")
        return word >> 24

    def command(self, op, expected=0, inbox=b"", **parameters):
        if inbox:
            self.memory.write(self.inbox, inbox)
            parameters["in_param"] = self.memory.bus + self.inbox
        if parameters.pop("outbox", False):
            parameters["out"] = self.memory.bus + self.outbox
        self.issue(op, **parameters)
        status = self.finish()
        if status != expected:
            raise RuntimeError(f"status {status:#x} of {op:#x}")

    def map_page(self, op, icm=0):
        """Maps a page with MAP_ICM, MAP_FA or MAP_ICM_AUX. Only MAP_ICM needs `icm`. Returns the page's offset."""
        page = self.memory.page()
        self.command(op, inbox=struct.pack(">QQ", icm, self.memory.bus + page), modifier=1)
        return page

    def region(self, index, length, offset=None):
        """Registers all memory, or the buffer at `offset`, with SW2HW_MPT. For a buffer, writes its MTT entries first."""
        flags, place = 0xF0020F00, 0
        if offset is not None:
            flags, place = 0xF0020D00, MTT + 64 * index
            pages = range(offset, offset + length, PAGE)
            entries = struct.pack(f">{len(pages)}Q", *(self.memory.bus + page | 1 for page in pages))
            self.memory.write(self.mtt + 64 * index, entries)
        words = struct.pack(">IIIIQQ", flags, 0, index, PD, 0, length) + bytes(12) + struct.pack(">Q", place) + bytes(12)
        self.command(0x00D, inbox=words, modifier=index)

    def record(self, index, counter=None, tag=None):
        """Writes a doorbell record (section 5.4)."""
        at = self.records + 8 * index
        if counter is not None:
            self.memory.write(at, struct.pack(">I", counter))
        if tag is not None:
            self.memory.write(at + 4, struct.pack(">I", tag))

    def firmware(self):
        self.command(0xFF8, expected=0x22, outbox=True)
        self.map_page(0xFFF)
        self.command(0xFF6)

    def reset(self):
        self.bar0.store(RESET, 1)
        self.memory.clear()
        self.inbox, self.outbox = self.memory.page(), self.memory.page()

    def icm(self):
        """Maps ICM, and issues INIT_HCA with one-page tables (sections 3.3.5 and 4.2)."""
        self.map_page(0xFFC)
        for table in (QPC, SRQC, CQC, EQC, MPT):
            self.map_page(0xFFA, table)
        self.mtt = self.map_page(0xFFA, MTT)
        self.records = self.map_page(0xFFA, UARC + PAGE * UAR)
        init = bytearray(0x200)
        for at, value in (
            (0x030, QPC | 4),
            (0x048, SRQC | 6),
            (0x050, CQC | 6),
            (0x080, EQC | 5),
            (0x0F0, MPT),
            (0x100, MTT),
            (0x138, UARC),
        ):
            struct.pack_into(">Q", init, at, value)
        struct.pack_into(">II", init, 0x00C, 1, 0)
        struct.pack_into(">I", init, 0x014, 1)
        struct.pack_into(">HxxH", init, 0x0D2, 8, 64)
        init[0x0DB], init[0x0FB], init[0x12A] = 7, 6, 11
        self.command(0x007, inbox=bytes(init))

    def queues(self):
        """Creates an EQ, a CQ and a region that covers all memory."""
        self.region(ALL, (1 << 64) - 1)
        self.eq, self.cq = self.memory.page(), self.memory.page()
        for ring, entries in ((self.eq, EQES), (self.cq, CQES)):
            self.memory.write(ring, (bytes(31) + b"\x80") * entries)
        self.region(EQ_MR, PAGE, self.eq)
        self.region(CQ_MR, PAGE, self.cq)
        eq = struct.pack(">I8xIIIII", 0x01040900, 7 << 24, 0, 0x80, PD, key(EQ_MR)) + bytes(32)
        self.command(0x013, inbox=eq, modifier=EQN)
        cq = struct.pack(">I8xIIIII16xIII4x", 0x00040000, 4 << 24 | UAR, 0, EQN, PD, key(CQ_MR), CQN, CI, ARM)
        self.command(0x016, inbox=cq, modifier=CQN)
        self.record(CI, 0, CQN << 8 | 1 << 5)
        self.read = self.events = 0
        self.sequence = 1

    def queue_pair(self, **changes):
        """Creates a UC queue pair in RTS with an unreachable peer (section 6.5).

        `changes` modifies fields of RST2INIT. For example, the key x28 stands for offset 28h.
        """
        self.sq = self.memory.page()
        self.region(QP_MR, PAGE, self.sq)
        self.record(SQ, 0, QPN << 8 | 3 << 5)
        self.record(RQ, 0, QPN << 8 | 4 << 5)
        self.posted = 0
        image = bytearray(0x108)
        for at, value in (
            (0x00, 1 << 16 | 3 << 11 | 1 << 8),
            (0x08, 4 << 29 | 31 << 24 | 2 << 16 | (3 << 3 | 2) << 8),
            (0x0C, UAR),
            (0x10, QPN),
            (0x20, 1 << 24),
            (0x64, PD),
            (0x6C, key(QP_MR)),
            (0x70, 10 << 28 | 9 << 24 | 1 << 14),
            (0x7C, CQN),
            (0x84, SQ),
            (0x90, 1 << 3),
            (0x9C, CQN),
            (0xA4, RQ),
        ):
            struct.pack_into(">I", image, 8 + at, value)
        # RST2INIT sets port, P_Key and access rights. INIT2RTR sets the address. RTR2RTS sets nothing.
        for op, mask in ((0x019, 0x81E), (0x01A, 0x80), (0x01B, 0)):
            struct.pack_into(">I", image, 0, mask)
            this = bytearray(image)
            if op == 0x019:
                for at, value in changes.items():
                    struct.pack_into(">I", this, 8 + int(at[1:], 16), value)
            if op == 0x01A:
                struct.pack_into(">I", this, 8 + 0x14, QPN)
                # LID 2.
                struct.pack_into(">I", this, 8 + 0x24, 2)
            self.command(op, inbox=bytes(this), modifier=QPN)

    def start(self, **changes):
        self.reset()
        self.firmware()
        self.icm()
        self.queues()
        self.queue_pair(**changes)

    def fill(self, lkey=key(ALL)):
        """Writes a WQE to the next slot. The WQE sends eight bytes (section 7.1)."""
        slot = self.sq + self.posted % SLOTS * SLOT
        data = struct.pack(">IIQ", 8, lkey, self.memory.bus + self.inbox)
        self.memory.write(slot + 8, struct.pack(">II", 9, 0) + data)

    def link(self):
        """Links the WQE from the preceding slot, and counts it in the doorbell record (sections 5.2 and 7.3)."""
        slot, before = self.posted % SLOTS * SLOT, (self.posted - 1) % SLOTS * SLOT
        self.memory.write(self.sq + before, struct.pack(">II", slot | SEND, 0x80 | 2))
        self.record(SQ, self.posted + 1 & 0xFFFF)

    def ring(self, uar=UAR):
        word = 1 << 56 | (self.posted & 0xFFFF) << 40 | SEND << 32 | QPN << 8 | 2
        self.bar2.store8(uar * PAGE + 0x10, struct.pack(">Q", word))
        self.posted += 1

    def send(self, lkey=key(ALL), give_back=True):
        """Sends, and waits for completion. Returns the syndrome, which is 0 on success."""
        self.fill(lkey)
        self.link()
        self.ring()
        return self.poll(give_back)

    def poll(self, give_back=True):
        """Consumes the next entry of the CQ (section 7.6)."""
        at = self.cq + self.read % CQES * 32
        self.wait(lambda: self.memory.bytes[at + 31] == 0, "completion")
        syndrome = self.memory.bytes[at + 0x10] if self.memory.bytes[at + 0x1C] >= 0xFE else 0
        if give_back:
            self.memory.bytes[at + 31] = 0x80
        self.read += 1
        self.record(CI, self.read)
        return syndrome

    def arm(self, sequence):
        """Requests an event for the next entry (section 5.3)."""
        low = (sequence & 3) << 3 | 2
        self.memory.write(self.records + 8 * ARM, struct.pack(">II", self.read, CQN << 8 | 2 << 5 | low))
        head = (sequence & 3) << 28 | 2 << 24 | CQN
        self.bar2.store8(UAR * PAGE + 0x20, struct.pack(">II", head, self.read))

    def event(self):
        """Consumes the next entry of the EQ and gives it back to the device (section 7.8)."""
        at = self.eq + self.events % EQES * 32
        self.wait(lambda: self.memory.bytes[at + 31] == 0, "event")
        self.memory.bytes[at + 31] = 0x80
        self.events += 1
        self.bar0.store(EQ_SET_CI + 8 * EQN, self.events)
        self.bar0.store(EQ_ARM, 1 << EQN)
        self.sequence += 1

    def wait(self, done, what):
        end = time.monotonic() + LIMIT
        while not done():
            if time.monotonic() > end:
                raise RuntimeError(f"no {what}")
            time.sleep(0.001)

    # The following methods are requested by name.

    def nothing(self):
        """Executes forty requests, each with an event, and destroys all objects. Makes no mistake."""
        self.start()
        for _ in range(40):
            self.arm(self.sequence)
            if (syndrome := self.send()) != 0:
                raise RuntimeError(f"syndrome {syndrome:#x}")
            self.event()
        self.command(0x021, modifier=QPN, op_modifier=3)
        self.command(0x017, modifier=CQN, outbox=True)
        self.command(0x014, modifier=EQN, outbox=True)
        for index in (ALL, EQ_MR, CQ_MR, QP_MR):
            self.command(0x00F, modifier=index, op_modifier=1)
        self.command(0x008)

    def wrong_lkey(self):
        """Posts a request with the key of an unknown region."""
        self.start()
        self.send()
        return self.send(lkey=key(ALL) ^ 0x100000)

    def early_doorbell(self):
        """Rings the doorbell before it links the WQE and updates the doorbell record."""
        self.start()
        self.send()
        self.fill()
        self.ring()
        # This load waits for the posted doorbell store. Without it, the device could find a correct record by chance.
        self.bar0.load(HCR + 0x18)
        self.posted -= 1
        self.link()
        self.posted += 1
        return self.poll()

    def stale_sequence(self):
        """After an event, arms the CQ again with the same sequence number as before."""
        self.start()
        self.arm(1)
        self.send()
        self.event()
        self.arm(1)

    def entry_kept(self):
        """Consumes a CQ entry but does not give it back to the device. The ring then wraps to this entry."""
        self.start()
        for n in range(CQES):
            self.send(give_back=n != 0)
        # The owner byte still marks this entry as written, so it cannot show that the device writes the entry again.
        # Clear the entry's QPN, and wait until the device writes it.
        self.memory.write(self.cq, bytes(4))
        self.fill()
        self.link()
        self.ring()
        self.wait(lambda: self.memory.bytes[self.cq : self.cq + 4] != bytes(4), "completion")

    def unread_events(self):
        """Moves the EQ's consumer index beyond the last entry that the device has written."""
        self.start()
        self.bar0.store(EQ_SET_CI + 8 * EQN, 3)

    def unnamed_attribute(self):
        """Sets an ACK timeout in RST2INIT without its mask bit."""
        self.start(x28=14 << 27)

    def freed_buffer(self):
        """Destroys the region of the CQ's buffer while the CQ still exists."""
        self.start()
        self.command(0x00F, modifier=CQ_MR, op_modifier=1)

    def lost_records(self):
        """Unmaps the page of the doorbell records while queues still use the records."""
        self.start()
        self.command(0xFF9, in_param=UARC + PAGE * UAR, modifier=1)

    def no_firmware(self):
        """Issues INIT_HCA without MAP_FA and RUN_FW."""
        self.reset()
        self.icm()

    def busy_register(self):
        """Issues a command before it has polled for the completion of the previous command."""
        self.start()
        self.issue(0x031, modifier=0x1F)
        self.issue(0x031, modifier=0x1F)
        return self.finish()


def main():
    driver = Driver()
    for line in sys.stdin:
        try:
            answer = {"ok": getattr(driver, json.loads(line)["do"])()}
        except Exception as error:  # Every error is reported to the lab.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


main()
