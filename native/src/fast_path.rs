//! The way of ordinary events through one stream (`engine.stream_state.StreamState`).
//!
//! Ordinary is a reading whose every channel is there, at a model with which nothing but scores is
//! due, judged in a full window, that turns no incident; and in which all channels that rest do so,
//! at a sensor none of whose woke up of late. A run ends *before* the first that is not,
//! with nothing changed of it, and Python goes on from there: the state is its own.

use crate::prefetch::{self, Shape};
use crate::alarm;
use crate::evidence::{Explainer, Explaining, Known};
use crate::guard;
use crate::calendar;
use crate::judge::{JudgeCore, SideOutputs};
use crate::recent::{self, Columns, Recent, LARGE};
use crate::rows;
use crate::scorers::Scorer;
use crate::seam::*;
use crate::view::{as_bytes, View};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::cell::Cell;
use std::sync::Arc;

const FEW: usize = 8;
const MAX_CACHED: usize = 8; // sensors whose rings are known from call to call

static FROM_BUFFER: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static SUM: PyOnceLock<Py<PyAny>> = PyOnceLock::new();


static SHAPES: [Shape; 9] = [const { Shape::new() }; 9];
/// How many streams prefetch the last of what one touches is asked for, and the first.
pub const PREFETCH_STAGES: usize = 6;

#[pyclass(module = "rejex_native._core")]
pub struct FastPath {
    judge: Py<PyAny>,
    tracker: Py<PyAny>,
    model: Py<PyAny>,
    core: JudgeCore,
    scorer: Option<(Py<PyAny>, Scorer)>,
    resting: Vec<Resting>, // channels that it does not score
    known: Known, // of its rows and columns, once they are asked for
    explainer: Option<Arc<Explainer>>,
    at_once: bool,
    has_phases: bool, // of the calendar, behind what rolls
    is_bare: Option<bool>, // whether a row is the reading, once a sensor is known
    d: usize,
    cached: Vec<CachedSensor>,
    pub turn: (u64, usize), // the poll that cached it last, and its number in that
    #[pyo3(get)]
    taken: u64, // how many events were ordinary
}

/// Room for numbers on the way, of all lanes.
#[derive(Default)]
pub struct Room {
    rows: Vec<f64>,
    numbers: Vec<f64>,
    whose: Vec<usize>,
    out: Vec<u8>,
    side: SideOutputs,
}

thread_local! {
    static ROOM: Cell<Option<Box<Room>>> = const { Cell::new(None) };
}

impl Room {
    /// Call with room, which nobody else has meanwhile.
    pub fn with<T>(call: impl FnOnce(&mut Room) -> T) -> T {
        let mut room = ROOM.take().unwrap_or_default();
        let found = call(&mut room);
        ROOM.set(Some(room));
        found
    }
}

/// Readings, their values one after the other, and where their verdicts go.
pub struct Batch<'a, 'py> {
    pub readings: &'a Bound<'py, PyAny>,
    pub values: Vec<f64>,
    pub times: Vec<i64>,
    pub d: usize,
    pub beside: Option<View>, // ends of rows, of so many columns
    pub more: usize,
    pub verdicts: &'a Bound<'py, PyList>,
}

impl<'py> Batch<'_, 'py> {
    /// Return the values of a reading, none of which is missing or large.
    fn whole(&self, i: usize) -> Option<&[f64]> {
        let values = self.values(i);
        values.iter().all(|x| x.abs() <= LARGE).then_some(values)
    }

    fn values(&self, i: usize) -> &[f64] {
        &self.values[i * self.d..(i + 1) * self.d]
    }

    /// Return the values of a reading that is whole, and in which all channels that rest do so.
    fn resting(&self, i: usize, resting: &[Resting]) -> Option<&[f64]> {
        let values = self.whole(i)?;
        resting.iter().all(|own| own.low <= values[own.channel] && values[own.channel] <= own.high).then_some(values)
    }

    /// Return what siblings say of a reading.
    fn beside(&self, i: usize) -> &[f64] {
        self.beside.as_ref().map_or(&[], |beside| &beside.get()[i * self.more..(i + 1) * self.more])
    }

    pub fn reading(&self, i: usize) -> PyResult<Bound<'py, PyAny>> {
        let readings = self.readings;
        if let Ok(list) = readings.cast::<PyList>() {
            return list.get_item(i);
        }
        match readings.cast::<PyTuple>() {
            Ok(tuple) => tuple.get_item(i),
            Err(_) => readings.get_item(i),
        }
    }
}

/// Events of a stream from one look at a sensor's noise to the next.
const NOISE_EVERY: usize = 64;

/// Return what takes the ordinary events of a stream.
#[pyfunction]
pub fn fast_path_of(state: &Bound<'_, PyAny>) -> PyResult<FastPath> {
    let py = state.py();
    PACKED_ROWS_BLOCK_ROWS.require(py, rows::BLOCK)?;
    PACKED_ROWS_DIGITS.require(py, usize::from(rows::DIGITS))?;
    recent::require(py)?;
    LIMITS_NOISE_EVERY.require(py, NOISE_EVERY)?;
    let (judge, tracker) = (STREAM_JUDGE.get(state)?, STREAM_TRACKER.get(state)?);
    Ok(FastPath {
        core: JudgeCore::of(&judge, &tracker)?,
        judge: judge.unbind(),
        tracker: tracker.unbind(),
        model: STREAM_MODEL.get(state)?.unbind(),
        scorer: None,
        resting: Vec::new(),
        known: Known::default(),
        explainer: None,
        at_once: STREAM_AT_ONCE.get(state)?.is_truthy()?,
        has_phases: STREAM_HAS_PHASES.get(state)?.is_truthy()?,
        is_bare: None,
        d: FEATURES_CHANNELS.get(&STREAM_FEATURES.get(state)?)?.len()?,
        cached: Vec::new(),
        turn: (0, 0),
        taken: 0,
    })
}

impl FastPath {
    /// Ask for a part of what an event will touch, each once the one before is near.
    pub fn prefetch(&self, state: &Bound<'_, PyAny>, stage: usize) -> PyResult<()> {
        let py = state.py();
        let (tracker, model, judge) = (self.tracker.bind(py), self.model.bind(py), self.judge.bind(py));
        if stage > 2 && STREAM_FAST_PATH_MODEL.is_none(state)? {
            return Ok(());
        }
        match stage {
            0 => prefetch::bytes(std::ptr::from_ref(self).cast(), std::mem::size_of::<FastPath>()),
            1 => {
                for (one, size) in [(&self.judge, 128), (&self.tracker, 256), (&self.model, 320)] {
                    prefetch::object(one, size);
                }
                prefetch::bytes(state.as_ptr().cast(), 192);
                self.cached.iter().for_each(|cached| prefetch::object(&cached.sensor, 128));
                self.core.prefetch();
                if let Some((_, scorer)) = &self.scorer {
                    scorer.prefetch();
                }
            }
            2 => {
                let objects = [judge, tracker, model, state];
                objects.into_iter().zip(&SHAPES).for_each(|(one, shape)| shape.children(one));
            }
            3 => {
                SHAPES[4].children(&JUDGE_WINDOW.get(judge)?);
                SHAPES[5].children(&MODEL_SERVING.get(model)?);
                SHAPES[6].children(&MODEL_ROWS.get(model)?);
                SHAPES[7].children(&TRACKER_ALARM.get(tracker)?);
                SHAPES[8].children(&JUDGE_BUCKET.get(judge)?);
            }
            4 => {
                let window = JUDGE_WINDOW.get(judge)?;
                prefetch::items(&WINDOW_PARTS.get(&window)?, 0, 8);
                prefetch::items(&WINDOW_RING.get(&window)?, 8 * WINDOW_OLDEST.int(&window)? as usize, 8);
            }
            _ => {
                let parts = WINDOW_PARTS.get(&JUDGE_WINDOW.get(judge)?)?.cast_into::<PyList>()?;
                if parts.len() == 1 {
                    prefetch::items(&parts.get_item(0)?, 0, 2048);
                }
            }
        }
        Ok(())
    }

    /// Judge the readings at some places; return whether Python was asked, which may tell of much.
    pub fn go<'py>(
        &mut self,
        state: &Bound<'py, PyAny>,
        batch: &Batch<'_, 'py>,
        places: &[usize],
        room: &mut Room,
    ) -> PyResult<bool> {
        let (mut done, mut step, mut asked) = (0, 1, false);
        while done < places.len() {
            // Another one's where an interim reference became the reference.
            if !self.makes_rows(state)? || !STREAM_TRACKER.is(state, &self.tracker)? {
                step = places.len();
            } else if !STREAM_FAST_PATH_MODEL.is_none(state)? {
                let (taken, was_asked) = self.run(state, batch, &places[done..], room)?;
                asked |= was_asked;
                if taken > 0 {
                    (done, step) = (done + taken, 1);
                    continue;
                }
            }
            // What is no event alone lasts for some.
            let stop = (done + step).min(places.len());
            in_python(state, batch, &places[done..stop])?;
            (done, step, asked) = (stop, 4 * step, true);
        }
        Ok(asked)
    }

    /// Whether any rows are made here: those of the presets that roll, and readings as they are.
    fn makes_rows(&mut self, state: &Bound<'_, PyAny>) -> PyResult<bool> {
        if self.at_once {
            return Ok(true);
        }
        if let Some(known) = self.is_bare {
            return Ok(known);
        }
        let py = state.py();
        let sensors = STREAM_SENSORS.get(state)?.cast_into::<PyDict>()?;
        let Some(sensor) = sensors.values().iter().next() else { return Ok(true) };
        let bare = sensor.getattr(SENSOR_ONLY_RAW.name(py))?.is_truthy()?
            && sensor.getattr(SENSOR_PICKED.name(py))?.is_none();
        self.is_bare = Some(bare);
        Ok(bare)
    }

    /// Judge readings from the first place on as long as they are ordinary.
    ///
    /// Returns how many, and whether Python was asked for what may tell of an incident.
    fn run<'py>(
        &mut self,
        state: &Bound<'py, PyAny>,
        batch: &Batch<'_, 'py>,
        places: &[usize],
        room: &mut Room,
    ) -> PyResult<(usize, bool)> {
        let py = state.py();
        let (tracker, model, judge) = (self.tracker.bind(py), self.model.bind(py), self.judge.bind(py));
        if TRACKER_FROZEN.truth(tracker)? || places.is_empty() {
            return Ok((0, false));
        }
        let (rows_seen, mut until) = (MODEL_ROWS_SEEN.int(model)?, MODEL_FAST_PATH_UNTIL.int(model)?);
        let Room { rows, numbers, whose, out, side } = room;
        let kind = (self.at_once, self.has_phases);
        rows.clear();
        whose.clear();
        if until > 0 && rows_seen == until {
            // Something comes before the next row, if there is one.
            let known = if self.at_once { &STREAM_RECENT } else { &STREAM_SENSORS }.get(state)?;
            let mut sensors = Sensors::of(&mut self.cached, known.cast_into()?, kind, self.d, None);
            let reading = batch.reading(places[0])?.cast_into::<PyTuple>()?;
            let Some(sensor) = sensors.at(&reading.get_item(1)?)? else { return Ok((0, false)) };
            if batch.whole(places[0]).is_none() {
                return Ok((0, false));
            }
            sensors.row(sensor, batch, places[0], rows);
            if !rows.iter().all(|x| x.abs() <= LARGE) {
                return Ok((0, false));
            }
            rows.clear();
            model.call_method1(MODEL_APPLY_DUE.name(py), (judge,))?;
            until = MODEL_FAST_PATH_UNTIL.int(model)?;
        }
        let left = usize::try_from(until - rows_seen).unwrap_or(0);
        let seq = STREAM_SEQ.int(state)? as usize;
        // With the last of so many events Python looks at the sensor's noise.
        let left = if self.at_once { left.min(NOISE_EVERY - seq % NOISE_EVERY) } else { left };
        let places = &places[..left.min(places.len())];
        if places.is_empty() || MODEL_SERVING.is_none(model)? {
            return Ok((0, false));
        }
        let serving = MODEL_SERVING.get(model)?;
        if FIT_FITTED.is_none(&serving)? {
            return Ok((0, false));
        }
        if !self.scorer.as_ref().map_or(Ok(false), |(known, _)| FIT_FITTED.is(&serving, known))? {
            let fitted = FIT_FITTED.get(&serving)?;
            let found = FITTED_SCORER.get(&fitted)?;
            let made = Scorer::of(&found)?;
            self.resting = Resting::of(state, &found)?;
            (self.scorer, self.known) = (Some((fitted.unbind(), made)), Known::default());
        }
        let scorer = &self.scorer.as_ref().expect("made above").1;
        let epoch = FIT_EPOCH.get(&serving)?;
        let d = self.d;
        let known = if self.at_once { &STREAM_RECENT } else { &STREAM_SENSORS }.get(state)?;
        let resting = self.resting.as_slice();
        let wake_ups = WakeUps::of(state, resting)?;
        let mut sensors = Sensors::of(&mut self.cached, known.cast_into()?, kind, d, wake_ups);
        let scored: Option<Vec<f64>> = match scorer {
            Scorer::Python => {
                // What is read: as far as it is whole.
                guard::at(places[0]);
                for &place in places {
                    let reading = batch.reading(place)?.cast_into::<PyTuple>()?;
                    let Some(sensor) = sensors.at(&reading.get_item(1)?)? else { break };
                    if batch.resting(place, resting).is_none() {
                        break;
                    }
                    whose.push(sensor);
                }
                let mut whole = 0;
                for (&place, &sensor) in places.iter().zip(&*whose) {
                    let first = rows.len();
                    sensors.row(sensor, batch, place, rows);
                    if !rows[first..].iter().all(|x| x.abs() <= LARGE) {
                        rows.truncate(first);
                        break;
                    }
                    whole += 1;
                }
                if whole == 0 {
                    return Ok((0, false));
                }
                whose.truncate(whole);
                let rows = python_rows(py, rows, whole)?;
                let found = model.call_method1(MODEL_SCORES.name(py), (&serving, rows))?;
                Some(found.extract()?)
            }
            _ => None,
        };

        let Some(mut judging) = self.core.begin(judge, &epoch, side)? else {
            return Ok((0, false));
        };
        let guarded = !MODEL_GUARD.is_none(model)?;
        if guarded {
            judging.quantile = MODEL_QUANTILE.get(model)?.extract()?;
        }
        let explained = !STREAM_EXPLAINER.is_none(state)?;
        if explained && scorer.explains() {
            let explainer = STREAM_EXPLAINER.get(state)?;
            if !self.explainer.as_ref().is_some_and(|known| known.is_of(&explainer)) {
                self.explainer = Some(Explainer::of(&explainer)?);
            }
            if let Some(explainer) = &self.explainer {
                let (known, age) = (&self.known, rows_seen - FIT_REQUESTED_AT.int(&serving)?);
                judging.explaining = Some(Explaining { explainer, model, scorer, known, age });
            }
        }
        let mut wanted = Vec::new();
        let (mut done, mut width) = (0, 0);
        for (i, &place) in places.iter().enumerate() {
            guard::at(place);
            let reading = batch.reading(place)?;
            let score = match &scored {
                Some(scores) => match scores.get(i) {
                    Some(&score) => score,
                    None => break,
                },
                None => {
                    let Ok(reading) = reading.cast::<PyTuple>() else { break };
                    let Some(sensor) = sensors.at(&reading.get_item(1)?)? else { break };
                    if batch.resting(place, resting).is_none() {
                        break;
                    }
                    let first = rows.len();
                    sensors.row(sensor, batch, place, rows);
                    width = rows.len() - first;
                    if !rows[first..].iter().all(|x| x.abs() <= LARGE) {
                        break; // what is far beyond all numbers is still in its windows
                    }
                    whose.push(sensor);
                    scorer.score(py, &rows[first..], numbers)?
                }
            };
            let row = if scored.is_none() { &rows[rows.len() - width..] } else { &[] };
            let Some((verdict, unexplained)) = judging.one(&reading, row, score, seq + i, i)? else {
                break;
            };
            if explained && unexplained {
                wanted.push((i, place, verdict.clone()));
            }
            batch.verdicts.set_item(place, verdict)?;
            done += 1;
        }
        judging.write_back()?;
        if let Some(scores) = &scored {
            width = rows.len() / scores.len();
        }
        if done == 0 {
            return Ok((0, false));
        }

        // What comes with them, in the order of Python.
        let columns = sensors.end(&whose[..done], batch, places)?;
        STREAM_SEQ.set_int(state, (seq + done) as i64)?;
        if self.at_once && (seq + done).is_multiple_of(NOISE_EVERY) {
            let reading = batch.reading(places[done - 1])?.cast_into::<PyTuple>()?;
            let args = (reading.get_item(1)?, seq + done - 1);
            state.call_method1(STREAM_LOOK_AT_NOISE.name(py), args)?;
        }
        rows.truncate(done * width);
        if !wanted.is_empty() {
            let (explainer, rows) = (STREAM_EXPLAINER.get(state)?, python_rows(py, rows, done)?);
            let args = (explainer, rows, wanted, batch.verdicts);
            state.call_method1(STREAM_EXPLAIN.name(py), args)?;
        }
        let which = &places[..done];
        let asked = alarm::follow(tracker, batch.readings, which, batch.verdicts, &side.alarm_inputs)?;
        let mut beyond = std::mem::take(&mut side.outliers);
        beyond.extend(&side.extreme);
        beyond.sort_unstable();
        beyond.dedup();
        let more = batch.more + if self.has_phases { calendar::PHASES } else { 0 };
        let judged_rows = JudgedRows { rows, beyond: &beyond, out, d, more, columns };
        let is_fitting = !MODEL_SHADOW.is_none(model)? || !MODEL_PENDING.is_none(model)?;
        let crowded = is_fitting && !side.extreme.is_empty();
        if crowded || TRACKER_SUSPECT_EVENTS.get(tracker)?.len()? as i64 > MODEL_MOSTLY_SUSPECT.int(py)? {
            let judged = MODEL_SEGMENT_RESULT.get(py)?;
            let judged = judged.call1((done, &beyond, &side.extreme, py.None()))?;
            let rows = python_rows(py, judged_rows.rows, done)?;
            model.call_method1(MODEL_ABSORB.name(py), (rows, judged, judge))?;
        } else {
            judged_rows.absorb(model, rows_seen, done)?;
            if rows_seen + done as i64 == until {
                model.call_method0(MODEL_MAYBE_REQUEST_FIT.name(py))?;
            }
        }
        side.outliers = beyond;
        self.taken += done as u64;
        Ok((done, asked))
    }
}

/// Rows that were judged, for the model to learn from.
struct JudgedRows<'a> {
    rows: &'a [f64],
    beyond: &'a [usize],
    out: &'a mut Vec<u8>,
    d: usize,
    more: usize,
    columns: Option<Columns>,
}

impl JudgedRows<'_> {
    /// Let them into the buffer, and the shadow score them: `BatchModel.take`.
    fn absorb(self, model: &Bound<'_, PyAny>, rows_seen: i64, count: usize) -> PyResult<()> {
        let py = model.py();
        let JudgedRows { rows, beyond, out, d, more, columns } = self;
        let shadow = if MODEL_SHADOW.is_none(model)? { None } else { Some(MODEL_SHADOW.get(model)?) };
        if let (Some(shadow), true) = (&shadow, count > 1) {
            if FIT_N_UNSCORED.int(shadow)? > 0 {
                model.call_method1(MODEL_CATCH_UP.name(py), (shadow,))?;
            }
            let rows = python_rows(py, rows, count)?;
            let scores = model.call_method1(MODEL_SCORES.name(py), (shadow, rows))?;
            FIT_SHADOW_SCORES.get(shadow)?.call_method1(intern!(py, "extend"), (scores,))?;
        }
        out.clear();
        out.resize(count, 0);
        if !MODEL_GUARD.is_none(model)? {
            rows::admit(&MODEL_GUARD.get(model)?, beyond, out)?;
        }
        let buffer = MODEL_ROWS.get(model)?;
        let taken = rows::extend(&buffer, rows, out, (d, more), columns)?;
        if taken < count {
            let width = rows.len() / count;
            let others = python_rows(py, &rows[taken * width..], count - taken)?;
            let out = PyBytes::new(py, &out[taken..]);
            buffer.call_method1(BUFFER_EXTEND.name(py), (others, out))?;
        }
        MODEL_ROWS_SEEN.set_int(model, rows_seen + count as i64)?;
        if let (Some(shadow), true) = (&shadow, count == 1) {
            let waiting = FIT_N_UNSCORED.int(shadow)? + 1;
            FIT_N_UNSCORED.set_int(shadow, waiting)?;
            if waiting >= MODEL_MOST_UNSCORED.int(model)?
                || BUFFER_N_OPEN.int(&buffer)? as usize == rows::BLOCK
                || FIT_FITTED.is_none(shadow)?
            {
                model.call_method1(MODEL_CATCH_UP.name(py), (shadow,))?;
            }
        }
        Ok(())
    }
}

/// Have Python judge the readings at some places.
pub fn in_python<'py>(
    state: &Bound<'py, PyAny>,
    batch: &Batch<'_, 'py>,
    places: &[usize],
) -> PyResult<()> {
    let py = state.py();
    let sum = SUM
        .get_or_try_init(py, || Ok::<_, PyErr>(py.import("builtins")?.getattr("sum")?.unbind()))?
        .bind(py);
    let (these, sums) = (PyList::empty(py), PyList::empty(py));
    for &place in places {
        let reading = batch.reading(place)?;
        sums.append(sum.call1((reading.get_item(3)?,))?)?;
        these.append(reading)?;
    }
    let part = PyList::new(py, places.iter().map(|_| py.None()))?;
    let mut beside = Vec::new();
    places.iter().for_each(|&place| beside.extend_from_slice(batch.beside(place)));
    let beside = batch.beside.as_ref().map(|_| PyBytes::new(py, as_bytes(&beside)));
    state.call_method1(STREAM_ADVANCE.name(py), (these, sums, &part, beside))?;
    for (&place, verdict) in places.iter().zip(part.iter()) {
        batch.verdicts.set_item(place, verdict)?;
    }
    Ok(())
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
    made.call1((PyBytes::new(py, as_bytes(flat)),))?.call_method1(intern!(py, "reshape"), (m, width))
}

/// A channel that rests: `types.RestingRange`, with the name by which its wake-ups are kept.
struct Resting {
    channel: usize,
    low: f64,
    high: f64,
    name: Py<PyAny>,
}

impl Resting {
    /// Return those that a fitted scorer does not score.
    fn of(state: &Bound<'_, PyAny>, scorer: &Bound<'_, PyAny>) -> PyResult<Vec<Resting>> {
        let Some(ranges) = scorer.getattr_opt(TABLE_RESTING.name(state.py()))? else {
            return Ok(Vec::new());
        };
        let channels = FEATURES_CHANNELS.get(&STREAM_FEATURES.get(state)?)?;
        let ranges: Vec<(usize, f64, f64)> = ranges.extract()?;
        let named = |(channel, low, high)| {
            Ok(Resting { channel, low, high, name: channels.get_item(channel)?.unbind() })
        };
        ranges.into_iter().map(named).collect()
    }
}

/// The wake-ups of a stream, which only Python counts (`incidents.resting.WakeUp`).
struct WakeUps<'a, 'py> {
    by_sensor: Bound<'py, PyDict>,
    resting: &'a [Resting],
    at_rest: i64, // readings at rest that end one
}

impl<'a, 'py> WakeUps<'a, 'py> {
    /// Return those of a stream, if it has any.
    fn of(state: &Bound<'py, PyAny>, resting: &'a [Resting]) -> PyResult<Option<WakeUps<'a, 'py>>> {
        if resting.is_empty() {
            return Ok(None);
        }
        let by_sensor = RESTING_WAKE_UPS.get(&STREAM_RESTING.get(state)?)?.cast_into::<PyDict>()?;
        let at_rest = RESTING_AT_REST.int(state.py())?;
        Ok((!by_sensor.is_empty()).then_some(WakeUps { by_sensor, resting, at_rest }))
    }

    /// Whether a channel of a sensor, of those that rest, is not yet over one.
    fn is_awake(&self, sensor: &Bound<'py, PyAny>) -> PyResult<bool> {
        let Some(own) = self.by_sensor.get_item(sensor)? else { return Ok(false) };
        let own = own.cast_into::<PyDict>()?;
        for resting in self.resting {
            if let Some(wake_up) = own.get_item(&resting.name)? {
                if WAKE_UP_QUIET.int(&wake_up)? < self.at_rest {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }
}

/// A sensor of a stream, and what makes its rows.
struct CachedSensor {
    sensor: Py<PyAny>,
    recent: Option<Recent>,
    is_begun: bool, // in the run that lasts
}

/// The sensors of a stream that are cached in a run.
struct Sensors<'a, 'py> {
    known: Bound<'py, PyDict>,
    at_once: bool,
    has_phases: bool,
    d: usize,
    cached: &'a mut Vec<CachedSensor>,
    wake_ups: Option<WakeUps<'a, 'py>>,
    newest: Option<(Bound<'py, PyAny>, usize)>, // the last name, and its number
}

impl<'a, 'py> Sensors<'a, 'py> {
    fn of(
        cached: &'a mut Vec<CachedSensor>,
        known: Bound<'py, PyDict>,
        (at_once, has_phases): (bool, bool),
        d: usize,
        wake_ups: Option<WakeUps<'a, 'py>>,
    ) -> Self {
        if cached.len() > MAX_CACHED {
            cached.clear();
        }
        cached.iter_mut().for_each(|cached| cached.is_begun = false);
        Sensors { known, at_once, has_phases, d, cached, wake_ups, newest: None }
    }

    /// Return the number of a sensor; `None` where Python has to make its rows, or counts its wake-ups.
    fn at(&mut self, name: &Bound<'py, PyAny>) -> PyResult<Option<usize>> {
        if let Some((_, n)) = self.newest.as_ref().filter(|(known, _)| known.is(name)) {
            return Ok(Some(*n));
        }
        let Some(sensor) = self.known.get_item(name)? else { return Ok(None) };
        let found = self.cached.iter().position(|cached| cached.sensor.is(&sensor));
        let n = found.unwrap_or(self.cached.len());
        if found.is_none() {
            self.cached.push(CachedSensor { sensor: sensor.clone().unbind(), recent: None, is_begun: false });
        }
        let cached = &mut self.cached[n];
        if let (false, Some(wake_ups)) = (cached.is_begun, &self.wake_ups) {
            if wake_ups.is_awake(name)? {
                return Ok(None);
            }
        }
        if !cached.is_begun && self.at_once {
            let is_same = match &cached.recent {
                Some(recent) => recent.is_of(&sensor)?,
                None => false,
            };
            if !is_same {
                cached.recent = Recent::of(&sensor)?;
            } else if let Some(recent) = &mut cached.recent {
                recent.begin();
            }
            if cached.recent.as_ref().is_none_or(|recent| recent.channels() != self.d) {
                cached.recent = None;
                return Ok(None);
            }
        }
        cached.is_begun = true;
        self.newest = Some((name.clone(), n));
        Ok(Some(n))
    }

    /// Append the row of a reading whose every channel is there.
    fn row(&mut self, sensor: usize, batch: &Batch<'_, '_>, place: usize, rows: &mut Vec<f64>) {
        let reading = batch.values(place);
        match &mut self.cached[sensor].recent {
            Some(recent) => recent.row(reading, rows),
            None => rows.extend_from_slice(reading),
        }
        if self.has_phases {
            calendar::phases(batch.times[place], rows);
        }
        rows.extend_from_slice(batch.beside(place));
    }

    /// Leave the state as it is after some readings; return what rows are made of.
    fn end(
        self,
        whose: &[usize],
        batch: &Batch<'_, 'py>,
        places: &[usize],
    ) -> PyResult<Option<Columns>> {
        let (py, mut columns) = (self.known.py(), None);
        for (n, cached) in self.cached.iter_mut().enumerate().filter(|(_, cached)| cached.is_begun) {
            let Some(last) = whose.iter().rposition(|&sensor| sensor == n) else { continue };
            let sensor = cached.sensor.bind(py);
            let values = batch.reading(places[last])?.get_item(3)?;
            if let Some(recent) = &mut cached.recent {
                RECENT_LAST.set(sensor, values)?;
                recent.end(whose.iter().filter(|&&sensor| sensor == n).count());
                RECENT_AGE.set(sensor, RECENT_YOUNG.get(sensor)?)?;
                columns = Some(recent.columns);
                continue;
            }
            SENSOR_LAST.set(sensor, values)?;
            if SENSOR_CARRY.truth(sensor)? {
                SENSOR_AGE.set(sensor, PyList::new(py, vec![0; self.d])?.into_any())?;
            }
        }
        Ok(columns)
    }
}
