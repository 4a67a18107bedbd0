#!/bin/sh
# ship/image.sh DEB FILE: a container image (an OCI archive) of Debian 12 with the .deb of Python 3.11.
# As root, with mmdebstrap and buildah. The environment of the .deb is all that is in it beside Debian's Python.
set -eu
deb=$(realpath "$1") file=$(realpath "$2")
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
mmdebstrap --quiet --variant=apt --include=python3.11,openssh-client bookworm "$root/fs"
cp "$deb" "$root/fs/root/gpuipc-doctor.deb"
chroot "$root/fs" dpkg -i /root/gpuipc-doctor.deb >/dev/null
rm -rf "$root/fs/root/gpuipc-doctor.deb" "$root"/fs/var/cache/apt/* "$root"/fs/var/lib/apt/lists/*

buildah="buildah --root $root/storage --runroot $root/run --storage-driver vfs"
container=$($buildah from scratch)
$buildah add --quiet "$container" "$root/fs" / >/dev/null
# The NVIDIA Container Toolkit gives a container the driver's libraries for these capabilities.
$buildah config --entrypoint '["gpuipc-doctor"]' --cmd 'check --all' \
    --env NVIDIA_VISIBLE_DEVICES=all --env NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    --label org.opencontainers.image.title=gpuipc-doctor \
    --label org.opencontainers.image.licenses=Apache-2.0 \
    --label "gpuipc-doctor.limits=Sees what the container was given. Without --pid=host: no other holder of device memory and no jobs. Without --ipc=host: not the node's /dev/shm. No kernel log, no MPI library and no fabric programs of the node." \
    "$container"
$buildah commit --quiet --rm "$container" "oci-archive:$file:gpuipc-doctor" >/dev/null
