//! What an event of a stream will touch, asked of memory before it is that stream's turn.
//!
//! Of many streams with an event each nothing is in the processor's caches, and what an event needs
//! hangs on a chain of pointers: judge, window, ring, its numbers. Nothing is read here that may not
//! be there, and nothing follows from it but that it is near.

#![allow(unsafe_code)]

use crate::object::Object;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

const LINE: usize = 64; // bytes
const FIRST: usize = 2; // word of an object behind its count and its type

/// Ask for the memory at an address.
#[inline(always)]
fn near(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint to the processor, which reads nothing and which no address makes fail.
    unsafe {
        use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Ask for so many bytes.
pub fn bytes(start: *const u8, count: usize) {
    for at in (0..count).step_by(LINE) {
        near(start.wrapping_add(at));
    }
}

/// Ask for an object of so many bytes.
pub fn object(object: &Py<PyAny>, count: usize) {
    bytes(object.as_ptr().cast(), count);
}

/// Ask for so many lines of an object, of 64 bytes each.
#[inline(always)]
pub fn lines(object: Object<'_, '_>, count: usize) {
    for line in 0..count {
        near(object.as_ptr().cast::<u8>().wrapping_add(LINE * line));
    }
}

/// The size of objects of one class, whose words are pointers.
pub struct Shape(PyOnceLock<(usize, usize)>);

impl Shape {
    pub const fn new() -> Shape {
        Shape(PyOnceLock::new())
    }

    /// Ask for whatever an object that is near points at.
    pub fn children(&self, object: &Bound<'_, PyAny>) {
        let py = object.py();
        let class = object.get_type_ptr() as usize;
        let (known, words) = *self.0.get_or_init(py, || {
            let size = object.get_type().getattr("__basicsize__").and_then(|size| size.extract());
            (class, size.unwrap_or(0) / 8)
        });
        if known == class {
            for i in FIRST..words {
                near(word(object, i));
            }
        }
    }
}

/// A word of an object that has as many.
fn word(object: &Bound<'_, PyAny>, i: usize) -> *const u8 {
    // SAFETY: within the object: `children` knows its size, and `items` is given lists and arrays.
    unsafe { *object.as_ptr().cast::<*const u8>().add(i) }
}

/// Ask for so many bytes of the items of a list, or of the numbers of an array, that is near.
pub fn items(object: &Bound<'_, PyAny>, start: usize, count: usize) {
    bytes(word(object, 3).wrapping_add(start), count); // either has three words before them
}
