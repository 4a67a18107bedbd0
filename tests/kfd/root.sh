#!/bin/sh
# root.sh DIRECTORY PACKAGE SUITE…: a root file system of these suites of Debian, with AMD's runtime in it.
# The mirror is that of this machine's apt; its snapshots may be old, so dates are not checked.
set -e
directory=$1 package=$2 base=$3 last=$3
shift 2
if ! command -v mmdebstrap >/dev/null; then
    echo "$directory: mmdebstrap is not installed" >&2
    exit 1
fi
mirror=$(awk '/^URIs:/ {print $2; exit} /^deb / {print $2; exit}' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null)
for suite; do
    last=$suite
    set -- "$@" "deb $mirror $suite main"
    shift
done
rm -rf "$directory"
mmdebstrap --quiet --variant=apt --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
    --aptopt='Acquire::Check-Valid-Until false' --aptopt='Acquire::Check-Date false' \
    --aptopt='APT::Sandbox::User root' --aptopt='APT::Install-Recommends false' \
    --include="$package/$last,libhsa-runtime64-1/$last,python3" "$base" "$directory" "$@" ||
    { echo "$directory: the mirror has no $package in $last any more" >&2; exit 1; }
