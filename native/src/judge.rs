//! From a score to a verdict (`rejection.judge.Judge`), for what is ordinary.
//!
//! The state is Python's: the window's ring and order are changed where they lie, and nothing of
//! them is kept from call to call. What is kept follows from objects that never change, and is made
//! anew where another stands in their place.

use crate::credit::Credit;
use crate::tail::Tail;
use crate::view::{below, View};
use pyo3::exceptions::PyRuntimeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple};

pub const EXTREME: f64 = 4.0;
const FIELDS: ffi::Py_ssize_t = 31;

/// What is the same for all streams: classes and constants of the product.
pub struct Names {
    verdict: Py<PyAny>,
    labels: [Py<PyAny>; 4],
    rejected: Py<PyAny>,
    pub normal: Py<PyAny>,
    ambiguous: Py<PyAny>,
    severity: Py<PyAny>,
    nan: Py<PyAny>,
}

static NAMES: PyOnceLock<Names> = PyOnceLock::new();
static RANKS: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

pub fn names(py: Python<'_>) -> PyResult<&Names> {
    NAMES.get_or_try_init(py, || {
        let types = py.import("rejex_stream.types")?;
        let label = types.getattr("Label")?;
        let (normal, rejected) = (label.getattr("NORMAL")?, label.getattr("REJECTED")?);
        Ok(Names {
            verdict: types.getattr("Verdict")?.unbind(),
            labels: [
                normal.clone().unbind(),
                rejected.clone().unbind(),
                rejected.clone().unbind(),
                label.getattr("ANOMALY")?.unbind(),
            ],
            rejected: rejected.unbind(),
            normal: normal.unbind(),
            ambiguous: types.getattr("Reason")?.getattr("AMBIGUOUS")?.unbind(),
            severity: py.import("rejex_stream.rejection.window")?.getattr("severity")?.unbind(),
            nan: py.import("math")?.getattr("nan")?.unbind(),
        })
    })
}

/// Every rank 0..n, and its share of n: the same objects for all streams.
fn ranks(py: Python<'_>, n: usize) -> PyResult<(Py<PyTuple>, Py<PyTuple>)> {
    let known = RANKS.get_or_init(py, || PyDict::new(py).unbind()).bind(py);
    if let Some(found) = known.get_item(n)? {
        return found.extract();
    }
    let whole = PyTuple::new(py, 0..n + 1)?;
    let shares = PyTuple::new(py, (0..n + 1).map(|rank| rank as f64 / n as f64))?;
    known.set_item(n, (&whole, &shares))?;
    Ok((whole.unbind(), shares.unbind()))
}

/// What ranks in a full window mean, as Python's `_Full` says it.
struct Full {
    of: Py<PyAny>,
    edges: [usize; 3],
    places: usize,
    band: [Py<PyAny>; 4], // n_anomalies, lower, upper, tolerance
    labels: Py<PyTuple>,
    p_anomalies: Py<PyTuple>,
    confidences: Py<PyTuple>,
    severities: Py<PyTuple>,
    ranks: Py<PyTuple>,
    shares: Py<PyTuple>,
    n: Py<PyAny>,
    by_mid_rank: bool,
    governor: Option<Py<PyAny>>,
}

impl Full {
    fn of(judge: &Bound<'_, PyAny>, full: &Bound<'_, PyAny>, n: usize) -> PyResult<Full> {
        let py = judge.py();
        let band = full.getattr("band")?;
        let edges = edges_of(&band)?;
        let governor = judge.getattr("_governor")?;
        let (ranks, shares) = ranks(py, n)?;
        let part = |name: &str| -> PyResult<Py<PyAny>> { Ok(band.getattr(name)?.unbind()) };
        let table = |name: &str| -> PyResult<Py<PyTuple>> {
            Ok(full.getattr(name)?.cast_into::<PyTuple>()?.unbind())
        };
        Ok(Full {
            of: full.clone().unbind(),
            edges,
            places: ((n + 1).saturating_sub(edges[2]) / 2).max(1),
            band: [part("n_anomalies")?, part("lower")?, part("upper")?, part("tolerance")?],
            labels: table("labels")?,
            p_anomalies: table("p_anomalies")?,
            confidences: table("confidences")?,
            severities: table("severities")?,
            ranks,
            shares,
            n: n.into_pyobject(py)?.into_any().unbind(),
            by_mid_rank: judge.getattr("_by_mid_rank")?.extract()?,
            governor: if governor.is_none() { None } else { Some(governor.unbind()) },
        })
    }
}

fn edges_of(band: &Bound<'_, PyAny>) -> PyResult<[usize; 3]> {
    let (lower, flagged, above) = band.getattr(intern!(band.py(), "edges"))?.extract()?;
    Ok([lower, flagged, above])
}

/// What is kept of a judge between calls: nothing that an event changes.
#[pyclass(module = "rejex_native._core")]
pub struct JudgeCore {
    watch: Option<Py<PyAny>>,
    ordinary: f64,
    most: f64,
    full: Option<Full>,
    tail: Option<(Py<PyAny>, Tail)>,
}

#[pymethods]
impl JudgeCore {
    #[new]
    #[pyo3(signature = (watch = None))]
    fn new(watch: Option<Bound<'_, PyAny>>) -> PyResult<JudgeCore> {
        JudgeCore::of(watch)
    }

    /// Judge scores as long as they are ordinary: as `Judge.judge`, from the `start`-th on.
    ///
    /// Returns how many of them were judged, and which are extreme.
    #[pyo3(signature = (judge, readings, which, scores, verdicts, start, seq, epoch))]
    #[allow(clippy::too_many_arguments)]
    fn judge<'py>(
        &mut self,
        judge: &Bound<'py, PyAny>,
        readings: &Bound<'py, PyAny>,
        which: &Bound<'py, PyAny>,
        scores: &Bound<'py, PyAny>,
        verdicts: &Bound<'py, PyList>,
        start: usize,
        seq: usize,
        epoch: &Bound<'py, PyAny>,
    ) -> PyResult<(usize, Vec<usize>)> {
        let Some(mut judging) = self.begin(judge, epoch)? else {
            return Ok((0, Vec::new()));
        };
        let mut done = start;
        for at in start..which.len()? {
            let i: usize = which.get_item(at)?.extract()?;
            let reading = readings.get_item(i)?;
            let score: f64 = scores.get_item(at)?.extract()?;
            let Some(verdict) = judging.one(&reading, score, seq + i, at)? else { break };
            verdicts.set_item(i, verdict)?;
            done += 1;
        }
        Ok((done - start, judging.end()?.0))
    }
}

impl JudgeCore {
    pub fn of(watch: Option<Bound<'_, PyAny>>) -> PyResult<JudgeCore> {
        let number
 = |name: &str| match &watch {
            None => Ok(0.0),
            Some(watch) => watch.getattr(name)?.extract::<f64>(),
        };
        Ok(JudgeCore {
            ordinary: number("ordinary")?,
            most: number("most")?,
            watch: watch.map(Bound::unbind),
            full: None,
            tail: None,
        })
    }

    /// Look at the state of now; `None` where it is not ordinary.
    pub fn begin<'a, 'py>(
        &'a mut self,
        judge: &'a Bound<'py, PyAny>,
        epoch: &'a Bound<'py, PyAny>,
    ) -> PyResult<Option<Judging<'a, 'py>>> {
        let py = judge.py();
        if judge.getattr(intern!(py, "_constant"))?.is_truthy()?
            || judge.getattr(intern!(py, "_announced_constant"))?.is_truthy()?
        {
            return Ok(None);
        }
        let tail = judge.getattr(intern!(py, "tail"))?;
        if tail.is_none() {
            return Ok(None);
        }
        let window = judge.getattr(intern!(py, "window"))?;
        let parts = window.getattr(intern!(py, "_parts"))?.cast_into::<PyList>()?;
        let n: usize = judge.getattr(intern!(py, "_capacity"))?.extract()?;
        if parts.len() != 1 {
            return Ok(None);
        }
        let ring = View::of(&window.getattr(intern!(py, "_ring"))?, true)?;
        let ordered = View::of(&parts.get_item(0)?, true)?;
        if ring.get().len() != n || ordered.get().len() != n {
            return Ok(None);
        }
        let oldest: usize = window.getattr(intern!(py, "_oldest"))?.extract()?;
        if oldest >= n {
            return Err(PyRuntimeError::new_err("the window's oldest score lies beyond its ring"));
        }
        let full = judge.getattr(intern!(py, "_full"))?;
        if full.is_none() {
            return Ok(None);
        }
        if !self.full.as_ref().is_some_and(|known| known.of.is(&full)) {
            self.full = Some(Full::of(judge, &full, n)?);
        }
        if !self.tail.as_ref().is_some_and(|(known, _)| known.is(&tail)) {
            self.tail = Some((tail.clone().unbind(), Tail::of(&tail)?));
        }
        let watch = self.watch.as_ref().map(|watch| watch.bind(py));
        let (mut level, mut limit, mut least) = (0.0, f64::INFINITY, f64::INFINITY);
        if let Some(watch) = watch {
            level = watch.getattr(intern!(py, "level"))?.extract()?;
            limit = watch.getattr(intern!(py, "limit"))?.extract()?;
            least = watch.getattr(intern!(py, "least"))?.extract()?;
        }
        let full = self.full.as_ref().expect("made above");
        let credit = match &full.governor {
            None => None,
            Some(governor) => Credit::of(governor.bind(py), n)?,
        };
        Ok(Some(Judging {
            py,
            names: names(py)?,
            judge,
            window,
            parts_max: None,
            watch,
            epoch,
            full,
            tail: &self.tail.as_ref().expect("made above").1,
            ordinary: self.ordinary,
            most: self.most,
            ring,
            ordered,
            oldest,
            n,
            level,
            was: level,
            limit,
            least,
            extreme: Vec::new(),
            entered: false,
            quantile: None,
            outliers: Vec::new(),
            credit,
            seen: Vec::new(),
        }))
    }
}

/// A run of ordinary events of one stream.
pub struct Judging<'a, 'py> {
    py: Python<'py>,
    names: &'a Names,
    judge: &'a Bound<'py, PyAny>,
    window: Bound<'py, PyAny>,
    parts_max: Option<f64>,
    watch: Option<&'a Bound<'py, PyAny>>,
    epoch: &'a Bound<'py, PyAny>,
    full: &'a Full,
    tail: &'a Tail,
    ordinary: f64,
    most: f64,
    ring: View,
    ordered: View,
    oldest: usize,
    n: usize,
    level: f64,
    was: f64,
    limit: f64,
    least: f64,
    extreme: Vec<usize>,
    entered: bool,
    pub quantile: Option<f64>,
    outliers: Vec<usize>,
    credit: Option<Credit<'py>>,
    seen: Vec<(f64, i64)>, // severity and time of each
}

impl<'a, 'py> Judging<'a, 'py> {
    /// Judge a score; `None`, and nothing has changed, where that is not ordinary.
    ///
    /// `reading` is a `Reading`, `at` what is said of it among the extreme and the outliers.
    pub fn one(
        &mut self,
        reading: &Bound<'py, PyAny>,
        score: f64,
        seq: usize,
        at: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let (py, n, full) = (self.py, self.n, self.full);
        if !score.is_finite() {
            return Ok(None);
        }
        // 1. Rank.
        let ordered = self.ordered.get();
        let low = below(ordered, score);
        let high = low + ordered[low..].partition_point(|&one| one <= score);
        let ties = high - low;
        let evicted = self.ring.get()[self.oldest];
        if ties + usize::from(evicted != score) >= n {
            return Ok(None); // the window would be constant
        }
        let by_tail = self.tail.severity(score);
        let rank = if full.by_mid_rank { (low + high) / 2 } else { high };
        let rare: f64 = if low < n {
            full.severities.bind(py).get_borrowed_item(low)?.extract()?
        } else {
            self.names.severity.bind(py).call1((&self.window, score, low))?.extract()?
        };
        // What turns the machine of incidents is Python's.
        let weighs = self.watch.is_some() && (self.level != 0.0 || rare > self.least);
        let level = self.level + if self.most < rare { self.most } else { rare } - self.ordinary;
        if weighs && level >= self.limit {
            return Ok(None);
        }
        // 2. Band and 3. label.
        let own = full.labels.bind(py).get_borrowed_item(rank)?;
        let mut label = own.to_owned();
        let mut withheld = false;
        let mut allowed = None;
        let mut edges = full.edges;
        let reading = reading.as_ptr();
        // SAFETY: a Reading is a tuple of five.
        let item = |i: ffi::Py_ssize_t| unsafe {
            Bound::from_borrowed_ptr(py, ffi::PyTuple_GetItem(reading, i))
        };
        let (sensor, time_ms) = (item(1), item(2));
        if let Some(governor) = &full.governor {
            let governor = governor.bind(py);
            let band = match &mut self.credit {
                Some(credit) => credit.allow(&sensor, &time_ms)?,
                None => {
                    let args = (&full.n, &sensor, &time_ms);
                    governor.call_method1(intern!(py, "allow"), args)?
                }
            };
            edges = edges_of(&band)?;
            let cell = edges.iter().filter(|&&edge| rank >= edge).count();
            label = self.names.labels[cell].bind(py).clone();
            if label.is(&self.names.rejected) {
                match &mut self.credit {
                    Some(credit) => credit.spend(),
                    None => drop(governor.call_method0(intern!(py, "spend"))?),
                }
            } else {
                withheld = own.is(&self.names.rejected);
            }
            allowed = Some(band);
        }
        let is_rejected = label.is(&self.names.rejected);
        // 4. Whether it enters.
        let enters = by_tail < EXTREME || {
            self.extreme.push(at);
            self.n_extreme() < full.places
        };
        if let Some(quantile) = self.quantile {
            if n as f64 >= 1.0 / (1.0 - quantile) && ((low + high) / 2) as f64 > quantile * n as f64 {
                self.outliers.push(at);
            }
        }
        let verdict = {
            let ordered = self.ordered.get();
            let statistic = |k: usize| (k >= 1 && k <= n).then(|| ordered[k - 1]);
            let float = |x: f64| unsafe { ffi::PyFloat_FromDouble(x) };
            let optional = |x: Option<f64>| x.map_or_else(none, float);
            let owned = |object: &Bound<'py, PyAny>| object.clone().into_ptr();
            let kept = |object: &Py<PyAny>| object.clone_ref(py).into_ptr();
            let from = |table: &Py<PyTuple>, i: usize| -> PyResult<*mut ffi::PyObject> {
                Ok(table.bind(py).get_borrowed_item(i)?.to_owned().into_ptr())
            };
            let mine = |i: usize, name: &Bound<'py, pyo3::types::PyString>| match &allowed {
                None => Ok::<_, PyErr>(kept(&full.band[i])),
                Some(band) => Ok(band.getattr(name)?.into_ptr()),
            };
            let policy = |i: usize| if allowed.is_some() { kept(&full.band[i]) } else { none() };
            // SAFETY: a new tuple, whose every place gets a reference of its own.
            unsafe {
                let made = Bound::from_owned_ptr(py, ffi::PyTuple_New(FIELDS));
                let mut next = 0;
                let mut put = |object: *mut ffi::PyObject| {
                    ffi::PyTuple_SetItem(made.as_ptr(), next, object);
                    next += 1;
                };
                put(owned(&item(4)));
                put(owned(&item(0)));
                put(owned(&sensor));
                put(owned(&time_ms));
                put(ffi::PyLong_FromSize_t(seq));
                put(owned(&label));
                put(if is_rejected { kept(&self.names.ambiguous) } else { none() });
                put(float(score));
                put(from(&full.ranks, rank)?);
                put(ffi::PyLong_FromSize_t(ties));
                put(kept(&full.n));
                put(kept(&full.band[0]));
                put(mine(1, intern!(py, "lower"))?);
                put(mine(2, intern!(py, "upper"))?);
                put(from(&full.shares, rank)?);
                put(from(&full.p_anomalies, rank)?);
                put(from(&full.confidences, rank)?);
                put(optional(statistic(edges[1])));
                put(optional(statistic(edges[0])));
                put(optional(statistic(edges[2])));
                put(owned(self.epoch));
                put(mine(3, intern!(py, "tolerance"))?);
                put(none());
                put(truth(withheld));
                put(policy(1));
                put(policy(2));
                put(float(by_tail));
                put(none());
                put(truth(false));
                put(truth(false));
                put(none());
                let verdict = ffi::PyObject_Call(
                    self.names.verdict.as_ptr(),
                    made.as_ptr(),
                    std::ptr::null_mut(),
                );
                Bound::from_owned_ptr_or_err(py, verdict)?
            }
        };
        self.seen.push((by_tail, time_ms.extract()?));
        // 4. Enter.
        if enters {
            self.enter(score + 0.0, evicted, low);
        }
        // 5. Evidence.
        if weighs {
            let since = self.watch.expect("weighs").getattr(intern!(py, "since"))?;
            self.level = if level > 0.0 { level } else { 0.0 };
            if level <= 0.0 {
                since.call_method0(intern!(py, "clear"))?;
            } else if enters {
                since.call_method1(intern!(py, "append"), ((&verdict, evicted),))?;
            } else {
                since.call_method1(intern!(py, "append"), ((&verdict, &self.names.nan),))?;
            }
        }
        Ok(Some(verdict))
    }

    fn enter(&mut self, score: f64, evicted: f64, low: usize) {
        let ordered = self.ordered.get_mut();
        let out = below(ordered, evicted);
        if out < low {
            ordered.copy_within(out + 1..low, out);
            ordered[low - 1] = score;
        } else {
            ordered.copy_within(low..out, low + 1);
            ordered[low] = score;
        }
        self.parts_max = ordered.last().copied();
        self.ring.get_mut()[self.oldest] = score;
        self.oldest = if self.oldest + 1 < self.n { self.oldest + 1 } else { 0 };
        self.entered = true;
    }

    /// How many scores of the window are extreme: a severity never falls with its score.
    fn n_extreme(&self) -> usize {
        let ordered = self.ordered.get();
        self.n - ordered.partition_point(|&score| self.tail.severity(score) < EXTREME)
    }

    /// Leave the state as it is now; return which were extreme, which beyond the quantile, and all.
    pub fn end(self) -> PyResult<(Vec<usize>, Vec<usize>, Vec<(f64, i64)>)> {
        let py = self.py;
        if self.entered {
            self.window.setattr(intern!(py, "_oldest"), self.oldest)?;
            let maxes = self.window.getattr(intern!(py, "_maxes"))?.cast_into::<PyList>()?;
            maxes.set_item(0, self.parts_max)?;
            self.judge.setattr(intern!(py, "_edges"), py.None())?;
        }
        if let Some(credit) = self.credit {
            credit.end()?;
        }
        if let Some(watch) = self.watch {
            if self.level != self.was {
                watch.setattr(intern!(py, "level"), self.level)?;
            }
        }
        Ok((self.extreme, self.outliers, self.seen))
    }
}

fn none() -> *mut ffi::PyObject {
    // SAFETY: the one None, with a reference more.
    unsafe {
        let none = ffi::Py_None();
        ffi::Py_INCREF(none);
        none
    }
}

fn truth(is: bool) -> *mut ffi::PyObject {
    // SAFETY: returns a new reference.
    unsafe { ffi::PyBool_FromLong(is.into()) }
}
