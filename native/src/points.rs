//! What is remembered of ordinary events for reviewers (`run.review_items.ReviewItems`).

use crate::guard::{self, guarded};
use crate::seam::*;
use crate::written::{kept, parts_of, Layout, Named, Object, Writer};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList};


/// What became of an event that was to be remembered.
enum Seen<'py> {
    Nothing,
    Due(Bound<'py, PyAny>), // the sensor whose item is owed what came after it
    Not,                    // Python has to look, nothing is changed
}

/// Makes the outcomes of judged records as a `ReviewItems` would, one that draws no audits.
#[pyclass(module = "rejex_native._core", frozen)]
pub struct Points {
    writer: Writer,
    verdict: Layout,
    outcome: Named,
    rejected: Py<PyAny>,
    anomaly: Py<PyAny>,
    extreme: f64,
    points: i64,
    label: usize,
    severity: usize,
    status: usize,
    score: usize,
}

#[pymethods]
impl Points {
    #[new]
    fn new(py: Python<'_>, points: i64) -> PyResult<Points> {
        let verdict = Layout::of(TYPES_VERDICT.get(py)?)?;
        Ok(Points {
            writer: Writer::of(py)?,
            outcome: Named::of(TYPES_OUTCOME.get(py)?)?,
            rejected: LABEL_REJECTED.get(py)?.clone().unbind(),
            anomaly: LABEL_ANOMALY.get(py)?.clone().unbind(),
            extreme: JUDGE_EXTREME.float(py)?,
            points,
            label: verdict.at(&VERDICT_LABEL)?,
            severity: verdict.at(&VERDICT_SEVERITY)?,
            status: verdict.at(&VERDICT_STATUS)?,
            score: verdict.at(&VERDICT_SCORE)?,
            verdict,
        })
    }

    /// Return what judged records come to; `observe` is asked about an event that is not ordinary,
    /// `follow_up` for what is due to the item before an ordinary one.
    #[allow(clippy::too_many_arguments)]
    fn outcomes<'py>(
        &self,
        sensors: &Bound<'py, PyDict>,
        observe: &Bound<'py, PyAny>,
        follow_up: &Bound<'py, PyAny>,
        item: &Bound<'py, PyAny>,
        records: &Bound<'py, PyAny>,
        readings: &Bound<'py, PyAny>,
        verdicts: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        guarded(verdicts, || {
            let py = sensors.py();
            let made = PyList::empty(py);
            let (records, readings, verdicts) = (listed(records)?, listed(readings)?, listed(verdicts)?);
            // SAFETY: None and an empty tuple are always there.
            let (none, nothing) = unsafe { (ffi::Py_None(), pyo3::types::PyTuple::empty(py)) };
            let mut room = Vec::with_capacity(256);
            for at in 0..records.len() {
                guard::at(at);
                let (reading, verdict) = (readings.get_item(at)?, verdicts.get_item(at)?);
                let (mut review, mut after) = (none, none);
                let told;
                match self.ordinary(sensors, &reading, verdict.as_ptr(), &mut room)? {
                    Seen::Nothing => {}
                    Seen::Due(known) => {
                        told = follow_up.call1((&known, REVIEWED_OF.get(&known)?, &verdict))?;
                        after = told.as_ptr();
                    }
                    Seen::Not => {
                        told = observe.call1((&reading, &verdict))?;
                        let to = if told.get_type().is(item) { &mut review } else { &mut after };
                        *to = told.as_ptr();
                    }
                }
                let record = records.get_item(at)?.into_ptr();
                let changes = (nothing.as_ptr(), nothing.as_ptr());
                let fields = [
                    record, verdict.into_ptr(), kept(none), kept(review), kept(changes.0),
                    kept(changes.1), kept(after),
                ];
                made.append(self.outcome.made(py, &fields)?)?;
            }
            Ok(made)
        })
    }
}

impl Points {
    /// Remember an event that is no item itself, and say whether one before it is due something.
    fn ordinary<'py>(
        &self,
        sensors: &Bound<'py, PyDict>,
        reading: &Bound<'py, PyAny>,
        verdict: Object,
        room: &mut Vec<u8>,
    ) -> PyResult<Seen<'py>> {
        let py = sensors.py();
        let Some([_, sensor, time, values, _]) = parts_of::<5>(reading.as_ptr()) else {
            return Ok(Seen::Not);
        };
        if !self.verdict.is(verdict) {
            return Ok(Seen::Not);
        }
        let get = |at| self.verdict.get(verdict, at);
        // SAFETY: live objects of the verdict.
        unsafe {
            let (label, severity) = (get(self.label), get(self.severity));
            if label == self.rejected.as_ptr() || get(self.status) != ffi::Py_None() {
                return Ok(Seen::Not);
            }
            if label == self.anomaly.as_ptr() && severity != ffi::Py_None() {
                let is_float = ffi::Py_TYPE(severity) == &raw mut ffi::PyFloat_Type;
                if !is_float || ffi::PyFloat_AsDouble(severity) >= self.extreme {
                    return Ok(Seen::Not);
                }
            }
        }
        // SAFETY: held by the reading.
        let name = unsafe { Bound::from_borrowed_ptr(py, sensor) };
        let Some(known) = sensors.get_item(name)? else { return Ok(Seen::Not) };
        let owed = !REVIEWED_OF.is_none(&known)?;
        let n_since = if owed { REVIEWED_N_SINCE.int(&known)? + 1 } else { 0 };
        if self.points == 0 && !owed {
            return Ok(Seen::Nothing);
        }
        room.clear();
        for (field, value) in [
            (&b"{\"event_time_ms\":"[..], time),
            (b",\"values\":", values),
            (b",\"score\":", get(self.score)),
            (b",\"label\":", get(self.label)),
        ] {
            room.extend_from_slice(field);
            self.writer.value(py, value, room)?;
        }
        room.push(b'}');
        let (recent, point) = (REVIEWED_RECENT.get(&known)?, PyBytes::new(py, room));
        // SAFETY: live objects; what is returned is a new reference, and None.
        unsafe {
            let append = intern!(py, "append").as_ptr();
            let end = std::ptr::null_mut::<ffi::PyObject>();
            let done = ffi::PyObject_CallMethodObjArgs(recent.as_ptr(), append, point.as_ptr(), end);
            Bound::from_owned_ptr_or_err(py, done)?;
        }
        if owed {
            REVIEWED_N_SINCE.set_int(&known, n_since)?;
        }
        let due = owed && (n_since & (n_since - 1) == 0 || n_since >= self.points);
        Ok(if due { Seen::Due(known) } else { Seen::Nothing })
    }
}

fn listed<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    match given.cast::<PyList>() {
        Ok(list) => Ok(list.clone()),
        Err(_) => PyList::new(given.py(), given.try_iter()?.collect::<PyResult<Vec<_>>>()?),
    }
}
