# What up, down, fault and on agree about: where the cluster's state lies, which processes are its
# own, how to get inside. Sourced, never run.
#
# The cluster is one outer set of namespaces, the *world* (process ids, network, mounts, host name),
# with munged, slurmctld and a bridge 10.77.0.254; inside it every node is a set of its own. So a node
# is a machine in all that a job can see (address, host name, /tmp, /dev/shm, process ids), and killing
# a namespace's first process kills everything in it: nothing can be overlooked.

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
root=$(cd "$here/../.." && pwd -P)
PATH=$PATH:/usr/sbin:/sbin

# A Unix socket's name has at most 107 characters, and munged adds some to the folder's.
state_name_max=80

# The file in $state that says that all of it is ours.
mark=.kintsugi-cluster

die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# This machine lacks something that no change of ours can give it; a failure of ours is `die`.
cannot() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 77; }

# Sets $state: the variable's folder, else one below the build folder, else (name too long) TMPDIR.
find_state() {
  state=${KINTSUGI_CLUSTER:-${CARGO_TARGET_DIR:-$root/target}/one-machine}
  if [ -z "${KINTSUGI_CLUSTER:-}" ] && [ ${#state} -gt $state_name_max ]; then
    state=${TMPDIR:-/tmp}/kintsugi-cluster-$(id -u)
    # Everybody makes names there.
    [ ! -L "$state" ] && { [ ! -e "$state" ] || [ -O "$state" ]; } ||
      die "$state was made by another user: set KINTSUGI_CLUSTER to a new folder"
  fi
  state=$(realpath -m "$state")
  [ ${#state} -le $state_name_max ] ||
    die "longer than $state_name_max characters, set KINTSUGI_CLUSTER to a shorter folder: $state"
}

# The processes that hold the world, by their exact arguments: ids in files may be stale or, after a
# half-failed start, missing. `world_pids init` names the first process inside only.
world_pids() {
  local folder arguments
  for folder in /proc/[0-9]*; do
    # A zombie has no arguments, and a process may be gone by now.
    mapfile -d '' -t arguments 2>/dev/null < "$folder/cmdline" || continue
    [ ${#arguments[@]} -ge 4 ] || continue
    [ "${arguments[*]: -3}" = "$here/init world $state" ] || continue
    [ "${1:-}" = init ] && [ "${arguments[0]}" != bash ] && continue
    printf '%s\n' "${folder#/proc/}"
  done
}

running() { [ -n "$(world_pids init)" ]; }

# Tries COMMAND for at most SECONDS.
within() { # within SECONDS COMMAND...
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.05
  done
}

# The first process of node NAME, by the world's count; fails when the node is off.
node_pid() { # node_pid NAME
  local pid; pid=$(cat "$state/$1/pid" 2>/dev/null) && in_world kill -0 "$pid" 2>/dev/null && echo "$pid"
}

# Runs COMMAND in the world (its folder must exist there, so it starts in ours or in /).
in_world() {
  local pid as=(); pid=$(cat "$state/pid" 2>/dev/null) || die "no cluster in $state: start it with $here/up"
  [ "$(id -u)" = 0 ] || as=(--user --preserve-credentials)
  nsenter --target "$pid" "${as[@]}" --mount --uts --net --pid --wdns="$PWD" "$@"
}

in_node() { # in_node NAME COMMAND...
  local name=$1 pid; shift
  pid=$(node_pid "$name") || die "$name is off: $here/fault $name return"
  in_world nsenter --target "$pid" --mount --uts --net --pid --wdns="$PWD" "$@"
}

# What the self tests make beside the cluster: below the build folder.
test_folder() { realpath -m "${SELFTEST_DIR:-${CARGO_TARGET_DIR:-$root/target}}"; }
# Where the newer runtime is built for them.
newer_runtime() { echo "$(test_folder)/newer-runtime"; }

node_names() { local folder; for folder in "$state"/n[0-9]*; do basename "$folder"; done; }
