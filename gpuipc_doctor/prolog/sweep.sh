#!/bin/sh
# Find stuck jobs: a custom plug-in for Kubernetes' node-problem-detector, and Slurm's HealthCheckProgram.
# Written by `gpuipc-doctor config hooks sweep`; write it anew rather than edit it.
#
# In slurm.conf, with this file's path:
#
#   HealthCheckProgram=@FILE@
#   HealthCheckInterval=300
#   HealthCheckNodeState=ANY   # the nodes with jobs, too
#
# It prints one line. Exit codes:
#   0  nothing is stuck; under Slurm always, because any other keeps slurmd from registering
#   1  a job is stuck
#   2  unknown
# Under Slurm, a line that says more than that nothing is stuck goes to syslog.

line=$(@ENV@ -i PATH=/usr/sbin:/usr/bin:/sbin:/bin @PYTHON@ -I -m gpuipc_doctor job --sweep --config @CONFIG@)
status=$?
printf '%s\n' "$line"
if [ -n "$SLURMD_NODENAME" ]; then
    [ "$status" -eq 0 ] || /usr/bin/logger -t gpuipc-doctor -p daemon.warning -- "${line#gpuipc-doctor: }"
    exit 0
fi
case $status in
    0) exit 0 ;;
    12) exit 1 ;;
    *) exit 2 ;;
esac
