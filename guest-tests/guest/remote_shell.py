"""Runs what comes over TCP as shell commands, as a remote shell does, for whoever can reach this address."""

import socket
import subprocess
import sys

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    connection, _ = listener.accept()
    subprocess.Popen(["sh"], stdin=connection, stdout=connection, stderr=connection)
    connection.close()
