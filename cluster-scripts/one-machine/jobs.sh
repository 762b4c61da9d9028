# What selftest, selftest-nodes and selftest-runtime share: a cluster of their own, jobs of train.sbatch on
# it, claims about them. Sourced; sets up everything but the cluster itself. Expects $rows (scenarios that a skip
# leaves out), $steps, $strike_after_steps and $resources (of #SBATCH); what is for several nodes also $round.

# Generous: machines that test are busy. Nothing here waits for time to pass where it can look.
job_seconds_max=${SELFTEST_JOB_SECONDS_MAX:-300}

claims=0
claim() { claims=$((claims + 1)); printf 'ok   %s\n' "$*"; }
failed() {
  printf 'FAIL %s\n' "$*" >&2
  local newest; newest=$(ls -t "$shared"/*/*.log 2>/dev/null | head -n 1) || true
  [ -z "$newest" ] || tail -n 40 "$newest" >&2
  # What the run itself noted, but for its steps.
  [ -z "$newest" ] || cat "$(dirname "$newest")"/runs/*/events.jsonl 2>/dev/null |
    grep -v -E '"event":"(step|evaluation|checkpoint)"' | tail -n 20 | cut -c 1-400 >&2 || true
  # What its launcher and its ranks wrote at last.
  [ -z "$newest" ] || tail -n 5 "$(dirname "$newest")"/runs/*/logs/* 2>/dev/null | cut -c 1-400 | tail -n 80 >&2 || true
  exit 1
}

# Starts the cluster, with SLURM's packages where they are missing and it may; skips where it cannot run. That
# it could and did not is a failure.
start_cluster() { # start_cluster [NODES]
  local install=() why code=0
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then install=(--install); fi
  why=$("$here/up" "${install[@]}" "$@" 2>&1) || code=$?
  [ $code != 77 ] || skip "$(tail -n 1 <<< "$why")"
  [ $code = 0 ] || { printf '%s\n' "$why" >&2; failed "up: the cluster does not start"; }
}

skip() { echo "skipped: $rows scenarios of the one-machine SLURM: $*"; exit 77; }

# A checkout below /tmp is fine, a build folder elsewhere too: both are shared with the nodes by up.
KINTSUGI=$(realpath -m "${KINTSUGI:-${CARGO_TARGET_DIR:-$root/target}/release/kintsugi}")
[ -x "$KINTSUGI" ] || skip "no program $KINTSUGI (make build)"
export KINTSUGI
base=$(test_folder)
mkdir -p "$base"
export KINTSUGI_CLUSTER=$base/selftest-slurm
if [ ${#KINTSUGI_CLUSTER} -gt $state_name_max ]; then
  KINTSUGI_CLUSTER=$(mktemp -d "${TMPDIR:-/tmp}/kintsugi-XXXXXX")
  chmod 755 "$KINTSUGI_CLUSTER"
fi
program=$(basename "$KINTSUGI")
program=${program:0:15} # as the kernel names its processes
KINTSUGI_CLUSTER_SHARE=$(dirname "$KINTSUGI")${KINTSUGI_CLUSTER_SHARE:+:$KINTSUGI_CLUSTER_SHARE}
export KINTSUGI_CLUSTER_SHARE
find_state
shared=$state/shared
source "$here/figures.sh"
rm -rf "$figures"
export KINTSUGI_DATA_DIR=$shared/data # pictures are made once, by the calm job

slurm() { "$here/on" "$@"; }

# A user's way: an empty folder, the script copied into it, its two marked lines edited.
prepare() { # prepare NAME
  mkdir "$shared/$1"
  cp "$root/cluster-scripts/train.sbatch" "$shared/$1/"
  sed -i -e "s|^configuration=.*|configuration=$root/configs/quick.toml|" \
    -e "s|^#SBATCH --nodes=.*|#SBATCH $resources --time=00:30:00|" "$shared/$1/train.sbatch"
}

# Options of sbatch that the next jobs get besides those of their script.
sbatch_options=()

submit() { # submit NAME [KEY=VALUE]... -> job id
  local name=$1 key arguments=(-s "train.steps=$steps"); shift
  for key in "$@"; do arguments+=(-s "$key"); done
  (cd "$shared/$name" && slurm sbatch --parsable "${sbatch_options[@]}" train.sbatch "${arguments[@]}")
}

# Makes rank 0 a slow one at these steps, by $pause for each of its owners in each step; whoever is started again is not,
# until the next of them. So a run can be struck in time whatever the machine, and is quick afterwards.
long=250ms
slow_at() { # slow_at STEP...
  local step slow=()
  for step in "$@"; do slow+=("{kind=\"slow\",who=\"rank\",rank=0,step=$step,pause=\"${pause:-50ms}\"}"); done
  echo "faults.plan=[$(IFS=,; echo "${slow[*]}")]"
}

# For a run that is struck from outside: it lasts until then, whatever the machine.
lasting() { slow_at "$strike_after_steps"; }

state_of() { slurm squeue --noheader --states=all --job="$1" --format=%T; }
restarts_of() { slurm scontrol show job "$1" | sed -n 's/.* Restarts=\([0-9]*\).*/\1/p'; }
exit_of() { slurm scontrol show job "$1" | sed -n 's/.* ExitCode=\([0-9]*\):.*/\1/p'; }
ended() { [[ $(state_of "$1") =~ ^(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL)$ ]]; }
at_step() { [ "$(cat "$shared/$1"/runs/*/ledger.jsonl 2>/dev/null | wc -l)" -ge "$2" ]; }
result() { sed -n "s/.*\"$2\": *\"\{0,1\}\([^\",}]*\).*/\1/p" "$shared/$1"/runs/*/result.json | head -n 1; }
says() { grep -q "$2" "$shared/$1"/kintsugi-*.log; }

finishes() { # finishes NAME JOB
  within "$job_seconds_max" ended "$2" || failed "$1: job $2 is still $(state_of "$2")"
  [ "$(state_of "$2")" = COMPLETED ] || failed "$1: job $2 ended as $(state_of "$2"), exit $(exit_of "$2")"
  [ "$(result "$1" status)" = completed ] || failed "$1: result.json says $(result "$1" status)"
  local audit
  audit=$("$KINTSUGI" audit "$shared/$1"/runs/* 2>&1) || failed "$1: not every sample was committed once: $audit"
}

same_as_calm() { # same_as_calm NAME
  [ "$(result "$1" state_sha256)" = "$calm" ] || failed "$1: state_sha256 differs from the calm run's"
}

# Processes that name the cluster's folder in their arguments: daemons, jobs' scripts, ranks. A zombie
# has no arguments.
leftovers() {
  local folder
  for folder in /proc/[0-9]*; do
    tr '\0' ' ' 2>/dev/null < "$folder/cmdline" | grep -q -F "$state/" && echo "${folder#/proc/}"
  done
  return 0
}

# Several nodes.

# Starts a job and waits until it is well on its way. Its keys decide which run it is: whoever goes on with it needs them.
begin() { # begin NAME [KEY=VALUE]...
  run=$1-$round keys=("${@:2}")
  prepare "$run"
  job=$(submit "$run" "${keys[@]}")
  within "$job_seconds_max" at_step "$run" $strike_after_steps || failed "$run: too few steps"
}

# Sets when it happened: nodes write it down, for a script's own start takes time. A run may well finish
# while a fault lasts, but not before it.
strike() { # strike NODE WHAT...
  rm -f "$state/$1/struck"
  struck=$(date +%s.%N)
  "$here/fault" "$@"
  [ ! -e "$state/$1/struck" ] || struck=$(cat "$state/$1/struck")
  touch -d "@$struck" "$state/blow"
  ! finished_before "$state/blow" || failed "$run: was finished before it could be struck; raise steps"
}

finished_before() { # finished_before FILE
  [ "$(result "$run" status 2>/dev/null)" = completed ] &&
    [ -n "$(find "$shared/$run"/runs/*/result.json ! -newer "$1")" ]
}

count() { cat "$shared/$run"/runs/*/events.jsonl | grep -c "\"event\":\"$1\"" || true; }

# The job finished as if nothing had happened; so many starts of mpirun and requeues were needed.
holds() { # holds RESTARTS REQUEUES NODE...
  finishes "$run" "$job"
  same_as_calm "$run"
  [ "$(result "$run" lost_steps)" = 0 ] || failed "$run: lost $(result "$run" lost_steps) steps"
  [ "$(count restarted)" = "$1" ] || failed "$run: $(count restarted) restarts instead of $1"
  [ "$(restarts_of "$job")" = "$2" ] || failed "$run: $(restarts_of "$job") requeues instead of $2"
  nothing_on "${@:3}"
}

gone() { [ "$(state_of "$job")" != RUNNING ]; }

# The nodes that hold ranks, by the world's table.
nodes_of_ranks() {
  tr -d '\n' < "$(echo "$shared/$run"/runs/*/world.json)" | sed 's/}/}\n/g' | grep '"role": *"active"' |
    sed -n 's/.*"host": *"\(n[0-9]*\)".*/\1/p' | sort -u
}

# Processes and files of runs on these nodes, slots included.
processes_of_runs() { # processes_of_runs NODE
  "$here/on" "$1" sh -c 'for folder in /proc/[0-9]*; do
    read -r name < $folder/comm && echo "$name" $(tr "\0" "\n" < $folder/cmdline | sed -n 2p); done' 2>/dev/null |
    grep -E "^($program|exe|prted|prterun|mpirun)( |$)" || true
}
of_runs() { # of_runs NODE
  "$here/on" "$1" sh -c 'ls -d /tmp/kintsugi-* /dev/shm/kintsugi-* 2>/dev/null' || true
  processes_of_runs "$1"
}
clean() { [ -z "$(of_runs "$1")" ]; }
at_rest() { [ -z "$(processes_of_runs "$1")" ]; }
nothing_on() { # nothing_on NODE...
  local node
  for node in "$@"; do
    within 5 clean "$node" || failed "${run:-calm}: left on $node: $(of_runs "$node" | tr '\n' ' ')"
  done
}

all_idle() { [ "$(slurm sinfo --noheader --Node --format=%T | grep -cx idle)" = "$(node_names | wc -l)" ]; }
# SLURM counts on every node again; if not, what it says of them and why.
idle_again() {
  within 60 all_idle || {
    slurm sinfo --Node --format='%N %T %E' >&2 || true
    slurm squeue --states=all --format='%i %T %N %r' >&2 || true
    tail -n 20 "$state/slurmctld.log" >&2
    failed "${run:-calm}: the nodes are not idle again"
  }
}
mend() { # mend NODE
  "$here/fault" "$1" return
  idle_again
  # An agent that lost launch looks for 20 s whether launch's machine lives.
  within 40 at_rest "$1" || failed "$run: still runs on $1: $(processes_of_runs "$1" | tr '\n' ' ')"
  # Files may be left: SLURM took the node out of the job, so nothing of ours could run there to clear them.
  "$here/on" "$1" sh -c 'rm -rf /tmp/kintsugi-* /dev/shm/kintsugi-*'
}
