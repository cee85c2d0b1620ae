"""A pytest plugin that gives tests two guests with RDMA devices.

    def test_ping_pong(rdma_pair):
        with rdma_pair.a.popen("ibv_rc_pingpong") as server:
            rdma_pair.b.run_until_success("ibv_rc_pingpong", "a")
        assert server.returncode == 0

The fixture `rdma_pair` boots the guests for the first test that uses it, and stops them after the last one. Guests `a` and
`b` are objects of class Guest. See `pytest --help` for the options, which start with `--guest-lab`.
"""

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass

import pytest

# Time limits in seconds.
RUN_TIMEOUT = 120
RETRY_TIMEOUT = 60


def pytest_addoption(parser):
    group = parser.getgroup("guest-lab")
    group.addoption("--guest-lab-kind", default="connectx", metavar="KIND",
                    help="kind of RDMA device in the guests, as for 'guest-lab up' (default: connectx)")
    group.addoption("--guest-lab-options", default="", metavar="OPTIONS",
                    help="further options of 'guest-lab up', separated by spaces, such as '--strict --share .:/t'")
    group.addoption("--guest-lab-testbed", metavar="NAME",
                    help="use the guests of this running testbed, and leave them running")


class LabError(Exception):
    """The guests are not available, or guest-lab failed."""


class Program(subprocess.Popen):
    """A program that runs in a guest.

    A `with` block ends by waiting for the program to exit. If the block fails or the wait times out, the program is
    killed.
    """

    def __exit__(self, kind, value, traceback):
        try:
            if kind is None:
                self.wait(RUN_TIMEOUT)
        finally:
            if self.poll() is None:
                self.kill()
            super().__exit__(kind, value, traceback)


@dataclass(frozen=True)
class Guest:
    """A running guest.

    Attributes: `name`; `ip`, the address on the Ethernet between the guests; `rdma_ip`, the address of the RDMA device,
    or None; `rdma_device`, such as `mlx5_0`, or None.
    """
    program: str
    testbed: str
    name: str
    ip: str
    rdma_ip: str | None
    rdma_device: str | None

    def popen(self, *argv, **options):
        """Starts a program in the guest, as root, and returns a Program. The options are those of subprocess.Popen.

        Killing the process also ends the program in the guest.
        """
        options.setdefault("stdin", subprocess.DEVNULL)
        return Program(self._command(argv), **options)

    def run(self, *argv, check=True, timeout=RUN_TIMEOUT, **options):
        """Runs a program in the guest, and returns a subprocess.CompletedProcess with its output as text.

        If the program fails and `check` is true, raises an AssertionError that contains the output.
        """
        if "input" not in options:
            options.setdefault("stdin", subprocess.DEVNULL)
        done = subprocess.run(self._command(argv), capture_output=True, text=True, timeout=timeout, **options)
        if check and done.returncode != 0:
            raise AssertionError(
                f"{' '.join(map(str, argv))} failed in guest {self.name} with status {done.returncode}:\n"
                f"{done.stdout}{done.stderr}")
        return done

    def run_until_success(self, *argv, timeout=RETRY_TIMEOUT):
        """Runs a program repeatedly until it succeeds, because a server in the other guest may not listen yet."""
        end = time.monotonic() + timeout
        while True:
            done = self.run(*argv, check=time.monotonic() >= end)
            if done.returncode == 0:
                return done
            time.sleep(0.2)

    def _command(self, argv):
        target = f"{self.testbed}:{self.name}"
        return [self.program, "exec", target, "--tty", "false", "--", *map(str, argv)]


@dataclass(frozen=True)
class Pair:
    """Two guests, `a` and `b`, whose RDMA devices are on one fabric."""
    a: Guest
    b: Guest


def guest_lab():
    """Returns the path of guest-lab, in $HCAD_PROGRAMS or, if that is unset, in the search path."""
    folder = os.environ.get("HCAD_PROGRAMS")
    program = os.path.join(folder, "guest-lab") if folder else "guest-lab"
    found = shutil.which(program)
    if found is None:
        raise LabError(f"{program} does not exist; add its directory to PATH, or set HCAD_PROGRAMS to that directory")
    return found


def _lab(*arguments):
    done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise LabError(f"{' '.join(arguments)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


@pytest.fixture(scope="session")
def rdma_pair(request):
    """Two running guests, `rdma_pair.a` and `rdma_pair.b`, with RDMA devices on one fabric."""
    option = request.config.getoption
    program, name = guest_lab(), option("--guest-lab-testbed")
    if name:
        testbeds = _lab(program, "ps", "--json")
        found = next((testbed for testbed in testbeds if testbed["name"] == name), None)
        if found is None:
            raise LabError(f"testbed {name} is not running; start it with 'guest-lab up --name {name}'")
    else:
        process = str(os.getpid())
        # If pytest is killed, --for-pid stops the guests.
        found = _lab(program, "up", option("--guest-lab-kind"), "--json", "--name", f"pytest-{process}",
                     "--for-pid", process, "--count", "2", *option("--guest-lab-options").split())
    fields = ("name", "ip", "rdma_ip", "rdma_device")
    guests = [Guest(program, found["name"], *(guest[field] for field in fields)) for guest in found["guests"]]
    if len(guests) < 2:
        raise LabError(f"testbed {found['name']} has only one guest")
    yield Pair(*guests[:2])
    if not name:
        _lab(program, "down", "--json", found["name"])
