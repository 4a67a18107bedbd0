#!/bin/sh
# installed.sh ROOT COMMAND…: run a command on an emulated node as if driver and runtime were installed there, without
# the variables that name them, which the prolog clears. Run it in a mount namespace of its own, outside ROOT.
set -e
root=${1%/}
shift
mount -t tmpfs etc /mnt
cp -a "$root/etc/." /mnt/
echo "$KFD_EMULATOR/kfd.so" > /mnt/ld.so.preload
echo "$KFD_EMULATOR/lib" > /mnt/ld.so.conf.d/000-emulated.conf
mount --bind /mnt "$root/etc"
if [ -d "$root/var/cache/ldconfig" ]; then mount -t tmpfs cache "$root/var/cache/ldconfig"; fi
unset LD_PRELOAD LD_LIBRARY_PATH KFD_EMULATOR ROCM_PATH
chroot "$root/" ldconfig
exec chroot "$root/" "$@"
