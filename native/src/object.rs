//! Objects that another object holds, read without counting references.
//!
//! A counted reference writes to memory that is only to be read, once for each of the forty fields of
//! an outcome. [`Borrowed`] carries the lifetime of its holder instead, so that only the functions
//! here need `unsafe`. They rely on one rule: whoever calls them holds the outer object, and tuples
//! and fields of structs are not replaced while the call lasts.

#![allow(unsafe_code)]

use crate::slot::Slot;
use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::PyTypeInfo;
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyString, PyTuple, PyType};
use std::ptr::null_mut;

pub type Object<'a, 'py> = Borrowed<'a, 'py, PyAny>;

extern "C" {
    // In every Python from 3.9 on, and part of the stable interface since 3.12.
    fn PyObject_Vectorcall(
        callable: *mut ffi::PyObject,
        args: *const *mut ffi::PyObject,
        nargsf: usize,
        kwnames: *mut ffi::PyObject,
    ) -> *mut ffi::PyObject;
}

/// Return an object as one of exactly this type; a failed `cast` makes an error, which costs more.
#[inline]
pub fn exactly<'a, 'py, T: PyTypeInfo>(object: Object<'a, 'py>) -> Option<Borrowed<'a, 'py, T>> {
    // SAFETY: looked at just before.
    object.is_exact_instance_of::<T>().then(|| unsafe { object.cast_unchecked() })
}

/// Return the items of a tuple of exactly N.
pub fn tuple_items<'a, 'py, const N: usize>(object: Object<'a, 'py>) -> Option<[Object<'a, 'py>; N]> {
    let tuple = object.cast::<PyTuple>().ok()?;
    if tuple.len() != N {
        return None;
    }
    // SAFETY: a tuple of N items, which holds them as long as its own holder does.
    Some(std::array::from_fn(|at| unsafe {
        Borrowed::from_ptr(object.py(), ffi::PyTuple_GetItem(tuple.as_ptr(), at as ffi::Py_ssize_t))
    }))
}

/// Return the text of a `str`; an error where it has no UTF-8.
pub fn text_of<'a>(text: Borrowed<'a, '_, PyString>) -> PyResult<&'a str> {
    let found: *const str = text.to_str()?;
    // SAFETY: the text keeps its UTF-8 for as long as it lives, and is held for 'a.
    Ok(unsafe { &*found })
}

/// Return the bytes of a `bytes`.
pub fn bytes_of<'a>(bytes: Borrowed<'a, '_, PyBytes>) -> &'a [u8] {
    let found: *const [u8] = bytes.as_bytes();
    // SAFETY: bytes never change or move, and are held for 'a.
    unsafe { &*found }
}

/// Return the text that a record's value is, of at most so many bytes; `None`: it is none.
pub fn utf8_within<'a>(value: Object<'a, '_>, max_bytes: usize) -> Option<&'a str> {
    let bytes = bytes_of(value.cast::<PyBytes>().ok()?);
    if bytes.len() > max_bytes {
        return None;
    }
    std::str::from_utf8(bytes).ok()
}

/// Return what a dict has under a key, borrowed from the dict: not even its count is touched.
pub fn value_in<'a, 'py>(
    dict: &'a Bound<'py, PyDict>,
    key: &Bound<'py, PyAny>,
) -> PyResult<Option<Object<'a, 'py>>> {
    // SAFETY: a dict and a key; its callers keep the dict as it is while they use the value.
    unsafe {
        let found = ffi::PyDict_GetItemWithError(dict.as_ptr(), key.as_ptr());
        match Borrowed::from_ptr_or_opt(dict.py(), found) {
            None => PyErr::take(dict.py()).map_or(Ok(None), Err),
            found => Ok(found),
        }
    }
}

/// Call with so many positional arguments, without a tuple of them.
pub fn call<'py>(callable: &Bound<'py, PyAny>, args: &[Object<'_, 'py>]) -> PyResult<Bound<'py, PyAny>> {
    // SAFETY: `Borrowed` is a pointer (repr(transparent)), and all are held until this returns.
    unsafe {
        let made =
            PyObject_Vectorcall(callable.as_ptr(), args.as_ptr().cast(), args.len(), null_mut());
        Bound::from_owned_ptr_or_err(callable.py(), made)
    }
}

/// Return a number that is exactly an `int`, and not too large for 64 bits.
pub fn whole(object: Object<'_, '_>) -> Option<i64> {
    exactly::<PyInt>(object)?.extract().ok()
}

/// Whether an object is a plain tuple with nothing in it.
pub fn is_empty(object: Object<'_, '_>) -> bool {
    exactly::<PyTuple>(object).is_some_and(|tuple| tuple.is_empty())
}

/// Whether an object is exactly of a class.
pub fn is_exactly(object: Object<'_, '_>, class: &Py<PyType>) -> bool {
    object.get_type_ptr() == class.as_ptr().cast()
}

/// Where a struct of msgspec has its fields: found once, by one whose values are known.
pub struct Layout {
    class: Py<PyType>,
    fields: Vec<(String, usize)>,
}

impl Layout {
    pub fn of(class: &Bound<'_, PyAny>) -> PyResult<Layout> {
        let py = class.py();
        let names: Vec<String> = class.getattr("__struct_fields__")?.extract()?;
        let given = PyDict::new(py);
        for name in &names {
            given.set_item(name, PyList::empty(py))?;
        }
        let known = class.call((), Some(&given))?;
        let words = class.getattr("__basicsize__")?.extract::<usize>()? / size_of::<Object<'_, '_>>();
        let mut fields = Vec::with_capacity(names.len());
        for name in names {
            let value = given.get_item(&name)?.expect("put there above").as_ptr();
            // SAFETY: within the object, whose size its class says.
            let at = (0..words).find(|&at| unsafe { *word(&known, at) } == value);
            let Some(at) = at else {
                return Err(PyTypeError::new_err(format!("{name} of a {class} is not where it was")));
            };
            fields.push((name, at));
        }
        Ok(Layout { class: class.clone().cast_into::<PyType>()?.unbind(), fields })
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| name.as_str())
    }

    /// Return where a field is.
    pub fn at(&self, slot: &Slot) -> PyResult<usize> {
        self.place(slot.text())
    }

    /// Return where the field of this name is.
    pub fn place(&self, name: &str) -> PyResult<usize> {
        let found = self.fields.iter().find(|(known, _)| known == name);
        found.map(|&(_, at)| at).ok_or_else(|| PyTypeError::new_err(format!("there is no {name}")))
    }

    /// Whether an object is a struct of this class.
    pub fn is(&self, object: Object<'_, '_>) -> bool {
        is_exactly(object, &self.class)
    }

    /// Return a field of a struct of this class; `at` is what [`Layout::at`] says of it.
    pub fn get<'a, 'py>(&self, object: Object<'a, 'py>, at: usize) -> Object<'a, 'py> {
        assert!(self.is(object));
        // SAFETY: found there in another one of this class; structs are made with all their fields.
        unsafe { Borrowed::from_ptr(object.py(), *word(&object, at)) }
    }
}

/// A word of an object behind its head.
fn word(object: &Bound<'_, PyAny>, at: usize) -> *const *mut ffi::PyObject {
    object.as_ptr().cast::<*mut ffi::PyObject>().wrapping_add(at)
}

/// Makes tuples of one class: calling the class takes twice as long.
pub struct TupleClass {
    class: Py<PyType>,
    alloc: Option<ffi::allocfunc>, // none where a tuple has more to it than its items
}

/// From it on a tuple remembers its hash, which allocating one does not set.
const HASH_IN_TUPLES: (u8, u8) = (3, 14);

impl TupleClass {
    pub fn of(class: &Bound<'_, PyAny>) -> PyResult<TupleClass> {
        let class = class.clone().cast_into::<PyType>()?;
        // SAFETY: all classes have this slot, which is such a function.
        let alloc = unsafe {
            let found = ffi::PyType_GetSlot(class.as_ptr().cast(), ffi::Py_tp_alloc);
            std::mem::transmute::<*mut std::ffi::c_void, Option<ffi::allocfunc>>(found)
        };
        let version = class.py().version_info();
        let alloc = alloc.filter(|_| (version.major, version.minor) < HASH_IN_TUPLES);
        Ok(TupleClass { class: class.unbind(), alloc })
    }

    /// Return one of these fields.
    pub fn make<'py, const N: usize>(
        &self,
        py: Python<'py>,
        fields: [Object<'_, 'py>; N],
    ) -> PyResult<Bound<'py, PyTuple>> {
        let Some(alloc) = self.alloc else {
            let made = self.class.bind(py).call1(PyTuple::new(py, fields)?)?;
            return Ok(made.cast_into()?);
        };
        // SAFETY: new, so it may be filled; each place gets a reference of its own.
        unsafe {
            let made = alloc(self.class.as_ptr().cast(), N as ffi::Py_ssize_t);
            let made = Bound::from_owned_ptr_or_err(py, made)?;
            for (at, field) in fields.into_iter().enumerate() {
                let field = field.to_owned().into_ptr();
                ffi::PyTuple_SetItem(made.as_ptr(), at as ffi::Py_ssize_t, field);
            }
            Ok(made.cast_into_unchecked())
        }
    }
}
