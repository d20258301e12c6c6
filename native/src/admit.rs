//! Who is heard of (`engine.sensor_registry.SensorRegistry.admit`): what an ordinary event changes.
//!
//! The trusted clock, and when each sensor was heard last. An event that anything else may follow
//! from (a sensor that is new, silent, doubted or to be forgotten) is left to Python, untouched.

use crate::guard::{self, guarded};
use crate::object::{exactly, is_exactly, tuple_items, value_in, whole, Object};
use crate::seam::*;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyType};

const MOST_AHEAD: usize = 8; // of more than so many sensors Python looks through the times
const ROW: usize = 8;
const FARTHEST_MS: i64 = 1 << 60; // so that no sum of two times overflows

/// A `TrustedClock` that nobody contradicts; sensors by their number in `names`.
#[derive(Clone, Copy)]
struct Clock {
    now: Option<i64>,
    n: i64,
    ahead: [(usize, i64, i64); MOST_AHEAD], // who, how far, at which event
    n_ahead: usize,
    only: Option<usize>,
    other_at: i64,
    row: [i64; ROW],
    n_row: usize,
    moved_by: Option<usize>,
}

/// The constants that clocks share.
struct Law {
    recent: i64,
    day: i64,
    first: i64,
}

impl Clock {
    /// Take an event; false, and it is of no use any more, where Python has to.
    fn advance(&mut self, sensor: usize, time: i64, law: &Law) -> bool {
        self.n += 1;
        if self.only != Some(sensor) {
            if self.only.is_some() {
                self.other_at = self.n;
            }
            (self.only, self.n_row) = (Some(sensor), 0);
        }
        match self.now {
            Some(now) if time <= now => {
                let is_other = self.moved_by.is_some_and(|by| by != sensor);
                if is_other && law.first <= time && time < now - law.day {
                    return false;
                }
            }
            _ => {
                if !self.lead(sensor, time, law) {
                    return false;
                }
            }
        }
        if self.n - self.other_at >= law.recent || self.other_at < 0 {
            if self.n_row == ROW {
                self.row.copy_within(1.., 0);
                self.n_row -= 1;
            }
            self.row[self.n_row] = time;
            self.n_row += 1;
            if self.n_row == ROW {
                let least = self.row.iter().copied().fold(i64::MAX, i64::min);
                self.believe(least, self.only, law);
            }
        }
        true
    }

    fn lead(&mut self, sensor: usize, time: i64, law: &Law) -> bool {
        let known = self.ahead[..self.n_ahead].iter_mut().find(|(who, ..)| *who == sensor);
        match known {
            Some(known) => {
                if self.n - known.2 >= law.recent || time >= known.1 {
                    (known.1, known.2) = (time, self.n);
                }
            }
            None if self.n_ahead == MOST_AHEAD => return false,
            None => {
                self.ahead[self.n_ahead] = (sensor, time, self.n);
                self.n_ahead += 1;
            }
        }
        if self.n_ahead < 2 {
            return true;
        }
        let mut times = [0; MOST_AHEAD];
        let mut n = 0;
        for &(_, far, at) in &self.ahead[..self.n_ahead] {
            if self.n - at < law.recent {
                times[n] = far;
                n += 1;
            }
        }
        let times = &mut times[..n];
        times.sort_unstable();
        let mut credible = [0; MOST_AHEAD];
        let mut kept = 0;
        for (at, &far) in times.iter().enumerate() {
            let near = |other: Option<&i64>| other.is_some_and(|o| (far - o).abs() <= law.day);
            let before = at.checked_sub(1).and_then(|at| times.get(at));
            if self.now.is_none_or(|now| far <= now + law.day) || near(before) || near(times.get(at + 1)) {
                credible[kept] = far;
                kept += 1;
            }
        }
        if kept > 1 {
            self.believe(credible[kept - 2], None, law);
        }
        true
    }

    fn believe(&mut self, time: i64, alone: Option<usize>, law: &Law) {
        if self.now.is_none_or(|now| time > now) {
            (self.now, self.moved_by) = (Some(time), alone);
        }
        let (now, n) = (self.now.unwrap_or(i64::MIN), self.n);
        let mut kept = 0;
        for at in 0..self.n_ahead {
            let one = self.ahead[at];
            if one.1 > now && n - one.2 < law.recent {
                self.ahead[kept] = one;
                kept += 1;
            }
        }
        self.n_ahead = kept;
    }
}

/// The sensors that a clock speaks of.
struct Names<'py>(Vec<Bound<'py, PyAny>>);

impl<'py> Names<'py> {
    /// Return the number of one, which it may have been given for this.
    fn number(&mut self, clock: &Clock, name: Object<'_, 'py>) -> PyResult<usize> {
        let ahead = clock.ahead[..clock.n_ahead].iter().map(|one| one.0);
        for at in clock.only.into_iter().chain(clock.moved_by).chain(ahead) {
            if self.0[at].is(name) || self.0[at].eq(name)? {
                return Ok(at);
            }
        }
        self.0.push(name.to_owned());
        Ok(self.0.len() - 1)
    }

    fn object(&self, py: Python<'py>, number: Option<usize>) -> Bound<'py, PyAny> {
        number.map_or_else(|| py.None().into_bound(py), |at| self.0[at].clone())
    }

    /// Read a clock; `None` where Python has to go on with it.
    fn read(&mut self, clock: &Bound<'py, PyAny>) -> PyResult<Option<Clock>> {
        if CLOCK_BEHIND.truth(clock)? {
            return Ok(None);
        }
        let mut found = Clock {
            now: CLOCK_NOW_MS.get(clock)?.extract()?,
            n: CLOCK_N.int(clock)?,
            ahead: [(0, 0, 0); MOST_AHEAD],
            n_ahead: 0,
            only: None,
            other_at: CLOCK_OTHER_AT.int(clock)?,
            row: [0; ROW],
            n_row: 0,
            moved_by: None,
        };
        let row: Vec<i64> = CLOCK_ROW.get(clock)?.extract()?;
        let ahead = CLOCK_AHEAD.get(clock)?.cast_into::<PyDict>()?;
        if row.len() > ROW || ahead.len() > MOST_AHEAD {
            return Ok(None);
        }
        found.row[..row.len()].copy_from_slice(&row);
        found.n_row = row.len();
        for (name, known) in ahead.iter() {
            let (time, at): (i64, i64) = known.extract()?;
            if time.abs() > FARTHEST_MS {
                return Ok(None);
            }
            found.ahead[found.n_ahead] = (self.0.len(), time, at);
            found.n_ahead += 1;
            self.0.push(name);
        }
        for (slot, is_only) in [(&CLOCK_ONLY, true), (&CLOCK_MOVED_BY, false)] {
            let name = slot.get(clock)?;
            if name.is_none() {
                continue;
            }
            let number = Some(self.number(&found, name.as_borrowed())?);
            *(if is_only { &mut found.only } else { &mut found.moved_by }) = number;
        }
        Ok(Some(found))
    }

    fn write(&self, of: &Clock, clock: &Bound<'py, PyAny>) -> PyResult<()> {
        let py = clock.py();
        let ahead = PyDict::new(py);
        for &(who, time, at) in &of.ahead[..of.n_ahead] {
            ahead.set_item(&self.0[who], (time, at))?;
        }
        CLOCK_NOW_MS.set(clock, of.now.into_pyobject(py)?)?;
        CLOCK_N.set_int(clock, of.n)?;
        CLOCK_AHEAD.set(clock, ahead.into_any())?;
        CLOCK_ONLY.set(clock, self.object(py, of.only))?;
        CLOCK_OTHER_AT.set_int(clock, of.other_at)?;
        CLOCK_ROW.set(clock, PyList::new(py, &of.row[..of.n_row])?.into_any())?;
        CLOCK_MOVED_BY.set(clock, self.object(py, of.moved_by))
    }
}

/// What a registry knows of silences, while no other sensor is late than at the call's begin.
struct Heard<'py> {
    heard: Bound<'py, PyDict>,
    open: Bound<'py, PyDict>,
    class: Py<PyType>,
    due: Option<i64>,
    now: Option<i64>,
    steps: Vec<(i64, i64)>,
    most_steps: usize,
    day: i64,
}

impl<'py> Heard<'py> {
    fn of(silences: &Bound<'py, PyAny>, day: i64) -> PyResult<Heard<'py>> {
        let py = silences.py();
        let queue = SILENCES_QUEUE.get(silences)?.cast_into::<PyList>()?;
        let due = match queue.is_empty() {
            true => None,
            false => Some(queue.get_item(0)?.get_item(0)?.extract()?),
        };
        Ok(Heard {
            heard: SILENCES_HEARD.get(silences)?.cast_into()?,
            open: SILENCES_OPEN.get(silences)?.cast_into()?,
            class: SILENCES_OF_SENSOR.get(py)?.cast::<PyType>()?.clone().unbind(),
            due,
            now: SILENCES_NOW_MS.get(silences)?.extract()?,
            steps: SILENCES_STEPS.get(silences)?.extract()?,
            most_steps: SILENCES_MAX_STEPS.int(py)? as usize,
            day,
        })
    }

    /// Return what is known of a sensor that an event at `now` makes nothing else of.
    fn ordinary(&self, sensor: Object<'_, 'py>, now: i64) -> PyResult<Option<Bound<'py, PyAny>>> {
        if self.now.is_none_or(|before| before > now) {
            return Ok(None);
        }
        let Some(own) = value_in(&self.heard, &sensor)? else { return Ok(None) };
        if !is_exactly(own, &self.class) || (!self.open.is_empty() && self.open.contains(sensor)?) {
            return Ok(None);
        }
        let own = own.to_owned();
        let (gap, of_day) = (now - HEARD_AT_MS.int(&own)?, now - HEARD_DAY_MS.int(&own)?);
        let is_ordinary = gap == 0 || (gap > 0 && 0 < of_day && of_day < self.day);
        Ok(is_ordinary.then_some(own))
    }

    fn hear(
        &mut self,
        own: &Bound<'py, PyAny>,
        key: Object<'_, 'py>,
        time: Object<'_, 'py>,
        now: (i64, &Bound<'py, PyAny>),
    ) -> PyResult<()> {
        if let Some(size) = self.now.map(|before| now.0 - before).filter(|&size| size > 0) {
            self.now = Some(now.0);
            while self.steps.last().is_some_and(|step| step.1 <= size) {
                self.steps.pop();
            }
            if self.steps.len() < self.most_steps {
                self.steps.push((now.0, size));
            }
        }
        HEARD_STREAM_KEY.set(own, key.to_owned())?;
        HEARD_EVENT_TIME_MS.set(own, time.to_owned())?;
        let gap = now.0 - HEARD_AT_MS.int(own)?;
        if gap > 0 {
            HEARD_AT_MS.set(own, now.1.clone())?;
            if gap > HEARD_LONGEST_MS.int(own)? {
                HEARD_LONGEST_MS.set_int(own, gap)?;
            }
        }
        Ok(())
    }

    fn write(&self, silences: &Bound<'py, PyAny>) -> PyResult<()> {
        let py = silences.py();
        SILENCES_NOW_MS.set(silences, self.now.into_pyobject(py)?)?;
        SILENCES_STEPS.set(silences, PyList::new(py, &self.steps)?.into_any())
    }
}

/// Take note of readings from `start` on; return the index of the first that Python has to hear.
#[pyfunction]
pub fn admit(registry: &Bound<'_, PyAny>, items: &Bound<'_, PyAny>, start: usize) -> PyResult<usize> {
    guarded(items, || admitted(registry, items, start))
}

fn admitted<'py>(
    registry: &Bound<'py, PyAny>,
    items: &Bound<'py, PyAny>,
    start: usize,
) -> PyResult<usize> {
    let py = items.py();
    let Ok(items) = items.cast_exact::<PyList>() else { return Ok(start) };
    let reading = TYPES_READING.get(py)?.cast::<PyType>()?.clone().unbind();
    CLOCK_IN_A_ROW.require(py, ROW)?;
    let law = Law {
        recent: CLOCK_RECENT.int(py)?,
        day: CLOCK_DAY_MS.int(py)?,
        first: CLOCK_FIRST_MS.int(py)?,
    };
    let doubted = REGISTRY_DOUBTED.get(registry)?.cast_into::<PyDict>()?;
    let mut n_usual = REGISTRY_N_USUAL.int(registry)?;
    let (trusted, silences) = (REGISTRY_CLOCK.get(registry)?, REGISTRY_SILENCES.get(registry)?);
    let last_seen = REGISTRY_LAST_SEEN.get(registry)?.cast_into::<PyDict>()?;
    let forget: Option<i64> = REGISTRY_FORGET_AFTER_MS.get(&REGISTRY_LIMITS.get(registry)?)?.extract()?;
    let looks_in_all = REGISTRY_LOOKS.int(py)?;
    let step = forget.map(|after| (after / looks_in_all).max(1));
    let sees_all = REGISTRY_SEES_ALL.truth(registry)?;
    let mut names = Names(Vec::new());
    let Some(mut clock) = names.read(&trusted)? else { return Ok(start) };
    let mut heard = Heard::of(&silences, law.day)?;
    let mut known_now: Option<(i64, Bound<'py, PyAny>)> = None;
    let mut at = start;
    while at < items.len() {
        guard::at(at);
        let item = items.get_item(at)?;
        if !is_exactly(item.as_borrowed(), &reading) {
            at += 1;
            continue;
        }
        let Some([key, sensor, time, ..]) = tuple_items::<5>(item.as_borrowed()) else { break };
        let is_named = exactly::<PyString>(key).is_some() && exactly::<PyString>(sensor).is_some();
        let Some(ms) = whole(time).filter(|ms| is_named && ms.abs() < FARTHEST_MS) else { break };
        let mut next = clock;
        let number = names.number(&clock, sensor)?;
        if !next.advance(number, ms, &law) {
            break;
        }
        let (Some(before), Some(now)) = (clock.now, next.now) else { break };
        let is_usual = ms - before <= law.day && (ms >= law.first || before < law.first);
        let looks = step.is_some_and(|step| now.div_euclid(step) > before.div_euclid(step));
        let is_late = sees_all && next.moved_by.is_none() && heard.due.is_some_and(|due| due < now);
        let is_doubted = !doubted.is_empty() && doubted.contains(sensor)?;
        if !is_usual || is_doubted || looks || is_late {
            break;
        }
        let Some(streams) = value_in(&last_seen, &sensor)? else { break };
        let streams = streams.to_owned().cast_into::<PyDict>()?;
        if value_in(&streams, &key)?.is_none() {
            break;
        }
        let Some(own) = heard.ordinary(sensor, now)? else { break };
        let now_object = match known_now.take() {
            Some((ms, object)) if ms == now => object,
            _ => now.into_pyobject(py)?.into_any(),
        };
        streams.set_item(key, if ms > now { time } else { now_object.as_borrowed() })?;
        heard.hear(&own, key, time, (now, &now_object))?;
        known_now = Some((now, now_object));
        clock = next;
        n_usual += i64::from(!doubted.is_empty());
        at += 1;
    }
    if at > start {
        REGISTRY_N_USUAL.set_int(registry, n_usual)?;
        names.write(&clock, &trusted)?;
        heard.write(&silences)?;
    }
    Ok(at)
}
