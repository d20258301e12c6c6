//! The events of many streams in one call (`engine.Engine.process`).

use crate::guard::guarded;
use crate::fast_path::{in_python, Batch, FastPath, Room, PREFETCH_STAGES};
use crate::object::{is_exactly, tuple_items};
use crate::seam::*;
use crate::view::View;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyFloat, PyInt, PyList, PyString, PyTuple, PyType};
use std::sync::atomic::{AtomicU64, Ordering};

const MANY: usize = 32; // streams, of which not all is in the caches
const NONE: usize = usize::MAX;

static CALLS: AtomicU64 = AtomicU64::new(0);

/// A stream, and which readings of the poll are its own: the first, and from each the next.
struct StreamReadings<'py> {
    state: Bound<'py, PyAny>,
    fast_path: Option<Bound<'py, FastPath>>,
    first: usize,
    last: usize,
}

/// Judge readings of `d` channels of any streams, each by its fast_path; in Python what is not ordinary.
/// `beside` are the ends of their rows: what siblings say.
///
/// `stream` makes the state of a key that is not in `live`; a key that is heard of goes to its
/// end. Returns the verdicts, and the streams of which an incident may have changed. `None`,
/// and nothing has happened, where Python has to look at the readings first.
#[pyfunction]
pub fn poll<'py>(
    stream: &Bound<'py, PyAny>,
    live: &Bound<'py, PyDict>,
    readings: &Bound<'py, PyAny>,
    d: usize,
    beside: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Judged<'py>>> {
    guarded(readings, || judged(stream, live, readings, d, beside))
}

type Judged<'py> = (Bound<'py, PyList>, Vec<Bound<'py, PyAny>>);

fn judged<'py>(
    stream: &Bound<'py, PyAny>,
    live: &Bound<'py, PyDict>,
    readings: &Bound<'py, PyAny>,
    d: usize,
    beside: Option<&Bound<'py, PyAny>>,
) -> PyResult<Option<Judged<'py>>> {
    let py = live.py();
    let count = match (readings.cast_exact::<PyList>(), readings.cast_exact::<PyTuple>()) {
        (Ok(list), _) => list.len(),
        (_, Ok(tuple)) => tuple.len(),
        _ => return Ok(None),
    };
    let verdicts = PyList::new(py, (0..count).map(|_| py.None()))?;
    let (values, times) = (Vec::with_capacity(count * d), Vec::with_capacity(count));
    let beside = beside.map(|beside| View::of(beside, false)).transpose()?;
    let more = beside.as_ref().map_or(0, |beside| beside.get().len() / count.max(1));
    let mut batch = Batch { readings, values, times, d, beside, more, verdicts: &verdicts };
    if !are_plain(&mut batch, count)? {
        return Ok(None);
    }
    let (streams, next) = by_stream(stream, live, &batch, count)?;
    let mut asked = Vec::new();
    let mut places = Vec::new();
    let is_many = streams.len() >= MANY;
    for (k, own) in streams.iter().enumerate() {
        for stage in 0..if is_many { PREFETCH_STAGES } else { 0 } {
            let Some(later) = streams.get(k + PREFETCH_STAGES - stage) else { continue };
            if let Some(fast_path) = &later.fast_path {
                fast_path.try_borrow()?.prefetch(&later.state, stage)?;
            }
        }
        places.clear();
        let mut at = own.first;
        while at != NONE {
            places.push(at);
            at = next[at];
        }
        let was_asked = match &own.fast_path {
            Some(fast_path) => {
                let mut fast_path = fast_path.try_borrow_mut()?;
                Room::with(|room| fast_path.go(&own.state, &batch, &places, room))?
            }
            None => {
                in_python(&own.state, &batch, &places)?;
                true
            }
        };
        if was_asked {
            asked.push(own.state.clone());
        }
    }
    Ok(Some((verdicts, asked)))
}

/// Return the streams in the order in which they are met, and of each reading the next of its own.
fn by_stream<'py>(
    stream: &Bound<'py, PyAny>,
    live: &Bound<'py, PyDict>,
    batch: &Batch<'_, 'py>,
    count: usize,
) -> PyResult<(Vec<StreamReadings<'py>>, Vec<usize>)> {
    let call = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    let mut streams: Vec<StreamReadings<'py>> = Vec::new();
    let mut next = vec![NONE; count];
    let (mut key_before, mut number) = (None::<Bound<'py, PyAny>>, 0);
    for i in 0..count {
        let reading = batch.reading(i)?;
        let key = reading.cast::<PyTuple>()?.get_borrowed_item(0)?;
        if !key_before.as_ref().is_some_and(|before| before.is(key)) {
            let name = key.to_owned();
            let state = match live.get_item(&name)? {
                Some(state) => state,
                None => stream.call1((&name,))?,
            };
            let fast_path = STREAM_FAST_PATH.get(&state)?.cast_into_exact::<FastPath>().ok();
            let known = match &fast_path {
                Some(fast_path) => {
                    let fast_path = fast_path.try_borrow()?;
                    (fast_path.turn.0 == call).then_some(fast_path.turn.1)
                }
                None => streams.iter().position(|own| own.state.is(&state)),
            };
            number = match known {
                Some(known) => known,
                None => {
                    if let Some(fast_path) = &fast_path {
                        fast_path.try_borrow_mut()?.turn = (call, streams.len());
                    }
                    live.del_item(&name)?;
                    live.set_item(&name, &state)?;
                    streams.push(StreamReadings { state, fast_path, first: i, last: NONE });
                    streams.len() - 1
                }
            };
            key_before = Some(name);
        }
        let own = &mut streams[number];
        if own.last != NONE {
            next[own.last] = i;
        }
        own.last = i;
    }
    Ok((streams, next))
}

/// Take the values of readings; whether all are as decoders make them, so that nothing is wrong.
fn are_plain(batch: &mut Batch<'_, '_>, count: usize) -> PyResult<bool> {
    let (py, d) = (batch.readings.py(), batch.d);
    let class = TYPES_READING.get(py)?.cast::<PyType>()?.clone().unbind();
    let mark: &str = TYPES_MODE_MARK.get(py)?.extract()?;
    let mut known: Option<Bound<'_, PyAny>> = None; // a name that was looked at
    for i in 0..count {
        let reading = batch.reading(i)?;
        let reading = reading.as_borrowed();
        let (true, Some([key, sensor, time, values, _])) =
            (is_exactly(reading, &class), tuple_items::<5>(reading))
        else {
            return Ok(false);
        };
        for name in [key, sensor] {
            if !known.as_ref().is_some_and(|known| known.is(name)) {
                if !is_name(&name, mark) {
                    return Ok(false);
                }
                known = Some(name.to_owned());
            }
        }
        let (Ok(time), Ok(values)) = (time.cast_exact::<PyInt>(), values.cast_exact::<PyTuple>()) else {
            return Ok(false);
        };
        let Ok(time) = time.extract::<i64>() else { return Ok(false) };
        if values.len() != d {
            return Ok(false);
        }
        batch.times.push(time);
        for value in values.iter_borrowed() {
            let Ok(value) = value.cast_exact::<PyFloat>() else { return Ok(false) };
            batch.values.push(value.value());
        }
    }
    Ok(count > 0)
}

/// Whether it is a text that a snapshot can hold, without the mark that stands before a mode.
fn is_name(name: &Bound<'_, PyAny>, mark: &str) -> bool {
    // A lone surrogate has no UTF-8.
    let Ok(Ok(text)) = name.cast_exact::<PyString>().map(|text| text.to_str()) else { return false };
    !text.contains(mark)
}
