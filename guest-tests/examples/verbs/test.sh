#!/bin/sh -e
# Guest a waits for a message. Guest b tries to send the message until guest a has received it. To run this script:
#
#   guest-lab ci connectx --folder guest-tests/examples/verbs -- ./test.sh
case $HCAD_GUEST in
a) python3 hello.py serve "$HCAD_RDMA_IP_A" ;;
b) until python3 hello.py send "$HCAD_RDMA_IP_A"; do sleep 1; done ;;
esac
