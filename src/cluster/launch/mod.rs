//! `kintsugi launch`: the mpirun line, the supervisor, the run directory lock.
