#!/bin/sh
# root.sh DIRECTORY PACKAGE SUITES…: a root file system with AMD's runtime in it, made of these suites of Debian.
# SUITES are one suite, or 'unstable experimental', of which the last has PACKAGE; the first that can be had is taken.
# The mirror is that of this machine's apt; its snapshots may be old, so dates are not checked.
set -e
directory=$1 package=$2
shift 2
if ! command -v mmdebstrap >/dev/null; then
    echo "$directory: mmdebstrap is not installed" >&2
    exit 1
fi
mirror=$(awk '/^URIs:/ {print $2; exit} /^deb / {print $2; exit}' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null)

make_root() {
    base=$1
    last=$1
    for suite; do
        last=$suite
        set -- "$@" "deb $mirror $suite main"
        shift
    done
    rm -rf "$directory"
    mmdebstrap --quiet --variant=apt --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
        --aptopt='Acquire::Check-Valid-Until false' --aptopt='Acquire::Check-Date false' \
        --aptopt='APT::Sandbox::User root' --aptopt='APT::Install-Recommends false' \
        --include="$package/$last,libhsa-runtime64-1/$last,python3" "$base" "$directory" "$@"
}

for suites; do
    # shellcheck disable=SC2086  # several suites
    if make_root $suites; then exit; fi
    rm -rf "$directory"
    echo "$directory: no $package of $suites on $mirror: see above" >&2
done
exit 1
