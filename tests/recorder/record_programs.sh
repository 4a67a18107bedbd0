#!/bin/bash
# record_programs.sh DIRECTORY: run each program with the recorder before the driver and NCCL, on this machine's GPUs.
# DIRECTORY/NAME.classes gets one class a line; DIRECTORY/versions what ran.
out=$1 here=$(cd "$(dirname "$0")" && pwd) python=${PYTHON:-python3}
export NCCL_NVLS_ENABLE=0 NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
mkdir -p "$out"
libraries=$(ldconfig -p)
cuda=$(readlink -f "${CUDA_LIBRARY:-$(sed -n 's/.*libcuda.so.1 .*x86-64.* => //p' <<<"$libraries" | head -1)}")
nccl=$(readlink -f "$($python -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib/libnccl.so.2")')")
(cd "$here/../.." && $python -m tests.recorder.generate cuda "$cuda" "$out/lib" && $python -m tests.recorder.generate nccl "$nccl" "$out/lib") || exit
$python -c 'import torch, cupy; print("torch", torch.__version__, "cupy", cupy.__version__, "nccl", torch.cuda.nccl.version())' >"$out/versions"
record() { # record NAME COMMAND...
    local name=$1; shift
    rm -rf "$out/raw"; mkdir -p "$out/raw"
    GPUIPC_RECORD=$out/raw LD_PRELOAD="$out/lib/libcuda.so.1 $out/lib/libnccl.so.2" timeout 100 "$@" >"$out/$name.log" 2>&1
    echo "$name $?" >>"$out/exits"
    sort -u "$out"/raw/* >"$out/$name.classes" 2>/dev/null
}
cd "$here/programs" || exit
ranks=("$python" -m torch.distributed.run --nproc-per-node 2 --master-port 29511)
for name in ddp fsdp tensor_parallel pipeline expert_parallel objects; do record $name "${ranks[@]}" $name.py; done
PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True record sharing-expandable "$python" sharing.py
record sharing "$python" sharing.py forkserver
record loading "$python" loading.py
record arrays "$python" arrays.py
rm -rf "$out/raw" "$out/lib"
