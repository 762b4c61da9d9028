#!/usr/bin/env bash
# Builds Open MPI with ULFM for a cluster that has none, without root:
#   build-openmpi.sh PREFIX SOURCE [-- CONFIGURE-OPTION...]
# or the newer runtime (PMIx and PRRTE) under which the death of a whole node does not end a job:
#   build-openmpi.sh --runtime PREFIX PMIX-SOURCE PRRTE-SOURCE [-- CONFIGURE-OPTION...]
# SOURCE is a folder, an archive, or the address of an archive (a release; a git checkout needs its
# submodules). PREFIX is a folder that all nodes see. Sources are not written to. JOBS=n: compilers at once.
set -euo pipefail

usage() { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
die() { echo "build-openmpi: $*" >&2; exit 1; }
missing() { die "$1 is missing: install it, or load your site's module"; }

jobs=${JOBS:-$(nproc)}
log_lines=25

# Puts SOURCE into $work/NAME, unpacked.
unpack() { # unpack SOURCE NAME
  local source=$1 folder=$work/$2
  case $source in
  http://* | https://*)
    if command -v curl >/dev/null; then curl -fsSL --retry 3 -o "$work/$2.tar" "$source"
    elif command -v wget >/dev/null; then wget -q -O "$work/$2.tar" "$source"
    else missing "curl or wget"; fi || die "cannot fetch $source: fetch it elsewhere and name the file"
    source=$work/$2.tar ;;
  esac
  mkdir "$folder"
  if [ -d "$source" ]; then cp -R "$source/." "$folder"
  elif [ -f "$source" ]; then
    tar -xf "$source" -C "$folder" --strip-components=1 || die "$source is not an archive that tar reads"
  else die "no source $source: name a folder, an archive or an address"; fi
  [ -x "$folder/configure" ] || [ -x "$folder/autogen.pl" ] || die "$1 has neither configure nor autogen.pl"
}

build() { # build NAME CONFIGURE-OPTION...
  local name=$1 log=$work/$1.log; shift
  echo "building $name ($jobs compilers; minutes)"
  # A release has its configure; a checkout makes it (autoconf, automake, libtool, flex, perl, python3). Joined by
  # &&, for `set -e` is off in a condition.
  if ! (
    cd "$work/$name" &&
      { [ -x configure ] || ./autogen.pl; } &&
      ./configure --prefix="$prefix" --disable-dependency-tracking "$@" &&
      make -j "$jobs" &&
      make install
  ) >"$log" 2>&1; then
    tail -n $log_lines "$log" >&2
    cp "$log" "$prefix/$name.log"
    die "$name did not build: above are the last lines of $prefix/$name.log"
  fi
}

# What Kintsugi needs is asked of the result, not taken for granted from the options.
verify_openmpi() {
  cat > "$work/probe.c" <<'C'
#include <mpi.h>
#include <mpi-ext.h>
#if OMPI_MAJOR_VERSION < 5 || !OMPI_HAVE_MPI_EXT_FTMPI
#error no ULFM
#endif
int main(void) { int flag = 1; return MPIX_Comm_agree(MPI_COMM_WORLD, &flag); }
C
  "$prefix/bin/mpicc" "$work/probe.c" -o "$work/probe" || die "this Open MPI has no ULFM: version 5 or newer is needed"
  # Not by a pipe: grep -q ends before ompi_info, which then dies of SIGPIPE.
  [[ $("$prefix/bin/ompi_info") == *"FT MPI support: yes"* ]] || die "ompi_info denies FT MPI support"
  cat <<TEXT
Open MPI with ULFM is in $prefix. Build Kintsugi with it, then let it prove itself:
  MPICC=$prefix/bin/mpicc make build
  target/release/kintsugi doctor
TEXT
}

[ $# -ge 1 ] || usage
runtime=no
case $1 in --runtime) runtime=yes; shift ;; -*) usage ;; esac
sources=()
prefix=${1:-}
[ -n "$prefix" ] || usage
shift
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  sources+=("$1")
  shift
done
[ "${1:-}" != -- ] || shift
command -v cc >/dev/null || missing "a C compiler (cc)"
command -v make >/dev/null || missing make
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ $runtime = yes ]; then
  [ ${#sources[@]} = 2 ] || usage
  unpack "${sources[0]}" pmix
  unpack "${sources[1]}" prrte
  mkdir -p "$prefix"
  prefix=$(cd "$prefix" && pwd -P)
  # libevent and hwloc with their headers come from the system or from options (--with-libevent=...).
  build pmix --without-munge --disable-python-bindings "$@"
  build prrte --with-pmix="$prefix" --enable-prte-ft "$@"
  "$prefix/bin/prterun" --version | head -n 1
  echo "the runtime is in $prefix"
else
  [ ${#sources[@]} = 1 ] || usage
  unpack "${sources[0]}" openmpi
  mkdir -p "$prefix"
  prefix=$(cd "$prefix" && pwd -P)
  # Its own libraries: a site's PMIx or PRRTE of another version is a frequent cause of broken starts.
  build openmpi --with-ft=ulfm --with-slurm --disable-mpi-fortran --with-libevent=internal \
    --with-hwloc=internal --with-pmix=internal --with-prrte=internal "$@"
  verify_openmpi
fi
