# What selftest and selftest-nodes share: a cluster of their own, jobs of train.sbatch on it, claims about
# them. Sourced; sets up everything but the cluster itself. Expects $steps and $resources (of #SBATCH).

# Generous: machines that test are busy. Nothing here waits for time to pass where it can look.
job_seconds_max=${SELFTEST_JOB_SECONDS_MAX:-300}

claims=0
claim() { claims=$((claims + 1)); printf 'ok   %s\n' "$*"; }
failed() {
  printf 'FAIL %s\n' "$*" >&2
  tail -n 25 "$shared"/*/*.log >&2 2>/dev/null || true
  exit 1
}

# Starts the cluster, with SLURM's packages where they are missing and it may; skips where it cannot.
start_cluster() { # start_cluster [NODES]
  local install=() why
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then install=(--install); fi
  why=$("$here/up" "${install[@]}" "$@" 2>&1) || skip "$(tail -n 1 <<< "$why")"
}

skip() { echo "skipped: one-machine SLURM: $*"; exit 77; }

# A checkout below /tmp is fine, a build folder elsewhere too: both are shared with the nodes by up.
KINTSUGI=$(realpath -m "${KINTSUGI:-${CARGO_TARGET_DIR:-$root/target}/release/kintsugi}")
[ -x "$KINTSUGI" ] || skip "no program $KINTSUGI (make build)"
export KINTSUGI
base=$(realpath -m "${SELFTEST_DIR:-${CARGO_TARGET_DIR:-$root/target}}")
mkdir -p "$base"
export KINTSUGI_CLUSTER=$base/selftest-slurm
[ ${#KINTSUGI_CLUSTER} -le $state_name_max ] || KINTSUGI_CLUSTER=${TMPDIR:-/tmp}/kintsugi-selftest-$$
KINTSUGI_CLUSTER_SHARE=$(dirname "$KINTSUGI")${KINTSUGI_CLUSTER_SHARE:+:$KINTSUGI_CLUSTER_SHARE}
export KINTSUGI_CLUSTER_SHARE
find_state
shared=$state/shared
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
