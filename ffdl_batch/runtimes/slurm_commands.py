"""srun and scontrol for scripts written for Slurm, in learners in which no step of Slurm can be started. Constants.

They are bash, which every learner has, and imitate srun(1) and scontrol(1) of 26.05: srun starts its command once per
task, and its exit status is the highest of the tasks'; ``scontrol show hostnames`` expands a list of nodes. An option
that cannot be imitated is refused with a message, never ignored. srun starts the tasks of its own learner; if only the
first learner runs the script, it sends the others their tasks (:mod:`ffdl_batch.runtimes.slurm_steps`).
"""

from __future__ import annotations

import shlex

from ffdl_batch.runtimes.slurm_steps import CHOOSE, SEND, SENT, TAKE_STEPS, TAKES

_OPTIONS = r"""
# srun of ffdl_batch: tasks in the learners of the job. Options about binding and accounting mean nothing here.
given=("$@")
die() { printf 'srun: error: %s\n' "$*" >&2; exit 1; }
ntasks= nodes= per_node= gpus_per_task= chdir= output= error= input= label= kill=${SLURM_KILL_BAD_EXIT:-0}
nodelist= exclude=
exported= mpi=
take() {  # long name, value
  case $1 in
    ntasks) ntasks=$2 ;; nodes) nodes=${2%%-*} ;; ntasks-per-node|tasks-per-node) per_node=$2 ;;
    gpus-per-task) gpus_per_task=${2##*:} ;; cpus-per-task) export SLURM_CPUS_PER_TASK=$2 ;;
    chdir) chdir=$2 ;; output) output=$2 ;; error) error=$2 ;; input) input=$2 ;;
    nodelist) nodelist=$2 ;; exclude) exclude=$2 ;;
    label) label=1 ;; kill-on-bad-exit) kill=${2:-1} ;; export) exported=$2 ;; mpi) mpi=$2 ;;
    version) printf 'slurm stand-in of ffdl_batch\n'; exit 0 ;;
    multi-prog) die "--multi-prog is not offered outside Slurm; start the programs one by one" ;;
    container-image) printf 'srun: %s is not started; the image of this learner is used\n' "$2" >&2 ;;
  esac
}
while [ $# -gt 0 ]; do
  word=$1; shift
  case $word in
    --) break ;;
    --*=*) name=${word%%=*}; take "${name#--}" "${word#*=}" ;;
    --contiguous|--disable-status|--exact|--exclusive|--external|--hold|--immediate|--interactive|--kill-on-bad-exit|\
--label|--multi-prog|--no-allocate|--no-kill|--overcommit|--overlap|--oversubscribe|--preserve-env|--propagate|--pty|\
--quiet|--quit-on-interrupt|--reboot|--resv-ports|--send-libs|--spread-job|--stepmgr|--test-only|--unbuffered|\
--use-min-nodes|--verbose|--version|--whole|--x11|--bcast|--compress|--nice|--no-container-*|--container-remap-root|\
--container-mount-home|--container-writable|--container-readonly|--container-entrypoint) take "${word#--}" "" ;;
    --*) [ $# -gt 0 ] || die "$word needs a value"; take "${word#--}" "$1"; shift ;;
    -?*)
      letters=${word#-}
      while [ -n "$letters" ]; do
        letter=${letters:0:1}; letters=${letters:1}
        case $letter in
          l) take label "" ;;
          K) take kill-on-bad-exit "$letters"; letters= ;;
          V) take version "" ;;
          I) letters= ;;
          E|H|k|O|Q|s|u|v|X|Z) ;;
          [A-Za-z])
            value=$letters; letters=
            if [ -z "$value" ]; then [ $# -gt 0 ] || die "-$letter needs a value"; value=$1; shift; fi
            value=${value#=}
            case $letter in
              n) take ntasks "$value" ;; N) take nodes "$value" ;; c) take cpus-per-task "$value" ;;
              w) take nodelist "$value" ;; x) take exclude "$value" ;;
              D) take chdir "$value" ;; o) take output "$value" ;; e) take error "$value" ;; i) take input "$value" ;;
            esac ;;
          *) die "-$letter is not an option" ;;
        esac
      done ;;
    *) set -- "$word" "$@"; break ;;
  esac
done
[ $# -gt 0 ] || die "no command given"

# How many tasks: of all learners, and of them those of this one.
learners=${NUM_LEARNERS:-1} learner=$((${LEARNER_ID:-1} - 1)) members=() others=() pids=() as_nodes=0
scontrol=${0%/*}/scontrol hosts=()
[ "$learners" -eq 1 ] || read -r -d '' -a hosts < <("$scontrol" show hostnames 2>/dev/null)
if [ -z "$ntasks" ]; then
  if [ -n "$per_node" ]; then ntasks=$((per_node * ${nodes:-${SLURM_NNODES:-1}}))
  elif [ -n "$nodes" ]; then ntasks=$nodes
  else ntasks=${SLURM_NTASKS:-1}; fi
fi
case $ntasks in ''|*[!0-9]*|0) die "$ntasks is not a number of tasks" ;; esac
"""
_PLACE = r"""
# Where the first learner alone runs the script: its srun sends the others of a step what is theirs.
if [ -n "${_FFDL_PART-}" ]; then
  read -r ntasks learners learner as_nodes step_nodes step_list <<<"$_FFDL_PART"
elif [ -n "${FFDL_STEPS-}" ] && [ "$learners" -gt 1 ]; then
  choose
  learners=${#members[@]} learner=$(place_of "$learner")
  for ((place = 0; place < learners; place++)); do [ "$place" = "$learner" ] || others+=("$place"); done
# Where each node has a learner, and each learner runs the script: a step that names nodes is of their learners alone.
# Who asks one node for its name or address has the same answer in all of them, one that leads there.
elif [ ${#hosts[@]} -gt 1 ] && [ ${#hosts[@]} -eq "$learners" ]; then
  if [ -n "$nodelist$exclude" ]; then
    left_out=" $([ -z "$exclude" ] || "$scontrol" show hostnames "$exclude" | tr '\n' ' ')" step=() place=
    for one in $("$scontrol" show hostnames ${nodelist:+"$nodelist"}); do
      case $left_out in *" $one "*) continue ;; esac
      [ "$one" != "${SLURMD_NODENAME-}" ] || place=${#step[@]}
      step+=("$one")
    done
    hosts=("${step[@]}") learners=${#step[@]} learner=$place
  fi
  if [ "$ntasks" -eq 1 ] && [ "${1##*/}" = hostname ] && [ $# -le 2 ] && [ ${#hosts[@]} -gt 0 ]; then
    answer=$hosts
    case ${2-} in -i|--ip-address|-I|--all-ip-addresses)
      read -r answer _ < <(getent hosts "$hosts" 2>/dev/null) || answer=$hosts ;;
    esac
    printf '%s\n' "$answer"; exit 0
  fi
  [ -n "$learner" ] || { printf 'srun: nothing is started here, but on %s\n' "${hosts[*]}" >&2; exit 0; }
fi
first=0 mine=$ntasks
if [ "$learners" -gt 1 ] && [ "$ntasks" -ge "$learners" ]; then
  rest=$((ntasks % learners))
  mine=$((ntasks / learners + (learner < rest)))
  first=$((ntasks / learners * learner + (learner < rest ? learner : rest)))
fi
[ -n "$learner" ] || first=0 mine=0
[ "$as_nodes" = 0 ] || [ -z "$learner" ] || export SLURM_NODEID=$learner
case $mpi in ''|none|list) ;; *)
  # Over several learners mpirun finds them by itself.
  if [ ${#others[@]} -gt 0 ] && [ "$ntasks" -gt 1 ] && command -v mpirun >/dev/null 2>&1; then
    [ "$learners" -eq "$NUM_LEARNERS" ] || die "--mpi=$mpi is offered on all nodes of the job, not on some"
    export OMPI_MCA_rmaps_base_oversubscribe=true PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
    exec mpirun -np "$ntasks" "$@"
  elif [ "$mine" -gt 1 ] && command -v mpirun >/dev/null 2>&1; then
    exec mpirun -np "$mine" "$@"
  elif [ "$mine" -gt 1 ]; then
    printf 'srun: there is no mpirun for --mpi=%s; the tasks are no world of MPI\n' "$mpi" >&2
  fi ;;
esac
[ ${#others[@]} -eq 0 ] || compose
[ -z "$chdir" ] || cd -- "$chdir" || die "cannot change into $chdir"
part=${_FFDL_PART:+1}
unset _FFDL_PART

# The environment of the tasks: all of it, unless --export says otherwise.
if [ -n "$exported" ]; then
  all= kept=()
  IFS=, read -r -a words <<<"$exported"
  for one in "${words[@]}"; do
    case $one in
      ALL) all=1 ;; NONE|NIL) ;;
      *=*) export "${one%%=*}=${one#*=}"; kept+=("${one%%=*}") ;;
      *) kept+=("$one") ;;
    esac
  done
  if [ -z "$all" ]; then
    for one in $(compgen -e); do
      case " ${kept[*]} SLURM_ PATH HOME TMPDIR CUDA_VISIBLE_DEVICES JOB_STATE_DIR LEARNER_ID NUM_LEARNERS \
LEARNER_NAME_PREFIX FFDL_STEPS FFDL_REQUEST " in
        *" $one "*) ;; *) case $one in SLURM_*) ;; *) unset "$one" ;; esac ;;
      esac
    done
  fi
fi
IFS=, read -r -a devices <<<"${CUDA_VISIBLE_DEVICES-}"

named() {  # pattern of a file, task
  local text=$1
  text=${text//%j/$SLURM_JOB_ID}; text=${text//%J/$SLURM_JOB_ID.0}
  text=${text//%A/${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}}; text=${text//%a/${SLURM_ARRAY_TASK_ID-}}
  text=${text//%x/${SLURM_JOB_NAME-}}; text=${text//%t/$2}
  text=${text//%n/${SLURM_NODEID:-0}}; text=${text//%N/${SLURMD_NODENAME-}}; text=${text//%s/0}
  [ "$text" != none ] || text=/dev/null
  printf %s "$text"
}
run() {  # number of the task in this learner; becomes it
  trap - INT QUIT TERM HUP USR1 USR2
  local local=$1 rank=$((first + $1)) path
  shift
  export SLURM_PROCID=$rank SLURM_LOCALID=$((learners > 1 ? local : rank)) SLURM_NTASKS=$ntasks SLURM_NPROCS=$ntasks
  export SLURM_STEP_ID=0 SLURM_STEPID=0 SLURM_STEP_NUM_TASKS=$ntasks SLURM_TASK_PID=$BASHPID
  export SLURM_NNODES=${step_nodes:-${SLURM_NNODES:-1}} SLURM_STEP_NODELIST=${step_list-${SLURM_JOB_NODELIST-}}
  export SLURM_STEP_NUM_NODES=$SLURM_NNODES
  if [ -n "$gpus_per_task" ]; then
    local IFS=,
    CUDA_VISIBLE_DEVICES="${devices[*]:local * gpus_per_task:gpus_per_task}"
    export CUDA_VISIBLE_DEVICES SLURM_GPUS_PER_TASK=$gpus_per_task
    unset IFS
  fi
  case $output in ''|all) ;; *)
    path=$(named "$output" "$rank"); exec >>"$path" || exit 1
    [ -n "$error" ] || exec 2>&1 ;;
  esac
  case $error in ''|all) ;; *) path=$(named "$error" "$rank"); exec 2>>"$path" || exit 1 ;; esac
  case $input in ''|all) ;; *) path=$(named "$input" "$rank"); exec <"$path" || exit 1 ;; esac
  exec "$@"
}
begin_files() {  # as srun: files begin empty
  local pattern rank count
  for pattern in "$output" "$error"; do
    count=$mine
    case $pattern in
      ''|all|none) continue ;;
      *%[tnN]*) ;;
      *) [ -z "$part" ] || continue; count=1 ;;  # one for all: the sender of the step begins it
    esac
    for ((rank = first; rank < first + count; rank++)); do : >"$(named "$pattern" "$rank")" || exit 1; done
  done
}
begin_files
if [ "$mine" -eq 1 ] && [ -z "$label" ] && [ ${#others[@]} -eq 0 ]; then run 0 "$@"; fi

tasks=() labels=() worst=0 signalled= started= early=()
forward() {
  signalled=1
  [ -n "$started" ] || { early+=("$1"); return; }  # a task that has begun may not be among the tasks yet
  [ ${#tasks[@]} -eq 0 ] || kill -s "$1" "${tasks[@]}" 2>/dev/null
  [ ${#others[@]} -eq 0 ] || signal_others "$1"
}
for number in INT TERM HUP USR1 USR2; do trap "forward $number" "$number"; done
[ ${#others[@]} -eq 0 ] || send
exec 3<&0
mark() { local line; while IFS= read -r line || [ -n "$line" ]; do printf '%s: %s\n' "$1" "$line"; done; }
for ((task = 0; task < mine; task++)); do
  if [ "$task" -eq 0 ]; then exec 4<&3; else exec 4</dev/null; fi
  if [ -n "$label" ]; then
    exec 5> >(trap '' INT TERM HUP USR1 USR2; mark "$((first + task))"); labels+=($!)
    (run "$task" "$@") <&4 3<&- 4<&- >&5 2>&1 5>&- &
    pids+=($!) tasks+=($!)
    exec 5>&-
  else
    (run "$task" "$@") <&4 3<&- 4<&- &
    pids+=($!) tasks+=($!)
  fi
done
exec 3<&- 4<&-
started=1
for number in "${early[@]}"; do forward "$number"; done
left=("${pids[@]}")
while [ ${#left[@]} -gt 0 ]; do
  signalled=
  if [ "$kill" = 0 ]; then
    wait "${left[0]}"; status=$?
    while [ -n "$signalled" ]; do  # a signal came between: perhaps that was its status, and not the task's
      signalled=; wait "${left[0]}" 2>/dev/null; again=$?
      [ "$again" -eq 127 ] || status=$again
    done
    left=("${left[@]:1}")
  else
    wait -n "${left[@]}"; status=$?
    [ -z "$signalled" ] || status=0
    living=()
    for pid in "${left[@]}"; do ! kill -0 "$pid" 2>/dev/null || living+=("$pid"); done
    left=("${living[@]}")
    [ "$status" -eq 0 ] || [ ${#left[@]} -eq 0 ] || kill -s TERM "${left[@]}" 2>/dev/null
  fi
  [ "$status" -le "$worst" ] || worst=$status
done
for pid in "${labels[@]}"; do wait "$pid" 2>/dev/null; done
[ ${#others[@]} -eq 0 ] || finish
exit "$worst"
"""

SRUN = f"{_OPTIONS}{CHOOSE}{SEND}{_PLACE}"
SCONTROL = r"""
# scontrol of ffdl_batch: names of learners, and what is known of the job. Nothing is changed by it.
die() { printf 'scontrol: error: %s\n' "$*" >&2; exit 1; }
while [ $# -gt 0 ]; do case $1 in -*) shift ;; *) break ;; esac; done
number() { printf '%s%0*d\n' "$prefix" "${#1}" "$((10#$2))"; }
expand() {  # one word of a list
  local word=$1 prefix inside suffix part i
  case $word in
    *\[*\]*) ;;
    *) printf '%s\n' "$word"; return ;;
  esac
  prefix=${word%%\[*}; inside=${word#*\[}; suffix=${inside#*\]}; inside=${inside%%\]*}
  local IFS=,
  for part in $inside; do
    case $part in
      *-*) for ((i = 10#${part%-*}; i <= 10#${part#*-}; i++)); do
             expand "$(number "${part%-*}" "$i")$suffix"; done ;;
      *) expand "$prefix$part$suffix" ;;
    esac
  done
}
hostnames() {
  local rest=$1 word= letter depth=0 i
  for ((i = 0; i < ${#rest}; i++)); do
    letter=${rest:i:1}
    case $letter in \[) depth=1 ;; \]) depth=0 ;; esac
    if [ "$letter" = , ] && [ $depth -eq 0 ]; then expand "$word"; word=; else word+=$letter; fi
  done
  [ -z "$word" ] || expand "$word"
}
case "${1-} ${2-}" in
  'show hostnames'|'show hostname')
    list=${3:-${SLURM_JOB_NODELIST-}}
    [ -n "$list" ] || die "no list of nodes given"
    hostnames "$list" ;;
  'show job'|'show jobs'|'show jobid')
    printf 'JobId=%s JobName=%s\n' "$SLURM_JOB_ID" "$SLURM_JOB_NAME"
    printf '   Account=%s Partition=%s JobState=RUNNING\n' "${SLURM_JOB_ACCOUNT-}" "${SLURM_JOB_PARTITION-}"
    printf '   NodeList=%s NumNodes=%s NumTasks=%s\n' "$SLURM_JOB_NODELIST" "$SLURM_NNODES" "$SLURM_NTASKS"
    printf '   WorkDir=%s\n' "$SLURM_SUBMIT_DIR" ;;
  requeue*) die "the platform starts the job again; batch.retry of the manifest says how often" ;;
  *) die "'$*' is not offered here; what is: show hostnames, show job" ;;
esac
"""

BEGIN = """\
unset BASH_ENV
RANDOM=${SLURM_JOB_ID:-1}
hostname() { srun -N1 -n1 hostname "$@"; }"""
"""Beginning of a script that all learners run, so that they agree on what Slurm would determine once, on the first
node: a random number, as of a rendezvous, and the node's address. Programs that the script starts do not see it."""
_INSTALL = """\
_ffdl_slurm="$JOB_STATE_DIR/.slurm-$LEARNER_ID"
if mkdir -p "$_ffdl_slurm"; then
{programs}
printf '%s\\n' {begin} >"$_ffdl_slurm/begin"
case ${{NUM_LEARNERS:-1}}${{{sent}-}}:${{TRAINING_COMMAND-}} in
  1:*|*sent:*|*:'bash -c'*) ;;
  *:'bash '*) export BASH_ENV=${{BASH_ENV-$_ffdl_slurm/begin}} ;;
esac
export PATH="$_ffdl_slurm:$PATH"; fi
unset _ffdl_slurm"""


def _program(name: str, text: str) -> str:
    """Return shell text that writes a program and renames it: the previous run of a restarted learner may still use the
    old one."""
    place = f'"$_ffdl_slurm/{name}"'
    return (
        f'printf "#!%s\\n%s\\n" "$BASH" {shlex.quote(text.strip())} >{place}.new\n'
        f"chmod 755 {place}.new && mv -f {place}.new {place}"
    )


INSTALLATION = _INSTALL.format(
    programs="\n".join(_program(n, t) for n, t in (("srun", SRUN), ("scontrol", SCONTROL), (TAKES, TAKE_STEPS))),
    begin=shlex.quote(BEGIN),
    sent=SENT,
)
"""What a learner's shell runs before the command, if the job requests Slurm's environment."""
