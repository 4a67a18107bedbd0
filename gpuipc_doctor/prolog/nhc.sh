# A check for LBNL's Node Health Check (https://github.com/mej/nhc): a file for /etc/nhc/scripts.
# Written by `gpuipc-doctor config hooks nhc`; write it anew rather than edit it.
#
# In nhc.conf:
#
#   * || check_gpuipc
#
# NHC's TIMEOUT (30 s) must be longer than a prolog may take: see docs/slurm.md. The check fails only when gpuipc-doctor says that
# the site config wants the node drained. If gpuipc-doctor is missing, broken or badly configured, NHC's log
# says so.

function check_gpuipc() {
    local reason status
    reason=$(@ENV@ -i @PYTHON@ -I -m gpuipc_doctor prolog --config @CONFIG@)
    status=$?
    case $status in
        0) return 0 ;;
        11 | 12)  # the exit codes with which it asks for a drain
            die 1 "$FUNCNAME:  ${reason//\'/}"  # NHC 1.4 evaluates it, between apostrophes
            return 1
            ;;
        *)
            log "$FUNCNAME:  gpuipc-doctor prolog ended with $status; that is not held against the node"
            return 0
            ;;
    esac
}
