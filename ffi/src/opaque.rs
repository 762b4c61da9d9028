//! Types of C libraries that nobody sees into.

/// Handles are opaque: only pointers to them exist.
macro_rules! opaque {
    ($($name:ident),*) => {
        $(#[repr(C)]
        pub struct $name {
            _private: [u8; 0],
        })*
    };
}
pub(crate) use opaque;
