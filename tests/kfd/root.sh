#!/bin/sh
# root.sh DIRECTORY PACKAGES SUITES…: a root file system with these packages in it, made of these suites of Debian.
# SUITES are one suite, or 'unstable experimental', of which the last has PACKAGES (separated by commas); the first
# that can be had is taken. With AMD's runtime comes the suite's UCX, which has ROCm from trixie on. It is unpacked, not
# installed: it depends on the libraries of many adapters, and in experimental on an older runtime.
# The mirror is that of this machine's apt; its snapshots may be old, so dates are not checked.
set -e
directory=$1 packages=$2
shift 2
if ! command -v mmdebstrap >/dev/null; then
    echo "$directory: mmdebstrap is not installed" >&2
    exit 1
fi
mirror=$(awk '/^URIs:/ {print $2; exit} /^deb / {print $2; exit}' /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null)

make_root() {
    mkdir -p "$directory"
    base=$1
    last=$1
    for suite; do
        last=$suite
        set -- "$@" "deb $mirror $suite main"
        shift
    done
    include=python3
    for package in $(IFS=,; echo $packages); do include=$include,$package/$last; done
    rm -rf "$directory"
    mmdebstrap --quiet --variant=apt --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
        --aptopt='Acquire::Check-Valid-Until false' --aptopt='Acquire::Check-Date false' \
        --aptopt='APT::Sandbox::User root' --aptopt='APT::Install-Recommends false' \
        --include="$include" --customize-hook="$customize" \
        "$base" "$directory" "$@"
}

# $1 of the hook is the root; with that configuration apt works on it.
# shellcheck disable=SC2016  # for the hook to expand
unpack_ucx='set -e
cd "$1/tmp"
APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get -q download libucx0 ucx-utils
for package in libucx0_*.deb ucx-utils_*.deb; do
    dpkg -x "$package" "$1"
    rm "$package"
done'
case $packages in libamdhip64-*) customize=$unpack_ucx ;; *) customize=true ;; esac

for suites; do
    # shellcheck disable=SC2086  # several suites
    if make_root $suites; then exit; fi
    rm -rf "$directory"
    echo "$directory: no $packages of $suites on $mirror: see above" >&2
done
exit 1
