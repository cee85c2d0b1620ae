"""Stock verbs in a guest. Each line of standard input is a request, and each line of standard output is an answer.

A request is {"do": NAME, ...}, and its answer is {"ok": VALUE} or {"error": TEXT}. NAME is a method of Verbs, and the
other keys are the arguments of the method. Numbers are in host order. Immediate data consists of four bytes in memory
order, in hexadecimal.
"""

import ctypes
import ipaddress
import itertools
import json
import mmap
import os
import select
import struct
import sys
import time

from pyverbs import libibverbs_enums as e
from pyverbs.addr import AH, GID, AHAttr, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR, MW, MWBind, MWBindInfo
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, RecvWR, SendWR

SERVICES = {"rc": e.IBV_QPT_RC, "uc": e.IBV_QPT_UC, "ud": e.IBV_QPT_UD}
OPERATIONS = {
    "send": e.IBV_WR_SEND,
    "send_imm": e.IBV_WR_SEND_WITH_IMM,
    "write": e.IBV_WR_RDMA_WRITE,
    "write_imm": e.IBV_WR_RDMA_WRITE_WITH_IMM,
    "read": e.IBV_WR_RDMA_READ,
    "cmp_swap": e.IBV_WR_ATOMIC_CMP_AND_SWP,
    "fetch_add": e.IBV_WR_ATOMIC_FETCH_AND_ADD,
}
MTUS = {256: e.IBV_MTU_256, 512: e.IBV_MTU_512, 1024: e.IBV_MTU_1024, 2048: e.IBV_MTU_2048, 4096: e.IBV_MTU_4096}
# Bit in a completion's opcode that marks receives.
RECEIVED = e.IBV_WC_RECV
# Access rights of peers, for services with remote access.
REMOTE = {
    "rc": e.IBV_ACCESS_REMOTE_READ | e.IBV_ACCESS_REMOTE_WRITE | e.IBV_ACCESS_REMOTE_ATOMIC,
    "uc": e.IBV_ACCESS_REMOTE_WRITE,
    "ud": 0,
}
QUEUE_LEN = 128
# Number of the attach command in the kernel's uverbs interface.
ATTACH_MCAST = 30
# Number of handles to try. It exceeds the number of this program's objects.
HANDLES = 64


class Verbs:
    """One device with its objects. Requests refer to objects by number."""

    def __init__(self):
        self.context = self.pd = None
        self.objects = {}
        self.numbers = itertools.count(1)

    def add(self, value):
        number = next(self.numbers)
        self.objects[number] = value
        return number

    def open(self, device):
        """Opens a device by name. Returns the attributes of its first port."""
        before = event_descriptors()
        self.context = Context(name=device)
        (self.event_descriptor,) = event_descriptors() - before
        self.pd = PD(self.context)
        port = self.context.query_port(1)
        gids = [str(self.context.query_gid(1, i)) for i in range(port.gid_tbl_len)]
        return {"lid": port.lid, "gids": gids, "mtu": 128 << port.active_mtu, "active": port.state == e.IBV_PORT_ACTIVE}

    def region(self, path, len):
        """Registers a mapped file of `len` bytes with all access rights. Other programs can access the file."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(descriptor, len)
        memory = mmap.mmap(descriptor, len)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        mr = MR(self.pd, len, e.IBV_ACCESS_LOCAL_WRITE | REMOTE["rc"], address=address)
        return {"id": self.add((memory, mr)), "addr": address, "lkey": mr.lkey, "rkey": mr.rkey}

    def deregister(self, region):
        """Deregisters the memory of a file. The file is kept."""
        _, mr = self.objects.pop(region)
        mr.close()

    def window(self, qp, region):
        """Creates a type 1 window for all of a region's memory, with remote write access."""
        memory, mr = self.objects[region]
        bound = MR(self.pd, len(memory), e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_MW_BIND, address=mr.buf)
        window = MW(self.pd, e.IBV_MW_TYPE_1)
        self.bind(qp, window, MWBindInfo(bound, bound.buf, len(memory), e.IBV_ACCESS_REMOTE_WRITE))
        return {"id": self.add((bound, window)), "rkey": window.rkey}

    def unbind(self, qp, window):
        """Invalidates a window by binding it with length 0."""
        bound, window = self.objects[window]
        self.bind(qp, window, MWBindInfo(bound, bound.buf, 0, 0))

    def bind(self, qp, window, info):
        """Binds a window, and waits for completion. The send queue must be empty."""
        self.objects[qp][0].bind_mw(window, MWBind(info, e.IBV_SEND_SIGNALED))
        statuses = [completion["status"] for completion in self.poll(qp, 1, 60_000)]
        if statuses != [e.IBV_WC_SUCCESS]:
            raise RuntimeError(f"binding the memory window completed with statuses {statuses}")

    def queue_pair(self, service, completions):
        """Creates a queue pair in RESET with one completion queue.

        The completion queue has `completions` entries, or by default enough entries for all requests.
        """
        cq = CQ(self.context, completions or 2 * QUEUE_LEN)
        cap = QPCap(max_send_wr=QUEUE_LEN, max_recv_wr=QUEUE_LEN, max_send_sge=4, max_recv_sge=4)
        attributes = QPInitAttr(qp_type=SERVICES[service], scq=cq, rcq=cq, cap=cap, sq_sig_all=1)
        qp = QP(self.pd, attributes)
        return {"id": self.add((qp, cq, service)), "qpn": qp.qp_num}

    def route(self, gid, sgid_index, lid):
        """Returns address attributes. If `gid` is None, the address is in the local subnet."""
        if gid is None:
            return AHAttr(port_num=1, dlid=lid)
        gr = GlobalRoute(dgid=GID(gid), sgid_index=sgid_index, hop_limit=64)
        return AHAttr(port_num=1, is_global=1, dlid=lid, gr=gr)

    def connect(self, qp, peer, mtu, psn, peer_psn, qkey, timeout, retry, rnr_retry, rnr_timer):
        """Moves a queue pair from RESET to RTS. A UD queue pair needs only its own PSN and Q_Key."""
        qp, _, service = self.objects[qp]
        attributes = QPAttr(port_num=1)
        attributes.sq_psn = psn
        if service == "ud":
            attributes.qkey = qkey
        else:
            attributes.qp_access_flags = REMOTE[service]
            attributes.dest_qp_num = peer["qpn"]
            attributes.ah_attr = self.route(peer["gid"], peer["sgid_index"], peer["lid"])
            attributes.path_mtu = MTUS[mtu]
            attributes.rq_psn = peer_psn
        if service == "rc":
            attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 4
            attributes.min_rnr_timer = rnr_timer
            attributes.timeout = timeout
            attributes.retry_cnt = retry
            attributes.rnr_retry = rnr_retry
        qp.to_rts(attributes)

    def address(self, peer):
        """Creates an address handle."""
        return self.add(AH(self.pd, attr=self.route(peer["gid"], peer["sgid_index"], peer["lid"])))

    def migration(self, qp):
        """Returns the path migration state of a queue pair."""
        attributes, _ = self.objects[qp][0].query(e.IBV_QP_PATH_MIG_STATE)
        return attributes.path_mig_state

    def join(self, qp, gid):
        """Attaches the program's only queue pair to a multicast group.

        pyverbs lacks this command, so the program writes it to the kernel directly (ib_user_verbs.h,
        IB_USER_VERBS_CMD_ATTACH_MCAST). pyverbs also hides the queue pair's handle. Handles are small numbers, and the
        kernel rejects handles of other objects, so the program tries all small numbers.
        """
        group = ipaddress.ip_address(gid).packed
        for handle in range(HANDLES):
            try:
                os.write(self.context.cmd_fd, struct.pack("=IHH16sIHH", ATTACH_MCAST, 8, 0, group, handle, 0, 0))
                return
            except OSError as error:
                refusal = error
        raise RuntimeError(f"queue pair {qp} cannot join the group: {refusal}")

    def post_recv(self, qp, lists):
        """Posts receive requests. Each request is a list of [addr, len, lkey]."""
        for elements in lists:
            sges = [SGE(*element) for element in elements]
            self.objects[qp][0].post_recv(RecvWR(num_sge=len(sges), sg=sges))

    def post_send(self, qp, requests):
        """Posts signalled send requests one by one."""
        for request in requests:
            sges = [SGE(*element) for element in request["sges"]]
            wr = SendWR(
                opcode=OPERATIONS[request["op"]],
                num_sge=len(sges),
                sg=sges,
                imm_data=int.from_bytes(bytes.fromhex(request["imm"]), sys.byteorder),
            )
            if request["op"] in ("cmp_swap", "fetch_add"):
                wr.set_wr_atomic(request["rkey"], request["va"], request["compare_add"], request["swap"])
            elif request["op"] in ("write", "write_imm", "read"):
                wr.set_wr_rdma(request["rkey"], request["va"])
            if request["ah"] is not None:
                wr.set_wr_ud(self.objects[request["ah"]], request["qpn"], request["qkey"])
            self.objects[qp][0].post_send(wr)

    def poll(self, qp, count, timeout_ms):
        """Waits for completions. Returns fewer than `count` if the time limit expires."""
        cq = self.objects[qp][1]
        deadline = time.monotonic() + timeout_ms / 1000
        found = []
        while len(found) < count:
            number, completions = cq.poll(count - len(found))
            found += [self.completion(wc) for wc in completions]
            if number == 0:
                if time.monotonic() > deadline:
                    break
                # The device may need the same CPU.
                time.sleep(0.0005)
        return found

    def events(self, timeout_ms):
        """Returns the codes of asynchronous events. Waits up to `timeout_ms` for the first one."""
        descriptor = select.poll()
        descriptor.register(self.event_descriptor, select.POLLIN)
        found = []
        while descriptor.poll(0 if found else timeout_ms):
            event = self.context.get_async_event()
            found.append(event.event_type)
            # An object cannot be destroyed before its events are acknowledged.
            event.ack()
        return found

    def completion(self, wc):
        imm = wc.imm_data.to_bytes(4, sys.byteorder).hex() if wc.wc_flags & e.IBV_WC_WITH_IMM else None
        return {
            "status": wc.status,
            "received": bool(wc.opcode & RECEIVED),
            "bytes": wc.byte_len,
            "imm": imm,
            "grh": bool(wc.wc_flags & e.IBV_WC_GRH),
            "src_qp": wc.src_qp,
        }

    def destroy(self, qp):
        """Closes a queue pair and its completion queue."""
        qp, cq, _ = self.objects.pop(qp)
        qp.close()
        cq.close()


def event_descriptors():
    """Returns the descriptors of all event files. `open` compares two results to find the one that pyverbs uses."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if "infinibandevent" in os.readlink(f"/proc/self/fd/{name}"):
                found.add(int(name))
        except FileNotFoundError:  # This descriptor was used to read the directory.
            pass
    return found


def main():
    verbs = Verbs()
    for line in sys.stdin:
        try:
            request = json.loads(line)
            answer = {"ok": getattr(verbs, request.pop("do"))(**request)}
        except Exception as error:  # Every error is reported to the lab.
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


main()
