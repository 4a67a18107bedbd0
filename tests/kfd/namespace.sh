#!/bin/sh
# namespace.sh RUN ROOT GPUS MIB [BOUND…]: run inside a new mount namespace, make it a node with emulated GPUs.
#
# RUN has what emulated.py wrote: sys/ and dev/ of the GPUs. ROOT is the root file system with the runtime: "/", or a
# directory, in which everything BOUND is made visible. The rest of /sys and /dev is this machine's.
set -e
run=$1 root=${2%/} gpus=$3 mib=$4
shift 4

gpu=0
while [ "$gpu" -lt "$gpus" ]; do
    for heap in vram gtt; do
        mkdir -p "$run/$heap$gpu"
        # Buffers in huge pages, where Linux has them: 96 MiB are then allocated in 1 ms rather than 43 ms.
        mount -t tmpfs -o "size=${mib}m,mode=1777,huge=within_size" "$heap$gpu" "$run/$heap$gpu" 2>/dev/null ||
            mount -t tmpfs -o "size=${mib}m,mode=1777" "$heap$gpu" "$run/$heap$gpu"
    done
    gpu=$((gpu + 1))
done

# Of the machine itself: everything but the drivers' modules and the virtual devices other than networks.
show() {
    for entry in "$@"; do
        name=${entry#"$from"/}
        if [ -L "$entry" ]; then
            cp -P "$entry" "$to/$name"
        elif [ -d "$entry" ]; then
            mkdir -p "$to/$name"
            mount --rbind "$entry" "$to/$name"
        elif [ -e "$entry" ]; then
            : > "$to/$name"
            mount --bind "$entry" "$to/$name"
        fi
    done
}
from=/sys to=$run/sys
for entry in /sys/bus/*; do
    case $entry in */pci) ;; *) mkdir -p "$to/bus" && show "$entry" ;; esac
done
cp -P /sys/bus/pci/devices/* "$to/bus/pci/devices/" 2>/dev/null || true
if [ -e "$to/class" ]; then # the emulated driver has files there
    for entry in /sys/class/*; do
        case $entry in */drm) ;; *) show "$entry" ;; esac
    done
else
    show /sys/class
fi
show /sys/block /sys/fs /sys/kernel /sys/devices/system /sys/devices/pci* /sys/devices/virtual/net
from=/dev to=$run/dev
show /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty /dev/ptmx /dev/pts /dev/fd /dev/std*
# AMD's runtime leaves a semaphore and segments there, and processes of other nodes would share them.
mkdir "$to/shm"
mount -t tmpfs -o mode=1777 shm "$to/shm"

if [ -n "$root" ]; then
    for entry in /proc /tmp "$@"; do
        if [ -d "$entry" ]; then mkdir -p "$root$entry"; else mkdir -p "$root${entry%/*}"; : >> "$root$entry"; fi
        mount --rbind "$entry" "$root$entry"
    done
    cp /etc/passwd /etc/group /etc/hosts /etc/resolv.conf "$root/etc/" 2>/dev/null || true
fi
mount --rbind "$run/sys" "$root/sys"
mount --rbind "$run/dev" "$root/dev"

# The namespace lives until the other end of the pipe is closed.
exec chroot "$root/" sh -c 'echo ready; exec cat'
