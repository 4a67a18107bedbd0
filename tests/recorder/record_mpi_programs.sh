#!/bin/bash
# record_mpi_programs.sh DIRECTORY: run MPI programs of packages on CPUs, with the recorder before the MPI libraries of .prefix.
# DIRECTORY/NAME.classes gets one class a line, DIRECTORY/exits how each run ended. What is not there is not run.
# MPI4PY: mpi4py's unpacked source distribution (4.1.2); DEBIAN: where Debian's packages hpcc, netpipe-openmpi, lammps and
# scalapack-mpi-test (12) with what they need are unpacked (dpkg -x). Their programs run over .prefix/openmpi, IMB over mpich43.
out=$(realpath -m "$1") root=$(cd "$(dirname "$0")/../.." && pwd) python=${PYTHON:-python3} debian=${DEBIAN:-/nowhere}
mkdir -p "$out/work"; cd "$root" || exit
for library in mpich50/lib/libmpi.so.12 mpich43/lib/libmpi.so.12 openmpi/lib/libmpi.so.40; do
    $python -m tests.recorder.generate mpi ".prefix/$library" "$out/lib/${library%%/*}" || exit
done
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export OMPI_MCA_mpi_yield_when_idle=1 OMPI_MCA_threads_pthreads_yield_strategy=nanosleep
libraries=$debian/usr/lib/x86_64-linux-gnu
record() { # record NAME LIBRARY RANKS COMMAND...
    local name=$1 library=$2 ranks=$3; shift 3
    type "$1" >/dev/null 2>&1 || return
    rm -rf "$out/raw"; mkdir -p "$out/raw"
    LD_LIBRARY_PATH="$root/.prefix/$library/lib:$libraries:$libraries/hdf5/openmpi" MPI4PY_MPIABI=${library%[0-9][0-9]} GPUIPC_RECORD=$out/raw \
        timeout 300 "$root/.prefix/$library/bin/mpiexec" -n "$ranks" env LD_PRELOAD="$out/lib/$library/libmpi-recorder.so" "$@" >"$out/$name.log" 2>&1
    echo "$name $library $?" >>"$out/exits"
    { grep -h "^MPI_" "$out"/raw/*; cat "$out/$name.classes"; } 2>/dev/null | sort -u >"$out/work/new"
    mv "$out/work/new" "$out/$name.classes"
}
for name in MPI1 NBC P2P RMA; do record "imb-${name,,}" mpich43 2 "$root/.prefix/impi/bin/IMB-$name" -time 0.05 -iter 3 -msglog 0:22; done
cd "$out/work" || exit
record netpipe openmpi 2 "$debian/usr/bin/NPopenmpi" -l 1 -u 1048576 -n 3
printf '%s\n' 'units lj' 'lattice fcc 0.8442' 'region box block 0 8 0 8 0 8' 'create_box 1 box' 'create_atoms 1 box' 'mass 1 1.0' \
    'velocity all create 3.0 87287' 'pair_style lj/cut 2.5' 'pair_coeff 1 1 1.0 1.0 2.5' 'fix 1 all nve' 'dump 1 all atom 20 dump' 'run 40' >in.lj
record lammps openmpi 4 "$debian/usr/bin/lmp" -in in.lj
sed 's/^1000 .*Ns/400 Ns/' "$debian/usr/share/doc/hpcc/examples/_hpccinf.txt" >hpccinf.txt 2>/dev/null
record hpcc openmpi 4 "$debian/usr/bin/hpcc"
cp "$debian"/usr/share/scalapack/*.dat . 2>/dev/null
for name in xdlu xdllt xdsep; do record scalapack openmpi 4 "$libraries/scalapack/openmpi-tests/$name"; done
cd "${MPI4PY:-/nowhere}" || exit 0
for library in mpich50 openmpi; do
    for path in demo/osu_*.py; do record mpi4py-osu $library 2 $python "$path"; done
    for path in compute-pi/cpi-rma mandelbrot/mandelbrot nxtval/nxtval-{threads,scalable,onesided} sequential/test_seq reductions/test_reductions; do
        record mpi4py-demos $library 3 $python "demo/$path.py"
    done
    record mpi4py-tests $library 3 $python test/main.py -e test_spawn -e test_dynproc -e test_doc -e test_io -e test_file -e test_ulfm -e test_util -e test_pickle
done
rm -rf "$out/raw" "$out/work" "$out/lib"
