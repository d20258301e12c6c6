//! JSON as msgspec writes it: numbers by the same shortest digits, texts with the same escapes.

use crate::seam::*;
use crate::slot::Slot;
use pyo3::exceptions::{PyTypeError, PyUnicodeEncodeError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};
use std::ffi::c_int;

pub type Object = *mut ffi::PyObject;

/// Where a struct of msgspec keeps its fields: found once, by one whose values are known.
pub struct Layout {
    pub of: Py<PyType>,
    fields: Vec<(String, usize)>,
}

impl Layout {
    pub fn of(kind: &Bound<'_, PyAny>) -> PyResult<Layout> {
        let py = kind.py();
        let names: Vec<String> = kind.getattr("__struct_fields__")?.extract()?;
        let given = PyDict::new(py);
        for name in &names {
            given.set_item(name, PyList::empty(py))?;
        }
        let known = kind.call((), Some(&given))?;
        let words = kind.getattr("__basicsize__")?.extract::<usize>()? / size_of::<Object>();
        let mut fields = Vec::with_capacity(names.len());
        for name in names {
            let value = given.get_item(&name)?.expect("put there above").as_ptr();
            // SAFETY: within the object, as its type says.
            let at = (0..words).find(|&at| unsafe { *known.as_ptr().cast::<Object>().add(at) } == value);
            let Some(at) = at else {
                return Err(PyTypeError::new_err(format!("{name} of a {kind} is not where it was")));
            };
            fields.push((name, at));
        }
        Ok(Layout { of: kind.clone().cast_into::<PyType>()?.unbind(), fields })
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

    pub fn is(&self, object: Object) -> bool {
        // SAFETY: objects have a type.
        unsafe { ffi::Py_TYPE(object) == self.of.as_ptr().cast() }
    }

    /// Return a field of a struct of this type, borrowed from it.
    pub fn get(&self, object: Object, at: usize) -> Object {
        debug_assert!(self.is(object));
        // SAFETY: found there in another one of this type; structs are made with all their fields.
        unsafe { *object.cast::<Object>().add(at) }
    }
}

const WIDE: usize = 32;

/// Some bytes that are written often, with room for one wide copy: a call for ten bytes takes longer.
pub struct Word {
    bytes: [u8; WIDE],
    n: usize,
}

impl Word {
    /// Return a word; `None` where it is too long for one.
    pub fn of(bytes: &[u8]) -> Option<Word> {
        let mut wide = [0; WIDE];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(Word { bytes: wide, n: bytes.len() })
    }

    #[inline(always)]
    pub fn write(&self, out: &mut Vec<u8>) {
        out.reserve(WIDE);
        // SAFETY: there is room for all of it, and what counts of it is written.
        unsafe {
            std::ptr::copy_nonoverlapping(self.bytes.as_ptr(), out.as_mut_ptr().add(out.len()), WIDE);
            out.set_len(out.len() + self.n);
        }
    }
}

/// Have the processor fetch what will be read soon: of thousands of outcomes nothing is in its caches.
#[inline(always)]
pub fn soon(object: Object, lines: usize) {
    #[cfg(target_arch = "x86_64")]
    for line in 0..lines {
        // SAFETY: any address may be asked for.
        unsafe {
            use std::arch::x86_64::{_mm_prefetch, _MM_HINT_T0};
            _mm_prefetch::<_MM_HINT_T0>(object.cast::<i8>().wrapping_add(64 * line));
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (object, lines);
}

/// Writes what is found in a struct.
pub struct Writer {
    encode: Py<PyAny>, // msgspec's, for all that is not known here
    words: Vec<(Py<PyAny>, Word)>, // members of enums, as they are written
}

impl Writer {
    pub fn of(py: Python<'_>) -> PyResult<Writer> {
        let encode = py.import("msgspec.json")?.getattr("Encoder")?.call0()?.getattr("encode")?;
        let mut words = Vec::new();
        for kind in [&TYPES_LABEL, &TYPES_REASON, &TYPES_STATUS] {
            for member in kind.get(py)?.try_iter()? {
                let member = member?;
                let written = encode.call1((&member,))?;
                words.extend(Word::of(written.extract()?).map(|word| (member.unbind(), word)));
            }
        }
        Ok(Writer { encode: encode.unbind(), words })
    }

    /// Write any value.
    pub fn value(&self, py: Python<'_>, object: Object, out: &mut Vec<u8>) -> PyResult<()> {
        // SAFETY: a live object, and the interpreter's lock is held.
        unsafe {
            let kind = ffi::Py_TYPE(object);
            if object == ffi::Py_None() {
                out.extend_from_slice(b"null");
            } else if kind == &raw mut ffi::PyFloat_Type {
                float(ffi::PyFloat_AsDouble(object), out);
            } else if kind == &raw mut ffi::PyUnicode_Type {
                text(utf8(py, object)?, out);
            } else if let Some(number) = whole(object) {
                out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
            } else if object == ffi::Py_True() {
                out.extend_from_slice(b"true");
            } else if object == ffi::Py_False() {
                out.extend_from_slice(b"false");
            } else if let Some((_, word)) = self.words.iter().find(|(one, _)| one.as_ptr() == object) {
                word.write(out);
            } else if kind == &raw mut ffi::PyTuple_Type {
                out.push(b'[');
                for at in 0..ffi::PyTuple_Size(object) {
                    if at > 0 {
                        out.push(b',');
                    }
                    self.value(py, ffi::PyTuple_GetItem(object, at), out)?;
                }
                out.push(b']');
            } else {
                let object = Bound::from_borrowed_ptr(py, object);
                let written = self.encode.bind(py).call1((object,))?;
                out.extend_from_slice(written.extract::<&[u8]>()?);
            }
        }
        Ok(())
    }
}

/// Return a number that is surely an `int`, and not too large.
pub fn whole(object: Object) -> Option<i64> {
    // SAFETY: a live object; an overflow is told and not raised.
    unsafe {
        if ffi::Py_TYPE(object) != &raw mut ffi::PyLong_Type {
            return None;
        }
        let mut beyond: c_int = 0;
        let number = ffi::PyLong_AsLongLongAndOverflow(object, &raw mut beyond);
        (beyond == 0).then_some(number)
    }
}

/// Return a text as UTF-8; raises where it has none.
pub fn utf8<'a>(py: Python<'_>, object: Object) -> PyResult<&'a [u8]> {
    let mut size: ffi::Py_ssize_t = 0;
    // SAFETY: the text keeps the bytes for as long as it lives, which is longer than a call of ours.
    unsafe {
        let found = ffi::PyUnicode_AsUTF8AndSize(object, &raw mut size);
        if found.is_null() {
            return Err(PyErr::take(py).unwrap_or_else(|| PyUnicodeEncodeError::new_err("no text")));
        }
        Ok(std::slice::from_raw_parts(found.cast::<u8>(), size as usize))
    }
}

/// Write a text between its marks.
pub fn text(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    escaped(text, out);
    out.push(b'"');
}

/// Write a text without the marks around it.
pub fn escaped(text: &[u8], out: &mut Vec<u8>) {
    let mut from = 0;
    for (at, &byte) in text.iter().enumerate() {
        if byte >= b' ' && byte != b'"' && byte != b'\\' {
            continue;
        }
        out.extend_from_slice(&text[from..at]);
        from = at + 1;
        let short = match byte {
            b'"' | b'\\' => byte,
            0x08 => b'b',
            b'\t' => b't',
            b'\n' => b'n',
            0x0c => b'f',
            b'\r' => b'r',
            _ => {
                out.extend_from_slice(format!("\\u{byte:04x}").as_bytes());
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', short]);
    }
    out.extend_from_slice(&text[from..]);
}

/// Write a double: the fewest digits that say which it is, with an exponent where msgspec has one.
pub fn float(x: f64, out: &mut Vec<u8>) {
    if x.is_finite() {
        out.reserve(WIDE);
        // SAFETY: that is room enough for any.
        unsafe {
            let n = ryu::raw::format64(x, out.as_mut_ptr().add(out.len()));
            out.set_len(out.len() + n);
        }
    } else {
        out.extend_from_slice(b"null");
    }
}

/// Make tuples of a named kind: calling its class takes twice as long.
pub struct Named {
    kind: Py<PyType>,
    alloc: Option<ffi::allocfunc>, // none where a tuple has more to it than its items
}

/// From it on a tuple remembers its hash, which allocating one does not set.
const HASH_IN_TUPLES: (u8, u8) = (3, 14);

impl Named {
    pub fn of(kind: &Bound<'_, PyAny>) -> PyResult<Named> {
        let kind = kind.clone().cast_into::<PyType>()?;
        // SAFETY: types have this slot.
        let alloc = unsafe {
            let found = ffi::PyType_GetSlot(kind.as_ptr().cast(), ffi::Py_tp_alloc);
            std::mem::transmute::<*mut std::ffi::c_void, Option<ffi::allocfunc>>(found)
        };
        let version = kind.py().version_info();
        let alloc = alloc.filter(|_| (version.major, version.minor) < HASH_IN_TUPLES);
        Ok(Named { kind: kind.unbind(), alloc })
    }

    /// Return one of these fields, whose references it takes over.
    pub fn made<'py>(&self, py: Python<'py>, fields: &[Object]) -> PyResult<Bound<'py, PyTuple>> {
        let Some(alloc) = self.alloc else {
            // SAFETY: each field is a reference of ours.
            let fields = fields.iter().map(|&field| unsafe { Bound::from_owned_ptr(py, field) });
            let fields = PyTuple::new(py, fields.collect::<Vec<_>>())?;
            let made = self.kind.bind(py).call1(fields)?;
            return Ok(made.cast_into()?);
        };
        // SAFETY: new, so it may be filled; each field is a reference of ours.
        unsafe {
            let made = alloc(self.kind.as_ptr().cast(), fields.len() as ffi::Py_ssize_t);
            for (at, &field) in fields.iter().enumerate() {
                if made.is_null() {
                    ffi::Py_DECREF(field);
                } else {
                    ffi::PyTuple_SetItem(made, at as ffi::Py_ssize_t, field);
                }
            }
            Ok(Bound::from_owned_ptr_or_err(py, made)?.cast_into_unchecked())
        }
    }
}

/// Return one more reference to an object.
pub fn kept(object: Object) -> Object {
    // SAFETY: a live object.
    unsafe { ffi::Py_INCREF(object) };
    object
}

/// Return the parts of a tuple of so many, borrowed from it.
pub fn parts_of<const N: usize>(object: Object) -> Option<[Object; N]> {
    // SAFETY: a live object, that is checked to be a tuple with so many parts.
    unsafe {
        if ffi::PyTuple_Check(object) == 0 || ffi::PyTuple_Size(object) != N as ffi::Py_ssize_t {
            return None;
        }
        Some(std::array::from_fn(|at| ffi::PyTuple_GetItem(object, at as ffi::Py_ssize_t)))
    }
}

/// Return the text that a record's value is, of at most so many bytes; `None`: it is none.
///
/// # Safety
/// The object is alive, and somebody holds it for as long as the text is used.
pub unsafe fn text_of<'a>(value: Object, most_bytes: usize) -> Option<&'a str> {
    let size = (ffi::PyBytes_Check(value) != 0).then(|| ffi::PyBytes_Size(value) as usize)?;
    if size > most_bytes {
        return None;
    }
    let bytes = std::slice::from_raw_parts(ffi::PyBytes_AsString(value).cast::<u8>(), size);
    std::str::from_utf8(bytes).ok()
}

/// Whether an object is surely a text.
pub fn is_text(object: Object) -> bool {
    // SAFETY: a live object.
    unsafe { ffi::Py_TYPE(object) == &raw mut ffi::PyUnicode_Type }
}

/// Whether an object is a tuple with nothing in it.
pub fn empty(object: Object) -> bool {
    // SAFETY: a live object.
    unsafe { ffi::PyTuple_Check(object) != 0 && ffi::PyTuple_Size(object) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(write: impl Fn(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn doubles_have_the_fewest_digits_that_say_which_they_are() {
        for (x, expected) in [
            (0.1, "0.1"),
            (-0.0, "-0.0"),
            (1e16, "1e16"),
            (123_456.0, "123456.0"),
            (5e-324, "5e-324"),
            (f64::NAN, "null"),
            (f64::INFINITY, "null"),
        ] {
            assert_eq!(of(|out| float(x, out)), expected);
        }
    }

    #[test]
    fn texts_are_escaped_where_json_wants_it_and_nowhere_else() {
        let written = of(|out| text("\u{e9}\"\\/\n\t\u{8}\u{c}\r\u{0}\u{1f}\u{7f}".as_bytes(), out));
        assert_eq!(written, "\"\u{e9}\\\"\\\\/\\n\\t\\b\\f\\r\\u0000\\u001f\u{7f}\"");
    }

    #[test]
    fn a_word_is_as_long_as_it_is() {
        let word = Word::of(b"normal").unwrap();
        assert_eq!(of(|out| (0..3).for_each(|_| word.write(out))), "normalnormalnormal");
        assert!(Word::of(&[b'x'; WIDE]).is_some());
        assert!(Word::of(&[b'x'; WIDE + 1]).is_none());
    }
}
