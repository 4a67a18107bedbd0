#!/bin/sh
# gpuipc-doctor in one file: this text, and a zip archive behind it that Python runs.
# GPUIPC_DOCTOR_PYTHON names the Python that has the node's bindings; without it, the first that is new enough.
named=$GPUIPC_DOCTOR_PYTHON
# An empty entry of PYTHONPATH stands for the working directory. Root's Python takes nothing from the environment.
while :; do
    case $PYTHONPATH in
        :*) PYTHONPATH=${PYTHONPATH#:} ;;
        *:) PYTHONPATH=${PYTHONPATH%:} ;;
        *::*) PYTHONPATH=${PYTHONPATH%%::*}:${PYTHONPATH#*::} ;;
        *) break ;;
    esac
done
alone=
[ "$(id -u 2>/dev/null)" != 0 ] || alone="-E -s"
# The compiled modules in this file are for these versions, and not for free-threaded builds.
fits() {
    "$1" $alone -c 'import sys, sysconfig
sys.exit(not (3, 10) <= sys.version_info < (3, 15) or bool(sysconfig.get_config_var("Py_GIL_DISABLED")))' >/dev/null 2>&1
}
if [ -z "$named" ]; then
    for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        fits "$python" && exec "$python" $alone "$0" "$@"
    done
    why="no Python 3.10 to 3.14 was found here; name one: GPUIPC_DOCTOR_PYTHON=/path/to/python3"
elif fits "$named"; then
    exec "$named" $alone "$0" "$@"
elif command -v "$named" >/dev/null 2>&1; then
    why="$named is no Python 3.10 to 3.14 with a GIL ($("$named" -V 2>&1 | head -n 1)); name another one"
else
    why="$named was not found; name a Python 3.10 to 3.14 of this node"
fi
echo "gpuipc-doctor: $why" >&2
[ "$1" != --once ] || rm -f -- "$0"
exit 127
