//! What we call of the CUDA driver, NVRTC and cuDNN, one to one: tables of addresses that are
//! looked up by name when a library is loaded.

pub mod cudnn;
pub mod driver;
pub mod nvrtc;

/// A structure of function pointers and its `load`. The names are those that the library exports,
/// which the headers hide behind shorter ones (`cuMemAlloc` is `cuMemAlloc_v2`).
macro_rules! table {
    ($(#[$meta:meta])* $name:ident { $($symbol:ident($($argument:ty),*) -> $result:ty;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub struct $name {
            $(pub $symbol: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $name {
            /// Looks up every function.
            ///
            /// # Errors
            /// Names the first that is missing.
            pub fn load(library: &$crate::cuda::library::Library)
                -> Result<Self, $crate::cuda::library::Missing>
            {
                Ok(Self {
                    $($symbol: {
                        let address = library.symbol(stringify!($symbol))?.as_ptr();
                        // SAFETY: the headers give the function of this name this type, in all
                        // versions that export it.
                        unsafe {
                            std::mem::transmute::<
                                *mut std::ffi::c_void,
                                unsafe extern "C" fn($($argument),*) -> $result,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}
use table;
