//! The way of ordinary events through one stream (`engine.stream_state.StreamState`).
//!
//! Ordinary is a reading whose every channel is there, at a model with which nothing but scores is
//! due, judged in a full window, that turns no incident. A run ends *before* the first that is not,
//! with nothing changed of it, and Python goes on from there: the state is its own.

use crate::alarm;
use crate::judge::{names, JudgeCore};
use crate::recent::{Recent, Saved};
use crate::scorers::Scorer;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PySlice, PyTuple, PyType};

/// Beyond it rows are looked at by Python: squares are surely finite in sum below.
const LARGE: f64 = 1e140;
const MOSTLY_SUSPECT: usize = 64;
const FEW: usize = 8;

static JUDGED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static FROM_BUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

#[pyclass(module = "rejex_native._core")]
pub struct Lane {
    judge: Py<PyAny>,
    watch: Py<PyAny>,
    model: Py<PyAny>,
    core: JudgeCore,
    scorer: Option<(Py<PyAny>, Scorer)>,
    at_once: bool,
    is_bare: Option<bool>, // whether a row is the reading, once a sensor is known
    d: usize,
    flat: Vec<f64>, // readings, one after the other
    rows: Vec<f64>, // what is made of them
    room: Vec<f64>,
}

/// Return what takes the ordinary events of a stream.
#[pyfunction]
pub fn lane_of(state: &Bound<'_, PyAny>) -> PyResult<Lane> {
    let watch = state.getattr("watch")?;
    Ok(Lane {
        core: JudgeCore::of(Some(watch.clone()))?,
        judge: state.getattr("_judge")?.unbind(),
        watch: watch.unbind(),
        model: state.getattr("model")?.unbind(),
        scorer: None,
        at_once: state.getattr("_at_once")?.is_truthy()?,
        is_bare: None,
        d: state.getattr("_features")?.getattr("channels")?.len()?,
        flat: Vec::new(),
        rows: Vec::new(),
        room: Vec::new(),
    })
}

impl Lane {
    /// Whether any rows are made here: those of the presets that roll, and readings as they are.
    fn makes_rows(&mut self, state: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.at_once {
            return Ok(true);
        }
        if let Some(known) = self.is_bare {
            return Ok(known);
        }
        let py = state.py();
        let sensors = state.getattr(intern!(py, "_sensors"))?.cast_into::<PyDict>()?;
        let Some(sensor) = sensors.values().iter().next() else { return Ok(true) };
        let bare = sensor.getattr(intern!(py, "_only_raw"))?.is_truthy()?
            && sensor.getattr(intern!(py, "_picked"))?.is_none();
        self.is_bare = Some(bare);
        Ok(bare)
    }
}

#[pymethods]
impl Lane {
    /// Judge readings as `StreamState.advance` does: those that are not ordinary by its own means.
    fn advance<'py>(
        &mut self,
        state: &Bound<'py, PyAny>,
        readings: &Bound<'py, PyAny>,
        totals: &Bound<'py, PyAny>,
        verdicts: &Bound<'py, PyList>,
    ) -> PyResult<()> {
        let py = state.py();
        let count = readings.len()?;
        if !self.makes_rows(state)? {
            state.call_method1(intern!(py, "_advance"), (readings, totals, verdicts))?;
            return Ok(());
        }
        let (mut done, mut step) = (0, 1);
        while done < count {
            if !state.getattr(intern!(py, "_steady_model"))?.is_none() {
                let taken = self.run(state, readings, verdicts, done)?;
                if taken > 0 {
                    (done, step) = (done + taken, 1);
                    continue;
                }
            }
            // What is no event alone lasts for some.
            let stop = (done + step).min(count);
            let some = PySlice::new(py, done as isize, stop as isize, 1);
            let part = PyList::new(py, (done..stop).map(|_| py.None()))?;
            let (these, sums) = (readings.get_item(&some)?, totals.get_item(&some)?);
            state.call_method1(intern!(py, "_advance"), (these, sums, &part))?;
            verdicts.as_any().set_item(some, part)?;
            (done, step) = (stop, 4 * step);
        }
        Ok(())
    }

    /// Judge readings from the `start`-th on as long as they are ordinary; return how many.
    fn run<'py>(
        &mut self,
        state: &Bound<'py, PyAny>,
        readings: &Bound<'py, PyAny>,
        verdicts: &Bound<'py, PyList>,
        start: usize,
    ) -> PyResult<usize> {
        let py = state.py();
        if !self.makes_rows(state)? {
            return Ok(0);
        }
        let (watch, model, judge) = (self.watch.bind(py), self.model.bind(py), self.judge.bind(py));
        if watch.getattr(intern!(py, "frozen"))?.is_truthy()? {
            return Ok(0);
        }
        let rows_seen: i64 = model.getattr(intern!(py, "rows_seen"))?.extract()?;
        let until: i64 = model.getattr(intern!(py, "steady_until"))?.extract()?;
        let room = usize::try_from(until - rows_seen).unwrap_or(0);
        let most = room.min(readings.len()?.saturating_sub(start));
        if most == 0 {
            return Ok(0);
        }
        let serving = model.getattr(intern!(py, "_serving"))?;
        let fitted = serving.getattr(intern!(py, "fitted"))?;
        if fitted.is_none() {
            return Ok(0);
        }
        if !self.scorer.as_ref().is_some_and(|(known, _)| known.is(&fitted)) {
            let made = Scorer::of(&fitted.getattr("scorer")?)?;
            self.scorer = Some((fitted.unbind(), made));
        }
        let scorer = &self.scorer.as_ref().expect("made above").1;
        let epoch = serving.getattr(intern!(py, "epoch"))?;

        // What is read: as far as it is whole.
        self.flat.clear();
        self.rows.clear();
        let mut sensors = Sensors::of(state, self.at_once)?;
        let mut values: Vec<Bound<'py, PyAny>> = Vec::with_capacity(most);
        let mut whose = Vec::with_capacity(most);
        for at in start..start + most {
            let reading = readings.get_item(at)?.cast_into::<PyTuple>()?;
            let Some(sensor) = sensors.at(&reading.get_item(1)?)? else { break };
            let found = reading.get_item(3)?;
            if !plain(&found, self.d, &mut self.flat) {
                self.flat.truncate(values.len() * self.d);
                break;
            }
            values.push(found);
            whose.push(sensor);
        }
        if values.is_empty() {
            return Ok(0);
        }
        let d = self.d;
        let mut before = Vec::new();
        let scored: Option<Vec<f64>> = match scorer {
            Scorer::Python => {
                before = sensors.saved();
                let mut whole = 0;
                for (i, &sensor) in whose.iter().enumerate() {
                    let first = self.rows.len();
                    sensors.row(sensor, &self.flat[i * d..(i + 1) * d], &mut self.rows);
                    if !self.rows[first..].iter().all(|x| x.abs() <= LARGE) {
                        self.rows.truncate(first);
                        break;
                    }
                    sensors.keep(sensor);
                    whole += 1;
                }
                if whole == 0 {
                    return Ok(0);
                }
                whose.truncate(whole);
                let rows = python_rows(py, &self.rows, whose.len())?;
                let found = model.call_method1(intern!(py, "_scores"), (&serving, rows))?;
                Some(found.extract()?)
            }
            _ => None,
        };

        let Some(mut judging) = self.core.begin(judge, &epoch)? else {
            sensors.back(&before);
            return Ok(0);
        };
        let quantile = model.getattr(intern!(py, "_quantile"))?;
        judging.quantile = quantile.extract()?;
        let seq: usize = state.getattr(intern!(py, "seq"))?.extract()?;
        let normal = &names(py)?.normal;
        let explainer = state.getattr(intern!(py, "_explainer"))?;
        let explained = !explainer.is_none();
        let mut wanted = Vec::new();
        let (mut done, mut made) = (0, if scored.is_some() { whose.len() } else { 0 });
        for (i, &sensor) in whose.iter().enumerate() {
            let score = match &scored {
                Some(scores) => scores[i],
                None => {
                    let first = self.rows.len();
                    made += 1;
                    sensors.row(sensor, &self.flat[i * d..(i + 1) * d], &mut self.rows);
                    if !self.rows[first..].iter().all(|x| x.abs() <= LARGE) {
                        break; // what is far beyond all numbers is still in its windows
                    }
                    scorer.score(py, &self.rows[first..], &mut self.room)?
                }
            };
            let reading = readings.get_item(start + i)?;
            let Some(verdict) = judging.one(&reading, score, seq + i, i)? else { break };
            if scored.is_none() {
                sensors.keep(sensor);
            }
            if explained && !verdict.getattr(intern!(py, "label"))?.is(normal) {
                wanted.push((i, start + i, verdict.clone()));
            }
            verdicts.set_item(start + i, verdict)?;
            done += 1;
        }
        let (extreme, outliers, seen) = judging.end()?;
        if scored.is_some() && done < whose.len() {
            sensors.back(&before);
            let mut again = Vec::new();
            for (i, &sensor) in whose[..done].iter().enumerate() {
                sensors.row(sensor, &self.flat[i * d..(i + 1) * d], &mut again);
                sensors.keep(sensor);
            }
        }
        if done == 0 {
            return Ok(0);
        }

        // What comes with them, in the order of Python.
        sensors.end(&whose[..done], &values, d)?;
        state.setattr(intern!(py, "seq"), seq + done)?;
        let width = self.rows.len() / made;
        let rows = python_rows(py, &self.rows[..done * width], done)?;
        if !wanted.is_empty() {
            state.call_method1(intern!(py, "_explain"), (explainer, &rows, wanted, verdicts))?;
        }
        alarm::follow(watch, readings, start, verdicts, &seen)?;
        let plainly = extreme.is_empty()
            && model.getattr(intern!(py, "_guard"))?.is_none()
            && model.getattr(intern!(py, "_shadow"))?.is_none()
            && watch.getattr(intern!(py, "since"))?.len()? <= MOSTLY_SUSPECT;
        if plainly {
            model.getattr(intern!(py, "_rows"))?.call_method1(intern!(py, "extend"), (rows,))?;
            model.setattr(intern!(py, "rows_seen"), rows_seen + done as i64)?;
        } else {
            let judged = JUDGED.import(py, "rejex_stream.engine.model", "Judged")?;
            let mut beyond = outliers;
            beyond.extend(&extreme);
            beyond.sort_unstable();
            beyond.dedup();
            let judged = judged.call1((done, beyond, extreme, py.None()))?;
            model.call_method1(intern!(py, "take"), (rows, judged, judge))?;
        }
        Ok(done)
    }
}

/// Whether values are a tuple of so many floats, none of them missing or large; takes them in.
fn plain(values: &Bound<'_, PyAny>, d: usize, flat: &mut Vec<f64>) -> bool {
    let Ok(values) = values.cast::<PyTuple>() else { return false };
    if values.len() != d {
        return false;
    }
    for i in 0..d {
        // SAFETY: within the tuple.
        let x = unsafe {
            let one = ffi::PyTuple_GetItem(values.as_ptr(), i as ffi::Py_ssize_t);
            if ffi::PyFloat_CheckExact(one) == 0 {
                return false;
            }
            ffi::PyFloat_AsDouble(one)
        };
        if !(x.abs() <= LARGE) {
            return false;
        }
        flat.push(x);
    }
    true
}

/// Return rows for Python: lists where they are few, else an array.
fn python_rows<'py>(py: Python<'py>, flat: &[f64], m: usize) -> PyResult<Bound<'py, PyAny>> {
    let width = flat.len() / m;
    if m <= FEW {
        let rows = PyList::empty(py);
        for row in flat.chunks_exact(width) {
            rows.append(PyList::new(py, row)?)?;
        }
        return Ok(rows.into_any());
    }
    let made = FROM_BUFFER
        .get_or_try_init(py, || {
            Ok::<_, PyErr>(py.import("numpy")?.getattr("frombuffer")?.unbind())
        })?
        .bind(py);
    // SAFETY: doubles are bytes.
    let bytes = unsafe { std::slice::from_raw_parts(flat.as_ptr().cast::<u8>(), flat.len() * 8) };
    made.call1((PyBytes::new(py, bytes),))?.call_method1(intern!(py, "reshape"), (m, width))
}

/// The sensors of a stream that are met in a run: what makes their rows.
struct Sensors<'py> {
    known: Bound<'py, PyDict>,
    at_once: bool,
    met: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>, Option<Recent<'py>>)>,
    newest: usize,
}

impl<'py> Sensors<'py> {
    fn of(state: &Bound<'py, PyAny>, at_once: bool) -> PyResult<Sensors<'py>> {
        let py = state.py();
        let name = if at_once { intern!(py, "_recent") } else { intern!(py, "_sensors") };
        let known = state.getattr(name)?.cast_into::<PyDict>()?;
        Ok(Sensors { known, at_once, met: Vec::new(), newest: 0 })
    }

    /// Return the number of a sensor; `None` where Python has to make its rows.
    fn at(&mut self, name: &Bound<'py, PyAny>) -> PyResult<Option<usize>> {
        if self.met.get(self.newest).is_some_and(|(same, _, _)| same.is(name)) {
            return Ok(Some(self.newest));
        }
        for (n, (other, _, _)) in self.met.iter().enumerate() {
            if other.is(name) || other.eq(name)? {
                self.newest = n;
                return Ok(Some(n));
            }
        }
        let Some(sensor) = self.known.get_item(name)? else { return Ok(None) };
        let mut recent = None;
        if self.at_once {
            recent = Recent::of(&sensor)?;
            if recent.is_none() {
                return Ok(None);
            }
        }
        self.newest = self.met.len();
        self.met.push((name.clone(), sensor, recent));
        Ok(Some(self.newest))
    }

    fn row(&mut self, sensor: usize, reading: &[f64], rows: &mut Vec<f64>) {
        match &mut self.met[sensor].2 {
            Some(recent) => recent.row(reading, rows),
            None => rows.extend_from_slice(reading),
        }
    }

    fn keep(&mut self, sensor: usize) {
        if let Some(recent) = &mut self.met[sensor].2 {
            recent.keep();
        }
    }

    fn saved(&self) -> Vec<Saved> {
        self.met.iter().filter_map(|(_, _, recent)| recent.as_ref().map(Recent::saved)).collect()
    }

    fn back(&mut self, saved: &[Saved]) {
        let recents = self.met.iter_mut().filter_map(|(_, _, recent)| recent.as_mut());
        for (recent, saved) in recents.zip(saved) {
            recent.back(saved);
        }
    }

    /// Leave the state as it is after some readings.
    fn end(self, whose: &[usize], values: &[Bound<'py, PyAny>], d: usize) -> PyResult<()> {
        for (n, (_, sensor, recent)) in self.met.into_iter().enumerate() {
            let Some(last) = whose.iter().rposition(|&sensor| sensor == n) else { continue };
            let py = sensor.py();
            sensor.setattr(intern!(py, "_last"), &values[last])?;
            if let Some(recent) = recent {
                recent.end()?;
                let young = sensor.getattr(intern!(py, "_young"))?;
                sensor.setattr(intern!(py, "_age"), young)?;
            } else if sensor.getattr(intern!(py, "_carry"))?.is_truthy()? {
                sensor.setattr(intern!(py, "_age"), PyList::new(py, vec![0; d])?)?;
            }
        }
        Ok(())
    }
}
