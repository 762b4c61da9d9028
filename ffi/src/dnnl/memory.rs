//! Shapes and layouts of tensors (`dnnl_memory_desc_t`).

use std::ffi::c_int;
use std::ptr::null_mut;

use super::result::{Error, check};
use super::sys;

/// Physical order of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Whatever the primitive prefers.
    Any,
    /// Row-major in the order of the dimensions.
    Plain,
}

/// What the elements of a tensor are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// IEEE 754 single precision.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// Whatever else oneDNN keeps for itself.
    Other,
}

/// A tensor's element type, dimensions and physical layout.
pub struct MemoryDesc {
    raw: *mut sys::memory_desc,
}

impl MemoryDesc {
    /// Dimensions (1, 2, 4 or 5 of them) of f32 or bf16 in a given order.
    pub fn new(dims: &[usize], element: Element, order: Order) -> Result<Self, Error> {
        let refuse = |reason| Error::Refused { call: "memory_desc_create", reason };
        let data_type = match element {
            Element::F32 => sys::F32,
            Element::Bf16 => sys::BF16,
            Element::Other => return Err(refuse("elements of f32 or bf16 are supported".into())),
        };
        let tag = match (order, dims.len()) {
            (Order::Any, 1..=12) => sys::TAG_ANY,
            (Order::Plain, 1) => sys::TAG_A,
            (Order::Plain, 2) => sys::TAG_AB,
            (Order::Plain, 4) => sys::TAG_ABCD,
            (Order::Plain, 5) => sys::TAG_ABCDE,
            _ => {
                let reason = format!("{} dimensions; 1, 2, 4 or 5 are supported", dims.len());
                return Err(refuse(reason));
            }
        };
        let dims = signed(dims);
        let mut raw = null_mut();
        // SAFETY: `dims` holds `dims.len()` values; `raw` receives a new handle.
        check("memory_desc_create", unsafe {
            sys::dnnl_memory_desc_create_with_tag(
                &mut raw,
                dims.len() as c_int,
                dims.as_ptr(),
                data_type,
                tag,
            )
        })?;
        Ok(Self { raw })
    }

    /// Clones a descriptor that something else owns.
    ///
    /// # Safety
    /// `existing` is a live descriptor.
    pub(super) unsafe fn borrowed(existing: *const sys::memory_desc) -> Result<Self, Error> {
        let mut raw = null_mut();
        // SAFETY: the caller vouches for `existing`.
        check("memory_desc_clone", unsafe { sys::dnnl_memory_desc_clone(&mut raw, existing) })?;
        Ok(Self { raw })
    }

    /// The same bytes under other dimensions, where the layout allows.
    pub fn reshape(&self, dims: &[usize]) -> Result<Self, Error> {
        let dims = signed(dims);
        let mut raw = null_mut();
        // SAFETY: `self` is live, `dims` holds `dims.len()` values.
        check("memory_desc_reshape", unsafe {
            sys::dnnl_memory_desc_reshape(&mut raw, self.raw, dims.len() as c_int, dims.as_ptr())
        })?;
        Ok(Self { raw })
    }

    /// A part of this tensor, in place: `dims` elements from `offsets` on. Refused where the
    /// layout's blocks do not allow it.
    pub fn part(&self, dims: &[usize], offsets: &[usize]) -> Result<Self, Error> {
        let (dims, offsets) = (signed(dims), signed(offsets));
        if dims.len() != self.dims().len() || offsets.len() != dims.len() {
            let reason = "a part has as many dimensions as the whole".into();
            return Err(Error::Refused { call: "memory_desc_create_submemory", reason });
        }
        let mut raw = null_mut();
        // SAFETY: `self` is live, both arrays hold as many values as it has dimensions.
        check("memory_desc_create_submemory", unsafe {
            sys::dnnl_memory_desc_create_submemory(
                &mut raw,
                self.raw,
                dims.as_ptr(),
                offsets.as_ptr(),
            )
        })?;
        Ok(Self { raw })
    }

    /// Bytes from the tensor's start to the end of its last element, padding included.
    pub fn bytes(&self) -> usize {
        // SAFETY: `self` is live.
        unsafe { extent(self.raw) }
    }

    /// Logical dimensions.
    pub fn dims(&self) -> Vec<usize> {
        let mut ndims: c_int = 0;
        let mut dims: *const sys::dims = std::ptr::null();
        // SAFETY: the results have the types that these queries write; `dims` then points into
        // `self`, which outlives the copy made here.
        unsafe {
            let count =
                sys::dnnl_memory_desc_query(self.raw, sys::QUERY_NDIMS, (&raw mut ndims).cast());
            let all =
                sys::dnnl_memory_desc_query(self.raw, sys::QUERY_DIMS, (&raw mut dims).cast());
            if count != sys::SUCCESS || all != sys::SUCCESS || dims.is_null() {
                return Vec::new();
            }
            (*dims).iter().take(ndims as usize).map(|&d| d as usize).collect()
        }
    }

    /// What its elements are.
    pub fn element(&self) -> Element {
        // SAFETY: `self` is live.
        match unsafe { data_type(self.raw) } {
            sys::F32 => Element::F32,
            sys::BF16 => Element::Bf16,
            _ => Element::Other,
        }
    }

    pub(super) fn raw(&self) -> *const sys::memory_desc {
        self.raw
    }
}

/// oneDNN's number of an element type; 0 if it says none.
///
/// # Safety
/// `raw` is a live descriptor.
unsafe fn data_type(raw: *const sys::memory_desc) -> c_int {
    let mut found: c_int = 0;
    // SAFETY: `raw` is live; the query writes an int.
    let status =
        unsafe { sys::dnnl_memory_desc_query(raw, sys::QUERY_DATA_TYPE, (&raw mut found).cast()) };
    if status == sys::SUCCESS { found } else { 0 }
}

/// Bytes that memory of this descriptor must have: a part's own offset counts too.
///
/// # Safety
/// `raw` is a live descriptor.
pub(super) unsafe fn extent(raw: *const sys::memory_desc) -> usize {
    let mut offset: i64 = 0;
    // SAFETY: `raw` is live; the query writes an i64 (elements).
    unsafe {
        let what = sys::QUERY_SUBMEMORY_OFFSET;
        let status = sys::dnnl_memory_desc_query(raw, what, (&raw mut offset).cast());
        let size = sys::dnnl_memory_desc_get_size(raw);
        let skipped = if status == sys::SUCCESS { offset.max(0) as usize } else { 0 };
        // Nothing here has wider elements than f32.
        let element = if data_type(raw) == sys::BF16 { size_of::<u16>() } else { size_of::<f32>() };
        if size == 0 { 0 } else { size + skipped * element }
    }
}

pub(super) fn signed(dims: &[usize]) -> Vec<i64> {
    dims.iter().map(|&d| d as i64).collect()
}

impl PartialEq for MemoryDesc {
    fn eq(&self, other: &Self) -> bool {
        // SAFETY: both are live.
        unsafe { sys::dnnl_memory_desc_equal(self.raw, other.raw) == 1 }
    }
}

impl std::fmt::Debug for MemoryDesc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "MemoryDesc({:?}, {} bytes)", self.dims(), self.bytes())
    }
}

impl Drop for MemoryDesc {
    fn drop(&mut self) {
        // SAFETY: owned, destroyed once.
        unsafe { sys::dnnl_memory_desc_destroy(self.raw) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_descriptors_compare_by_dimensions_and_order() {
        let plain = |dims: &[usize]| MemoryDesc::new(dims, Element::F32, Order::Plain);
        let a = plain(&[2, 3, 4, 5]).expect("plain");
        let b = plain(&[2, 3, 4, 5]).expect("plain");
        let c = plain(&[2, 60]).expect("plain");
        assert!(a == b && a != c);
        assert_eq!(a.dims(), [2, 3, 4, 5]);
        assert_eq!(a.bytes(), 480);
        assert!(a.reshape(&[2, 60]).expect("plain reshapes") == c);
        assert!(plain(&[1, 2, 3]).is_err());
    }

    #[test]
    fn elements_of_bf16_take_half_the_bytes() {
        let of = |element| MemoryDesc::new(&[2, 3, 4, 5], element, Order::Plain);
        let (wide, half) = (of(Element::F32).expect("plain"), of(Element::Bf16).expect("plain"));
        assert!(wide != half && wide.bytes() == 2 * half.bytes());
        assert_eq!((wide.element(), half.element()), (Element::F32, Element::Bf16));
        let part = half.part(&[1, 3, 4, 5], &[1, 0, 0, 0]).expect("the second half");
        assert_eq!(part.bytes(), half.bytes());
        assert!(of(Element::Other).is_err());
    }
}
