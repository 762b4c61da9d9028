# What a job needs to find and to have set, for train.sbatch and compare.sbatch, which source it; edit it
# once per cluster. Everything may also be set beforehand (sbatch passes the environment on).

# The program. `make build` leaves it here; it finds the Open MPI it was built with by itself.
kintsugi_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
KINTSUGI=${KINTSUGI:-${CARGO_TARGET_DIR:-$kintsugi_root/target}/release/kintsugi}

# OPENMPI: prefix of another Open MPI >= 5 with ULFM than the one it was built with, for example one
# that lies on the compute nodes. It must be binary compatible (5.x) and is best the same version.
if [ -n "${OPENMPI:-}" ]; then
  export KINTSUGI_MPIRUN=$OPENMPI/bin/mpirun
  export PATH=$OPENMPI/bin:$PATH LD_LIBRARY_PATH=$OPENMPI/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi

# KINTSUGI_RUNTIME: prefix of the newer runtime (build-openmpi.sh --runtime). Over several nodes it takes
# mpirun's place, and the death of a node is survived without a restart.
# export KINTSUGI_RUNTIME=/path/to/the/prefix

# The runtime names its session folder after a process id, without the host's name: on a TMPDIR that
# nodes share two daemons may meet in one folder, and mpirun then hangs for ever.
kintsugi_node_local() { # kintsugi_node_local FOLDER
  [ -d "$1" ] && [ -w "$1" ] || return 1
  case $(stat --file-system --format=%T "$1") in
  nfs* | lustre | gpfs | beegfs | fhgfs | ceph* | smb* | cifs | afs | fuse* | pan*fs | orangefs) return 1 ;;
  esac
}
for TMPDIR in "${TMPDIR:-/tmp}" /tmp /dev/shm; do kintsugi_node_local "$TMPDIR" && break; done
export TMPDIR

# Point-to-point messages by the component whose failures ULFM's developers test; a site's default
# (UCX, libfabric) may not return errors when a peer dies.
export OMPI_MCA_pml=ob1
# Several networks: name the fast one, or Open MPI tries all (`ip -br addr` shows them).
# export OMPI_MCA_btl_tcp_if_include=ib0

# mpirun starts one daemon per other node through srun: within the job's own resources, beside the
# steps that are there, and not through a variable that srun itself misreads.
export SLURM_OVERLAP=1
unset SLURM_NO_KILL SLURM_MPI_TYPE
