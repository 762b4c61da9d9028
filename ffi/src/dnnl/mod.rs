//! oneDNN 3.x, CPU, C API.
