"""One end of a reliable connection with stock verbs. Exchanges messages on its own, and reports progress on request.

A request is a line on standard input, {"do": NAME, ...}, and its answer is a line {"ok": VALUE} or {"error": TEXT}.
NAME is a method of Talk, and the other keys are the arguments of the method. Between requests, this end sends message
after message and checks the messages that it receives, until an error occurs. Both ends compute the length and the
content of a message from the seed, the number of the connection, the sending side and the number of the message.

Each end sends message n once it has checked message n - WINDOW of the other end. Message n therefore arrives in a slot
that is free again: the other end checked message n - 2 * WINDOW before it sent message n - WINDOW.
"""

import ctypes
import hashlib
import json
import mmap
import select
import sys
import time

from pyverbs import libibverbs_enums as e
from pyverbs.addr import AHAttr
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

REMOTE = e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE
# Maximum number of messages ahead of the other end, and number of slots for messages.
WINDOW = 4
SLOTS = 2 * WINDOW
# Every message is shorter than this. The length exceeds the path MTU, and is not a multiple of the path MTU or of the
# page size.
LONGEST = 11_003
SLOT = 12 << 10
# Offsets of five areas: sends, receives, the other end's writes, data for the other end's reads, and results of own
# reads.
SEND, RECEIVE, WRITTEN, SOURCE, FETCHED = (part * SLOTS * SLOT for part in range(5))
REGION = 5 * SLOTS * SLOT
# Every third message is a write, and the other messages are sends. One read is posted per READS_EVERY received
# messages.
WRITES_EVERY = 3
READS_EVERY = 8
# Time in seconds without a completion after which this end posts a read to check that the other end is alive.
SILENCE = 1.0
# Time in seconds to sleep when idle, because other guests and the devices need the CPU.
REST = 0.004


class Talk:
    """One end of the connection."""

    def __init__(self):
        self.qp = None
        self.running = False

    def open(self, device, seed, side):
        """Opens a device by name; `side` is 0 at one end and 1 at the other. Returns the LID of its port."""
        self.seed, self.side = seed, side
        self.context = Context(name=device)
        self.pd = PD(self.context)
        self.memory = mmap.mmap(-1, REGION)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.mr = MR(self.pd, REGION, e.IBV_ACCESS_LOCAL_WRITE | REMOTE, address=self.address)
        return self.context.query_port(1).lid

    def prepare(self, connection):
        """Replaces the queue pair with a new one. Returns the data with which the other end can connect."""
        self.running = False
        if self.qp is not None:
            self.qp.close()
            self.cq.close()
        self.connection = connection
        self.cq = CQ(self.context, 128)
        cap = QPCap(max_send_wr=2 * SLOTS, max_recv_wr=2 * SLOTS, max_send_sge=1, max_recv_sge=1)
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1))
        # Numbers of messages sent, sends completed, messages received and checked, reads posted, and reads checked.
        self.sent = self.completed = self.received = self.reads_posted = self.reads = 0
        self.receives_posted = 0
        self.errors, self.wrong = [], None
        self.source = self.stream(self.side, "source", SLOTS * SLOT)
        self.memory[SOURCE : SOURCE + len(self.source)] = self.source
        self.other_source = self.stream(1 - self.side, "source", SLOTS * SLOT)
        return {"qpn": self.qp.qp_num, "addr": self.address, "rkey": self.mr.rkey}

    def connect(self, lid, peer, timeout):
        """Moves the queue pair from RESET to RTR. The other end may then send."""
        self.peer = peer
        attributes = QPAttr(port_num=1)
        attributes.qp_access_flags = REMOTE
        attributes.dest_qp_num = peer["qpn"]
        attributes.ah_attr = AHAttr(port_num=1, dlid=lid)
        attributes.path_mtu = e.IBV_MTU_2048
        # With these first PSNs, the PSN wraps soon.
        attributes.sq_psn = attributes.rq_psn = 0xFFFFE0
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 1
        attributes.min_rnr_timer = 14
        attributes.timeout = timeout
        attributes.retry_cnt = 7
        # RNR retries are unlimited, because a stopped guest posts no receives.
        attributes.rnr_retry = 7
        self.qp.to_rtr(attributes)
        self.attributes = attributes
        for _ in range(SLOTS):
            self.post_receive()

    def go(self):
        """Moves the queue pair to RTS and starts sending. The other end must be ready."""
        self.qp.to_rts(self.attributes)
        self.heard = time.monotonic()
        self.running = True

    def report(self):
        """Returns the progress of this connection, and its errors in order, as pairs of request kind and status."""
        return {
            "sent": self.completed,
            "received": self.received,
            "reads": self.reads,
            "errors": self.errors,
            "outstanding": self.outstanding(),
            "wrong": self.wrong,
        }

    def outstanding(self):
        done = self.completed + self.received + self.reads + len(self.errors)
        return self.sent + self.receives_posted + self.reads_posted - done

    def stream(self, side, what, length):
        return hashlib.shake_128(f"{self.seed} {self.connection} {side} {what}".encode()).digest(length)

    def message(self, side, number):
        length = int.from_bytes(self.stream(side, f"length {number}", 4), "big") % LONGEST
        return self.stream(side, number, length)

    def post_receive(self):
        slot = RECEIVE + self.receives_posted % SLOTS * SLOT
        self.qp.post_recv(RecvWR(wr_id=2, num_sge=1, sg=[SGE(self.address + slot, SLOT, self.mr.lkey)]))
        self.receives_posted += 1

    def post_message(self):
        slot = self.sent % SLOTS * SLOT
        content = self.message(self.side, self.sent)
        self.memory[SEND + slot : SEND + slot + len(content)] = content
        imm = int.from_bytes(self.sent.to_bytes(4, "big"), sys.byteorder)
        sges = [SGE(self.address + SEND + slot, len(content), self.mr.lkey)]
        writes = self.sent % WRITES_EVERY == 1
        opcode = e.IBV_WR_RDMA_WRITE_WITH_IMM if writes else e.IBV_WR_SEND_WITH_IMM
        wr = SendWR(wr_id=0, opcode=opcode, num_sge=1, sg=sges, imm_data=imm)
        if writes:
            wr.set_wr_rdma(self.peer["rkey"], self.peer["addr"] + WRITTEN + slot)
        self.qp.post_send(wr)
        self.sent += 1

    def post_read(self):
        at, length = self.read_range(self.reads_posted)
        self.memory[FETCHED : FETCHED + length] = bytes(length)
        sges = [SGE(self.address + FETCHED, length, self.mr.lkey)]
        wr = SendWR(wr_id=1, opcode=e.IBV_WR_RDMA_READ, num_sge=1, sg=sges)
        wr.set_wr_rdma(self.peer["rkey"], self.peer["addr"] + SOURCE + at)
        self.qp.post_send(wr)
        self.reads_posted += 1

    def read_range(self, number):
        chance = self.stream(self.side, f"read {number}", 8)
        at = int.from_bytes(chance[:4], "big") % (SLOTS * SLOT - LONGEST)
        return at, 1 + int.from_bytes(chance[4:], "big") % (LONGEST - 1)

    def step(self):
        """Does pending work. Returns whether any work was pending."""
        _, completions = self.cq.poll(8)
        for wc in completions:
            self.complete(wc)
        if self.errors or self.wrong:
            return bool(completions)
        if completions:
            self.heard = time.monotonic()
        may_send = self.sent < self.received + WINDOW and self.sent < self.completed + SLOTS
        if may_send:
            self.post_message()
        wants_read = self.received // READS_EVERY > self.reads_posted or time.monotonic() - self.heard > SILENCE
        if wants_read and self.reads_posted == self.reads:
            self.post_read()
        return bool(completions) or may_send

    def complete(self, wc):
        # The RECV bit marks receives. The opcode of a failed request is undefined, but its wr_id is valid.
        if wc.status != e.IBV_WC_SUCCESS:
            self.errors.append(["request" if wc.wr_id < 2 else "receive", wc.status])
        elif wc.opcode & e.IBV_WC_RECV:
            self.check_message(wc)
        elif wc.wr_id == 1:
            at, length = self.read_range(self.reads)
            self.expect(self.memory[FETCHED : FETCHED + length] == self.other_source[at : at + length], "read", self.reads)
            self.reads += 1
        else:
            self.completed += 1

    def check_message(self, wc):
        number = self.received
        content = self.message(1 - self.side, number)
        writes = number % WRITES_EVERY == 1
        opcode = e.IBV_WC_RECV_RDMA_WITH_IMM if writes else e.IBV_WC_RECV
        slot = (WRITTEN if writes else RECEIVE) + number % SLOTS * SLOT
        imm = int.from_bytes(wc.imm_data.to_bytes(4, sys.byteorder), "big")
        is_right = wc.opcode == opcode and wc.byte_len == len(content) and imm == number
        self.expect(is_right, f"completion {wc.opcode} {wc.byte_len} {imm} of", number)
        self.expect(self.memory[slot : slot + len(content)] == content, "content of", number)
        # Clear the slot, so that the previous message's content cannot be mistaken for the next one's.
        self.memory[slot : slot + len(content)] = bytes(len(content))
        self.received += 1
        if not self.wrong:
            self.post_receive()

    def expect(self, is_right, what, number):
        if not is_right and not self.wrong:
            self.wrong = f"{what} message {number} of connection {self.connection}"


def main():
    talk = Talk()
    requests = select.poll()
    requests.register(sys.stdin, select.POLLIN)
    while True:
        if talk.running and talk.step():
            patience = 0
        else:
            patience = REST * 1000 if talk.running else None
        if not requests.poll(patience):
            continue
        line = sys.stdin.readline()
        if not line:
            return
        try:
            request = json.loads(line)
            answer = {"ok": getattr(talk, request.pop("do"))(**request)}
        except Exception as error:  # Every error is reported to the lab.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


main()
