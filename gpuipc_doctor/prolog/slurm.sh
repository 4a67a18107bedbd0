#!/bin/sh
# Slurm's Prolog, Epilog and HealthCheckProgram: this one file serves as all three.
# Written by `gpuipc-doctor config hooks slurm`; write it anew rather than edit it.
#
# In slurm.conf, with this file's path:
#
#   Prolog=@FILE@
#   PrologFlags=Alloc          # before the job rather than its first step; and srun is patient
#   PrologEpilogTimeout=120    # for what even gpuipc-doctor cannot end: see docs/slurm.md
#
# and, to hear of a bad node after a job or while it is idle, not only before the next job:
#
#   Epilog=@FILE@
#   HealthCheckProgram=@FILE@
#   HealthCheckInterval=3600
#   HealthCheckNodeState=IDLE
#
# A node is drained only when gpuipc-doctor says that the site config wants it. If gpuipc-doctor is missing,
# broken or badly configured, the job runs, and slurmd's log says why.

# What the job has set does not reach gpuipc-doctor: it gets these variables of Slurm's and no others.
reason=$(@ENV@ -i \
    ${SLURM_CLUSTER_NAME+"SLURM_CLUSTER_NAME=$SLURM_CLUSTER_NAME"} \
    ${SLURM_JOB_GPUS+"SLURM_JOB_GPUS=$SLURM_JOB_GPUS"} \
    ${SLURM_JOB_ID+"SLURM_JOB_ID=$SLURM_JOB_ID"} \
    ${SLURM_JOB_UID+"SLURM_JOB_UID=$SLURM_JOB_UID"} \
    ${SLURM_SCRIPT_CONTEXT+"SLURM_SCRIPT_CONTEXT=$SLURM_SCRIPT_CONTEXT"} \
    ${SLURMD_NODENAME+"SLURMD_NODENAME=$SLURMD_NODENAME"} \
    @PYTHON@ -I -m gpuipc_doctor prolog --config @CONFIG@)
status=$?
printf '%s\n' "$reason"

case $status in
    0) exit 0 ;;
    11 | 12) ;;  # the exit codes with which it asks for a drain
    *)
        printf 'gpuipc-doctor prolog ended with %s; that is not held against the node\n' "$status" >&2
        exit 0
        ;;
esac

# Slurm keeps the first reason: left to itself it says "Prolog error". An administrator may have said more.
@SLURM_CONF@
node=${SLURMD_NODENAME:?is not set: only slurmd can tell which node to drain}
shown=$(@SCONTROL@ --oneliner show node "$node")
state=${shown#* State=}
case ${state%% *} in
    *DRAIN*) ;;
    *) @SCONTROL@ update "nodename=$node" state=drain "reason=$reason" ;;
esac

# Failing, a Prolog gives its job back to the queue, and a HealthCheckProgram (it has no job) keeps slurmd from
# registering: https://slurm.schedmd.com/slurm.conf.html
[ -z "$SLURM_JOB_ID" ] || exit 1
