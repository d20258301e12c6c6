//! JSON as msgspec writes it: numbers by the same shortest digits, texts with the same escapes.

use crate::object::{exactly, text_of, whole, Object};
use crate::seam::*;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyString, PyTuple};

const WIDE: usize = 32;

/// Some bytes that are written often, with room for one wide copy: a call for ten bytes takes longer.
pub struct FixedBytes {
    bytes: [u8; WIDE],
    n: usize,
}

impl FixedBytes {
    /// Return a word; `None` where it is too long for one.
    pub fn of(bytes: &[u8]) -> Option<FixedBytes> {
        let mut wide = [0; WIDE];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(FixedBytes { bytes: wide, n: bytes.len() })
    }

    #[inline(always)]
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes);
        out.truncate(out.len() - (WIDE - self.n));
    }
}

/// Writes what is found in a struct.
pub struct JsonWriter {
    encode: Py<PyAny>, // msgspec's, for all that is not known here
    words: Vec<(Py<PyAny>, FixedBytes)>, // members of enums, as they are written
}

impl JsonWriter {
    pub fn of(py: Python<'_>) -> PyResult<JsonWriter> {
        let encode = py.import("msgspec.json")?.getattr("Encoder")?.call0()?.getattr("encode")?;
        let mut words = Vec::new();
        for kind in [&TYPES_LABEL, &TYPES_REASON, &TYPES_STATUS] {
            for member in kind.get(py)?.try_iter()? {
                let member = member?;
                let written = encode.call1((&member,))?;
                words.extend(FixedBytes::of(written.extract()?).map(|word| (member.unbind(), word)));
            }
        }
        Ok(JsonWriter { encode: encode.unbind(), words })
    }

    /// Write any value.
    pub fn value(&self, py: Python<'_>, object: Object<'_, '_>, out: &mut Vec<u8>) -> PyResult<()> {
        if object.is_none() {
            out.extend_from_slice(b"null");
        } else if let Some(number) = exactly::<PyFloat>(object) {
            float(number.value(), out);
        } else if let Some(found) = exactly::<PyString>(object) {
            text(text_of(found)?.as_bytes(), out);
        } else if let Some(number) = whole(object) {
            out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
        } else if let Some(truth) = exactly::<PyBool>(object) {
            out.extend_from_slice(if truth.is_true() { &b"true"[..] } else { b"false" });
        } else if let Some((_, word)) = self.words.iter().find(|(one, _)| object.is(one)) {
            word.write(out);
        } else if let Some(tuple) = exactly::<PyTuple>(object) {
            out.push(b'[');
            for (at, item) in tuple.iter_borrowed().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                self.value(py, item, out)?;
            }
            out.push(b']');
        } else {
            let written = self.encode.bind(py).call1((object,))?;
            out.extend_from_slice(written.extract::<&[u8]>()?);
        }
        Ok(())
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
        out.extend_from_slice(ryu::Buffer::new().format_finite(x).as_bytes());
    } else {
        out.extend_from_slice(b"null");
    }
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
        let word = FixedBytes::of(b"normal").unwrap();
        assert_eq!(of(|out| (0..3).for_each(|_| word.write(out))), "normalnormalnormal");
        assert!(FixedBytes::of(&[b'x'; WIDE]).is_some());
        assert!(FixedBytes::of(&[b'x'; WIDE + 1]).is_none());
    }
}
