#!/bin/sh
# The last reports go with dpkg's `purge`, and with rpm's last package; rpm has no purge.
set -e
case $1 in
    purge | 0) rm -rf /var/lib/gpuipc-doctor /var/lib/gpuipc-doctor-sweep ;;
esac
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
