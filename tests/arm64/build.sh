#!/bin/sh
# build.sh: make the fixtures of arm64 code beside this file, of mpi.c, with Debian's gcc-aarch64-linux-gnu or $CC.
# `pac` is with signed return addresses and landing pads, `plain` without; the caller's calls go through stubs (`plt`)
# or load from the table of addresses themselves (`got`).
set -e
cd "$(dirname "$0")"
make_library() {
    ${CC:-aarch64-linux-gnu-gcc} -O2 -fPIC -shared -nostdlib -s -Wl,-z,max-page-size=4096,-z,noseparate-code,--build-id=none \
        -o "$@" mpi.c
}
for protection in pac:standard plain:none; do
    kind=${protection%:*} flag=-mbranch-protection=${protection#*:}
    make_library "libmpi-$kind.so" "$flag" -DLIBRARY
    for calls in plt:-fplt got:-fno-plt; do
        make_library "app-$kind-${calls%:*}.so" "$flag" "${calls#*:}"
    done
done
