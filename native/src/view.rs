//! The numbers and bytes behind a Python object, without a copy.

#![allow(unsafe_code)]

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

/// Holds an export of an object's buffer: while it is there, nobody can resize the object.
///
/// A simple buffer has no pointers into itself, so that it may be moved.
pub struct View(ffi::Py_buffer);

// SAFETY: nothing here runs without the interpreter's lock, under which all objects are touched.
unsafe impl Send for View {}
// SAFETY: as above.
unsafe impl Sync for View {}

impl View {
    pub fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<View> {
        let mut buffer = ffi::Py_buffer::new();
        let flags = if writable { ffi::PyBUF_WRITABLE } else { ffi::PyBUF_SIMPLE };
        // SAFETY: it is released when it is dropped.
        if unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &mut buffer, flags) } != 0 {
            return Err(PyErr::fetch(object.py()));
        }
        let view = View(buffer);
        if view.0.itemsize != 8 || view.0.len < 0 {
            return Err(PyBufferError::new_err("expected a contiguous buffer of doubles"));
        }
        Ok(view)
    }

    pub fn get(&self) -> &[f64] {
        if self.0.len == 0 {
            return &[];
        }
        // SAFETY: contiguous, of doubles, and alive while it is exported.
        unsafe { std::slice::from_raw_parts(self.0.buf as *const f64, self.0.len as usize / 8) }
    }

    pub fn get_mut(&mut self) -> &mut [f64] {
        if self.0.len == 0 {
            return &mut [];
        }
        // SAFETY: as above; asked for as writable, and the lock is held.
        unsafe { std::slice::from_raw_parts_mut(self.0.buf as *mut f64, self.0.len as usize / 8) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: got by PyObject_GetBuffer, released once, and objects die under the lock.
        unsafe { ffi::PyBuffer_Release(&mut self.0) }
    }
}

/// Call with the bytes of an array, which nobody else sees meanwhile: `call` calls nothing of Python.
#[inline]
pub fn with_bytes<T>(array: &Bound<'_, PyByteArray>, call: impl FnOnce(&mut [u8]) -> T) -> T {
    // SAFETY: the lock is held, and nothing of Python runs in `call` that could resize the array.
    call(unsafe { array.as_bytes_mut() })
}

/// Doubles as the bytes that they are.
pub fn as_bytes(numbers: &[f64]) -> &[u8] {
    // SAFETY: any double is eight bytes, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(numbers.as_ptr().cast(), size_of_val(numbers)) }
}

/// How many of the sorted numbers are below x: Python's bisect_left.
pub fn below(ordered: &[f64], x: f64) -> usize {
    ordered.partition_point(|&one| one < x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_are_below_as_come_before_the_first_that_is_not() {
        let ordered = [-1.0, 0.0, 0.0, 2.5];
        assert_eq!(below(&ordered, -2.0), 0);
        assert_eq!(below(&ordered, -0.0), 1);
        assert_eq!(below(&ordered, 0.1), 3);
        assert_eq!(below(&ordered, f64::INFINITY), 4);
        assert_eq!(below(&[], 1.0), 0);
    }

    #[test]
    fn doubles_are_seen_and_written_where_they_lie() {
        Python::initialize();
        Python::attach(|py| {
            let array = py.import("array").unwrap().getattr("array").unwrap();
            let array = array.call1(("d", vec![1.0, 2.0])).unwrap();
            let mut view = View::of(&array, true).unwrap();
            view.get_mut()[1] = -0.5;
            assert_eq!(array.get_item(1).unwrap().extract::<f64>().unwrap(), -0.5);
            assert!(array.call_method1("append", (1.0,)).is_err(), "it is exported");
            drop(view);
            assert!(array.call_method1("append", (1.0,)).is_ok());
            let bytes = pyo3::types::PyBytes::new(py, b"12345678");
            assert!(View::of(bytes.as_any(), true).is_err(), "it cannot be written");
        });
    }
}
