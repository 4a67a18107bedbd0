#!/bin/sh
# gpuipc-doctor in one file: this text, and a zip archive behind it that Python runs.
# GPUIPC_DOCTOR_PYTHON names the Python that has the node's bindings; else the first of those that are new enough.
for python in "$GPUIPC_DOCTOR_PYTHON" python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
    [ -n "$python" ] && command -v "$python" >/dev/null 2>&1 || continue
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null && exec "$python" "$0" "$@"
done
echo "gpuipc-doctor: no Python 3.10 or newer was found here; name one: GPUIPC_DOCTOR_PYTHON=/path/to/python3" >&2
[ "$1" != --once ] || rm -f -- "$0"
exit 127
