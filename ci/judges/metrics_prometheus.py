"""Reads the metrics of a running hcad with Prometheus's own parser, and checks Prometheus's conventions for names.

Usage: metrics_prometheus.py SOCKET
"""

import http.client
import socket
import sys

from prometheus_client.parser import text_string_to_metric_families

# Suffixes of the base units that hcad uses (Prometheus, "Metric and label naming").
UNITS = ("_seconds", "_bytes")
# Suffixes of other units of time and size, which are not permitted.
WRONG = ("_ms", "_us", "_ns", "_microseconds", "_milliseconds", "_kb", "_kib", "_mb")
# Maximum number of series per device, regardless of the guest's behaviour. It limits the memory that Prometheus needs.
MOST_SERIES = 1000


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=20)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(20)
        self.sock.connect(self.path)


def main():
    connection = Connection(sys.argv[1])
    connection.request("GET", "/metrics")
    response = connection.getresponse()
    assert response.status == 200, response.status
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8", response.headers
    text = response.read().decode()
    types = {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, f"{name} is declared twice"
            types[name] = kind
    families = list(text_string_to_metric_families(text))
    assert len(families) == len(types), (len(families), len(types))
    series = {}
    for family in families:
        assert family.documentation, f"{family.name} has no help"
        name = family.name + "_total" if family.type == "counter" else family.name
        assert types[name] == family.type, (family.name, family.type)
        assert name.startswith(("hcad_", "process_")), name
        assert not name.removesuffix("_total").endswith(WRONG), name
        if family.type == "histogram":
            assert name.endswith(UNITS), name
        seen = set()
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in seen, f"{key} occurs twice"
            seen.add(key)
            assert "qpn" not in sample.labels, key
            device = sample.labels.get("device")
            series[device] = series.get(device, 0) + 1
    up = [sample for family in families if family.name == "hcad_device_up" for sample in family.samples]
    assert len(up) == 2 and all(sample.value == 1 for sample in up), up
    assert all(count <= MOST_SERIES for count in series.values()), series
    print(f"{len(families)} families, {sum(series.values())} series")


main()
