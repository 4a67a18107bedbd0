#!/bin/sh
# gpuipc-doctor in one file: this text, and a zip archive behind it that Python runs.
# GPUIPC_DOCTOR_PYTHON names the Python that has the node's bindings; without it, the first that is new enough.
named=$GPUIPC_DOCTOR_PYTHON path=${PATH:-/usr/bin:/bin}
PATH=/usr/sbin:/usr/bin:/sbin:/bin:$path
# An empty entry of PYTHONPATH stands for the working directory.
while :; do
    case $PYTHONPATH in
        :*) PYTHONPATH=${PYTHONPATH#:} ;;
        *:) PYTHONPATH=${PYTHONPATH%:} ;;
        *::*) PYTHONPATH=${PYTHONPATH%%::*}:${PYTHONPATH#*::} ;;
        *) break ;;
    esac
done
# Root's Python takes nothing from the environment, and is one that only root can change. These two -I does not ignore.
alone=
if [ "$(id -u)" = 0 ]; then
    alone=-I
    unset PYTHONEXECUTABLE __PYVENV_LAUNCHER__
fi
# Whether root may run a file: each path on the way to it, links included, is root's, and nobody else can write there
# (in a sticky directory on the way, others cannot replace it). Else `why` says which path is not.
trusted() {
    [ -n "$alone" ] || return 0
    ahead=$1 steps=0
    while [ -n "$ahead" ]; do
        way=${ahead%%"
"*} ahead=${ahead#"$way"} ahead=${ahead#"
"} steps=$((steps + 1))
        while :; do
            found=$(stat -c '%u %A' -- "$way" 2>/dev/null)
            [ "${found%% *}" = 0 ] && [ "$steps" -lt 64 ] || {
                why="$1 is not trusted: $way belongs to user ${found%% *}; as root, use root's files"
                return 1
            }
            case ${found#* } in
                l*)
                    to=$(readlink -- "$way")
                    case $to in /*) ;; *) to=${way%/*}/$to ;; esac
                    ahead="$to
$ahead"
                    ;;
                d*[tT]) ;;
                ?????w* | ????????w?)
                    why="$1 is not trusted: others can write $way; as root, use root's files"
                    return 1
                    ;;
            esac
            [ "$way" != / ] || break
            way=${way%/*} way=${way:-/}
        done
    done
}
# The compiled modules in this file are for these versions, and not for free-threaded builds.
fits() {
    "$1" -I -c 'import sys, sysconfig
sys.exit(not (3, 10) <= sys.version_info < (3, 15) or bool(sysconfig.get_config_var("Py_GIL_DISABLED")))' >/dev/null 2>&1
}
# Each file of this name on PATH.
find() {
    rest=$path:
    while [ -n "$rest" ]; do
        place=${rest%%:*} rest=${rest#*:}
        case $place in /*) ;; *) place=$(pwd -P)/$place ;; esac
        [ ! -f "$place/$1" ] || [ ! -x "$place/$1" ] || echo "$place/$1"
    done
}
start() {
    python=$1
    shift
    PATH=$path
    exec "$python" $alone "$0" "$@"
}
why=
if [ -z "$named" ]; then
    for name in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        at=$(find "$name")
        while [ -n "$at" ]; do
            python=${at%%"
"*} at=${at#"$python"} at=${at#"
"}
            trusted "$python" && fits "$python" && start "$python" "$@"
        done
    done
    why="no Python 3.10 to 3.14 was found here; name one: GPUIPC_DOCTOR_PYTHON=/path/to/python3${why:+ ($why)}"
else
    case $named in */*) python=$named ;; *) python=$(find "$named" | head -n 1) ;; esac
    case $python in '' | /*) ;; *) python=$(pwd -P)/$python ;; esac
    if [ ! -x "$python" ] || [ ! -f "$python" ]; then
        why="$named was not found; name a Python 3.10 to 3.14 of this node"
    elif trusted "$python"; then
        ! fits "$python" || start "$python" "$@"
        why="$named is no Python 3.10 to 3.14 with a GIL ($("$python" -V 2>&1 | head -n 1)); name another one"
    fi
fi
echo "gpuipc-doctor: $why" >&2
[ "$1" != --once ] || rm -f -- "$0"
exit 127
