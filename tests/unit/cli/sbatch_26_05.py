"""sbatch's options and input variables in Slurm 26.05: names and letters, from sbatch(1), slurm_opt.c and opt.c.

Facts for the tests: every name here must be taken or refused with a sentence.
"""

from __future__ import annotations

_OPTIONS = """
account/A acctg-freq array/a autocomplete batch bb bbf begin/b chdir/D cluster cluster-constraint clusters/M
comment consolidate-segments constraint/C container container-id container-type context contiguous core-spec/S
cores-per-socket cpu-freq cpus-per-gpu cpus-per-task/c deadline delay-boot dependency/d distribution/m error/e
exclude/x exclusive export export-file external extra extra-node-info/B get-user-env gid gpu-bind gpu-freq
gpus/G gpus-per-node gpus-per-socket gpus-per-task gres gres-flags help/h hint hold/H ignore-pbs input/i
job-name/J kill-on-invalid-dep licenses/L mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu
mem-update mincpus network nice no-kill/k no-requeue nodefile/F nodelist/w nodes/N ntasks/n ntasks-per-core
ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres oom-kill-step open-mode output/o overcommit/O
oversubscribe/s parsable partition/p prefer priority profile propagate qos/q quiet/Q reboot requeue reservation
resources resv-ports segment signal sockets-per-node spread-job spread-segments stepmgr switches tasks-per-node
test-only thread-spec threads-per-core time/t time-min tmp tres-bind tres-per-task uid usage use-min-nodes
verbose/v version/V wait/W wait-all-nodes wckey wrap
"""
_VARIABLES = """
ACCOUNT ACCTG_FREQ ARRAY_INX BATCH BURST_BUFFER CLUSTERS CLUSTER_CONSTRAINT CONSOLIDATE_SEGMENTS CONSTRAINT
CONTAINER CONTAINER_ID CONTAINER_TYPE CORE_SPEC CPUS_PER_GPU CPU_FREQ_REQ DEBUG DELAY_BOOT DISTRIBUTION ERROR
EXCLUSIVE EXPORT GET_USER_ENV GPUS GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK GPU_BIND GPU_FREQ GRES GRES_FLAGS
HINT IGNORE_PBS INPUT JOB_NAME MEM_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE NETWORK NO_KILL NO_REQUEUE
OPEN_MODE OUTPUT OVERCOMMIT PARTITION POWER PROFILE QOS REQUEUE REQ_SWITCH RESERVATION RUNTIME SEGMENT_SIZE SIGNAL
SPREAD_JOB SPREAD_SEGMENTS THREADS_PER_CORE THREAD_SPEC TIMELIMIT TRES_BIND TRES_PER_TASK USE_MIN_NODES WAIT
WAIT4SWITCH WAIT_ALL_NODES WCKEY
"""
OPTIONS: dict[str, str] = {word.partition("/")[0]: word.partition("/")[2] for word in _OPTIONS.split()}
"""Long name to letter ("" where it has none)."""
VARIABLES = (
    *(f"SBATCH_{word}" for word in _VARIABLES.split()),
    *("SLURM_CLUSTERS", "SLURM_CONF", "SLURM_EXIT_ERROR", "SLURM_HINT", "SLURM_UMASK"),
)
"""Without SLURM_DEBUG_FLAGS and SLURM_STEP_KILLED_MSG_NODE_ID, which change log lines of Slurm."""
