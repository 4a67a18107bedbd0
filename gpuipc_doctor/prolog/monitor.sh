#!/bin/sh
# A custom plug-in for Kubernetes' node-problem-detector, and a preflight check for NVSentinel.
# Written by `gpuipc-doctor config hooks monitor`; write it anew rather than edit it.
#
# It prints one line. Exit codes:
#   0  healthy, or nothing for which the site config wants the node drained
#   1  the site config wants the node drained
#   2  unknown: gpuipc-doctor is missing or broken, or its config is wrong

@ENV@ -i @PYTHON@ -I -m gpuipc_doctor config validate @CONFIG@ >/dev/null || exit 2
reason=$(@ENV@ -i @PYTHON@ -I -m gpuipc_doctor prolog --config @CONFIG@)
status=$?
printf '%s\n' "$reason"
case $status in
    0) exit 0 ;;
    11 | 12) exit 1 ;;
    *) exit 2 ;;
esac
