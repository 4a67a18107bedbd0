#!/bin/sh
# $1 is dpkg's `remove` or `upgrade`, or the number of packages of this name that rpm will leave: 0 or 1. While rpm
# upgrades, the new package is compiled already, so its files stay.
set -e
case $1 in
    1) exit 0 ;;
    0 | remove)
        if [ -d /run/systemd/system ]; then
            systemctl disable --now gpuipc-doctor-metrics.timer gpuipc-doctor-sweep.timer || true
        fi ;;
esac
find /opt/gpuipc-doctor/lib -name __pycache__ -prune -exec rm -rf {} +
