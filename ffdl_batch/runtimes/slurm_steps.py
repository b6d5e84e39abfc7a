"""Steps of a script that the first learner alone runs: its srun sends the tasks of the other learners to them.

The manifest says which jobs these are: a role whose command is ``take-steps COMMAND`` has learners that wait for steps
(:data:`TAKE_STEPS`). They get them as MPI's daemons come to them, by the launch agent
(``controller/rendezvous/launch_agent.py``): each learner of a step runs the same srun for its part of the tasks. What
the script made of its environment goes along, what it left alone each learner has for itself: compared is with what the
learner's own agent was started with, so that nothing is written down that was not the script's own. Output comes back
by files, which the sender of the step reads as they grow.

Where pods share no files nothing can be sent: there each learner runs COMMAND, and its srun starts its own tasks.
"""

from __future__ import annotations

from ffdl_batch.domain.job.spec import JobSpec

TAKES = "take-steps"
SENT = "FFDL_STEPS"
"""Variable of learners whose steps are sent."""


def takes_steps(spec: JobSpec) -> bool:
    """Return whether learners wait for steps of the first one."""
    return spec.batch.slurm_environment and any(
        role.command.startswith(f"{TAKES} ") for role in spec.batch.roles.values()
    )


def runs_alone(spec: JobSpec) -> bool:
    """Return whether only the first learner runs a script for Slurm, while the others take its steps or just wait."""
    waits = spec.batch.slurm_environment and any(role.service for role in spec.batch.roles.values())
    return waits or takes_steps(spec)


TAKE_STEPS = r"""
# take-steps of ffdl_batch: waits for steps of the first learner until that has done its script, "$@". The agent that
# takes them was started beside it. Where they cannot come, it is the script that runs here.
if [ -z "${FFDL_STEPS-}" ]; then
  export BASH_ENV=${BASH_ENV-${0%/*}/begin}
  exec "$@"
fi
turns=0
while :; do
  [ $((turns++ % 30)) -ne 0 ] || : >"$JOB_STATE_DIR/heartbeat-$LEARNER_ID"  # it waits, and does not hang
  for ended in "$JOB_STATE_DIR"/.ended-[1]; do  # by reading the directory: over NFS a name may seem absent for long
    status=
    [ ! -e "$ended" ] || read -r status <"$ended"
    if [ "$status" = 0 ] || { [ -n "$status" ] && [ -e "$JOB_STATE_DIR/halt" ]; }; then exit 0; fi
  done
  sleep 1
done
"""

CHOOSE = r"""
choose() {  # the learners of a step, by their numbers from 0, in the order of the allocation
  local i one wanted left_out=' ' whole=
  members=()
  if [ ${#hosts[@]} -eq "$learners" ]; then
    whole=1
    wanted=" ${hosts[*]} "
    [ -z "$nodelist" ] || wanted=" $("$scontrol" show hostnames "$nodelist" | tr '\n' ' ')"
    [ -z "$exclude" ] || left_out=" $("$scontrol" show hostnames "$exclude" | tr '\n' ' ')"
    for one in $wanted; do
      case " ${hosts[*]} " in *" $one "*) ;; *) die "$one is not a node of this job; its nodes are ${hosts[*]}" ;; esac
    done
    for ((i = 0; i < learners; i++)); do
      case $left_out in *" ${hosts[i]} "*) continue ;; esac
      case $wanted in *" ${hosts[i]} "*) members+=("$i") ;; esac
    done
    for ((i = 0; i < learners && ${#members[@]} < ${nodes:-0}; i++)); do
      case "$left_out${members[*]/#/=} " in *" ${hosts[i]} "*|*"=$i "*) ;; *) members+=("$i") ;; esac
    done
    members=($(printf '%s\n' "${members[@]}" | sort -n))
  else
    for ((i = 0; i < learners; i++)); do members+=("$i"); done
    [ "${SLURM_NNODES:-1}" -ne "$learners" ] || whole=1
  fi
  if [ -n "$whole" ] && [ -n "$nodes" ]; then
    [ "$nodes" -le ${#members[@]} ] || die "$nodes nodes are asked for, and there are ${#members[@]}"
    members=("${members[@]:0:nodes}")
  fi
  [ ${#members[@]} -gt 0 ] || die "no node is left for the step"
  members=("${members[@]:0:ntasks}")
  as_nodes=0 step_nodes=${SLURM_NNODES:-1} step_list=${SLURM_JOB_NODELIST-}
  if [ -n "$whole" ]; then
    step_nodes=${#members[@]} as_nodes=1
    if [ ${#hosts[@]} -eq "$learners" ]; then
      step_list=$(for i in "${members[@]}"; do printf '%s,' "${hosts[i]}"; done); step_list=${step_list%,}
    fi
  fi
}
place_of() {  # number of a learner: which of the step's it is, "" for none
  local i
  for ((i = 0; i < ${#members[@]}; i++)); do [ "${members[i]}" != "$1" ] || printf %s "$i"; done
}
"""
"""Parts of srun, which see its variables."""

SEND = r"""
agent=$JOB_STATE_DIR/.launch-agent step=${0%/*}/step-$LEARNER_ID-$BASHPID asks=() relay=
quoted() { printf "'%s' " "${1//\'/\'\\\'\'}"; }
ask() { exec "$agent" "${LEARNER_NAME_PREFIX-}-$1" "$2" </dev/null; }  # in the background: its process is the agent
changes() {  # what the script made of the environment that it began with, for another learner's shell
  local name one pid= turns=0
  local -A began=()
  until [ "${began[JOB_STATE_DIR]-}:${began[LEARNER_ID]-}" = "$JOB_STATE_DIR:$LEARNER_ID" ]; do
    [ $((turns++)) -lt 50 ] || return 1
    [ "$turns" -eq 1 ] || sleep 0.1  # the agent is about to begin, or this is what an earlier run left
    began=()
    read -r pid <"$JOB_STATE_DIR/.agent-${LEARNER_NAME_PREFIX-}-$((LEARNER_ID - 1))" || continue
    while IFS= read -r -d '' one; do began[${one%%=*}]=${one#*=}; done <"/proc/$pid/environ"
  done 2>/dev/null
  for name in $(compgen -e); do
    case $name in
      _|SHLVL|PWD|OLDPWD|LEARNER_ID|FFDL_REQUEST|SLURM_PROCID|SLURM_LOCALID|SLURM_NODEID|SLURM_TASK_PID) ;;
      *) [ -n "${began[$name]+x}" ] && [ "${began[$name]}" = "${!name}" ] || printf 'export %s=%q\n' "$name" "${!name}"
    esac
  done
  for name in "${!began[@]}"; do
    case $name in ''|*[!A-Za-z0-9_]*|SHLVL|PWD|OLDPWD|_) continue ;; esac
    [ -n "${!name+x}" ] || printf 'unset %s\n' "$name"
  done
  declare -fx
}
compose() {  # the other learners' parts: a shell program, and files for their output
  local place
  [ -x "$agent" ] || die "$agent is missing: nothing can be sent to the other learners"
  (
    umask 077
    rm -rf "$step" && mkdir "$step" && {
      changes || die "what this learner began with cannot be read: its launch agent is gone"
      printf 'step=%q\n' "$step"
      printf '%s\n' 'exec >>"$step/$1.out" 2>>"$step/$1.err"' 'printf "%s\n" "$$" >"$step/$1.pid"'
      printf 'where=%q\n' "$PWD"
      printf '%s\n' 'cd -- "$where" 2>/dev/null || {' \
        'printf "srun: error: there is no %s here; going to /tmp instead\n" "$where" >&2; cd /tmp || exit 1; }'
      printf 'export _FFDL_PART="%s %s $1 %s %s %s"\n' "$ntasks" "${#members[@]}" "$as_nodes" "$step_nodes" "$step_list"
      printf 'exec %q' "$0"; printf ' %q' "${given[@]}"; printf '\n'
    } >"$step/part"
  ) || exit 1
  for place in "${others[@]}"; do : >"$step/$place.out" && : >"$step/$place.err" || die "$step cannot be written"; done
}
follow() {  # prints what the others' tasks print, by whole lines where they end in time
  trap '' INT TERM HUP USR1 USR2
  local LC_ALL=C place stream line over news turns=0 fd
  local -A left=() fds=()
  for place in "${others[@]}"; do
    for stream in out err; do exec {fd}<"$step/$place.$stream"; fds[$place.$stream]=$fd; done
  done
  while :; do
    over= news=
    [ ! -e "$step/over" ] && kill -0 $$ 2>/dev/null || over=1
    for one in "${!fds[@]}"; do
      : <"$step/$one"  # over NFS who opens a file sees what is new
      while IFS= read -r line <&"${fds[$one]}"; do
        print "$one" "${left[$one]-}$line"$'\n'; left[$one]= news=1
      done
      if [ -n "$line" ]; then left[$one]+=$line; elif [ -n "${left[$one]-}" ]; then
        print "$one" "${left[$one]}"; left[$one]=
      fi
      [ -z "$over" ] || print "$one" "${left[$one]-}"
    done
    [ -z "$over" ] || return 0
    turns=$((news ? 0 : turns + 1))
    if [ "$turns" -lt 150 ]; then sleep 0.2; else sleep 1; fi
  done
}
print() { case $1 in *.out) printf %s "$2" ;; *) printf %s "$2" >&2 ;; esac; }
send() {
  local place
  for place in "${others[@]}"; do
    ask "${members[place]}" "exec $(quoted "$BASH")$(quoted "$step/part")$place" &
    asks+=($!) pids+=($!)
  done
  follow </dev/null &
  relay=$!
}
signal_others() {  # a signal for those that still run
  local i file
  for ((i = 0; i < ${#asks[@]}; i++)); do
    kill -0 "${asks[i]}" 2>/dev/null || continue
    file=$(quoted "$step/${others[i]}.pid")
    ask "${members[others[i]]}" "i=0; until [ -s $file ] || [ \$i -ge 50 ]; do sleep 0.1; i=\$((i + 1)); done
      [ ! -s $file ] || kill -s $1 \"\$(cat $file)\" 2>/dev/null" >/dev/null 2>&1 &
  done
}
finish() {
  [ -n "$relay" ] || return 0
  : >"$step/over"
  wait "$relay" 2>/dev/null
  rm -rf "$step"
}
"""
