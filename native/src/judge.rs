//! From a score to a verdict (`rejection.judge.Judge`), for what is ordinary.
//!
//! The state is Python's: the window's ring and order are changed where they lie, and nothing of
//! them is kept from call to call. What is kept follows from objects that never change, and is made
//! again where another stands in their place.

use crate::credit::Credit;
use crate::evidence::{Explaining, Unexplained};
use crate::object::{call, tuple_items, whole, Object};
use crate::seam::*;
use crate::slot::Slot;
use crate::tail::Tail;
use crate::view::{below, View};
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyList, PyTuple};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The first fields of a verdict, in order: those that are given to it here. The others keep their
/// defaults.
const FIELDS: [&str; 31] = [
    "position", "stream_key", "sensor", "event_time_ms", "seq", "label", "reason", "score", "rank",
    "ties", "window_len", "n_anomalies", "band_lower", "band_upper", "psi", "stability",
    "confidence", "threshold", "score_lower", "score_upper", "model_epoch", "tolerance", "evidence",
    "withheld", "policy_lower", "policy_upper", "severity", "status", "held", "planned", "incident",
];

/// What is the same for all streams: classes and constants of the product.
pub struct Names {
    verdict: Py<PyAny>,
    labels: [Py<PyAny>; 4],
    rejected: Py<PyAny>,
    pub normal: Py<PyAny>,
    ambiguous: Py<PyAny>,
    severity: Py<PyAny>,
    stability_at: Py<PyAny>,
    nan: Py<PyAny>,
    extreme: f64,
}

impl Names {
    /// The label of what has so many edges at or below it.
    pub fn label(&self, cell: usize) -> &Py<PyAny> {
        &self.labels[cell]
    }

    pub fn is_rejected(&self, label: &Py<PyAny>) -> bool {
        label.is(&self.rejected)
    }

    pub fn is_anomaly(&self, label: &Py<PyAny>) -> bool {
        label.is(&self.labels[3])
    }
}

static NAMES: PyOnceLock<Names> = PyOnceLock::new();
static RANKS: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

pub fn names(py: Python<'_>) -> PyResult<&Names> {
    NAMES.get_or_try_init(py, || {
        let (normal, rejected) = (LABEL_NORMAL.get(py)?, LABEL_REJECTED.get(py)?);
        let fields: Vec<String> = TYPES_VERDICT.get(py)?.getattr("__struct_fields__")?.extract()?;
        if !fields.iter().map(String::as_str).take(FIELDS.len()).eq(FIELDS) {
            return Err(PyRuntimeError::new_err(format!("it was built for verdicts of {FIELDS:?}")));
        }
        Ok(Names {
            verdict: TYPES_VERDICT.get(py)?.clone().unbind(),
            labels: [
                normal.clone().unbind(),
                rejected.clone().unbind(),
                rejected.clone().unbind(),
                LABEL_ANOMALY.get(py)?.clone().unbind(),
            ],
            rejected: rejected.clone().unbind(),
            normal: normal.clone().unbind(),
            ambiguous: REASON_AMBIGUOUS.get(py)?.clone().unbind(),
            severity: WINDOW_SEVERITY.get(py)?.clone().unbind(),
            stability_at: EXCEED_STABILITY_AT.get(py)?.clone().unbind(),
            nan: py.import("math")?.getattr("nan")?.unbind(),
            extreme: JUDGE_EXTREME.float(py)?,
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

/// What ranks in a full window mean, as Python's `RankTables` says it.
struct RankTables {
    of: Py<PyAny>,
    edges: [usize; 3],
    places: usize,
    band: [Py<PyAny>; 4], // n_anomalies, lower, upper, tolerance
    p_anomalies: Py<PyTuple>,
    confidences: Py<PyTuple>,
    severities: Py<PyTuple>,
    bands: Option<Py<PyList>>,
    ranks: Py<PyTuple>,
    shares: Py<PyTuple>,
    n: Py<PyAny>,
}

impl RankTables {
    fn of(full: &Bound<'_, PyAny>, policy: &Bound<'_, PyAny>, n: usize) -> PyResult<RankTables> {
        let py = full.py();
        let band = TABLES_BAND.get(full)?;
        let edges = edges_of(&band)?;
        let (ranks, shares) = ranks(py, n)?;
        let table = |slot: &Slot| -> PyResult<Py<PyTuple>> {
            Ok(slot.get(full)?.cast_into::<PyTuple>()?.unbind())
        };
        Ok(RankTables {
            of: full.clone().unbind(),
            edges,
            places: places(n, &edges),
            band: parts_of(&band)?,
            p_anomalies: table(&TABLES_P_ANOMALIES)?,
            confidences: table(&TABLES_CONFIDENCES)?,
            severities: table(&TABLES_SEVERITIES)?,
            bands: bands_of(policy, n)?,
            ranks,
            shares,
            n: n.into_pyobject(py)?.into_any().unbind(),
        })
    }
}

/// What ranks mean in a window that still fills, and is as long as this.
struct PartialWindow {
    edges: [usize; 3],
    band: [Py<PyAny>; 4],
    bands: Option<Py<PyList>>,
    n: Py<PyAny>,
}

/// Those of a policy by their length, for all streams; `None` where such a window says nothing.
type Lengths = Arc<Mutex<HashMap<usize, Option<Arc<PartialWindow>>>>>;

static OF_POLICIES: Mutex<Vec<(Py<PyAny>, Lengths)>> = Mutex::new(Vec::new());
const MAX_POLICIES: usize = 16;

fn lengths_of(policy: &Bound<'_, PyAny>) -> Lengths {
    let mut known = OF_POLICIES.lock().expect("nobody panics with it");
    if let Some((_, found)) = known.iter().find(|(one, _)| one.is(policy)) {
        return found.clone();
    }
    if known.len() >= MAX_POLICIES {
        known.remove(0);
    }
    known.push((policy.clone().unbind(), Lengths::default()));
    known[known.len() - 1].1.clone()
}

impl PartialWindow {
    fn of(policy: &Bound<'_, PyAny>, n: usize) -> PyResult<Option<Arc<PartialWindow>>> {
        let py = policy.py();
        if n < policy.getattr(POLICY_FIRST_WINDOW.name(py))?.extract()? {
            return Ok(None);
        }
        let band = policy.call_method1(POLICY_BAND.name(py), (n,))?;
        if !band.getattr(BAND_CAN_ACCEPT_BOTH.name(py))?.is_truthy()? {
            return Ok(None);
        }
        Ok(Some(Arc::new(PartialWindow {
            edges: edges_of(&band)?,
            band: parts_of(&band)?,
            bands: bands_of(policy, n)?,
            n: n.into_pyobject(py)?.into_any().unbind(),
        })))
    }
}

/// The bands of a budget that holds, by width: as many are made as are met (`token_bucket._bands`).
fn bands_of(policy: &Bound<'_, PyAny>, n: usize) -> PyResult<Option<Py<PyList>>> {
    if POLICY_BURST.get(policy)?.is_none() {
        return Ok(None);
    }
    let of = TOKEN_BUCKET_BANDS.get(policy.py())?;
    Ok(Some(of.call1((policy, n))?.cast_into::<PyList>()?.unbind()))
}

/// How many extreme scores there may be in a window (`Judge._places`).
fn places(n: usize, edges: &[usize; 3]) -> usize {
    ((n + 1).saturating_sub(edges[2]) / 2).max(1)
}

fn parts_of(band: &Bound<'_, PyAny>) -> PyResult<[Py<PyAny>; 4]> {
    let part = |slot: &Slot| -> PyResult<Py<PyAny>> { Ok(slot.get(band)?.unbind()) };
    Ok([
        part(&BAND_N_ANOMALIES)?, part(&BAND_LOWER)?, part(&BAND_UPPER)?, part(&BAND_TOLERANCE)?,
    ])
}

fn edges_of(band: &Bound<'_, PyAny>) -> PyResult<[usize; 3]> {
    let (lower, flagged, above) = BAND_EDGES.get(band)?.extract()?;
    Ok([lower, flagged, above])
}

/// What is kept of a judge between calls: nothing that an event changes.
pub struct JudgeCore {
    tracker: Py<PyAny>,
    ordinary: f64,
    max_severity: f64,
    capacity: usize,
    full: Option<RankTables>,
    policy: Option<Policy>,
    tail: Option<(Py<PyAny>, Tail)>,
}

/// What a judge goes by.
struct Policy {
    of: Py<PyAny>,
    lengths: Lengths,
    by_mid_rank: bool,
    bucket: Option<Py<PyAny>>,
    holds: bool, // whether its budget does
}

impl Policy {
    fn of(judge: &Bound<'_, PyAny>) -> PyResult<Policy> {
        let (policy, bucket) = (JUDGE_POLICY.get(judge)?, JUDGE_BUCKET.get(judge)?);
        Ok(Policy {
            lengths: lengths_of(&policy),
            holds: !POLICY_BURST.get(&policy)?.is_none(),
            of: policy.unbind(),
            by_mid_rank: JUDGE_BY_MID_RANK.get(judge)?.extract()?,
            bucket: if bucket.is_none() { None } else { Some(bucket.unbind()) },
        })
    }

    /// Whether a judge still goes by it.
    fn is_of(&self, judge: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(JUDGE_POLICY.is(judge, &self.of)?
            && match &self.bucket {
                None => JUDGE_BUCKET.is_none(judge)?,
                Some(bucket) => JUDGE_BUCKET.is(judge, bucket)?,
            })
    }

    /// Return what ranks mean in a window that fills; `None` where it says nothing.
    fn filling(&self, py: Python<'_>, n: usize) -> PyResult<Option<Arc<PartialWindow>>> {
        if let Some(known) = self.lengths.lock().expect("nobody panics with it").get(&n) {
            return Ok(known.clone());
        }
        let found = PartialWindow::of(self.of.bind(py), n)?;
        self.lengths.lock().expect("nobody panics with it").insert(n, found.clone());
        Ok(found)
    }
}

/// The scores of a window, where they lie: as they came, and in order.
struct Scores {
    ring: View,
    ordered: View,
}

impl Scores {
    /// `None` where they are in more parts than one.
    fn of(window: &Bound<'_, PyAny>) -> PyResult<Option<Scores>> {
        let parts = WINDOW_PARTS.get(window)?.cast_into::<PyList>()?;
        if parts.len() != 1 {
            return Ok(None);
        }
        let ring = View::of(&WINDOW_RING.get(window)?, true)?;
        let ordered = View::of(&parts.get_item(0)?, true)?;
        let whole = ring.get().len() == ordered.get().len() && !ring.get().is_empty();
        Ok(whole.then_some(Scores { ring, ordered }))
    }
}

impl JudgeCore {
    pub fn of(judge: &Bound<'_, PyAny>, tracker: &Bound<'_, PyAny>) -> PyResult<JudgeCore> {
        Ok(JudgeCore {
            ordinary: TRACKER_ORDINARY.get(tracker)?.extract()?,
            max_severity: TRACKER_MAX_SEVERITY.get(tracker)?.extract()?,
            tracker: tracker.clone().unbind(),
            capacity: JUDGE_CAPACITY.get(judge)?.extract()?,
            full: None,
            policy: None,
            tail: None,
        })
    }

    /// Ask for what is kept of it, and for the middle of what is searched.
    pub fn prefetch(&self) {
        if let Some((_, tail)) = &self.tail {
            tail.prefetch();
        }
    }

    /// Look at the state of now; `None` where it is not ordinary.
    pub fn begin<'a, 'py>(
        &'a mut self,
        judge: &'a Bound<'py, PyAny>,
        epoch: &'a Bound<'py, PyAny>,
        room: &'a mut SideOutputs,
    ) -> PyResult<Option<Judging<'a, 'py>>> {
        let py = judge.py();
        if JUDGE_CONSTANT.truth(judge)? || JUDGE_WAS_CONSTANT.truth(judge)? || JUDGE_TAIL.is_none(judge)? {
            return Ok(None);
        }
        let window = JUDGE_WINDOW.get(judge)?;
        let Some(scores) = Scores::of(&window)? else { return Ok(None) };
        let (n, capacity) = (scores.ring.get().len(), self.capacity);
        let oldest = WINDOW_OLDEST.int(&window)? as usize;
        if n > capacity || oldest >= n {
            return Err(PyRuntimeError::new_err("the window's oldest score lies beyond its ring"));
        }
        if !self.policy.as_ref().map_or(Ok(false), |known| known.is_of(judge))? {
            self.policy = Some(Policy::of(judge)?);
        }
        let policy = self.policy.as_ref().expect("made above");
        if n < capacity {
            // What is known of a full one is for later.
        } else if JUDGE_RANK_TABLES.is_none(judge)? {
            return Ok(None);
        } else if !self.full.as_ref().map_or(Ok(false), |known| JUDGE_RANK_TABLES.is(judge, &known.of))? {
            self.full = Some(RankTables::of(&JUDGE_RANK_TABLES.get(judge)?, policy.of.bind(py), n)?);
        }
        if !self.tail.as_ref().map_or(Ok(false), |(known, _)| JUDGE_TAIL.is(judge, known))? {
            let tail = JUDGE_TAIL.get(judge)?;
            self.tail = Some((tail.clone().unbind(), Tail::of(&tail)?));
        }
        let tracker = self.tracker.bind(py);
        let level = TRACKER_LEVEL.float(tracker)?;
        let credit = match &policy.bucket {
            Some(bucket) if policy.holds => Credit::of(bucket.bind(py))?,
            _ => None,
        };
        room.clear();
        Ok(Some(Judging {
            py,
            names: names(py)?,
            judge,
            window,
            tracker,
            epoch,
            policy,
            full: if n < capacity { None } else { self.full.as_ref() },
            tail: &self.tail.as_ref().expect("made above").1,
            ordinary: self.ordinary,
            max_severity: self.max_severity,
            scores: Some(scores),
            oldest,
            n,
            capacity,
            level,
            level_before: level,
            limit: TRACKER_LIMIT.float(tracker)?,
            min_severity: TRACKER_MIN_SEVERITY.float(tracker)?,
            entered: false,
            quantile: None,
            explaining: None,
            credit,
            side: room,
        }))
    }
}

/// What is said of the events of a run besides their verdicts.
#[derive(Default)]
pub struct SideOutputs {
    pub extreme: Vec<usize>,
    pub outliers: Vec<usize>, // beyond the quantile
    pub alarm_inputs: Vec<AlarmInput>,
}

/// What the alarm looks at of an event.
pub struct AlarmInput {
    pub severity: f64,
    pub time_ms: i64,
    pub full: bool, // whether its window was
}

impl SideOutputs {
    fn clear(&mut self) {
        self.extreme.clear();
        self.outliers.clear();
        self.alarm_inputs.clear();
    }
}

/// A run of ordinary events of one stream.
pub struct Judging<'a, 'py> {
    py: Python<'py>,
    names: &'a Names,
    judge: &'a Bound<'py, PyAny>,
    window: Bound<'py, PyAny>,
    tracker: &'a Bound<'py, PyAny>,
    epoch: &'a Bound<'py, PyAny>,
    policy: &'a Policy,
    full: Option<&'a RankTables>, // of a full window
    tail: &'a Tail,
    ordinary: f64,
    max_severity: f64,
    scores: Option<Scores>,
    oldest: usize,
    n: usize,
    capacity: usize,
    level: f64,
    level_before: f64,
    limit: f64,
    min_severity: f64,
    entered: bool,
    pub quantile: Option<f64>,
    pub explaining: Option<Explaining<'a, 'py>>,
    credit: Option<Credit<'py>>,
    side: &'a mut SideOutputs,
}

impl<'a, 'py> Judging<'a, 'py> {
    /// Judge a score; `None`, and nothing has changed, where that is not ordinary.
    ///
    /// `reading` is a `Reading`, `row` what is scored of it, `at` what is said of it among the extreme
    /// and the outliers. Returns the verdict, and whether it is still to be explained.
    pub fn one(
        &mut self,
        reading: &Bound<'py, PyAny>,
        row: &[f64],
        score: f64,
        seq: usize,
        at: usize,
    ) -> PyResult<Option<(Bound<'py, PyAny>, bool)>> {
        let (py, n, full, names) = (self.py, self.n, self.full, self.names);
        let Some(scores) = &self.scores else { return Ok(None) };
        if !score.is_finite() || (full.is_none() && n >= self.capacity) {
            return Ok(None);
        }
        let filling = match full {
            None => match self.policy.filling(py, n)? {
                None => return Ok(None),
                found => found,
            },
            Some(_) => None,
        };
        // 1. Rank.
        let ordered = scores.ordered.get();
        let low = below(ordered, score);
        let high = match ordered.get(low) {
            Some(&one) if one == score => low + ordered[low..].partition_point(|&one| one <= score),
            _ => low,
        };
        let ties = high - low;
        let evicted = full.map(|_| scores.ring.get()[self.oldest]);
        // With the newcomer the window would be constant.
        if ties + usize::from(evicted.is_some_and(|evicted| evicted != score)) >= n {
            return Ok(None);
        }
        let severity = self.tail.severity(score);
        let rank = if self.policy.by_mid_rank { (low + high) / 2 } else { high };
        let window_severity: f64 = if low >= n {
            names.severity.bind(py).call1((&self.window, score, low))?.extract()?
        } else if let Some(full) = full {
            full.severities.bind(py).get_borrowed_item(low)?.extract()?
        } else {
            ((n + 1) as f64 / (n - low + 1) as f64).log10()
        };
        // What turns the machine of incidents is Python's.
        let weighs = self.level != 0.0 || window_severity > self.min_severity;
        let level = self.level + if self.max_severity < window_severity { self.max_severity } else { window_severity } - self.ordinary;
        if weighs && level >= self.limit {
            return Ok(None);
        }
        // 2. Band and 3. label.
        let (own_edges, policy, bands, n_object) = match (full, &filling) {
            (Some(full), _) => (full.edges, &full.band, &full.bands, &full.n),
            (None, Some(filling)) => {
                (filling.edges, &filling.band, &filling.bands, &filling.n)
            }
            _ => return Ok(None),
        };
        let label_in = |edges: &[usize; 3]| {
            names.label(edges.iter().filter(|&&edge| rank >= edge).count())
        };
        let own = label_in(&own_edges);
        let (mut label, mut withheld, mut edges) = (own, false, own_edges);
        let mut allowed = None;
        let Some([key, sensor, time, _, position]) = tuple_items::<5>(reading.as_borrowed()) else {
            return Ok(None);
        };
        let Some(time_ms) = whole(time) else { return Ok(None) };
        if let Some(bucket) = &self.policy.bucket {
            let bucket = bucket.bind(py);
            let band = match (&mut self.credit, bands) {
                (Some(credit), Some(bands)) => {
                    credit.allow(n, bands.bind(py), &sensor, &time)?
                }
                _ => {
                    let args = (n_object, sensor, time);
                    bucket.call_method1(BUCKET_ALLOW.name(py), args)?
                }
            };
            edges = edges_of(&band)?;
            label = label_in(&edges);
            if names.is_rejected(label) {
                match &mut self.credit {
                    Some(credit) if bands.is_some() => credit.spend(),
                    _ => drop(bucket.call_method0(BUCKET_SPEND.name(py))?),
                }
            } else {
                withheld = names.is_rejected(own);
            }
            allowed = Some([BAND_LOWER.get(&band)?, BAND_UPPER.get(&band)?, BAND_TOLERANCE.get(&band)?]);
        }
        // 4. Whether it enters.
        let enters = severity < names.extreme || {
            self.side.extreme.push(at);
            self.n_extreme() < full.map_or_else(|| places(n, &own_edges), |full| full.places)
        };
        if let Some(quantile) = self.quantile {
            if n as f64 >= 1.0 / (1.0 - quantile) && ((low + high) / 2) as f64 > quantile * n as f64 {
                self.side.outliers.push(at);
            }
        }
        let unexplained;
        let verdict = {
            let at_rank = |k: usize| (k >= 1 && k <= n).then(|| ordered[k - 1]);
            let edges = edges.map(at_rank);
            let float = |x: f64| x.into_pyobject(py).expect("no error").into_any();
            let [lowest, first, top] = edges.map(|edge| edge.map(float));
            let whole = |x: usize| x.into_pyobject(py).map(Bound::into_any);
            let (seq, ties) = (whole(seq)?, whole(ties)?);
            let own_score = score;
            let (score, severity) = (float(score), float(severity));
            let by_rank: [Bound<'_, PyAny>; 4] = match full {
                Some(full) => {
                    let of = |table: &Py<PyTuple>| table.bind(py).get_item(rank);
                    [of(&full.ranks)?, of(&full.shares)?, of(&full.p_anomalies)?, of(&full.confidences)?]
                }
                None => {
                    let sure = names.stability_at.bind(py).call1((rank, n, &policy[0]))?;
                    let sure = sure.cast_into::<PyTuple>()?;
                    let share = float(rank as f64 / n as f64);
                    [whole(rank)?, share, sure.get_item(0)?, sure.get_item(1)?]
                }
            };
            let none = py.None().into_bound(py);
            let (no, yes) = (PyBool::new(py, false), PyBool::new(py, true));
            let or_none = |x: &'_ Option<Bound<'py, PyAny>>| x.as_ref().unwrap_or(&none).clone();
            let (first, lowest, top) = (or_none(&first), or_none(&lowest), or_none(&top));
            let judged = |i: usize| match &allowed {
                None => policy[i].bind_borrowed(py),
                Some(band) => band[i - 1].as_borrowed(),
            };
            let evidence = match &self.explaining {
                Some(explaining) if !label.is(&names.normal) => {
                    let band = [judged(1).extract()?, judged(2).extract()?];
                    let event = Unexplained { row, label, score: own_score, rank, band, edges };
                    explaining.evidence(py, names, &event, at)?
                }
                _ => None,
            };
            unexplained = !label.is(&names.normal) && evidence.is_none();
            let governed = allowed.is_some();
            let (nothing, is_withheld) = (none.as_borrowed(), if withheld { yes } else { no });
            let evidence = evidence.as_ref().unwrap_or(&none);
            let fields: [Object<'_, 'py>; FIELDS.len()] = [
                position,
                key,
                sensor,
                time,
                seq.as_borrowed(),
                label.bind_borrowed(py),
                if names.is_rejected(label) { names.ambiguous.bind_borrowed(py) } else { nothing },
                score.as_borrowed(),
                by_rank[0].as_borrowed(),
                ties.as_borrowed(),
                n_object.bind_borrowed(py),
                policy[0].bind_borrowed(py),
                judged(1),
                judged(2),
                by_rank[1].as_borrowed(),
                by_rank[2].as_borrowed(),
                by_rank[3].as_borrowed(),
                first.as_borrowed(),
                lowest.as_borrowed(),
                top.as_borrowed(),
                self.epoch.as_borrowed(),
                judged(3),
                evidence.as_borrowed(),
                is_withheld.as_any().as_borrowed(),
                if governed { policy[1].bind_borrowed(py) } else { nothing },
                if governed { policy[2].bind_borrowed(py) } else { nothing },
                severity.as_borrowed(),
                nothing,
                no.as_any().as_borrowed(),
                no.as_any().as_borrowed(),
                nothing,
            ];
            call(names.verdict.bind(py), &fields)?
        };
        self.side.alarm_inputs.push(AlarmInput { severity, time_ms, full: full.is_some() });
        // 4. Enter.
        if enters {
            self.enter(score, evicted, low)?;
        }
        // 5. Evidence.
        if weighs {
            let since = TRACKER_SUSPECT_EVENTS.get(self.tracker)?;
            self.level = if level > 0.0 { level } else { 0.0 };
            if level <= 0.0 {
                since.call_method0(intern!(py, "clear"))?;
            } else if enters {
                since.call_method1(intern!(py, "append"), ((&verdict, evicted),))?;
            } else {
                since.call_method1(intern!(py, "append"), ((&verdict, &names.nan),))?;
            }
        }
        Ok(Some((verdict, unexplained)))
    }

    /// Let a score in that has so many below it, where a full window has one leave.
    fn enter(&mut self, score: f64, evicted: Option<f64>, low: usize) -> PyResult<()> {
        self.entered = true;
        let Some(evicted) = evicted else {
            self.scores = None; // nobody else holds what grows
            self.window.call_method1(WINDOW_PUSH.name(self.py), (score,))?;
            self.scores = Scores::of(&self.window)?;
            self.n += 1;
            return Ok(());
        };
        let Some(scores) = &mut self.scores else { return Ok(()) };
        let score = score + 0.0;
        replace(scores.ordered.get_mut(), evicted, score, low);
        scores.ring.get_mut()[self.oldest] = score;
        self.oldest = if self.oldest + 1 < self.n { self.oldest + 1 } else { 0 };
        Ok(())
    }

    /// How many scores of the window are extreme: a severity never falls with its score.
    fn n_extreme(&self) -> usize {
        let Some(scores) = &self.scores else { return 0 };
        self.n - scores.ordered.get().partition_point(|&score| self.tail.severity(score) < self.names.extreme)
    }

    /// Leave the state as it is now.
    pub fn write_back(self) -> PyResult<()> {
        if self.entered {
            if let (Some(scores), Some(_)) = (&self.scores, self.full) {
                WINDOW_OLDEST.set_int(&self.window, self.oldest as i64)?;
                let maxes = WINDOW_MAXES.get(&self.window)?.cast_into::<PyList>()?;
                maxes.set_item(0, scores.ordered.get().last().copied())?;
            }
            JUDGE_EDGES.set_none(self.judge)?;
        }
        if let Some(credit) = self.credit {
            credit.write_back()?;
        }
        if self.level != self.level_before {
            TRACKER_LEVEL.set_float(self.tracker, self.level)?;
        }
        Ok(())
    }
}

/// Put a score in the place of another among sorted ones, of which so many are below it.
fn replace(ordered: &mut [f64], evicted: f64, score: f64, low: usize) {
    let out = below(ordered, evicted);
    if out < low {
        ordered.copy_within(out + 1..low, out);
        ordered[low - 1] = score;
    } else {
        ordered.copy_within(low..out, low + 1);
        ordered[low] = score;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replaced_stays_in_order() {
        let sorted = [1.0, 2.0, 2.0, 3.0, 5.0];
        for evicted in sorted {
            for score in [0.0, 1.0, 1.5, 2.0, 4.0, 5.0, 6.0] {
                let mut found = sorted;
                replace(&mut found, evicted, score, below(&sorted, score));
                let mut expected = sorted.to_vec();
                expected.remove(below(&sorted, evicted));
                expected.insert(below(&expected, score), score);
                assert_eq!(found.to_vec(), expected, "{evicted} by {score}");
            }
        }
    }

    #[test]
    fn half_of_the_ranks_that_are_surely_anomalies_may_be_extreme() {
        assert_eq!(places(100, &[90, 91, 95]), 3);
        assert_eq!(places(100, &[90, 91, 100]), 1);
        assert_eq!(places(100, &[90, 91, 200]), 1); // at min_severity one, wherever the band ends
    }
}
