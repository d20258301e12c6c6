//! Attributes of Python's objects where they lie.
//!
//! What an event changes are numbers in the `__slots__` of a few classes, and looking a name up costs
//! more than all that is done with it. A slot is a pointer at a place of the object that its
//! descriptor knows. Where that cannot be told (another type, another Python), it is looked up.

#![allow(unsafe_code)]

use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyString;
use std::ffi::{c_char, c_int, CStr};
use std::ptr::null_mut;

const OBJECT_EX: c_int = 16; // Py_T_OBJECT_EX
/// Those that CI ran with the core; elsewhere attributes are looked up by name.
const KNOWN_VERSIONS: std::ops::RangeInclusive<(u8, u8)> = (3, 11)..=(3, 11);

/// `PyMemberDescrObject` and `PyMemberDef`, which have been so since Python 3.3.
#[repr(C)]
struct Descriptor {
    base: ffi::PyObject,
    kind: *mut ffi::PyTypeObject,
    name: *mut ffi::PyObject,
    qualname: *mut ffi::PyObject,
    member: *const Member,
}

#[repr(C)]
struct Member {
    name: *const c_char,
    kind: c_int,
    offset: ffi::Py_ssize_t,
    flags: c_int,
    doc: *const c_char,
}

/// An attribute of objects of one class.
pub struct Slot {
    name: &'static str,
    named: PyOnceLock<Py<PyString>>,
    place: PyOnceLock<(usize, usize)>, // the class, and where its objects have it
}

/// Something of a module, or of a class ("module:Class"), that is looked up once.
pub struct Global {
    owner: &'static str,
    name: &'static str,
    found: PyOnceLock<Py<PyAny>>,
}

impl Global {
    pub const fn new(owner: &'static str, name: &'static str) -> Global {
        Global { owner, name, found: PyOnceLock::new() }
    }

    pub fn get<'py>(&'static self, py: Python<'py>) -> PyResult<&'py Bound<'py, PyAny>> {
        let found = self.found.get_or_try_init(py, || {
            let (module, class) = self.owner.split_once(':').unwrap_or((self.owner, ""));
            let mut owner = py.import(module)?.into_any();
            if !class.is_empty() {
                owner = owner.getattr(class)?;
            }
            Ok::<_, PyErr>(owner.getattr(self.name)?.unbind())
        })?;
        Ok(found.bind(py))
    }

    pub fn float(&'static self, py: Python<'_>) -> PyResult<f64> {
        self.get(py)?.extract()
    }

    pub fn int(&'static self, py: Python<'_>) -> PyResult<i64> {
        self.get(py)?.extract()
    }

    /// Require that Python has the number this was built for, where it is the length of something.
    pub fn require(&'static self, py: Python<'_>, built_for: usize) -> PyResult<()> {
        let found = self.get(py)?;
        let found: usize = found.extract().or_else(|_| found.len())?;
        if found == built_for {
            return Ok(());
        }
        let name = self.name;
        let said = format!("it was built for {name} = {built_for}, and {} has {found}", self.owner);
        Err(PyRuntimeError::new_err(said))
    }
}

static IS_KNOWN: PyOnceLock<bool> = PyOnceLock::new();

impl Slot {
    pub const fn new(name: &'static str) -> Slot {
        Slot { name, named: PyOnceLock::new(), place: PyOnceLock::new() }
    }

    /// Return the name as it is written.
    pub fn text(&self) -> &'static str {
        self.name
    }

    /// Return the name as Python looks it up.
    pub fn name<'py>(&self, py: Python<'py>) -> &Bound<'py, PyString> {
        self.named.get_or_init(py, || PyString::intern(py, self.name).unbind()).bind(py)
    }

    /// Where an object has it, if that can be told.
    #[inline]
    fn at(&self, object: &Bound<'_, PyAny>) -> Option<*mut *mut ffi::PyObject> {
        let py = object.py();
        let kind = object.get_type_ptr() as usize;
        let place = match self.place.get(py) {
            Some(place) => *place,
            None => {
                let found = (kind, place_of(object, self.name)?);
                *self.place.get_or_init(py, || found)
            }
        };
        // SAFETY: objects of that class have a pointer there.
        (place.0 == kind)
            .then(|| unsafe { object.as_ptr().cast::<u8>().add(place.1) }.cast::<*mut ffi::PyObject>())
    }

    /// The pointer there; null where it has to be looked up.
    #[inline]
    fn pointer(&self, object: &Bound<'_, PyAny>) -> *mut ffi::PyObject {
        // SAFETY: as said by `at`.
        self.at(object).map_or(null_mut(), |at| unsafe { *at })
    }

    /// What is there, without a reference of its own; `None` where it has to be looked up.
    #[inline]
    pub fn peek<'a, 'py>(&self, object: Borrowed<'a, 'py, PyAny>) -> Option<Borrowed<'a, 'py, PyAny>> {
        // SAFETY: the object holds it, which itself is held for 'a; nothing of Python runs meanwhile.
        unsafe { Borrowed::from_ptr_or_opt(object.py(), self.pointer(&object)) }
    }

    #[inline]
    pub fn get<'py>(&self, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, found) = (object.py(), self.pointer(object));
        if found.is_null() {
            return object.getattr(self.name(py));
        }
        // SAFETY: the object holds it.
        Ok(unsafe { Bound::from_borrowed_ptr(py, found) })
    }

    /// Call with what is there, which nothing may change meanwhile.
    #[inline]
    fn with<T>(
        &self,
        object: &Bound<'_, PyAny>,
        look: impl FnOnce(*mut ffi::PyObject) -> T,
    ) -> PyResult<T> {
        let found = self.pointer(object);
        if found.is_null() {
            return Ok(look(object.getattr(self.name(object.py()))?.as_ptr()));
        }
        Ok(look(found))
    }

    #[inline]
    pub fn is_none(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        // SAFETY: None is always there.
        self.with(object, |found| found == unsafe { ffi::Py_None() })
    }

    /// Whether the very same object is there.
    #[inline]
    pub fn is(&self, object: &Bound<'_, PyAny>, other: &Py<PyAny>) -> PyResult<bool> {
        self.with(object, |found| found == other.as_ptr())
    }

    #[inline]
    pub fn truth(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        // SAFETY: an object that is held.
        match self.with(object, |found| unsafe { ffi::PyObject_IsTrue(found) })? {
            -1 => Err(PyErr::fetch(object.py())),
            is => Ok(is != 0),
        }
    }

    #[inline]
    pub fn int(&self, object: &Bound<'_, PyAny>) -> PyResult<i64> {
        // SAFETY: an object that is held.
        let found = self.with(object, |found| unsafe { ffi::PyLong_AsLongLong(found) })?;
        if found == -1 {
            if let Some(error) = PyErr::take(object.py()) {
                return Err(error);
            }
        }
        Ok(found)
    }

    #[inline]
    pub fn float(&self, object: &Bound<'_, PyAny>) -> PyResult<f64> {
        // SAFETY: an object that is held.
        let found = self.with(object, |found| unsafe { ffi::PyFloat_AsDouble(found) })?;
        if found == -1.0 {
            if let Some(error) = PyErr::take(object.py()) {
                return Err(error);
            }
        }
        Ok(found)
    }

    #[inline]
    pub fn set(&self, object: &Bound<'_, PyAny>, value: Bound<'_, PyAny>) -> PyResult<()> {
        match self.at(object) {
            None => object.setattr(self.name(object.py()), value),
            Some(at) => {
                // SAFETY: the reference goes over to the object, that of what was there is ours.
                unsafe {
                    let before = *at;
                    *at = value.into_ptr();
                    ffi::Py_XDECREF(before);
                }
                Ok(())
            }
        }
    }

    #[inline]
    pub fn set_int(&self, object: &Bound<'_, PyAny>, value: i64) -> PyResult<()> {
        self.set(object, value.into_pyobject(object.py())?.into_any())
    }

    #[inline]
    pub fn set_float(&self, object: &Bound<'_, PyAny>, value: f64) -> PyResult<()> {
        self.set(object, value.into_pyobject(object.py())?.into_any())
    }

    #[inline]
    pub fn set_none(&self, object: &Bound<'_, PyAny>) -> PyResult<()> {
        self.set(object, object.py().None().into_bound(object.py()))
    }
}

/// Return where objects of a class have an attribute.
fn place_of(object: &Bound<'_, PyAny>, name: &str) -> Option<usize> {
    let py = object.py();
    let is_known = IS_KNOWN.get_or_init(py, || {
        let version = py.version_info();
        KNOWN_VERSIONS.contains(&(version.major, version.minor))
    });
    if !is_known {
        return None;
    }
    let found = object.get_type().getattr(name).ok()?;
    if found.get_type().name().ok()? != "member_descriptor" {
        return None;
    }
    // SAFETY: such a descriptor, of a version that is known.
    let place = unsafe {
        let member = (*found.as_ptr().cast::<Descriptor>()).member;
        let named = CStr::from_ptr((*member).name).to_str().ok()?;
        // A private name is another one in its class.
        if (*member).kind != OBJECT_EX || (*member).flags != 0 || named != name {
            return None;
        }
        usize::try_from((*member).offset).ok()?
    };
    // What it says is looked at once.
    // SAFETY: as above.
    let there = unsafe { *object.as_ptr().cast::<u8>().add(place).cast::<*mut ffi::PyObject>() };
    let same = object.getattr(name).map_or(there.is_null(), |value| value.as_ptr() == there);
    same.then_some(place)
}
