"""MPI ring and all-to-all exchanges. Each rank checks every byte it receives, and prints a line on success."""

from mpi4py import MPI

SIZES = [0, 1, 100, 4096, 65537, 1 << 20]
ROUNDS = 3
PERIOD = 251


def pattern(source, target, size, round):
    """Returns the message from one rank to another. Each message is unique in a run."""
    period = bytes((31 * source + 17 * target + 7 * round + 3 * i) % PERIOD for i in range(PERIOD))
    return (period * (size // PERIOD + 1))[:size]


def check(found, expected, what):
    if found != expected:
        at = next(i for i, (a, b) in enumerate(zip(found, expected)) if a != b)
        print(f"{what}: byte {at} is {found[at]}, not {expected[at]}", flush=True)
        # Abort all ranks. A rank that exited alone would wait for the other ranks, which wait for its messages.
        MPI.COMM_WORLD.Abort(1)


def ring(world, size, round):
    """The message of each rank passes through all ranks, and each rank checks it."""
    rank, ranks = world.Get_rank(), world.Get_size()
    data, into = bytearray(pattern(rank, 0, size, round)), bytearray(size)
    for hop in range(1, ranks + 1):
        world.Sendrecv(data, (rank + 1) % ranks, hop, into, (rank - 1) % ranks, hop)
        data, into = into, data
        check(data, pattern((rank - hop) % ranks, 0, size, round), f"ring of {size} bytes, hop {hop}, rank {rank}")


def all_to_all(world, size, round):
    rank, ranks = world.Get_rank(), world.Get_size()
    data = bytearray(b"".join(pattern(rank, to, size, round) for to in range(ranks)))
    into = bytearray(size * ranks)
    world.Alltoall([data, size, MPI.BYTE], [into, size, MPI.BYTE])
    expected = b"".join(pattern(source, rank, size, round) for source in range(ranks))
    check(into, expected, f"all-to-all of {size} bytes, rank {rank}")


world = MPI.COMM_WORLD
for round in range(ROUNDS):
    for size in SIZES:
        ring(world, size, round)
        all_to_all(world, size, round)
world.Barrier()
print(f"rank {world.Get_rank()} of {world.Get_size()} on {MPI.Get_processor_name()} received everything as sent", flush=True)
