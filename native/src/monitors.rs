//! What the monitors of a stream note of an ordinary verdict (`monitor.bank.StreamMonitor.observe`).
//!
//! Ordinary is a ranked verdict by the law that the pipeline counts by, at the same model, that
//! raises no alarm, ends no block and reaches no new limit. A run ends before the first that is
//! not, with nothing changed of it. The state is Python's: numbers of its objects, and its rings.

use crate::slot::Slot;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyByteArray, PyDict, PyFloat, PyList, PyString, PyTuple};

const LONGEST_RUN: i64 = 16;
const EMPTY: usize = 5; // cells, and a slot that no event has filled yet
const IS_REJECT: [i64; EMPTY] = [0, 1, 1, 0, 0];
const NEGLIGIBLE: f64 = 1e-6;
const STEPS: i64 = 32;
const LARGEST_STEP: f64 = 4.0;
const LARGE: i64 = 1 << 40;
const ALTERNATIVES: usize = 7;

static DRAWN: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static AMBIGUOUS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static UNSET: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

type Object<'py> = Bound<'py, PyAny>;

static D_EXCESS: Slot = Slot::new("excess");
static D_LEFT: Slot = Slot::new("left");
static H_COUNTS: Slot = Slot::new("_counts");
static H_DUE: Slot = Slot::new("_due");
static H_EVIDENCE: Slot = Slot::new("_evidence");
static H_LAW: Slot = Slot::new("_law");
static H_LEFT: Slot = Slot::new("_left");
static H_LIMIT: Slot = Slot::new("_limit");
static H_RATIOS: Slot = Slot::new("_ratios");
static H_RUN: Slot = Slot::new("_run");
static K_HEALTH: Slot = Slot::new("health");
static K_LAW: Slot = Slot::new("law");
static K_RATE: Slot = Slot::new("rate");
static L_EDGES: Slot = Slot::new("edges");
static M_DRIFT: Slot = Slot::new("_drift");
static M_IS_STUCK: Slot = Slot::new("_is_stuck");
static M_LAW: Slot = Slot::new("law");
static M_LAW_KEY: Slot = Slot::new("_law_key");
static M_MODEL_EPOCH: Slot = Slot::new("_model_epoch");
static M_PAPER_TIES: Slot = Slot::new("_paper_ties");
static M_RANKS: Slot = Slot::new("ranks");
static M_STUCK: Slot = Slot::new("_stuck");
static M_STUCK_EVENTS: Slot = Slot::new("_stuck_events");
static M_TIE_MASS: Slot = Slot::new("_tie_mass");
static R_AT: Slot = Slot::new("_at");
static R_DEEP: Slot = Slot::new("deep");
static R_EVENTS: Slot = Slot::new("events");
static R_HIGH: Slot = Slot::new("high");
static R_IN_ROLLING: Slot = Slot::new("in_rolling");
static R_IN_WINDOW: Slot = Slot::new("in_window");
static R_LOW: Slot = Slot::new("low");
static R_MIXED_UNTIL: Slot = Slot::new("_mixed_until");
static R_RECHECK: Slot = Slot::new("recheck");
static R_RING: Slot = Slot::new("_ring");
static R_WINDOW: Slot = Slot::new("_window");
static S_LAST: Slot = Slot::new("last");
static S_LENGTH: Slot = Slot::new("length");
static S_SCORE: Slot = Slot::new("score");
static S_STEPS: Slot = Slot::new("steps");
static S_SWAPPED: Slot = Slot::new("swapped");
static S_USUAL_STEP: Slot = Slot::new("usual_step");
static S_WAS_COMMON: Slot = Slot::new("was_common");
static V_BAND_LOWER: Slot = Slot::new("band_lower");
static V_BAND_UPPER: Slot = Slot::new("band_upper");
static V_HELD: Slot = Slot::new("held");
static V_LIMITED: Slot = Slot::new("limited");
static V_MODE: Slot = Slot::new("mode");
static V_MODEL_EPOCH: Slot = Slot::new("model_epoch");
static V_N_ANOMALIES: Slot = Slot::new("n_anomalies");
static V_PLANNED: Slot = Slot::new("planned");
static V_POLICY_LOWER: Slot = Slot::new("policy_lower");
static V_POLICY_UPPER: Slot = Slot::new("policy_upper");
static V_POSITION: Slot = Slot::new("position");
static V_RANK: Slot = Slot::new("rank");
static V_REASON: Slot = Slot::new("reason");
static V_SCORE: Slot = Slot::new("score");
static V_STATUS: Slot = Slot::new("status");
static V_STREAM_KEY: Slot = Slot::new("stream_key");
static V_TIES: Slot = Slot::new("ties");
static V_WINDOW_LEN: Slot = Slot::new("window_len");

/// Return what `?` unwraps, or that the event is not ordinary.
macro_rules! ordinary {
    ($is:expr) => {
        if !$is {
            return Ok(None);
        }
    };
}

fn known<'py>(
    py: Python<'py>,
    kept: &'static PyOnceLock<Py<PyAny>>,
    module: &str,
    names: &[&str],
) -> PyResult<&'py Object<'py>> {
    let found = kept.get_or_try_init(py, || {
        let mut object = py.import(module)?.into_any();
        for name in names {
            object = object.getattr(*name)?;
        }
        Ok::<_, PyErr>(object.unbind())
    })?;
    Ok(found.bind(py))
}

/// Return a number that can be reckoned with; what is larger, or none, is Python's.
fn whole(number: &Object<'_>) -> Option<i64> {
    number.extract::<i64>().ok().filter(|n| n.abs() < LARGE)
}

/// The law of a run: its window and policy, the edges of its cells.
struct Law<'a, 'py> {
    law: &'a Object<'py>,
    edges: [i64; 3],
}

impl Law<'_, '_> {
    fn cell(&self, rank: i64) -> u8 {
        self.edges.iter().filter(|&&edge| rank >= edge).count() as u8
    }
}

/// Take note of verdicts from the `start`-th on as long as they are ordinary.
///
/// What each came to is added to `cells`; returns how many there were.
#[pyfunction]
pub fn note<'py>(
    streams: &Bound<'py, PyDict>,
    verdicts: &Bound<'py, PyList>,
    start: usize,
    law: &Object<'py>,
    cells: &Bound<'py, PyByteArray>,
) -> PyResult<usize> {
    let edges: (i64, i64, i64) = L_EDGES.get(law)?.extract()?;
    let law = Law { law, edges: [edges.0, edges.1, edges.2] };
    let mut noted = Vec::new();
    for at in start..verdicts.len() {
        match one(streams, &verdicts.get_item(at)?, &law)? {
            Some(cell) => noted.push(cell),
            None => break,
        }
    }
    let before = cells.len();
    cells.resize(before + noted.len())?;
    // SAFETY: nothing of Python runs while it is borrowed.
    let added = &mut unsafe { cells.as_bytes_mut() }[before..];
    added.copy_from_slice(&noted);
    Ok(noted.len())
}

/// Take note of one verdict; `None`, and nothing has changed, where it is not ordinary.
fn one<'py>(
    streams: &Bound<'py, PyDict>,
    verdict: &Object<'py>,
    law: &Law<'_, 'py>,
) -> PyResult<Option<u8>> {
    let py = verdict.py();
    // 1. Is it ranked, by the law, and of a stream and a model that are known?
    let reason = V_REASON.get(&verdict)?;
    let ambiguous = known(py, &AMBIGUOUS, "rejex_stream.types", &["Reason", "AMBIGUOUS"])?;
    ordinary!(reason.is_none() || reason.is(ambiguous));
    ordinary!(V_STATUS.is_none(&verdict)? && V_MODE.is_none(&verdict)?);
    ordinary!(!V_HELD.truth(&verdict)? && !V_PLANNED.truth(&verdict)?);
    let unset = known(py, &UNSET, "msgspec", &["UNSET"])?;
    ordinary!(V_LIMITED.get(&verdict)?.is(unset));
    let Some(rank) = whole(&V_RANK.get(&verdict)?) else { return Ok(None) };
    let Some(monitor) = streams.get_item(V_STREAM_KEY.get(&verdict)?)? else { return Ok(None) };
    let (epoch, own) = (V_MODEL_EPOCH.get(&verdict)?, M_MODEL_EPOCH.get(&monitor)?);
    ordinary!(epoch.is(&own) || epoch.eq(own)?);
    let Some(n) = whole(&V_WINDOW_LEN.get(&verdict)?) else { return Ok(None) };
    let mut band = (V_POLICY_LOWER.get(&verdict)?, V_POLICY_UPPER.get(&verdict)?);
    if band.0.is_none() {
        band = (V_BAND_LOWER.get(&verdict)?, V_BAND_UPPER.get(&verdict)?);
    }
    ordinary!(n >= 1 && !band.0.is_none() && !band.1.is_none());
    let ranks = M_RANKS.get(&monitor)?;
    let health = K_HEALTH.get(&ranks)?;
    ordinary!(M_LAW.get(&monitor)?.is(law.law) && K_LAW.get(&ranks)?.is(law.law));
    ordinary!(H_LAW.get(&health)?.is(law.law));
    let key = M_LAW_KEY.get(&monitor)?.cast_into::<PyTuple>()?;
    for (i, part) in [V_WINDOW_LEN.get(&verdict)?, V_N_ANOMALIES.get(&verdict)?, band.0, band.1]
        .iter()
        .enumerate()
    {
        let same = key.get_borrowed_item(i)?;
        ordinary!(same.is(part) || same.eq(part)?);
    }

    // 2. The cells of its rank, and of one drawn among its ties.
    let Some(ties) = whole(&V_TIES.get(&verdict)?) else { return Ok(None) };
    let ties = ties.max(0);
    let by_mid_rank = !M_PAPER_TIES.truth(&monitor)?;
    let below = rank - if by_mid_rank { ties / 2 } else { ties };
    let (mut shown, mut drawn) = (0, 0);
    let mut mass = None;
    if below + ties >= law.edges[0] {
        (shown, drawn) = (law.cell(rank), law.cell(rank));
        if ties > 0 {
            drawn = law.cell(below);
            if drawn != law.cell(below + ties) {
                let draw = known(py, &DRAWN, "rejex_stream.monitor.theory", &["randomised_rank"])?;
                let found = draw.call1((below, ties, V_POSITION.get(&verdict)?))?;
                drawn = law.cell(found.extract()?);
            }
            if below < law.edges[1] && law.edges[1] <= below + ties {
                mass = Some(ties as f64 / n as f64);
            }
        }
    }

    // 3. Look whether any of its monitors has more to do than to count.
    ordinary!(!M_IS_STUCK.truth(&monitor)?);
    let Some(rate) = Rate::of(K_RATE.get(&ranks)?, shown)? else { return Ok(None) };
    let Some(health) = Health::of(health, drawn)? else { return Ok(None) };
    let drift = M_DRIFT.get(&monitor)?;
    let left: i64 = D_LEFT.int(&drift)?;
    ordinary!(left > 1);
    let score = V_SCORE.get(&verdict)?;
    let stuck = M_STUCK.get(&monitor)?;
    let most: f64 = M_STUCK_EVENTS.float(&monitor)?;
    let Some(stuck) = Stuck::of(stuck, score, ties, n, most)? else { return Ok(None) };

    // 4. It is ordinary.
    if let Some(mass) = mass {
        M_TIE_MASS.set_float(&monitor, mass)?;
    }
    rate.keep()?;
    health.keep()?;
    let share = (below + below + ties) as f64 / (n + n) as f64;
    if (0.0..=1.0).contains(&share) {
        let excess: f64 = D_EXCESS.float(&drift)?;
        D_EXCESS.set_float(&drift, excess + (share - 0.5))?;
    }
    D_LEFT.set_int(&drift, left - 1)?;
    stuck.keep()?;
    Ok(Some(shown + 4 * drawn))
}

/// `rate.RejectionRate.update`.
struct Rate<'py> {
    rate: Object<'py>,
    change: Option<(Bound<'py, PyByteArray>, u8, i64, i64)>, // cell and counts, where any is new
    at: usize,
    next: usize,
    events: i64,
}

impl<'py> Rate<'py> {
    fn of(rate: Object<'py>, cell: u8) -> PyResult<Option<Rate<'py>>> {
        let events: i64 = R_EVENTS.int(&rate)?;
        let events = events + 1;
        let (mixed_until, recheck): (i64, i64) = (R_MIXED_UNTIL.int(&rate)?, R_RECHECK.int(&rate)?);
        ordinary!(events >= mixed_until && events < recheck);
        let ring = R_RING.get(&rate)?.cast_into::<PyByteArray>()?;
        let (at, window) = (R_AT.int(&rate)? as usize, R_WINDOW.int(&rate)? as usize);
        // SAFETY: nothing of Python runs while it is borrowed.
        let cells = unsafe { ring.as_bytes() };
        ordinary!(at < cells.len() && window <= cells.len());
        let first = if at >= window { at - window } else { at + cells.len() - window };
        let (left, oldest) = (usize::from(cells[first]), usize::from(cells[at]));
        let next = if at + 1 < cells.len() { at + 1 } else { 0 };
        ordinary!(left < EMPTY && oldest < EMPTY);
        let (mut in_window, mut in_rolling): (i64, i64) =
            (R_IN_WINDOW.int(&rate)?, R_IN_ROLLING.int(&rate)?);
        let is_new = cell != 0 || left != 0 || oldest != 0;
        if is_new {
            let is_reject = IS_REJECT[usize::from(cell)];
            in_window += is_reject - IS_REJECT[left];
            in_rolling += is_reject - IS_REJECT[oldest];
        }
        let (low, high, deep): (i64, i64, i64) =
            (R_LOW.int(&rate)?, R_HIGH.int(&rate)?, R_DEEP.int(&rate)?);
        ordinary!(low <= in_window && in_window <= high && in_rolling >= deep);
        let change = is_new.then_some((ring, cell, in_window, in_rolling));
        Ok(Some(Rate { rate, change, at, next, events }))
    }

    fn keep(self) -> PyResult<()> {
        if let Some((ring, cell, in_window, in_rolling)) = self.change {
            R_IN_WINDOW.set_int(&self.rate, in_window)?;
            R_IN_ROLLING.set_int(&self.rate, in_rolling)?;
            // SAFETY: nothing of Python runs while it is borrowed.
            let cells = unsafe { ring.as_bytes_mut() };
            cells[self.at] = cell;
        }
        R_AT.set_int(&self.rate, self.next as i64)?;
        R_EVENTS.set_int(&self.rate, self.events)?;
        Ok(())
    }
}

/// `health.HealthDetector.update`.
struct Health<'py> {
    health: Object<'py>,
    run: i64,
    booked: Option<Booked<'py>>,
}

struct Booked<'py> {
    cell: u8,
    left: i64,
    evidence: Option<(Bound<'py, PyList>, [f64; ALTERNATIVES])>,
}

impl<'py> Health<'py> {
    fn of(health: Object<'py>, cell: u8) -> PyResult<Option<Health<'py>>> {
        let mut run: i64 = H_RUN.int(&health)?;
        if cell == 0 {
            run += 1;
            let due: i64 = H_DUE.int(&health)?;
            if run < due {
                return Ok(Some(Health { health, run, booked: None }));
            }
        }
        let left: i64 = H_LEFT.int(&health)?;
        let left = left - run - i64::from(cell != 0);
        ordinary!(left > 0);
        let ratios = H_RATIOS.get(&health)?;
        let mut evidence = None;
        if !ratios.is_none() {
            let kept = H_EVIDENCE.get(&health)?.cast_into::<PyList>()?;
            let mut sums = [0.0; ALTERNATIVES];
            for (i, sum) in sums.iter_mut().enumerate() {
                *sum = kept.get_item(i)?.extract()?;
            }
            if run > 1 {
                let of = table(&ratios, intern!(health.py(), "_runs"), "of_run", run)?;
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = *sum * double(&of, i)? + double(&of, ALTERNATIVES + i)?;
                }
            } else if run == 1 {
                bet(&mut sums, &ratios, 0)?;
            }
            if cell != 0 {
                bet(&mut sums, &ratios, cell)?;
            }
            let mut total = sums[0];
            for sum in &sums[1..] {
                total += sum;
            }
            let limit: f64 = H_LIMIT.float(&health)?;
            ordinary!(total < limit);
            evidence = Some((kept, sums));
        }
        Ok(Some(Health { health, run: 0, booked: Some(Booked { cell, left, evidence }) }))
    }

    fn keep(self) -> PyResult<()> {
        let health = self.health;
        H_RUN.set_int(&health, self.run)?;
        let Some(Booked { cell, left, evidence }) = self.booked else { return Ok(()) };
        if let Some((kept, sums)) = evidence {
            for (i, sum) in sums.into_iter().enumerate() {
                kept.set_item(i, sum)?;
            }
        }
        if cell != 0 {
            let counts = H_COUNTS.get(&health)?.cast_into::<PyList>()?;
            for (i, counted) in [cell < 3, cell > 1].into_iter().enumerate() {
                let count: i64 = counts.get_item(i)?.extract()?;
                counts.set_item(i, count + i64::from(counted))?;
            }
        }
        H_LEFT.set_int(&health, left)?;
        H_DUE.set_int(&health, left.min(LONGEST_RUN))?;
        Ok(())
    }
}

fn bet(sums: &mut [f64; ALTERNATIVES], ratios: &Object<'_>, cell: u8) -> PyResult<()> {
    let of = table(ratios, intern!(ratios.py(), "_cells"), "of", i64::from(cell))?;
    for (i, sum) in sums.iter_mut().enumerate() {
        *sum = (*sum + 1.0) * double(&of, i)?;
    }
    Ok(())
}

/// Return a line of a table of ratios, which Python makes where it is not there yet.
fn table<'py>(
    ratios: &Object<'py>,
    name: &Bound<'py, PyString>,
    make: &str,
    i: i64,
) -> PyResult<Bound<'py, PyTuple>> {
    let lines = ratios.getattr(name)?.cast_into::<PyList>()?;
    if (i as usize) < lines.len() {
        if let Ok(line) = lines.get_item(i as usize)?.cast_into::<PyTuple>() {
            return Ok(line);
        }
    }
    Ok(ratios.call_method1(make, (i,))?.cast_into::<PyTuple>()?)
}

fn double(line: &Bound<'_, PyTuple>, i: usize) -> PyResult<f64> {
    line.get_borrowed_item(i)?.extract()
}

/// `bank.StuckRun.update`.
struct Stuck<'py> {
    stuck: Object<'py>,
    score: Object<'py>,
    length: i64,
    began: Option<bool>, // a new run does: whether its value is common
    step: Option<(f64, i64)>,
}

impl<'py> Stuck<'py> {
    fn of(
        stuck: Object<'py>,
        score: Object<'py>,
        ties: i64,
        n: i64,
        most: f64,
    ) -> PyResult<Option<Stuck<'py>>> {
        let began_at = S_SCORE.get(&stuck)?;
        ordinary!(score.is_exact_instance_of::<PyFloat>() && !began_at.is_none());
        ordinary!(!S_SWAPPED.truth(&stuck)?);
        let (now, first): (f64, f64) = (score.extract()?, began_at.extract()?);
        ordinary!(now.is_finite());
        let (usual, steps): (f64, i64) = (S_USUAL_STEP.float(&stuck)?, S_STEPS.int(&stuck)?);
        let is_usual = steps >= STEPS;
        let nearest = if is_usual { NEGLIGIBLE * usual } else { 0.0 };
        let mut found = Stuck { stuck, score, length: 1, began: None, step: None };
        let is_common;
        if (now - first).abs() <= nearest {
            let length: i64 = S_LENGTH.int(&found.stuck)?;
            found.length = length + 1;
            is_common = S_WAS_COMMON.truth(&found.stuck)?;
        } else {
            let last: f64 = S_LAST.float(&found.stuck)?;
            let mut step = (now - last).abs();
            if is_usual && LARGEST_STEP * usual < step {
                step = LARGEST_STEP * usual;
            }
            if step > nearest {
                let steps = if is_usual { steps } else { steps + 1 };
                found.step = Some((usual + (step - usual) / steps as f64, steps));
            }
            is_common = 2 * ties > n;
            found.began = Some(is_common);
        }
        ordinary!(is_common || (found.length as f64) < most);
        Ok(Some(found))
    }

    fn keep(self) -> PyResult<()> {
        let stuck = self.stuck;
        if let Some((usual, steps)) = self.step {
            S_USUAL_STEP.set_float(&stuck, usual)?;
            S_STEPS.set_int(&stuck, steps)?;
        }
        S_LENGTH.set_int(&stuck, self.length)?;
        if let Some(is_common) = self.began {
            S_SCORE.set(&stuck, self.score.clone())?;
            S_WAS_COMMON.set(&stuck, PyBool::new(stuck.py(), is_common).to_owned().into_any())?;
        }
        S_LAST.set(&stuck, self.score)?;
        Ok(())
    }
}
