#!/bin/sh
# root.sh DIRECTORY PYTHON: a root file system of Debian 13 for arm64 with Python and what this package depends on, and
# the emulator of arm64 programs, that of Debian 13 (Debian 12's needs 10 s to reserve addresses, as a driver does).
# Both are unpacked, not installed: that takes no emulation. PYTHON is one with pip, which fetches the wheels.
set -e
directory=$1 python=$2
for program in mmdebstrap aarch64-linux-gnu-gcc; do
    if ! command -v "$program" >/dev/null; then
        echo "$directory: $program is not installed; on Debian, install mmdebstrap, gcc-aarch64-linux-gnu and libc6-dev-arm64-cross" >&2
        exit 1
    fi
done
unpack() {
    mmdebstrap --quiet --variant=extract --aptopt='APT::Install-Recommends false' "$@" || {
        echo "$directory: packages of Debian 13 could not be fetched: see above" >&2
        exit 1
    }
}
rm -rf "$directory"
mkdir -p "$directory"
unpack --include=qemu-user trixie "$directory/emulator"
unpack --architectures=arm64 --include=base-files,dash,libstdc++6,python3 trixie "$directory/root"
packages="$directory/root/usr/local/lib/python3.13/dist-packages"
mkdir -p "$packages" "$directory/root/srv/cache"
"$python" - >"$directory/requirements.txt" <<'END'
import tomllib

with open("pyproject.toml", "rb") as file:
    project = tomllib.load(file)
bindings = [each for each in project["dependency-groups"]["bindings"] if each.startswith("cuda-bindings")]
print(*project["project"]["dependencies"], *bindings, sep="\n")
END
"$python" -m pip --disable-pip-version-check install --quiet --no-compile --only-binary=:all: --target "$packages" \
    --implementation=cp --python-version=3.13 --platform=manylinux_2_28_aarch64 --platform=manylinux_2_17_aarch64 \
    --platform=manylinux2014_aarch64 --requirement "$directory/requirements.txt"
