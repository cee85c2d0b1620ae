"""Registers one buffer many times, reports success, and keeps the regions until standard input ends.

The arguments are the device, the size of the buffer in bytes, and the number of regions.
"""

import ctypes
import mmap
import sys

from pyverbs import libibverbs_enums as e
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD

device, length, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
memory = mmap.mmap(-1, length)
# Forbid huge pages, because the region would have only one entry per huge page.
memory.madvise(mmap.MADV_NOHUGEPAGE)
address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
pd = PD(Context(name=device))
regions = [MR(pd, length, e.IBV_ACCESS_LOCAL_WRITE, address=address) for _ in range(count)]
print(f"registered {len(regions)} regions", flush=True)
sys.stdin.read()
