"""Executes shell commands received over TCP, like a remote shell. Accepts any client that can reach this address."""

import socket
import subprocess
import sys

listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
while True:
    connection, _ = listener.accept()
    subprocess.Popen(["sh"], stdin=connection, stdout=connection, stderr=connection)
    connection.close()
