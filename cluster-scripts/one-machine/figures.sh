# What a blow cost, for selftest, selftest-nodes and selftest-runtime: measured from the run's events, kept in a file for
# each kind, printed as a table at the end. Sourced by jobs.sh; $struck says when the blow fell, $run which run it hit.

figures=$base/$(basename "$0")-figures

# Seconds from the blow until the node was left out (0: nobody had to), the ranks were started again, the first step after
# that was committed.
phases() {
  cat "$shared/$run"/runs/*/events.jsonl | awk -v struck="$struck" '
    { match($0, /"time":[0-9.]+/); at = substr($0, RSTART + 7, RLENGTH - 7) - struck }
    at > 0 && /is left out/ && !seen { seen = at }
    at > 0 && /"event":"run_start"/ && !began { began = at }
    /"event":"step"/ && began && !first { first = at }
    END { printf "%.2f %.2f %.2f\n", seen, began, first }'
}

record() { # record KIND SECONDS
  mkdir -p "$figures"
  echo "$2" >> "$figures/$1"
}

# Of a node that was lost: also by phase.
took() { # took KIND
  local seen began first; read -r seen began first <<< "$(phases)"
  echo "     $run: left out after $seen s, begun again after $began s, next step committed after $first s"
  record "$1" "$first"
  record "$1, left out" "$seen"
  record "$1, begun again" "$began"
}

# Of everything else that ends in another start.
cost() { # cost KIND
  local first; first=$(phases)
  first=${first##* }
  echo "     $run: next step committed after $first s"
  record "$1" "$first"
}

# n, median, smallest, largest.
summary() { sort -n "$figures/$1" | awk '{ v[NR] = $1 } END { print NR, v[int((NR + 1) / 2)], v[1], v[NR] }'; }

table() {
  [ -d "$figures" ] || return 0
  local file
  printf '%-44s %4s %9s %9s %9s\n' "seconds from the blow until" n median min max
  for file in "$figures"/*; do
    # shellcheck disable=SC2046
    printf '%-44s %4s %9s %9s %9s\n' "$(basename "$file")" $(summary "$(basename "$file")")
  done
}

# Only told: how fast a machine is that tests is nobody's fault.
target() { # target KIND SECONDS_MAX
  [ -e "$figures/$1" ] || return 0
  local n median rest verdict=met; read -r n median rest <<< "$(summary "$1")"
  awk "BEGIN { exit !($median > $2) }" && verdict=missed
  echo "target: $1, median of $n at most $2 s: $verdict ($median s)"
}
