//! Rows of CSV (`decode.csv.CsvDecoder`): plain cells between delimiters.
//!
//! A row with a quote, too many cells or too few, a number that is not plain or a sensor that was not
//! met before is Python's, which is asked for that row alone.

use crate::guard::{self, guarded};
use crate::object::{tuple_items, utf8_within, whole, Object, TupleClass};
use crate::seam::*;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyList, PyString, PyTuple};

const MAX_DIGITS: usize = 15; // of a time in ms that is surely in range of an integer

/// Reads rows with these columns.
#[pyclass(module = "rejex_native._core", frozen)]
pub struct Cells {
    mapping: Py<PyAny>, // who knows what else is a time
    known: Py<PyDict>,  // key and name of a sensor that was met, by its cell
    channels: Vec<usize>,
    sensor: Option<usize>,
    time: Option<usize>,
    in_ms: bool,
    missing: Vec<f64>,
    nan: Py<PyAny>,
    delimiter: u8,
    width: usize,
    max_bytes: usize,
    first_ms: i64,
    last_ms: i64,
    reading: TupleClass,
}

/// What rows that follow each other have in common: mostly the time, as it is written, or the sensor.
#[derive(Default)]
struct Before {
    time: String,
    time_ms: Option<i64>,
    cells: Vec<(usize, usize)>,
    values: Vec<f64>,
}

#[pymethods]
impl Cells {
    #[new]
    #[pyo3(signature = (mapping, known, channels, sensor, time, in_ms, missing, delimiter, width))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        mapping: &Bound<'_, PyAny>,
        known: Py<PyDict>,
        channels: Vec<usize>,
        sensor: Option<usize>,
        time: Option<usize>,
        in_ms: bool,
        missing: Vec<f64>,
        delimiter: u8,
        width: usize,
    ) -> PyResult<Cells> {
        let py = mapping.py();
        Ok(Cells {
            known,
            channels,
            sensor,
            time,
            in_ms,
            missing,
            nan: py.import("math")?.getattr("nan")?.unbind(),
            delimiter,
            width,
            max_bytes: MAPPING_MAX_VALUE_BYTES.get(mapping)?.extract()?,
            first_ms: MAPPING_MIN_EPOCH_MS.int(py)?,
            last_ms: MAPPING_MAX_EPOCH_MS.int(py)?,
            reading: TupleClass::of(TYPES_READING.get(py)?)?,
            mapping: mapping.clone().unbind(),
        })
    }

    /// Return what records hold; `decode` is asked about those that are not plain.
    fn read<'py>(
        &self,
        records: &Bound<'py, PyAny>,
        decode: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        guarded(records, || {
            let py = records.py();
            let (made, mut before) = (PyList::empty(py), Before::default());
            for (at, record) in records.try_iter()?.enumerate() {
                guard::at(at);
                let record = record?;
                match self.one(py, record.as_borrowed(), &mut before) {
                    Some(reading) => made.append(reading)?,
                    None => made.append(decode.call1((record,))?)?,
                }
            }
            Ok(made)
        })
    }
}

impl Cells {
    /// Return the reading of a record; `None` where Python has to look.
    fn one<'py>(
        &self,
        py: Python<'py>,
        record: Object<'_, 'py>,
        before: &mut Before,
    ) -> Option<Bound<'py, PyTuple>> {
        let [position, _, value, _, timestamp] = tuple_items::<5>(record)?;
        let row = utf8_within(value, self.max_bytes).filter(|row| !row.is_empty())?;
        let (cells, mut from) = (&mut before.cells, 0);
        cells.clear();
        for (at, byte) in row.bytes().enumerate() {
            if byte == self.delimiter {
                cells.push((from, at));
                from = at + 1;
            } else if byte == b'"' {
                return None;
            }
        }
        cells.push((from, row.len()));
        if cells.len() != self.width {
            return None;
        }
        let cell = |column: usize| &row[cells[column].0..cells[column].1];
        before.values.clear();
        for &column in &self.channels {
            before.values.push(self.number(cell(column))?);
        }
        let known = self.known.bind(py);
        let known = match self.sensor {
            Some(column) => known.get_item(PyString::new(py, cell(column))),
            None => known.get_item(py.None()),
        };
        let known = known.ok()??;
        let [key, name] = tuple_items::<2>(known.as_borrowed())?;
        let time_ms = match self.time {
            None => whole(timestamp).filter(|ms| (self.first_ms..=self.last_ms).contains(ms))?,
            Some(column) => {
                let text = cell(column);
                match before.time_ms {
                    Some(ms) if before.time == text => ms,
                    _ => {
                        let ms = self.time(py, text)?;
                        before.time.clear();
                        before.time.push_str(text);
                        before.time_ms = Some(ms);
                        ms
                    }
                }
            }
        };
        let values = before.values.iter().map(|&value| match value.is_nan() {
            true => self.nan.clone_ref(py).into_bound(py),
            false => PyFloat::new(py, value).into_any(),
        });
        let floats = PyTuple::new(py, values).ok()?.into_any();
        let time_ms = time_ms.into_pyobject(py).ok()?.into_any();
        self.reading.make(py, [key, name, time_ms.as_borrowed(), floats.as_borrowed(), position]).ok()
    }

    /// Return a number as it is written, or nan of an empty cell.
    fn number(&self, cell: &str) -> Option<f64> {
        if cell.is_empty() {
            return Some(f64::NAN);
        }
        let plain = |byte: u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E');
        if !cell.bytes().all(plain) {
            return None;
        }
        cell.parse().ok().filter(|x: &f64| x.is_finite() && !self.missing.contains(x))
    }

    /// Return a time in ms; what is written in another way is asked of the mapping.
    fn time(&self, py: Python<'_>, cell: &str) -> Option<i64> {
        if self.in_ms && cell.len() <= MAX_DIGITS && cell.bytes().all(|byte| byte.is_ascii_digit()) {
            let ms = cell.parse().ok()?;
            return (self.first_ms..=self.last_ms).contains(&ms).then_some(ms);
        }
        let found = self.mapping.bind(py).call_method1(MAPPING_EPOCH_MS.name(py), (cell,)).ok()?;
        whole(found.as_borrowed())
    }
}
