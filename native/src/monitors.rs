//! What the monitors make of a verdict (`monitor.bank.MonitorBank.observe`), of its stream and of all.
//!
//! Numbers of a stream are read when it comes and written back after many others; what is seldom (an
//! alarm, another model, new limits, the end of a window) is asked of Python, whose state it all is.
//! Left to Python is what is odd: a stream that is not known, a limit of people's, a constant window.

use crate::prefetch::lines;
use crate::guard::{self, guarded};
use crate::object::value_in;
use crate::seam::*;
use crate::slot::Slot;
use crate::view::with_bytes;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyDict, PyFloat, PyList, PyTuple};
use std::rc::Rc;
use std::sync::OnceLock;

const CELLS: usize = 7;
const WITHHELD: u8 = 4; // `rate.WITHHELD`
const ALTERNATIVES: usize = 7;
const MAX_COUNT: i64 = 1 << 40; // products of two counts and a window stay within 64 bits
const LAWS: usize = 16; // that are remembered within a call
const STREAMS: usize = 32; // that are read at a time
const BLOCK: usize = 16; // verdicts whose monitors are fetched at once

type Object<'py> = Bound<'py, PyAny>;
type Evidence = [f64; ALTERNATIVES];

static H_RUN: [&Slot; 3] = [&HEALTH_RUN, &HEALTH_DUE, &HEALTH_LEFT];
static R_COUNTS: [&Slot; 9] = [
    &RATE_AT,
    &RATE_EVENTS,
    &RATE_IN_WINDOW,
    &RATE_IN_ROLLING,
    &RATE_MIXED_UNTIL,
    &RATE_RECHECK,
    &RATE_LOW,
    &RATE_HIGH,
    &RATE_DEEP,
];
static S_COUNTS: [&Slot; 2] = [&STUCK_LENGTH, &STUCK_STEPS];

/// The numbers that the product's monitors go by.
struct Rules {
    is_reject: [i64; CELLS],
    longest_run: i64,
    mixed_recheck: i64,
    health_min_effective: f64,
    drift_min_effective: f64,
    negligible: f64,
    steps: i64,
    largest_step: f64,
    memory_windows: f64,
}

static RULES: OnceLock<Rules> = OnceLock::new();

impl Rules {
    fn read(py: Python<'_>) -> PyResult<Rules> {
        THEORY_ALTERNATIVES.require(py, ALTERNATIVES)?;
        Ok(Rules {
            is_reject: RATE_IS_REJECT.get(py)?.extract()?,
            longest_run: HEALTH_LONGEST_RUN.int(py)?,
            mixed_recheck: RATE_MIXED_RECHECK.int(py)?,
            health_min_effective: HEALTH_MIN_EFFECTIVE.float(py)?,
            drift_min_effective: DRIFT_MIN_EFFECTIVE.float(py)?,
            negligible: BANK_NEGLIGIBLE.float(py)?,
            steps: BANK_STEPS.int(py)?,
            largest_step: BANK_LARGEST_STEP.float(py)?,
            memory_windows: DRIFT_MEMORY_WINDOWS.float(py)?,
        })
    }
}

fn rules() -> &'static Rules {
    RULES.get().expect("read by whoever notes verdicts")
}

/// Return a number that can be reckoned with; what is larger, or none, is Python's.
fn whole(number: &Object<'_>) -> Option<i64> {
    number.extract::<i64>().ok().filter(|n| n.abs() < MAX_COUNT)
}

fn doubles<const N: usize>(list: &Object<'_>) -> PyResult<[f64; N]> {
    let list = list.cast::<PyList>()?;
    let mut found = [0.0; N];
    for (i, number) in found.iter_mut().enumerate() {
        *number = list.get_item(i)?.extract()?;
    }
    Ok(found)
}

/// Whole numbers of an object, of which those that changed are written back.
#[derive(Clone, Copy)]
struct Counts<const N: usize> {
    now: [i64; N],
    was: [i64; N],
}

impl<const N: usize> Counts<N> {
    fn of(object: &Object<'_>, slots: &'static [&'static Slot; N]) -> PyResult<Counts<N>> {
        let mut now = [0; N];
        for (number, slot) in now.iter_mut().zip(slots) {
            *number = slot.int(object)?;
        }
        Ok(Counts { now, was: now })
    }

    fn write_back(&mut self, object: &Object<'_>, slots: &'static [&'static Slot; N]) -> PyResult<()> {
        for ((slot, now), was) in slots.iter().zip(self.now).zip(self.was) {
            if now != was {
                slot.set_int(object, now)?;
            }
        }
        self.was = self.now;
        Ok(())
    }
}

/// `theory.RankLaw`.
struct Law<'py> {
    of: Object<'py>,
    edges: [i64; 3],
    rejected: f64,
    flagged: f64,
}

impl<'py> Law<'py> {
    fn cell(&self, rank: i64) -> u8 {
        self.edges.iter().filter(|&&edge| rank >= edge).count() as u8
    }

    fn is_as(&self, other: &Law<'py>) -> PyResult<bool> {
        Ok(self.of.is(&other.of) || LAW_KEY.get(&self.of)?.eq(LAW_KEY.get(&other.of)?)?)
    }

    /// Return the ratios of a cell, to the power 1 / VIF (`health._Ratios.of`).
    fn ratios(&self, cell: u8, factor: f64) -> PyResult<Evidence> {
        let table = LAW_LOG_RATIOS.get(&self.of)?.cast_into::<PyTuple>()?;
        let line = table.get_borrowed_item(usize::from(cell))?.cast::<PyTuple>()?.to_owned();
        let mut found = [0.0; ALTERNATIVES];
        for (i, ratio) in found.iter_mut().enumerate() {
            let logarithm: f64 = line.get_borrowed_item(i)?.extract()?;
            *ratio = (logarithm / factor).exp();
        }
        Ok(found)
    }
}

/// Laws that were read within a call.
#[derive(Default)]
struct Laws<'py>(Vec<Rc<Law<'py>>>);

impl<'py> Laws<'py> {
    fn read(&mut self, of: Object<'py>) -> PyResult<Rc<Law<'py>>> {
        if let Some(known) = self.0.iter().rev().find(|law| law.of.is(&of)) {
            return Ok(known.clone());
        }
        let edges: (i64, i64, i64) = LAW_EDGES.get(&of)?.extract()?;
        let (rejected, flagged) = (LAW_REJECTION_RATE.float(&of)?, LAW_FLAGGED_RATE.float(&of)?);
        let law = Rc::new(Law { of, edges: [edges.0, edges.1, edges.2], rejected, flagged });
        if self.0.len() == LAWS {
            self.0.remove(0);
        }
        self.0.push(law.clone());
        Ok(law)
    }
}

/// End a unit as `inflation.Inflation.close` does; false, and nothing has changed: a window ends too.
fn close<const KINDS: usize>(inflation: &Object<'_>, added: [[f64; KINDS]; 2]) -> PyResult<bool> {
    let state = INFLATION_STATE.get(inflation)?;
    let units = INFLATION_STATE_UNITS.int(&state)? + 1;
    if units >= INFLATION_UNITS.int(inflation)? {
        return Ok(false);
    }
    let totals = INFLATION_STATE_TOTALS.get(&state)?.cast_into::<PyList>()?;
    let mut now = added;
    for (i, total) in now.as_flattened_mut().iter_mut().enumerate() {
        *total += totals.get_item(i)?.extract::<f64>()?;
    }
    let kept = PyList::new(inflation.py(), now.as_flattened())?;
    let squares = INFLATION_STATE_SQUARES.get(&state)?.cast_into::<PyList>()?;
    let marks = INFLATION_STATE_MARKS.get(&state)?.cast_into::<PyList>()?;
    for (s, scale) in INFLATION_SCALES.get(inflation)?.cast_into::<PyTuple>()?.iter().enumerate() {
        if units % scale.extract::<i64>()? != 0 {
            continue;
        }
        let mark = marks.get_item(s)?.cast_into::<PyList>()?;
        for (k, (apart, variance)) in std::iter::zip(now[0], now[1]).enumerate() {
            let variance = variance - mark.get_item(KINDS + k)?.extract::<f64>()?;
            if variance > 0.0 {
                let apart = apart - mark.get_item(k)?.extract::<f64>()?;
                let square: f64 = squares.get_item(KINDS * s + k)?.extract()?;
                squares.set_item(KINDS * s + k, square + apart * apart / variance)?;
            }
        }
        marks.set_item(s, &kept)?;
    }
    INFLATION_STATE_TOTALS.set(&state, kept.into_any())?;
    INFLATION_STATE_UNITS.set_int(&state, units)?;
    Ok(true)
}

fn factor_of(inflation: &Object<'_>) -> PyResult<Option<f64>> {
    INFLATION_FACTOR.get(inflation)?.extract()
}

const AT: usize = 0;
const EVENTS: usize = 1;
const IN_WINDOW: usize = 2;
const IN_ROLLING: usize = 3;
const MIXED_UNTIL: usize = 4;
const RECHECK: usize = 5;
const LOW: usize = 6;
const HIGH: usize = 7;
const DEEP: usize = 8;

/// `rate.RejectionRate`.
struct Rate<'py> {
    of: Object<'py>,
    ring: Bound<'py, PyByteArray>,
    window: i64,
    counts: Counts<9>,
    expected: Option<f64>, // where it changed
}

impl<'py> Rate<'py> {
    fn of(of: Object<'py>) -> PyResult<Rate<'py>> {
        let ring = RATE_RING.get(&of)?.cast_into::<PyByteArray>()?;
        let (window, counts) = (RATE_WINDOW.int(&of)?, Counts::of(&of, &R_COUNTS)?);
        Ok(Rate { of, ring, window, counts, expected: None })
    }

    fn write_back(&mut self) -> PyResult<()> {
        self.counts.write_back(&self.of, &R_COUNTS)?;
        match self.expected.take() {
            Some(expected) => RATE_EXPECTED_RATE.set_float(&self.of, expected),
            None => Ok(()),
        }
    }

    /// Note a change of law.
    fn switch(&mut self, old: &Law<'py>, new: &Law<'py>) -> PyResult<()> {
        let (window, counts) = (self.window, &mut self.counts.now);
        if counts[EVENTS] == 0 {
            self.expected = Some(new.rejected);
        } else if !new.is_as(old)? {
            counts[MIXED_UNTIL] = counts[EVENTS] + window;
            counts[RECHECK] = counts[RECHECK].min(window.max(counts[EVENTS] + rules().mixed_recheck));
        }
        Ok(())
    }

    /// Count one event; return whether a count is outside its limits.
    fn update(&mut self, law: &Law<'py>, cell: u8) -> PyResult<bool> {
        let counts = &mut self.counts.now;
        let (at, window) = (counts[AT] as usize, self.window as usize);
        let (left, oldest, len) = with_bytes(&self.ring, |ring| {
            let first = if at >= window { at - window } else { at + ring.len() - window };
            (ring[first], std::mem::replace(&mut ring[at], cell), ring.len())
        });
        if cell != 0 || left != 0 || oldest != 0 {
            let is_reject = |cell: u8| rules().is_reject[usize::from(cell)];
            counts[IN_WINDOW] += is_reject(cell) - is_reject(left);
            counts[IN_ROLLING] += is_reject(cell) - is_reject(oldest);
        }
        counts[AT] = if at + 1 < len { at as i64 + 1 } else { 0 };
        counts[EVENTS] += 1;
        if counts[EVENTS] < counts[MIXED_UNTIL] {
            let expected = match self.expected {
                Some(expected) => expected,
                None => RATE_EXPECTED_RATE.float(&self.of)?,
            };
            self.expected = Some(expected + (law.rejected - expected) / window as f64);
        }
        let is_inside = counts[LOW] <= counts[IN_WINDOW] && counts[IN_WINDOW] <= counts[HIGH];
        Ok(!is_inside || counts[IN_ROLLING] < counts[DEEP])
    }
}

const RUN: usize = 0;
const DUE: usize = 1;
const LEFT: usize = 2;

/// `health.HealthDetector`.
struct Health<'py> {
    of: Object<'py>,
    law: Rc<Law<'py>>,
    is_other_law: bool,
    counts: Counts<3>,
    booked: Option<Booked<'py>>, // read when first something is booked
}

/// What changes where events are booked.
struct Booked<'py> {
    inflation: Object<'py>,
    factor: Option<f64>,
    is_blind: bool,
    limit: f64,
    evidence: Evidence,
    since: i64,
    rejected_flagged: [i64; 2],
    expected: [f64; 2],
    variance: [f64; 2],
    was: (Evidence, i64, [i64; 2]),
}

impl<'py> Booked<'py> {
    fn of(health: &Object<'py>) -> PyResult<Booked<'py>> {
        let inflation = HEALTH_INFLATION.get(health)?;
        let evidence = doubles(&HEALTH_EVIDENCE.get(health)?)?;
        let since = HEALTH_SINCE.int(health)?;
        let counts = HEALTH_COUNTS.get(health)?.cast_into::<PyList>()?;
        let rejected_flagged = [counts.get_item(0)?.extract()?, counts.get_item(1)?.extract()?];
        Ok(Booked {
            factor: factor_of(&inflation)?,
            inflation,
            is_blind: HEALTH_IS_BLIND.truth(health)?,
            limit: HEALTH_LIMIT.float(health)?,
            evidence,
            since,
            rejected_flagged,
            expected: doubles(&HEALTH_EXPECTED.get(health)?)?,
            variance: doubles(&HEALTH_VARIANCE.get(health)?)?,
            was: (evidence, since, rejected_flagged),
        })
    }

    fn write_back(&self, health: &Object<'py>) -> PyResult<()> {
        let py = health.py();
        if self.evidence != self.was.0 {
            HEALTH_EVIDENCE.set(health, PyList::new(py, self.evidence)?.into_any())?;
        }
        if self.rejected_flagged != self.was.2 {
            HEALTH_COUNTS.set(health, PyList::new(py, self.rejected_flagged)?.into_any())?;
        }
        if self.since != self.was.1 {
            HEALTH_SINCE.set_int(health, self.since)?;
            HEALTH_EXPECTED.set(health, PyList::new(py, self.expected)?.into_any())?;
            HEALTH_VARIANCE.set(health, PyList::new(py, self.variance)?.into_any())?;
        }
        Ok(())
    }

    /// Book the expectation of the events since the last call, which all had this law.
    fn book_expected(&mut self, law: &Law<'py>, left: i64) {
        let events = (self.since - left) as f64;
        self.since = left;
        for (i, p) in [law.rejected, law.flagged].into_iter().enumerate() {
            self.expected[i] += events * p;
            self.variance[i] += events * p * (1.0 - p);
        }
    }

    fn bet(&mut self, law: &Law<'py>, run: i64, cell: u8) -> PyResult<bool> {
        let factor = self.factor.unwrap_or(1.0);
        let sums = &mut self.evidence;
        if run > 0 {
            let ratios = law.ratios(0, factor)?;
            if run == 1 {
                follow(sums, &ratios);
            } else {
                let (mut power, mut total) = ([1.0; ALTERNATIVES], [0.0; ALTERNATIVES]);
                for _ in 0..run {
                    for i in 0..ALTERNATIVES {
                        power[i] *= ratios[i];
                        total[i] += power[i];
                    }
                }
                for i in 0..ALTERNATIVES {
                    sums[i] = sums[i] * power[i] + total[i];
                }
            }
        }
        if cell != 0 {
            follow(sums, &law.ratios(cell, factor)?);
        }
        let mut sum = sums[0];
        for more in &sums[1..] {
            sum += more;
        }
        Ok(sum >= self.limit)
    }
}

fn follow(sums: &mut Evidence, ratios: &Evidence) {
    for (sum, ratio) in sums.iter_mut().zip(ratios) {
        *sum = (*sum + 1.0) * ratio;
    }
}

impl<'py> Health<'py> {
    fn of(of: Object<'py>, law: Rc<Law<'py>>) -> PyResult<Health<'py>> {
        let counts = Counts::of(&of, &H_RUN)?;
        Ok(Health { of, law, is_other_law: false, counts, booked: None })
    }

    fn write_back(&mut self) -> PyResult<()> {
        self.counts.write_back(&self.of, &H_RUN)?;
        if let Some(booked) = self.booked.take() {
            booked.write_back(&self.of)?;
            if self.is_other_law {
                let is_blind = PyBool::new(self.of.py(), booked.is_blind).to_owned();
                HEALTH_IS_BLIND.set(&self.of, is_blind.into_any())?;
                HEALTH_RATIOS.set_none(&self.of)?; // which Python then makes
            }
        }
        if self.is_other_law {
            HEALTH_LAW.set(&self.of, self.law.of.clone())?;
            self.is_other_law = false;
        }
        Ok(())
    }

    /// Count one event; return which alternative fired.
    fn update(&mut self, law: &Rc<Law<'py>>, cell: u8) -> PyResult<Option<usize>> {
        let fired = if law.of.is(&self.law.of) { None } else { self.switch(law)? };
        let run = self.counts.now[RUN] + i64::from(cell == 0);
        if cell == 0 && run < self.counts.now[DUE] {
            self.counts.now[RUN] = run;
            return Ok(fired);
        }
        self.counts.now[RUN] = 0;
        let again = self.book(run, cell)?;
        Ok(fired.or(again))
    }

    fn booked(&mut self) -> PyResult<&mut Booked<'py>> {
        if self.booked.is_none() {
            self.booked = Some(Booked::of(&self.of)?);
        }
        Ok(self.booked.as_mut().expect("it was read"))
    }

    fn switch(&mut self, law: &Rc<Law<'py>>) -> PyResult<Option<usize>> {
        let mut fired = None;
        let is_same = self.law.is_as(law)?;
        if !is_same {
            let run = std::mem::take(&mut self.counts.now[RUN]);
            if run > 0 {
                fired = self.book(run, 0)?;
            }
            let (old, left) = (self.law.clone(), self.counts.now[LEFT]);
            let most = (HEALTH_WINDOW.int(&self.of)? * HEALTH_STREAMS.int(&self.of)?) as f64;
            let booked = self.booked()?;
            booked.book_expected(&old, left);
            booked.is_blind = booked.factor.is_none_or(|factor| factor * rules().health_min_effective > most);
            if booked.is_blind {
                booked.evidence = [0.0; ALTERNATIVES];
            }
        }
        (self.law, self.is_other_law) = (law.clone(), true);
        Ok(fired)
    }

    /// Book `run` normal events and then, unless it is 0, one event of `cell`.
    fn book(&mut self, run: i64, cell: u8) -> PyResult<Option<usize>> {
        let law = self.law.clone();
        let booked = self.booked()?;
        let fires = !booked.is_blind && booked.bet(&law, run, cell)?;
        if cell != 0 {
            booked.rejected_flagged[0] += i64::from(cell < 3);
            booked.rejected_flagged[1] += i64::from(cell > 1);
        }
        let fired = if fires { Some(self.fire()?) } else { None };
        self.counts.now[LEFT] -= run + i64::from(cell != 0);
        if self.counts.now[LEFT] == 0 {
            self.close_block()?;
        }
        self.counts.now[DUE] = self.counts.now[LEFT].min(rules().longest_run);
        Ok(fired)
    }

    fn fire(&mut self) -> PyResult<usize> {
        let of = self.of.clone();
        let booked = self.booked()?;
        booked.write_back(&of)?;
        HEALTH_FIRED_LOG_EVIDENCE.set(&of, of.getattr(HEALTH_LOG_EVIDENCE.name(of.py()))?)?;
        HEALTH_CROSSINGS.set_int(&of, HEALTH_CROSSINGS.int(&of)? + 1)?;
        let mut most = 0;
        for (i, sum) in booked.evidence.iter().enumerate() {
            if *sum > booked.evidence[most] {
                most = i;
            }
        }
        // What was written is no longer what was read.
        booked.was = (booked.evidence, booked.since, booked.rejected_flagged);
        booked.evidence = [0.0; ALTERNATIVES];
        Ok(most)
    }

    fn close_block(&mut self) -> PyResult<()> {
        let (law, unit) = (self.law.clone(), HEALTH_UNIT.int(&self.of)?);
        let booked = self.booked()?;
        let (since, kept) = (booked.since, (booked.expected, booked.variance));
        booked.book_expected(&law, 0);
        let apart = [0, 1].map(|i| booked.rejected_flagged[i] as f64 - booked.expected[i]);
        if close(&booked.inflation, [apart, booked.variance])? {
            booked.since = unit;
            booked.rejected_flagged = [0, 0];
            (booked.expected, booked.variance) = ([0.0; 2], [0.0; 2]);
            booked.was.1 = 0; // the expectation is another one
            self.counts.now[LEFT] = unit;
            return Ok(());
        }
        booked.since = since;
        (booked.expected, booked.variance) = kept;
        self.write_back()?;
        self.of.call_method1(HEALTH_CLOSE_BLOCK.name(self.of.py()), (&self.law.of,))?;
        self.counts = Counts::of(&self.of, &H_RUN)?;
        Ok(())
    }
}

/// `status.RankMonitors`.
struct Ranks<'py> {
    of: Object<'py>,
    rate: Rate<'py>,
    health: Health<'py>,
}

impl<'py> Ranks<'py> {
    /// Return them, unless there was no event yet.
    fn of(of: Object<'py>, laws: &mut Laws<'py>) -> PyResult<Option<Ranks<'py>>> {
        let (law, health) = (RANKS_LAW.get(&of)?, RANKS_HEALTH.get(&of)?);
        if law.is_none() || !law.is(&HEALTH_LAW.get(&health)?) {
            return Ok(None);
        }
        let health = Health::of(health, laws.read(law)?)?;
        Ok(Some(Ranks { rate: Rate::of(RANKS_RATE.get(&of)?)?, health, of }))
    }

    fn write_back(&mut self) -> PyResult<()> {
        if !RANKS_LAW.get(&self.of)?.is(&self.health.law.of) {
            RANKS_LAW.set(&self.of, self.health.law.of.clone())?;
        }
        self.rate.write_back()?;
        self.health.write_back()
    }

    /// Count one event; return the alarms that it raised.
    fn count(
        &mut self,
        verdict: &Object<'py>,
        law: &Rc<Law<'py>>,
        shown: u8,
        drawn: u8,
        alarms: &mut Vec<Object<'py>>,
    ) -> PyResult<()> {
        let py = verdict.py();
        if !law.of.is(&self.health.law.of) {
            self.rate.switch(&self.health.law, law)?;
        }
        let is_withheld = 0 < shown && shown < 3 && VERDICT_WITHHELD.truth(verdict)?;
        let is_outside = self.rate.update(law, if is_withheld { shown + WITHHELD } else { shown })?;
        if let Some(fired) = self.health.update(law, drawn)? {
            let now = self.rate.counts.now[EVENTS];
            let raised = self.of.call_method1(RANKS_FIRED.name(py), (verdict, fired, now))?;
            alarms.push(raised);
        }
        if !is_outside && self.rate.counts.now[EVENTS] < self.rate.counts.now[RECHECK] {
            return Ok(());
        }
        self.rate.write_back()?;
        let (rate, inflation) = (&self.rate.of, INFLATION_FACTOR.get(&HEALTH_INFLATION.get(&self.health.of)?)?);
        if is_outside {
            let given = (RANKS_ACTIVE.get(&self.of)?, verdict, &law.of, inflation);
            alarms.push(rate.call_method1(RATE_RAISE_OR_WITHDRAW.name(py), given)?);
        } else {
            rate.call_method1(RATE_SET_LIMITS.name(py), (&law.of, inflation))?;
        }
        self.rate.counts = Counts::of(&self.rate.of, &R_COUNTS)?;
        Ok(())
    }
}

/// `drift.DriftDetector`.
struct Drift<'py> {
    of: Object<'py>,
    excess: f64,
    left: i64,
}

impl<'py> Drift<'py> {
    fn of(of: Object<'py>) -> PyResult<Drift<'py>> {
        Ok(Drift { excess: DRIFT_EXCESS.float(&of)?, left: DRIFT_LEFT.int(&of)?, of })
    }

    fn write_back(&self) -> PyResult<()> {
        DRIFT_EXCESS.set_float(&self.of, self.excess)?;
        DRIFT_LEFT.set_int(&self.of, self.left)
    }

    /// Take the block's sum in; false, and nothing has changed: there is more to do.
    fn close_block(&mut self) -> PyResult<bool> {
        let (drift, unit, window) = (&self.of, DRIFT_UNIT.int(&self.of)?, DRIFT_WINDOW.float(&self.of)?);
        let inflation = DRIFT_INFLATION.get(drift)?;
        let (mut level, mut unsettled) = (0.0, 1.0);
        let factor = factor_of(&inflation)?.filter(|factor| factor * rules().drift_min_effective <= window);
        if let Some(factor) = factor {
            let memory = DRIFT_MEMORY.float(drift)?;
            level = DRIFT_LEVEL.float(drift)? * memory + self.excess;
            unsettled = DRIFT_UNSETTLED.float(drift)? * (memory * memory);
            let variance = window / 36.0 * (1.0 + unsettled) + rules().memory_windows / 24.0;
            if level * level / (2.0 * variance * factor) >= DRIFT_LIMIT.float(drift)? {
                return Ok(false);
            }
        }
        if !close(&inflation, [[self.excess], [unit as f64 / 12.0]])? {
            return Ok(false);
        }
        DRIFT_LEVEL.set_float(drift, level)?;
        DRIFT_UNSETTLED.set_float(drift, unsettled)?;
        (self.excess, self.left) = (0.0, unit);
        Ok(true)
    }
}

const LENGTH: usize = 0;
const LEARNT: usize = 1;

/// `bank.StuckRun`.
struct Stuck<'py> {
    of: Object<'py>,
    counts: Counts<2>,
    first: Option<f64>, // where the run began
    last: f64,
    usual_step: f64,
    was_common: bool,
    swapped: bool,
    is_new: bool, // a run has begun
}

impl<'py> Stuck<'py> {
    fn of(of: Object<'py>) -> PyResult<Stuck<'py>> {
        Ok(Stuck {
            counts: Counts::of(&of, &S_COUNTS)?,
            first: STUCK_SCORE.get(&of)?.extract()?,
            last: STUCK_LAST.float(&of)?,
            usual_step: STUCK_USUAL_STEP.float(&of)?,
            was_common: STUCK_WAS_COMMON.truth(&of)?,
            swapped: STUCK_SWAPPED.truth(&of)?,
            is_new: false,
            of,
        })
    }

    fn write_back(&mut self) -> PyResult<()> {
        let py = self.of.py();
        self.counts.write_back(&self.of, &S_COUNTS)?;
        STUCK_LAST.set_float(&self.of, self.last)?;
        if std::mem::take(&mut self.is_new) {
            STUCK_SCORE.set(&self.of, self.first.into_pyobject(py)?.into_any())?;
            STUCK_USUAL_STEP.set_float(&self.of, self.usual_step)?;
            let flags = [(&STUCK_WAS_COMMON, self.was_common), (&STUCK_SWAPPED, self.swapped)];
            for (slot, is) in flags {
                slot.set(&self.of, PyBool::new(py, is).to_owned().into_any())?;
            }
        }
        Ok(())
    }

    /// Count one score; return the length of the run of equal, formerly rare scores.
    fn update(&mut self, score: f64, ties: i64, n: i64) -> i64 {
        let counts = &mut self.counts.now;
        if self.first.is_some() && std::mem::take(&mut self.swapped) {
            (self.first, self.is_new) = (Some(score), true);
        }
        let Rules { negligible, steps, largest_step, .. } = *rules();
        let (usual, is_usual) = (self.usual_step, counts[LEARNT] >= steps);
        let nearest = if is_usual { negligible * usual } else { 0.0 };
        match self.first {
            Some(first) if (score - first).abs() <= nearest => counts[LENGTH] += 1,
            begun => {
                if begun.is_some() {
                    let mut step = (score - self.last).abs();
                    if is_usual && largest_step * usual < step {
                        step = largest_step * usual;
                    }
                    if step > nearest {
                        counts[LEARNT] += i64::from(!is_usual);
                        self.usual_step = usual + (step - usual) / counts[LEARNT] as f64;
                    }
                }
                (self.first, self.is_new) = (Some(score), true);
                counts[LENGTH] = 1;
                self.was_common = 2 * ties > n;
            }
        }
        self.last = score;
        if self.was_common { 0 } else { counts[LENGTH] }
    }
}

/// `bank.StreamMonitor`.
struct Stream<'py> {
    of: Object<'py>,
    ranks: Ranks<'py>,
    drift: Drift<'py>,
    stuck: Stuck<'py>,
    law: Rc<Law<'py>>,
    key: Option<[i64; 4]>, // of the law
    epoch: Object<'py>,
    stuck_events: f64,
    paper_ties: bool,
}

impl<'py> Stream<'py> {
    /// Return it, unless it has had no ranked event yet.
    fn of(of: &Object<'py>, laws: &mut Laws<'py>) -> PyResult<Option<Stream<'py>>> {
        let Some(ranks) = Ranks::of(MONITOR_RANKS.get(of)?, laws)? else { return Ok(None) };
        Ok(Some(Stream {
            ranks,
            drift: Drift::of(MONITOR_DRIFT.get(of)?)?,
            stuck: Stuck::of(MONITOR_STUCK.get(of)?)?,
            law: laws.read(MONITOR_LAW.get(of)?)?,
            key: MONITOR_LAW_KEY.get(of)?.extract::<(i64, i64, i64, i64)>().ok().map(Into::into),
            epoch: MONITOR_MODEL_EPOCH.get(of)?,
            stuck_events: MONITOR_STUCK_EVENTS.float(of)?,
            paper_ties: MONITOR_PAPER_TIES.truth(of)?,
            of: of.clone(),
        }))
    }

    fn write_back(&mut self) -> PyResult<()> {
        self.ranks.write_back()?;
        self.drift.write_back()?;
        self.stuck.write_back()
    }

    /// Go by the law of a verdict.
    fn set_law(&mut self, key: [i64; 4], laws: &mut Laws<'py>) -> PyResult<()> {
        if self.key == Some(key) {
            return Ok(());
        }
        let named = PyTuple::new(self.of.py(), key)?;
        self.law = laws.read(THEORY_RANK_LAW.get(self.of.py())?.call1(&named)?)?;
        self.key = Some(key);
        MONITOR_LAW.set(&self.of, self.law.of.clone())?;
        MONITOR_LAW_KEY.set(&self.of, named.into_any())
    }

    /// Return the cells of the verdict's own rank and of one drawn among its ties.
    fn cells(&self, verdict: &Object<'py>, rank: i64, below: i64, ties: i64) -> PyResult<(u8, u8)> {
        let law = &self.law;
        if below + ties < law.edges[0] {
            return Ok((0, 0));
        }
        let (shown, mut drawn) = (law.cell(rank), law.cell(rank));
        if ties > 0 {
            drawn = law.cell(below);
            if drawn != law.cell(below + ties) {
                let draw = THEORY_RANDOMISED_RANK.get(verdict.py())?;
                drawn = law.cell(draw.call1((below, ties, VERDICT_POSITION.get(verdict)?))?.extract()?);
            }
            if below < law.edges[1] && law.edges[1] <= below + ties {
                let n = VERDICT_WINDOW_LEN.int(verdict)?;
                MONITOR_TIE_MASS.set_float(&self.of, ties as f64 / n as f64)?;
            }
        }
        Ok((shown, drawn))
    }

    /// Go on with what is the stream's alone: whether its scores drift, or stand still.
    fn follow(
        &mut self,
        verdict: &Object<'py>,
        (below, ties, n): (i64, i64, i64),
        score: Option<f64>,
        alarms: &mut Vec<Object<'py>>,
    ) -> PyResult<()> {
        let (py, drift) = (verdict.py(), &mut self.drift);
        let share = (below + below + ties) as f64 / (n + n) as f64;
        if (0.0..=1.0).contains(&share) {
            drift.excess += share - 0.5;
        }
        drift.left -= 1;
        if drift.left == 0 && !drift.close_block()? {
            drift.write_back()?;
            let moved = drift.of.call_method0(DRIFT_CLOSE_BLOCK.name(py))?;
            self.drift = Drift::of(drift.of.clone())?;
            if !moved.is_none() {
                self.ranks.write_back()?;
                let raised = self.of.call_method1(MONITOR_RAISE_DRIFT.name(py), (verdict, moved))?;
                alarms.push(raised);
            }
        }
        let Some(score) = score.filter(|score| score.is_finite()) else { return Ok(()) };
        if self.stuck.update(score, ties, n) as f64 >= self.stuck_events {
            self.stuck.write_back()?;
            alarms.push(self.of.call_method1(MONITOR_RAISE_RUN.name(py), (verdict,))?);
        } else if MONITOR_IS_STUCK.truth(&self.of)? {
            self.of.call_method0(MONITOR_MOVES_AGAIN.name(py))?;
        }
        Ok(())
    }
}

/// Of many streams with an event each, nothing is in the processor's caches, and one waits for one
/// pointer after the other. So those of a block of events are asked for together, level by level.
mod prefetch {
    use super::*;
    use crate::prefetch::bytes;

    const NODES: usize = 17;
    const RATE: usize = 5;
    const RING: usize = 11;
    /// How many lines of each.
    static LINES: [usize; NODES] = [3, 2, 2, 2, 1, 3, 4, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1];
    /// Of what, and which of its slots: what is fetched follows in this order.
    static TREE: [&[(usize, &Slot)]; 3] = [
        &[(0, &MONITOR_RANKS), (0, &MONITOR_DRIFT), (0, &MONITOR_STUCK), (0, &MONITOR_LAW_KEY)],
        &[
            (1, &RANKS_RATE),
            (1, &RANKS_HEALTH),
            (2, &DRIFT_EXCESS),
            (3, &STUCK_SCORE),
            (3, &STUCK_LAST),
            (3, &STUCK_USUAL_STEP),
        ],
        &[
            (5, &RATE_RING),
            (5, R_COUNTS[AT]),
            (5, R_COUNTS[EVENTS]),
            (5, R_COUNTS[MIXED_UNTIL]),
            (5, R_COUNTS[RECHECK]),
            (5, &RATE_EXPECTED_RATE),
        ],
    ];

    /// Ask for what an event of each monitor will need.
    pub fn fetch<'a, 'py: 'a>(monitors: impl Iterator<Item = Borrowed<'a, 'py, PyAny>>) {
        let mut found: Vec<[Option<Borrowed<'a, 'py, PyAny>>; NODES]> = Vec::with_capacity(BLOCK);
        for monitor in monitors {
            if !found.last().is_some_and(|last| last[0].is_some_and(|known| known.is(monitor))) {
                lines(monitor, LINES[0]);
                let mut nodes = [None; NODES];
                nodes[0] = Some(monitor);
                found.push(nodes);
            }
        }
        if found.len() < 2 {
            return;
        }
        let mut next = 1;
        for level in TREE {
            for nodes in &mut found {
                for (i, (of, slot)) in level.iter().enumerate() {
                    nodes[next + i] = nodes[*of].and_then(|above| slot.peek(above));
                    if let Some(object) = nodes[next + i] {
                        lines(object, LINES[next + i]);
                    }
                }
            }
            next += level.len();
        }
        for nodes in &found {
            let (Some(rate), Some(ring)) = (nodes[RATE], nodes[RING]) else { continue };
            if let (Ok(at), Ok(window), Ok(ring)) =
                (R_COUNTS[AT].int(&rate), RATE_WINDOW.int(&rate), ring.cast::<PyByteArray>())
            {
                for at in [at, at - window] {
                    bytes(ring.data().wrapping_offset(at as isize), 1);
                }
            }
        }
    }
}

/// All monitors, as far as they have been read.
struct Bank<'a, 'py> {
    streams: &'a Bound<'py, PyDict>,
    unranked: &'a Object<'py>,
    alarms: &'a Bound<'py, PyList>,
    laws: Laws<'py>,
    pooled: Ranks<'py>,
    read: Vec<Stream<'py>>,
    raised: Vec<Object<'py>>,
}

impl<'a, 'py> Bank<'a, 'py> {
    fn write_back(&mut self) -> PyResult<()> {
        for mut stream in self.read.drain(..) {
            stream.write_back()?;
        }
        self.pooled.write_back()
    }

    /// Return the monitor of a verdict's stream, `None` where that is not known. It is not touched.
    fn of(&self, verdict: &Object<'py>) -> PyResult<Option<Borrowed<'a, 'py, PyAny>>> {
        let (mut key, mode) = (VERDICT_STREAM_KEY.get(verdict)?, VERDICT_MODE.get(verdict)?);
        if !mode.is_none() {
            key = TYPES_IN_MODE.get(verdict.py())?.call1((key, mode))?;
        }
        value_in(self.streams, &key)
    }

    /// Return where a stream is among those that are read; `None`: it has had no ranked event yet.
    fn read(&mut self, monitor: &Object<'py>, epoch: Object<'py>) -> PyResult<Option<usize>> {
        let known = self.read.iter().position(|stream| stream.of.is(monitor));
        let at = match known {
            Some(at) => at,
            None => {
                if self.read.len() == STREAMS {
                    for mut stream in self.read.drain(..) {
                        stream.write_back()?;
                    }
                }
                let Some(stream) = Stream::of(monitor, &mut self.laws)? else { return Ok(None) };
                self.read.push(stream);
                self.read.len() - 1
            }
        };
        let stream = &mut self.read[at];
        if !epoch.is(&stream.epoch) && !epoch.eq(&stream.epoch)? {
            stream.write_back()?;
            monitor.call_method1(MONITOR_SWAP.name(epoch.py()), (epoch,))?;
            if let Some(other) = Stream::of(monitor, &mut self.laws)? {
                *stream = other;
            }
        }
        Ok(Some(at))
    }

    /// Take note of one verdict; false, and nothing has changed: it is Python's.
    fn note(&mut self, verdict: &Object<'py>, monitor: &Object<'py>) -> PyResult<bool> {
        let py = verdict.py();
        if !VERDICT_LIMITED.get(verdict)?.is(UNSET.get(py)?) || VERDICT_STATUS.get(verdict)?.is(STATUS_WARM_UP_MIXED.get(py)?)
        {
            return Ok(false);
        }

        // 1. Is it ranked?
        let (reason, rank) = (VERDICT_REASON.get(verdict)?, VERDICT_RANK.get(verdict)?);
        let mut band = (VERDICT_POLICY_LOWER.get(verdict)?, VERDICT_POLICY_UPPER.get(verdict)?);
        if band.0.is_none() {
            band = (VERDICT_BAND_LOWER.get(verdict)?, VERDICT_BAND_UPPER.get(verdict)?);
        }
        let Some(n) = whole(&VERDICT_WINDOW_LEN.get(verdict)?) else { return Ok(false) };
        let is_ranked = (reason.is_none() || reason.is(REASON_AMBIGUOUS.get(py)?))
            && !VERDICT_HELD.truth(verdict)?
            && !VERDICT_PLANNED.truth(verdict)?;
        if !is_ranked || n < 1 || rank.is_none() || band.0.is_none() || band.1.is_none() {
            if reason.is(REASON_CONSTANT_WINDOW.get(py)?) {
                return Ok(false);
            }
            let slot = if reason.is(REASON_WARM_UP.get(py)?) { &UNRANKED_WARM_UP } else { &UNRANKED_UNSCORABLE };
            for counts in [&MONITOR_UNRANKED.get(monitor)?, self.unranked] {
                slot.set_int(counts, slot.int(counts)? + 1)?;
            }
            return Ok(true);
        }

        // 2. Can it be reckoned with?
        let Some(rank) = whole(&rank) else { return Ok(false) };
        let Some(ties) = whole(&VERDICT_TIES.get(verdict)?) else { return Ok(false) };
        let Some(r) = whole(&VERDICT_N_ANOMALIES.get(verdict)?) else { return Ok(false) };
        let (Some(lower), Some(upper)) = (whole(&band.0), whole(&band.1)) else { return Ok(false) };
        let score = VERDICT_SCORE.get(verdict)?;
        let score = match score.cast_exact::<PyFloat>() {
            Ok(number) => Some(number.extract::<f64>()?),
            Err(_) if score.is_none() => None,
            Err(_) => return Ok(false),
        };
        let Some(at) = self.read(monitor, VERDICT_MODEL_EPOCH.get(verdict)?)? else { return Ok(false) };

        // 3. It counts, for its stream and for all of them.
        let stream = &mut self.read[at];
        let ties = ties.max(0);
        let below = rank - if stream.paper_ties { ties } else { ties / 2 };
        stream.set_law([n, r, lower, upper], &mut self.laws)?;
        let (shown, drawn) = stream.cells(verdict, rank, below, ties)?;
        let (law, raised) = (stream.law.clone(), &mut self.raised);
        stream.ranks.count(verdict, &law, shown, drawn, raised)?;
        stream.follow(verdict, (below, ties, n), score, raised)?;
        let own = raised.len();
        self.pooled.count(verdict, &law, shown, drawn, raised)?;
        if self.streams.len() == 1 {
            raised.truncate(own); // it would be said twice
        }
        for alarms in raised.drain(..) {
            self.alarms.call_method1(intern!(py, "extend"), (alarms,))?;
        }
        Ok(true)
    }
}

/// Take note of verdicts from the `start`-th on, until one is Python's; return where that is.
///
/// What they raise is added to `alarms`.
#[pyfunction]
pub fn note<'py>(
    streams: &Bound<'py, PyDict>,
    pooled: Object<'py>,
    unranked: &Object<'py>,
    verdicts: &Bound<'py, PyList>,
    start: usize,
    alarms: &Bound<'py, PyList>,
) -> PyResult<usize> {
    guarded(verdicts, || noted(streams, pooled, unranked, verdicts, start, alarms))
}

fn noted<'py>(
    streams: &Bound<'py, PyDict>,
    pooled: Object<'py>,
    unranked: &Object<'py>,
    verdicts: &Bound<'py, PyList>,
    start: usize,
    alarms: &Bound<'py, PyList>,
) -> PyResult<usize> {
    if RULES.get().is_none() {
        let _ = RULES.set(Rules::read(streams.py())?);
    }
    let mut laws = Laws::default();
    let Some(pooled) = Ranks::of(pooled, &mut laws)? else { return Ok(start) };
    let (read, raised) = (Vec::with_capacity(STREAMS), Vec::new());
    let mut bank = Bank { streams, unranked, alarms, laws, pooled, read, raised };
    let mut at = start;
    'all: while at < verdicts.len() {
        let mut block = Vec::with_capacity(BLOCK);
        for i in at..verdicts.len().min(at + BLOCK) {
            let verdict = verdicts.get_item(i)?;
            block.push((bank.of(&verdict)?, verdict));
        }
        prefetch::fetch(block.iter().filter_map(|(monitor, _)| *monitor));
        for (monitor, verdict) in &block {
            guard::at(at);
            match monitor.map(|monitor| monitor.to_owned()) {
                Some(monitor) if bank.note(verdict, &monitor)? => at += 1,
                _ => break 'all,
            }
        }
    }
    bank.write_back()?;
    Ok(at)
}
