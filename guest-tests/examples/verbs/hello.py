"""Sends a message over RDMA. "hello.py serve ADDRESS" receives it, "hello.py send ADDRESS" sends it."""
import sys
import pyverbs.cm_enums as cm
from pyverbs.cmid import CMID, AddrInfo
from pyverbs.pyverbs_error import PyverbsRDMAError
from pyverbs.qp import QPCap, QPInitAttr

serves, address = sys.argv[1] == "serve", sys.argv[2]
where = {"src": address, "src_service": "7471"} if serves else {"dst": address, "dst_service": "7471"}
info = AddrInfo(port_space=cm.RDMA_PS_TCP, flags=cm.RAI_PASSIVE if serves else 0, **where)
end = CMID(creator=info, qp_init_attr=QPInitAttr(cap=QPCap(max_recv_wr=1)))
if serves:
    end.listen()
    peer = end.get_request()
    memory = peer.reg_msgs(64)
    peer.post_recv(memory)
    peer.accept()
    peer.get_recv_comp()
    assert memory.read(5, 0) == b"hello"
    print("received: hello")
else:
    memory = end.reg_msgs(64)
    try:
        end.connect()
    except PyverbsRDMAError as error:
        sys.exit(f"not connected: {error}")
    memory.write("hello", 5)
    end.post_send(memory)
    end.get_send_comp()
    print("sent: hello")
