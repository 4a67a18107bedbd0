#!/bin/sh
# user.sh DIRECTORY PYTHON COMMAND…: run a command of gpuipc-doctor as a program of arm64, by qemu-user, in the root file
# system of `root.sh`. The simulated drivers are cross-compiled; in the root, the compiler only tells its version.
# The emulator is registered in a user namespace, which Linux 6.7 and newer allow, and the machine notices nothing.
set -e
directory=$(realpath "$1") python=$2
shift 2
packages="$directory/root/usr/local/lib/python3.13/dist-packages"
export CC=aarch64-linux-gnu-gcc
XDG_CACHE_HOME="$directory/root/srv/cache" "$python" -c 'from gpuipc_doctor.simulator import build; build.build()'
{
    printf '#!/bin/sh\ncat() { while IFS= read -r line; do echo "$line"; done; }\ncat <<END\n'
    $CC --version
    echo END
} >"$directory/root/usr/bin/$CC"
chmod +x "$directory/root/usr/bin/$CC"

# As the wheel lays them out. What has not changed stays, with its bytecode, which takes a minute to compile.
mkdir -p "$packages/gpuipc_doctor/checks" "$packages/gpuipc_doctor/site_configs"
cp -a -u gpuipc_doctor/. "$packages/gpuipc_doctor/"
cp -a -u checks/. "$packages/gpuipc_doctor/checks/"
cp -a -u site-configs/. "$packages/gpuipc_doctor/site_configs/"

# shellcheck disable=SC2016  # for the inner shell to expand
exec unshare --user --map-root-user --mount --propagation private sh -c '
    set -e
    directory=$1
    shift
    mount -t binfmt_misc none /proc/sys/fs/binfmt_misc || {
        echo "$directory: no emulator can be registered here: Linux 6.7 or newer is needed" >&2
        exit 1
    }
    # The begin of an ELF file of 64 bits, little-endian, for machine 183, and the bits of it that count.
    printf "%s" ":arm64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00:\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff:$directory/emulator/usr/bin/qemu-aarch64:F" \
        >/proc/sys/fs/binfmt_misc/register
    for each in proc dev sys; do mount --rbind "/$each" "$directory/root/$each"; done
    mount -t tmpfs tmp "$directory/root/tmp"
    cd "$directory/root"
    exec env -i PATH=/usr/bin HOME=/tmp XDG_CACHE_HOME=/srv/cache CC="$CC" \
        "$(command -v chroot)" . /usr/bin/python3 -m gpuipc_doctor "$@"
' sh "$directory" "$@"
