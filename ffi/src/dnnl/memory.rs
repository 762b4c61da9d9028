//! Shapes and layouts of tensors (`dnnl_memory_desc_t`).

use std::ffi::c_int;
use std::ptr::{null, null_mut};

use super::result::{Error, check};
use super::sys;
use crate::operation::ElementType;

/// A tensor's element type, dimensions and physical layout.
pub struct MemoryDesc {
    raw: *mut sys::memory_desc,
}

impl MemoryDesc {
    /// Dimensions (1, 2, 4 or 5 of them) of f32 or bf16, row-major.
    pub fn plain(dims: &[usize], element: ElementType) -> Result<Self, Error> {
        let tag = match dims.len() {
            1 => sys::TAG_A,
            2 => sys::TAG_AB,
            4 => sys::TAG_ABCD,
            5 => sys::TAG_ABCDE,
            other => {
                return Err(refuse(format!("{other} dimensions; 1, 2, 4 or 5 are supported")));
            }
        };
        Self::new(dims, element, tag)
    }

    /// Up to twelve dimensions of f32 or bf16, in whatever order the primitive prefers.
    pub fn any(dims: &[usize], element: ElementType) -> Result<Self, Error> {
        match dims.len() {
            1..=12 => Self::new(dims, element, sys::TAG_ANY),
            other => Err(refuse(format!("{other} dimensions; 1 to 12 are supported"))),
        }
    }

    fn new(dims: &[usize], element: ElementType, tag: c_int) -> Result<Self, Error> {
        let data_type = match element {
            ElementType::F32 => sys::F32,
            ElementType::Bf16 => sys::BF16,
            ElementType::Raw => return Err(refuse("elements of f32 or bf16 are supported".into())),
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
    pub fn element(&self) -> ElementType {
        // SAFETY: `self` is live.
        match unsafe { data_type(self.raw) } {
            sys::F32 => ElementType::F32,
            sys::BF16 => ElementType::Bf16,
            _ => ElementType::Raw,
        }
    }

    pub(super) fn raw(&self) -> *const sys::memory_desc {
        self.raw
    }
}

fn refuse(reason: String) -> Error {
    Error::Refused { call: "memory_desc_create", reason }
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
    // SAFETY: `raw` is live.
    let (size, offset) =
        unsafe { (sys::dnnl_memory_desc_get_size(raw), number(raw, sys::QUERY_SUBMEMORY_OFFSET)) };
    if offset <= 0 {
        return size;
    }
    // oneDNN says 0 bytes of a part that does not begin with its whole.
    // SAFETY: `raw` is live.
    let (elements, element) = unsafe { (span_elements(raw), data_type(raw)) };
    // Nothing here has wider elements than f32.
    let width = if element == sys::BF16 { size_of::<u16>() } else { size_of::<f32>() };
    (offset as usize + elements) * width
}

/// A number that a query writes as an i64, or 0.
///
/// # Safety
/// `raw` is a live descriptor, and `what` asks for an i64.
unsafe fn number(raw: *const sys::memory_desc, what: c_int) -> i64 {
    let mut found: i64 = 0;
    // SAFETY: `raw` is live; the query writes an i64.
    let status = unsafe { sys::dnnl_memory_desc_query(raw, what, (&raw mut found).cast()) };
    if status == sys::SUCCESS { found } else { 0 }
}

/// Dimensions that a query points at; empty if it says none.
///
/// # Safety
/// `raw` is a live descriptor that outlives the result, and `what` asks for dimensions.
unsafe fn listed<'a>(raw: *const sys::memory_desc, what: c_int, count: usize) -> &'a [i64] {
    let mut found: *const sys::dims = null();
    // SAFETY: `raw` is live; the query writes a pointer into it, to as many dimensions as there can
    // be.
    let status = unsafe { sys::dnnl_memory_desc_query(raw, what, (&raw mut found).cast()) };
    if status != sys::SUCCESS || found.is_null() {
        return &[];
    }
    // SAFETY: it points into `raw`, which outlives the result.
    let all: &sys::dims = unsafe { &*found };
    &all[..count.min(all.len())]
}

/// Elements from a blocked layout's first one to the end of its last one.
///
/// # Safety
/// `raw` is a live descriptor.
unsafe fn span_elements(raw: *const sys::memory_desc) -> usize {
    let (mut rank, mut blocks): (c_int, c_int) = (0, 0);
    // SAFETY: `raw` is live; both queries write an int, the lists are copied from before it ends.
    let (padded, strides, sizes, owners) = unsafe {
        sys::dnnl_memory_desc_query(raw, sys::QUERY_NDIMS, (&raw mut rank).cast());
        sys::dnnl_memory_desc_query(raw, sys::QUERY_INNER_NBLKS, (&raw mut blocks).cast());
        let list = |what, count: c_int| listed(raw, what, count.max(0) as usize);
        (
            list(sys::QUERY_PADDED_DIMS, rank),
            list(sys::QUERY_STRIDES, rank),
            list(sys::QUERY_INNER_BLKS, blocks),
            list(sys::QUERY_INNER_IDXS, blocks),
        )
    };
    let mut last = sizes.iter().product::<i64>();
    for (dim, (&padded, &stride)) in padded.iter().zip(strides).enumerate() {
        let own = sizes.iter().zip(owners).filter(|(_, owner)| **owner == dim as i64);
        let block: i64 = own.map(|(size, _)| size).product();
        last += (padded / block.max(1) - 1).max(0) * stride;
    }
    last.max(0) as usize
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
        let plain = |dims: &[usize]| MemoryDesc::plain(dims, ElementType::F32);
        let a = plain(&[2, 3, 4, 5]).expect("plain");
        let b = plain(&[2, 3, 4, 5]).expect("plain");
        let c = plain(&[2, 60]).expect("plain");
        assert!(a == b && a != c);
        assert_eq!(a.dims(), [2, 3, 4, 5]);
        assert_eq!(a.bytes(), 480);
        assert!(plain(&[1, 2, 3]).is_err());
    }

    #[test]
    fn elements_of_bf16_take_half_the_bytes() {
        let of = |element| MemoryDesc::plain(&[2, 3, 4, 5], element);
        let (wide, half) =
            (of(ElementType::F32).expect("plain"), of(ElementType::Bf16).expect("plain"));
        assert!(wide != half && wide.bytes() == 2 * half.bytes());
        assert_eq!((wide.element(), half.element()), (ElementType::F32, ElementType::Bf16));
        assert!(of(ElementType::Raw).is_err());
    }

    /// What the engine cuts from a concatenation's gradient is checked against its memory.
    #[test]
    fn a_parts_bytes_end_with_its_last_element_in_the_whole() {
        for (element, width) in [(ElementType::F32, 4), (ElementType::Bf16, 2)] {
            let whole = MemoryDesc::plain(&[2, 3, 4, 5], element).expect("plain");
            let bytes = |dims: &[usize], offsets: &[usize]| {
                whole.part(dims, offsets).expect("a part").bytes() / width
            };
            assert_eq!(bytes(&[1, 3, 4, 5], &[1, 0, 0, 0]), 120);
            assert_eq!(bytes(&[2, 1, 4, 5], &[0, 1, 0, 0]), 60 + 40);
            assert_eq!(bytes(&[1, 1, 1, 2], &[0, 2, 3, 3]), 60);
        }
    }
}
