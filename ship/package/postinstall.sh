#!/bin/sh
# Compile once, as root: nothing is written below /opt afterwards, and the prolog starts as fast as it can.
set -e
/opt/gpuipc-doctor/bin/python -I -m compileall -q /opt/gpuipc-doctor/lib || true  # some packages bring templates
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
