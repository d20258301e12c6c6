//! What is remembered of ordinary events for reviewers (`run.review_items.ReviewItems`).

use crate::guard::{self, guarded};
use crate::object::{tuple_items, Layout, Object, TupleClass};
use crate::seam::*;
use crate::json::JsonWriter;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyList, PyTuple};


/// What became of an event that was to be remembered.
enum Ordinary<'py> {
    Nothing,
    Due(Bound<'py, PyAny>), // the sensor whose item is owed what came after it
    Not,                    // Python has to look, nothing is changed
}

/// Makes the outcomes of judged records as a `ReviewItems` would, one that draws no audits.
#[pyclass(module = "rejex_native._core", frozen)]
pub struct Points {
    writer: JsonWriter,
    verdict: Layout,
    outcome: TupleClass,
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
            writer: JsonWriter::of(py)?,
            outcome: TupleClass::of(TYPES_OUTCOME.get(py)?)?,
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
            let (none, nothing) = (py.None().into_bound(py), PyTuple::empty(py).into_any());
            let mut room = Vec::with_capacity(256);
            for at in 0..records.len() {
                guard::at(at);
                let (reading, verdict) = (readings.get_item(at)?, verdicts.get_item(at)?);
                let (mut review, mut after) = (&none, &none);
                let made_of_it;
                match self.ordinary(sensors, &reading, verdict.as_borrowed(), &mut room)? {
                    Ordinary::Nothing => {}
                    Ordinary::Due(known) => {
                        made_of_it = follow_up.call1((&known, REVIEWED_OF.get(&known)?, &verdict))?;
                        after = &made_of_it;
                    }
                    Ordinary::Not => {
                        made_of_it = observe.call1((&reading, &verdict))?;
                        let is_item = made_of_it.get_type().is(item);
                        *(if is_item { &mut review } else { &mut after }) = &made_of_it;
                    }
                }
                let record = records.get_item(at)?;
                let fields = [&record, &verdict, &none, review, &nothing, &nothing, after];
                made.append(self.outcome.make(py, fields.map(|one| one.as_borrowed()))?)?;
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
        verdict: Object<'_, 'py>,
        room: &mut Vec<u8>,
    ) -> PyResult<Ordinary<'py>> {
        let py = sensors.py();
        let Some([_, sensor, time, values, _]) = tuple_items::<5>(reading.as_borrowed()) else {
            return Ok(Ordinary::Not);
        };
        if !self.verdict.is(verdict) {
            return Ok(Ordinary::Not);
        }
        let get = |at| self.verdict.get(verdict, at);
        let (label, severity) = (get(self.label), get(self.severity));
        if label.is(&self.rejected) || !get(self.status).is_none() {
            return Ok(Ordinary::Not);
        }
        if label.is(&self.anomaly) && !severity.is_none() {
            let Ok(severity) = severity.cast_exact::<PyFloat>() else { return Ok(Ordinary::Not) };
            if severity.value() >= self.extreme {
                return Ok(Ordinary::Not);
            }
        }
        let Some(known) = sensors.get_item(sensor)? else { return Ok(Ordinary::Not) };
        let owed = !REVIEWED_OF.is_none(&known)?;
        let n_since = if owed { REVIEWED_N_SINCE.int(&known)? + 1 } else { 0 };
        if self.points == 0 && !owed {
            return Ok(Ordinary::Nothing);
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
        recent.call_method1(intern!(py, "append"), (point,))?;
        if owed {
            REVIEWED_N_SINCE.set_int(&known, n_since)?;
        }
        let due = owed && (n_since & (n_since - 1) == 0 || n_since >= self.points);
        Ok(if due { Ordinary::Due(known) } else { Ordinary::Nothing })
    }
}

fn listed<'py>(given: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    match given.cast::<PyList>() {
        Ok(list) => Ok(list.clone()),
        Err(_) => PyList::new(given.py(), given.try_iter()?.collect::<PyResult<Vec<_>>>()?),
    }
}
