//! Kernel calls: signals, processes, files, threads.
