"""Example tests that use the plugin pytest_guest_lab. To run them:

    pip install guest-tests/pytest
    pytest --guest-lab-kind mthca guest-tests/examples/pytest
"""
import subprocess

import pytest


def test_messages_arrive(rdma_pair):
    with rdma_pair.a.popen("ibv_rc_pingpong", "-c", "-n", 100, stdout=subprocess.DEVNULL) as server:
        client = rdma_pair.b.run_until_success("ibv_rc_pingpong", "-c", "-n", 100, "a")
    assert server.returncode == 0
    assert "100 iters in " in client.stdout


def test_device_has_driver(rdma_pair):
    device = rdma_pair.a.rdma_device
    assert device in rdma_pair.a.run("ibv_devices").stdout


def test_input_and_status_are_forwarded(rdma_pair):
    done = rdma_pair.b.run("sh", "-c", "cat; echo why >&2; exit 3", input="to guest b", check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "to guest b", "why\n")
    with pytest.raises(AssertionError, match="guest b with status 3"):
        rdma_pair.b.run("sh", "-c", "exit 3")
