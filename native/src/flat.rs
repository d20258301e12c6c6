//! JSON of flat records (`decode.json.JsonDecoder`): objects of numbers, texts, booleans and nulls.
//!
//! What is taken is what the quick way of Python takes, and less: anything with an escape, a list or
//! an object in it, a field of ours twice, a number out of range is left to Python.

use crate::guard::{self, guarded};
use crate::object::{tuple_items, utf8_within, whole, Object, TupleClass};
use crate::seam::*;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyList, PyString, PyTuple};
use std::collections::HashMap;

const MAX_DIGITS: usize = 18; // of an integer that is surely within 64 bits
const MAX_CHANNELS: usize = 64;

#[derive(Clone, Copy)]
enum Role {
    Channel(usize),
    Sensor,
    Time,
}

/// A value as it is written.
#[derive(Clone, Copy)]
enum JsonValue<'a> {
    Number(&'a str),
    Text(&'a str),
    Null,
    Truth,
}

/// Reads records with these fields.
#[pyclass(module = "rejex_native._core", frozen)]
pub struct Flat {
    roles: HashMap<String, Role>,
    n: usize,
    has_sensor: bool,
    has_time: bool,
    in_ms: bool,
    keys: Py<PyAny>,    // key and name of a sensor
    mapping: Py<PyAny>, // who knows what else is a name or a time
    max_bytes: usize,
    first_ms: i64,
    last_ms: i64,
    reading: TupleClass,
}

#[pymethods]
impl Flat {
    #[new]
    fn new(
        mapping: &Bound<'_, PyAny>,
        keys: Py<PyAny>,
        channels: Vec<String>,
        sensor: Option<String>,
        time: Option<String>,
        in_ms: bool,
    ) -> PyResult<Flat> {
        let py = mapping.py();
        if channels.len() > MAX_CHANNELS {
            return Err(PyValueError::new_err("too many channels"));
        }
        let (has_sensor, has_time, n) = (sensor.is_some(), time.is_some(), channels.len());
        let named = channels.into_iter().enumerate().map(|(at, name)| (name, Role::Channel(at)));
        let sensor = sensor.map(|name| (name, Role::Sensor));
        let time = time.map(|name| (name, Role::Time));
        Ok(Flat {
            roles: named.chain(sensor).chain(time).collect(),
            n,
            has_sensor,
            has_time,
            in_ms,
            keys,
            max_bytes: MAPPING_MAX_VALUE_BYTES.get(mapping)?.extract()?,
            first_ms: MAPPING_MIN_EPOCH_MS.int(py)?,
            last_ms: MAPPING_MAX_EPOCH_MS.int(py)?,
            reading: TupleClass::of(TYPES_READING.get(py)?)?,
            mapping: mapping.clone().unbind(),
        })
    }

    /// Return what records hold; `None` where any is not flat or plain.
    fn read<'py>(&self, records: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyList>>> {
        guarded(records, || {
            let py = records.py();
            let made = PyList::empty(py);
            for (at, record) in records.try_iter()?.enumerate() {
                guard::at(at);
                let Some(reading) = self.one(py, &record?) else { return Ok(None) };
                made.append(reading)?;
            }
            Ok(Some(made))
        })
    }
}

impl Flat {
    /// Return the reading of a record; `None` where Python has to look.
    fn one<'py>(&self, py: Python<'py>, record: &Bound<'py, PyAny>) -> Option<Bound<'py, PyTuple>> {
        let [position, _, value, _, timestamp] = tuple_items::<5>(record.as_borrowed())?;
        let mut text = Text { text: utf8_within(value, self.max_bytes)?, at: 0 };
        let mut values = [f64::NAN; MAX_CHANNELS];
        let mut seen = 0_u64;
        let (mut sensor, mut time) = (None, None);
        text.object(|name, value| {
            let Some(role) = self.roles.get(name) else { return Some(()) };
            match (*role, value) {
                (Role::Channel(at), found) => {
                    if seen & (1 << at) != 0 {
                        return None;
                    }
                    seen |= 1 << at;
                    values[at] = match found {
                        JsonValue::Number(digits) => number(digits)?,
                        JsonValue::Null => f64::NAN,
                        _ => return None,
                    };
                }
                (Role::Sensor, JsonValue::Text(name)) if sensor.is_none() => sensor = Some(name),
                (Role::Time, JsonValue::Number(_) | JsonValue::Text(_)) if time.is_none() => {
                    time = Some(value);
                }
                _ => return None,
            }
            Some(())
        })?;
        let name = if self.has_sensor {
            PyString::new(py, sensor?).into_any()
        } else {
            self.mapping.bind(py).call_method1(MAPPING_SENSOR_OF.name(py), (record, py.None())).ok()?
        };
        let known = self.keys.bind(py).get_item(name).ok()?;
        let [key, name] = tuple_items::<2>(known.as_borrowed())?;
        let time_ms = if self.has_time { self.time(py, record, time?)? } else { self.stamp(timestamp)? };
        let values = values[..self.n].iter().map(|&value| PyFloat::new(py, value));
        let floats = PyTuple::new(py, values).ok()?.into_any();
        let time_ms = time_ms.into_pyobject(py).ok()?.into_any();
        self.reading.make(py, [key, name, time_ms.as_borrowed(), floats.as_borrowed(), position]).ok()
    }

    fn stamp(&self, timestamp: Object<'_, '_>) -> Option<i64> {
        whole(timestamp).filter(|ms| (self.first_ms..=self.last_ms).contains(ms))
    }

    /// Return the time of a record in ms; what is written in another way is asked of the mapping.
    fn time(&self, py: Python<'_>, record: &Bound<'_, PyAny>, found: JsonValue<'_>) -> Option<i64> {
        match found {
            JsonValue::Number(digits) if self.in_ms => {
                let ms = integer(digits)?;
                (self.first_ms..=self.last_ms).contains(&ms).then_some(ms)
            }
            JsonValue::Text(text) if !self.in_ms => {
                let mapping = self.mapping.bind(py);
                let ms = mapping.call_method1(MAPPING_TIME_OF.name(py), (record, text)).ok()?;
                whole(ms.as_borrowed())
            }
            _ => None,
        }
    }
}

fn integer(digits: &str) -> Option<i64> {
    let is_one = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-');
    (is_one && digits.len() <= MAX_DIGITS).then(|| digits.parse().ok())?
}

fn number(digits: &str) -> Option<f64> {
    // Of an integer Python makes a float of its own: of -0 it may have no sign.
    if digits == "-0" || digits.len() > 200 {
        return None;
    }
    digits.parse().ok().filter(|x: &f64| x.is_finite())
}

/// A text that is read from its beginning; `None` is what is not taken.
struct Text<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Text<'a> {
    fn object(&mut self, mut field: impl FnMut(&'a str, JsonValue<'a>) -> Option<()>) -> Option<()> {
        self.space();
        self.take(b'{')?;
        self.space();
        if self.next() == Some(b'}') {
            return None;
        }
        loop {
            self.space();
            let name = self.string()?;
            self.space();
            self.take(b':')?;
            self.space();
            let value = self.value()?;
            field(name, value)?;
            self.space();
            match self.next()? {
                b',' => self.at += 1,
                b'}' => break,
                _ => return None,
            }
        }
        self.at += 1;
        self.space();
        (self.at == self.text.len()).then_some(())
    }

    fn next(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.next()? == byte).then(|| self.at += 1)
    }

    fn space(&mut self) {
        while matches!(self.next(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn string(&mut self) -> Option<&'a str> {
        self.take(b'"')?;
        let from = self.at;
        loop {
            match self.next()? {
                b'"' => break,
                b'\\' | 0..0x20 => return None,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(&self.text[from..self.at - 1])
    }

    fn value(&mut self) -> Option<JsonValue<'a>> {
        let rest = &self.text.as_bytes()[self.at..];
        for (word, what) in [
            (&b"null"[..], JsonValue::Null),
            (b"true", JsonValue::Truth),
            (b"false", JsonValue::Truth),
        ] {
            if rest.starts_with(word) {
                self.at += word.len();
                return Some(what);
            }
        }
        if self.next()? == b'"' {
            return self.string().map(JsonValue::Text);
        }
        let from = self.at;
        if self.next()? == b'-' {
            self.at += 1;
        }
        let first = self.next()?;
        let n = self.digits()?;
        if first == b'0' && n > 1 {
            return None;
        }
        if self.next() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.next(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.next(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(JsonValue::Number(&self.text[from..self.at]))
    }

    fn digits(&mut self) -> Option<usize> {
        let from = self.at;
        while self.next().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > from).then_some(self.at - from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(text: &str) -> Option<Vec<String>> {
        let mut found = Vec::new();
        let mut text = Text { text, at: 0 };
        text.object(|name, value| {
            found.push(match value {
                JsonValue::Number(digits) => format!("{name}={digits}"),
                JsonValue::Text(text) => format!("{name}='{text}'"),
                JsonValue::Null => format!("{name}=null"),
                JsonValue::Truth => format!("{name}=truth"),
            });
            Some(())
        })?;
        Some(found)
    }

    #[test]
    fn flat_objects_are_read() {
        let found = fields(" { \"a\" : -1.5e+3 ,\t\"b\":\"\u{e9}\",\"c\":null,\"d\":true}\n");
        assert_eq!(found.unwrap(), ["a=-1.5e+3", "b='\u{e9}'", "c=null", "d=truth"]);
    }

    #[test]
    fn whatever_is_not_plain_is_not_taken() {
        for odd in [
            "", "{}", "{", "[1]", "{\"a\":1", "{\"a\":1}x", "{\"a\":1,}", "{\"a\":01}", "{\"a\":.5}",
            "{\"a\":1.}", "{\"a\":1e}", "{\"a\":+1}", "{\"a\":-}", "{\"a\":{}}", "{\"a\":[]}",
            "{\"a\\n\":1}", "{\"a\":\"\\n\"}", "{\"a\":\"\n\"}", "{\"a\" 1}", "{a:1}", "{\"a\":nan}",
        ] {
            assert_eq!(fields(odd), None, "{odd}");
        }
    }

    #[test]
    fn numbers_are_those_that_python_has_too() {
        assert_eq!(number("1e3"), Some(1000.0));
        assert_eq!(number("-0"), None); // an integer has no sign of its zero
        assert_eq!(number("-0.0").map(f64::to_bits), Some((-0.0_f64).to_bits()));
        assert_eq!(number("1e999"), None);
        assert_eq!(number(&"1".repeat(201)), None);
        assert_eq!(integer("-17"), Some(-17));
        assert_eq!(integer("1.0"), None);
        assert_eq!(integer(&"9".repeat(18)), Some(999_999_999_999_999_999));
        assert_eq!(integer(&"9".repeat(19)), None);
    }
}
