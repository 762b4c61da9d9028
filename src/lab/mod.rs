//! experiment runs, bench compares, doctor checks.
