"""Runs rdma-core's tests in a guest: `FOLDER DEVICE TURNS PATIENT MODULE...`. Prints one line of JSON per test:
{"test": ID, "outcome": "passed" | "skipped" | "failed", "text": reason or error}.

TURNS are methods that only one process may execute at a time. They have the form "module.Class.method" and are
separated by commas. PATIENT are tests in the same form. They wait after each SEND, so that the SEND can complete.

Each test runs in a process forked from one that has loaded all tests. The garbage collector is disabled in the forked
process. Otherwise, if a test skips itself half-way, the collector would close the device before the device's objects,
which crashes the process.
"""

import fcntl
import functools
import gc
import json
import os
import random
import signal
import sys
import tempfile
import time
import unittest
from importlib.machinery import SourceFileLoader

# Time limit of a test in seconds. When it expires, the test is killed and counts as failed.
LIMIT = 120
# File that a process locks while it executes one of the methods in TURNS.
TURN = "/tmp/turn"
# Time in seconds in which a busy device completes a SEND.
COMPLETED = 0.5


def load(folder, device, modules):
    """Returns the tests that the suite's own `run_tests.py` finds."""
    sys.path.insert(0, folder)
    sys.argv = ["run_tests.py", "--dev", device, "--port", "1"]
    from args_parser import parser

    package = SourceFileLoader("tests", os.path.join(folder, "__init__.py")).load_module()
    parser.parse_args()
    return unittest.defaultTestLoader.loadTestsFromNames(modules, package)


def find(name):
    """Returns a method's class, the method's name and the method itself."""
    module, owner, method = name.split(".")
    owner = getattr(sys.modules[f"tests.{module}"], owner)
    return owner, method, getattr(owner, method)


def take_turns(name):
    """Serialises the execution of a method between processes."""
    owner, method, plain = find(name)

    @functools.wraps(plain)
    def in_turn(*args, **kwargs):
        with open(TURN, "w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            return plain(*args, **kwargs)

    setattr(owner, method, in_turn)


def be_patient(name):
    """Makes a test wait after each SEND."""
    owner, method, plain = find(name)
    utils = sys.modules["tests.utils"]
    send = utils.send

    def send_and_wait(*args, **kwargs):
        send(*args, **kwargs)
        time.sleep(COMPLETED)

    @functools.wraps(plain)
    def patient(*args, **kwargs):
        # The process runs only this test, so `send` need not be restored.
        utils.send = send_and_wait
        return plain(*args, **kwargs)

    setattr(owner, method, patient)


def cases(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from cases(test)
        else:
            yield test


def judge(test):
    """Runs a test as a separate suite, so that the class of the test is set up too. Returns the test's result."""
    result = unittest.TestResult()
    unittest.TestSuite([test]).run(result)
    if result.skipped:
        return "skipped", result.skipped[0][1]
    wrong = [text for _, text in result.errors + result.failures]
    wrong += ["passed, although it is marked as an expected failure" for _ in result.unexpectedSuccesses]
    return ("failed", "\n".join(wrong)) if wrong else ("passed", "")


def run(test):
    """Runs a test in a separate process."""
    with tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as printed:
        child = os.fork()
        if child == 0:
            gc.disable()
            # Some tests make random choices. Use the same seed each time, so that known results stay valid.
            random.seed(test.id())
            # Put the test into its own process group, so that its child processes are killed together with it.
            os.setpgid(0, 0)
            os.dup2(printed.fileno(), 1)
            os.dup2(printed.fileno(), 2)
            signal.alarm(LIMIT)
            answer.write(json.dumps(judge(test)).encode())
            answer.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
        for file in (answer, printed):
            file.seek(0)
        text = answer.read().decode()
        outcome, text = json.loads(text) if text else ("failed", f"ended with status {status:#x}")
        if outcome == "failed":
            text += printed.read().decode(errors="replace")
    return {"test": test.id(), "outcome": outcome, "text": text}


def main():
    folder, device, turns, patient, *modules = sys.argv[1:]
    tests = load(folder, device, modules)
    for name in filter(None, turns.split(",")):
        take_turns(name)
    for name in filter(None, patient.split(",")):
        be_patient(name)
    for test in cases(tests):
        print(json.dumps(run(test)), flush=True)


main()
