# What train.sbatch and compare.sbatch share: how a job hears of its time limit, and what becomes of it when
# the program has ended. Sourced by them; reads environment.sh beside it.

# SLURM's warning may come after a user's own: what is to be done is being done.
ask() { # ask SIGNAL
  heard=$((heard + 1))
  [ "$1" != USR1 ] || [ -z "$asked" ] || return 0
  asked=$1 owed=1
  [ -z "$pid" ] || pass_on
}

# From the first line on: a job may be asked before its program is started.
asked='' owed='' heard=0 pid=''
# CONT is not trapped: SLURM sends it along with USR1, which then is sometimes lost.
trap 'ask USR1' USR1
trap 'ask TERM' TERM
# Of these this script would die, and the job with it, before the ranks have written a checkpoint.
trap 'ask HUP' HUP
trap 'ask INT' INT
trap 'ask QUIT' QUIT

# shellcheck source=environment.sh
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

# By the queue, whatever the reason: no job comes back for ever.
restarts_max=100

log() { printf '%(%F %T)T job %s: %s\n' -1 "${SLURM_JOB_ID:-}" "$*"; }
stop() { # stop CODE WHY
  log "$2"
  exit "$1"
}

# Exit codes of kintsugi -> what becomes of the job. Pure.
decide() { # decide CODE ASKED_TO_STOP
  case $1 in
  0) echo finish ;;
  # Job lost (a fresh start may help); killed before it could say why.
  75 | 137) echo again ;;
  # Interrupted with a checkpoint. Where this script did not ask for it, another launch may have taken the run over,
  # and two jobs that both come back would take it from each other for ever.
  85) if [ -n "$2" ]; then echo again; else echo give-up; fi ;;
  # A check failed, usage, bad data, a bug, no progress in three attempts: the next time would be the same.
  1 | 2 | 3 | 70 | 93) echo give-up ;;
  # Asked to stop before the program was ready to be asked: it died of the signal.
  *) if [ -n "$2" ]; then echo again; else echo give-up; fi ;;
  esac
}

whole() { # whole NAME VALUE
  [[ $2 =~ ^(0|[1-9][0-9]*)$ ]] || stop 2 "$1=$2 is no whole number: write, for example, $1=1"
}

# Sets $ranks where RANKS does not: the tasks of all nodes but the spare ones.
set_ranks() { # set_ranks SPARE_NODES [MIN_NODES]
  local nodes=${SLURM_JOB_NUM_NODES:-1} least=${2:-1} per_node=${SLURM_NTASKS_PER_NODE:-}
  whole SPARE_NODES "$1"
  whole MIN_NODES "$least"
  # A later start may have fewer for a while, where the job asks for a range. SLURM does not say of a running job
  # whether it does.
  [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] || [ "$least" -le "$nodes" ] || stop 2 "MIN_NODES=$least, and the job was\
 given $nodes nodes: ask for $least or more (--nodes=$least, or a range from $least on), or set MIN_NODES to $nodes"
  [ "$least" -le "$nodes" ] || [ "$nodes" -gt 1 ] || requeue 75
  [ "$1" -lt "$nodes" ] || stop 2 "SPARE_NODES=$1 of $nodes nodes: none is left to compute"
  ranks=${RANKS:-}
  [ -z "$ranks" ] || return 0
  if [ -z "$per_node" ]; then
    local tasks=${SLURM_NTASKS:-$nodes} placed=${SLURM_NTASKS:+${SLURM_TASKS_PER_NODE:-}}
    # Where SLURM was left the choice it may put 3 of 4 tasks on one of two nodes ("3,1").
    [ $((tasks % nodes)) = 0 ] && [[ $placed != *,* ]] ||
      stop 2 "$tasks tasks on $nodes nodes${placed:+ ($placed)}: say how many on each, --ntasks-per-node"
    per_node=$((tasks / nodes))
  fi
  ranks=$(((nodes - $1) * per_node))
}

# What SLURM says of this job. Asked for by its number it names more where that is also an array's (of its last task) or a
# heterogeneous job's, and variables of an array may be those of the job from whose script this one was submitted.
this_job() {
  scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null | grep "^JobId=$SLURM_JOB_ID "
}

# What to requeue: all tasks of an array would begin again, those that are complete too. Pure.
queue_name() { # queue_name RECORD
  local task='^JobId=[0-9]+ ArrayJobId=([0-9]+) ArrayTaskId=([0-9]+) ' job='^JobId=([0-9]+) '
  if [[ $1 =~ $task ]]; then echo "${BASH_REMATCH[1]}_${BASH_REMATCH[2]}"
  elif [[ $1 =~ $job ]]; then echo "${BASH_REMATCH[1]}"; fi
}

requeue() { # requeue CODE
  [ "${SLURM_RESTART_COUNT:-0}" -lt $restarts_max ] || stop "$1" "started $restarts_max times again: no more"
  local record='' try
  for try in 1 2 3; do
    record=$(this_job) && break
    [ "$try" = 3 ] || sleep 5
  done
  [ -n "$record" ] || stop "$1" "not requeued: SLURM does not say what it knows of this job; submit again to go on"
  # Behind a cut cable this script may have outlived its job, which was started again elsewhere.
  [[ " $record " == *" Restarts=${SLURM_RESTART_COUNT:-0} "* ]] ||
    stop "$1" "not requeued: this job was started again elsewhere"
  log "back into the queue"
  # The request comes back as SIGTERM to everything in the job, scontrol included, in a millisecond.
  (trap '' TERM; exec scontrol requeue "$(queue_name "$record")") ||
    stop "$1" "not requeued (sbatch --requeue?); submit again to go on"
  # SLURM ends this script while it sleeps.
  sleep 60 & wait
  exit "$1"
}

# Copies the training set to every node, all of it, before anything else: what a run finds there it copies no more. With
# the arguments of `data stage`. Where it fails, the ranks copy what lacks.
before=()
stage_ahead() { # stage_ahead ARGUMENT...
  local nodes=${SLURM_JOB_NUM_NODES:-1}
  before=(srun --mpi=none --no-kill --nodes="$nodes" --ntasks="$nodes" --ntasks-per-node=1 --label
    "$KINTSUGI" data stage "$@")
}

# Whether PROCESS would hear SIGNAL: it is no copy of this shell any more, and has a handler for it (srun blocks it, and
# waits for it). Before that the signal is lost, or ends it.
hears() { # hears PROCESS SIGNAL
  local name mask number; number=$(kill -l "$2")
  [ ! "/proc/$1/exe" -ef "/proc/$$/exe" ] || return 1
  while read -r name mask; do
    case $name in
    SigBlk: | SigCgt:) (((16#$mask >> (number - 1)) & 1)) && return 0 ;;
    esac
  done 2>/dev/null < "/proc/$1/status"
  return 1
}

# A program that has no handler by then has none.
hears_seconds_max=20

# Passes on what this script was asked for. `launch` ends at once, without a checkpoint, when it is asked once more.
pass_on() {
  owed=''
  local end=$((SECONDS + hears_seconds_max))
  until hears "$pid" "$signal" || [ $SECONDS -ge $end ]; do
    kill -0 "$pid" 2>/dev/null || return 0
    sleep 0.05
  done
  kill -"$signal" "$pid" 2>/dev/null
}

# Runs COMMAND in the background, for its signals come to this script; sets $code.
run() { # run COMMAND...
  local before_wait status
  code=127
  "$@" &
  pid=$!
  [ -z "$owed" ] || pass_on
  # A trapped signal ends `wait` early; who has been waited for is no child any more (127).
  while :; do
    before_wait=$heard
    wait "$pid"
    status=$?
    [ $status = 127 ] || code=$status
    [ "$heard" != "$before_wait" ] || break
  done
  pid=''
}

# Runs COMMAND, passes SLURM's warning on to it as SIGNAL, decides about the job when it has ended.
run_as_job() { # run_as_job SIGNAL COMMAND...
  local signal=$1 code; shift
  [ -x "$KINTSUGI" ] || stop 2 "no program $KINTSUGI: run make build, or set KINTSUGI"
  log "on $SLURM_JOB_NODELIST, restart ${SLURM_RESTART_COUNT:-0}: $*"
  if [ ${#before[@]} -gt 0 ] && [ -z "$asked" ]; then
    run "${before[@]}"
    log "staging ahead ended with $code${asked:+, asked to stop by $asked}"
  fi
  if [ -z "$asked" ]; then
    run "$@"
    log "kintsugi ended with $code${asked:+, asked to stop by $asked}"
  else
    # As a launch that is asked before its ranks are started.
    code=85
    log "asked to stop by $asked before kintsugi was started"
  fi
  # Cancelled or preempted: SLURM itself decides what comes next; of the others, whoever sent them.
  [ -z "$asked" ] || [ "$asked" = USR1 ] || exit "$code"
  case $(decide "$code" "$asked") in
  finish) exit 0 ;;
  again) requeue "$code" ;;
  *) stop "$code" "not requeued; README.md, \"Exit codes\", says what $code means" ;;
  esac
}
