#!/usr/bin/env bash
# Build Debian 12's source of Open MPI 4.1.4 with CUDA, without UCX and libfabric, into a prefix.
#
#     build_openmpi_smcuda.sh PREFIX PYTHON
#
# Of CUDA only cuda.h is needed, which a wheel has. The components are linked into three libraries, so that few files
# travel; elsewhere, OPAL_PREFIX and LD_LIBRARY_PATH say where they are.
set -euo pipefail

prefix=$(realpath -m "$1") python=$(realpath -s "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

mkdir -p sources lists/partial
for file in /etc/apt/sources.list.d/*.sources; do
    sed 's/^Types:.*/Types: deb-src/' "$file" >"sources/${file##*/}"
done
apt=(apt-get -q -o Dir::Etc::SourceList=/dev/null -o "Dir::Etc::SourceParts=$work/sources"
     -o "Dir::State::Lists=$work/lists" -o APT::Sandbox::User=root)
"${apt[@]}" update
"${apt[@]}" source --download-only openmpi=4.1.4-3
tar xf openmpi_4.1.4.orig.tar.xz

"$python" -m pip download --quiet --no-deps --dest wheel nvidia-cuda-runtime-cu12==12.4.127
"$python" -m zipfile -e wheel/*.whl cuda

without=(ucx ofi verbs psm2 psm portals4 libnl slurm tm lustre hcoll cma usnic)
unused=common-ofacm,common-monitoring,pml-monitoring,coll-monitoring,osc-monitoring,coll-hcoll,coll-fca,vprotocol,pml-v
unused+=,topo-treematch,fbtl,fcoll,fs,sharedfp,io,osc-pt2pt,osc-rdma,mtl,coll-han,coll-adapt,coll-demo,coll-sm
mkdir build && cd build
../openmpi-4.1.4/configure --prefix="$prefix" --with-cuda="$work/cuda/nvidia/cuda_runtime" --enable-mca-static \
    --with-libevent=internal --with-hwloc=internal --with-pmix=internal "${without[@]/#/--without-}" \
    --enable-mca-no-build="$unused" --disable-mpi-fortran --disable-mpi-cxx --disable-oshmem --disable-io-romio \
    --disable-libompitrace --disable-man-pages --disable-libxml2 --disable-libudev --disable-opencl --disable-gl \
    --disable-nvml --disable-pci CFLAGS=-O1 >configure.log
make -j2 -s >make.log
make -s install-strip >install.log
rm -rf "$prefix"/include "$prefix"/lib/*.la "$prefix"/lib/pkgconfig
