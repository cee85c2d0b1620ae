#!/usr/bin/env python3
"""Checks the KubeVirt hook: runs it with a stand-in for hcad, and parses the domain XML that the hook prints.

Usage: kubevirt_hook.py HOOK
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

QEMU = "{http://libvirt.org/schemas/domain/qemu/1.0}"
BARE = "<domain type='kvm'>\n  <name>vm</name>\n</domain>"
# A domain to which KubeVirt has already added the elements that the hook extends, for other features.
FULL = (
    f"<domain type='kvm' xmlns:qemu='{QEMU[1:-1]}'><memoryBacking><hugepages/></memoryBacking>"
    "<qemu:commandline><qemu:arg value='-s'/></qemu:commandline></domain>"
)
# The stand-in creates a socket and keeps running, as hcad does. It exits once its directory is deleted.
HCAD = """#!/usr/bin/env python3
import os, socket, time
path = os.environ["HCAD_FOLDER"] + "/hcad.sock"
socket.socket(socket.AF_UNIX).bind(path)
while os.path.exists(path):
    time.sleep(0.1)
"""


def run(hook, domain):
    with tempfile.TemporaryDirectory() as folder:
        program = folder + "/hcad"
        with open(program, "w") as file:
            file.write(HCAD)
        os.chmod(program, 0o755)
        environment = os.environ | {"PATH": folder + ":" + os.environ["PATH"], "HCAD_FOLDER": folder}
        words = [hook, "--vmi", "{}", "--domain", domain]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return ElementTree.fromstring(done.stdout)


def check(hook, domain, before, backing):
    root = run(hook, domain)
    [line] = root.findall(QEMU + "commandline")
    arguments = [argument.get("value") for argument in line]
    path = "/var/run/kubevirt-hooks/hook-sidecar-0/hcad.sock"
    device = f'{{"driver":"vfio-user-pci","socket":{{"path":"{path}","type":"unix"}}}}'
    assert arguments == [*before, "-device", device], arguments
    [memory] = root.findall("memoryBacking")
    assert [element.tag for element in memory] == [*backing, "source", "access"], ElementTree.tostring(memory)
    assert memory.find("source").get("type") == "memfd" and memory.find("access").get("mode") == "shared"


check(sys.argv[1], BARE, [], [])
check(sys.argv[1], FULL, ["-s"], ["hugepages"])
