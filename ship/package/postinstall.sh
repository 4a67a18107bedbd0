#!/bin/sh
# Compile once, as root, so that the prolog starts as fast as it can; small tables follow with the first run.
set -e
/opt/gpuipc-doctor/bin/python -I -m compileall -q /opt/gpuipc-doctor/lib || true  # some packages bring templates
/opt/gpuipc-doctor/bin/gpuipc-doctor known-issues list >/dev/null || true
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
