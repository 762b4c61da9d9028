//! Which of MPI's errors start recovery.

use kintsugi_ffi::mpi::MpiError;

use crate::cluster::comm::CommError;

impl From<MpiError> for CommError {
    fn from(error: MpiError) -> Self {
        match error {
            MpiError::ProcFailed { .. } => Self::ProcFailed,
            MpiError::Revoked { .. } => Self::Revoked,
            MpiError::Pending { .. } | MpiError::TimedOut { .. } => Self::Pending,
            MpiError::Other { call, class, text } => Self::Fatal { call, class, text },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failure_classes_start_recovery() {
        let call = "MPI_Allreduce";
        assert_eq!(CommError::from(MpiError::ProcFailed { call }), CommError::ProcFailed);
        assert_eq!(CommError::from(MpiError::Revoked { call }), CommError::Revoked);
        assert_eq!(CommError::from(MpiError::Pending { call }), CommError::Pending);
        let other = MpiError::Other { call, class: 15, text: "MPI_ERR_TRUNCATE".into() };
        assert!(!CommError::from(other).starts_recovery());
    }
}
