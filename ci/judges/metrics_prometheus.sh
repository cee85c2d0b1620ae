#!/usr/bin/env bash
# Starts hcad, and checks its metrics with metrics_prometheus.py and a pinned version of prometheus-client.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
hcad=$1
python=$("$here/../../guest-tests/peer/python")
folder=$(mktemp -d)
trap 'kill "$daemon" 2>/dev/null || :; wait || :; rm -rf "$folder"' EXIT
"$python" - "$here/../../configs/local.json" "$folder" <<'END'
import json, sys
config, folder = json.load(open(sys.argv[1])), sys.argv[2]
for device in config["devices"]:
    device["socket_path"] = f"{folder}/{device['id']}.sock"
config["control_socket"] = f"{folder}/control.sock"
config["metrics"] = f"{folder}/metrics.sock"
json.dump(config, open(f"{folder}/hcad.json", "w"))
END
"$hcad" --config "$folder/hcad.json" 2>"$folder/log" &
daemon=$!
timeout 20 sh -c "until grep -sq ready '$folder/log'; do sleep 0.05; done" || { cat "$folder/log"; exit 1; }
"$python" "$here/metrics_prometheus.py" "$folder/metrics.sock"
