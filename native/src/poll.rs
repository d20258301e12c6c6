//! The events of many streams in one call (`engine.Engine.process`).

use crate::guard::guarded;
use crate::lane::{in_python, Batch, Lane, Room, STAGES};
use crate::seam::*;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::sync::atomic::{AtomicU64, Ordering};

const MODE_MARK: u8 = 0x1f;
const MANY: usize = 32; // streams, of which not all is in the caches
const NONE: usize = usize::MAX;

static CALLS: AtomicU64 = AtomicU64::new(0);

/// A stream, and which readings of the poll are its own: the first, and from each the next.
struct Own<'py> {
    state: Bound<'py, PyAny>,
    lane: Option<Bound<'py, Lane>>,
    first: usize,
    last: usize,
}

/// Judge readings of `d` channels of any streams, each by its lane; in Python what is not ordinary.
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
) -> PyResult<Option<Judged<'py>>> {
    guarded(readings, || judged(stream, live, readings, d))
}

type Judged<'py> = (Bound<'py, PyList>, Vec<Bound<'py, PyAny>>);

fn judged<'py>(
    stream: &Bound<'py, PyAny>,
    live: &Bound<'py, PyDict>,
    readings: &Bound<'py, PyAny>,
    d: usize,
) -> PyResult<Option<Judged<'py>>> {
    let py = live.py();
    let count = match (readings.cast_exact::<PyList>(), readings.cast_exact::<PyTuple>()) {
        (Ok(list), _) => list.len(),
        (_, Ok(tuple)) => tuple.len(),
        _ => return Ok(None),
    };
    let verdicts = PyList::new(py, (0..count).map(|_| py.None()))?;
    let values = Vec::with_capacity(count * d);
    let mut batch = Batch { readings, values, d, verdicts: &verdicts };
    if !are_plain(&mut batch, count)? {
        return Ok(None);
    }
    let (streams, next) = by_stream(stream, live, &batch, count)?;
    let mut asked = Vec::new();
    let mut places = Vec::new();
    let is_many = streams.len() >= MANY;
    for (k, own) in streams.iter().enumerate() {
        for stage in 0..if is_many { STAGES } else { 0 } {
            let Some(later) = streams.get(k + STAGES - stage) else { continue };
            if let Some(lane) = &later.lane {
                lane.try_borrow()?.ahead(&later.state, stage)?;
            }
        }
        places.clear();
        let mut at = own.first;
        while at != NONE {
            places.push(at);
            at = next[at];
        }
        let told = match &own.lane {
            Some(lane) => {
                let mut lane = lane.try_borrow_mut()?;
                Room::with(|room| lane.go(&own.state, &batch, &places, room))?
            }
            None => {
                in_python(&own.state, &batch, &places)?;
                true
            }
        };
        if told {
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
) -> PyResult<(Vec<Own<'py>>, Vec<usize>)> {
    let call = CALLS.fetch_add(1, Ordering::Relaxed) + 1;
    let mut streams: Vec<Own<'py>> = Vec::new();
    let mut next = vec![NONE; count];
    let (mut key_before, mut number) = (std::ptr::null_mut(), 0);
    for i in 0..count {
        let reading = batch.reading(i)?;
        // SAFETY: a tuple, as was looked at, which holds its key.
        let key = unsafe { ffi::PyTuple_GetItem(reading.as_ptr(), 0) };
        if key != key_before {
            // SAFETY: as above.
            let name = unsafe { Bound::from_borrowed_ptr(live.py(), key) };
            let state = match live.get_item(&name)? {
                Some(state) => state,
                None => stream.call1((&name,))?,
            };
            let lane = STREAM_LANE.get(&state)?.cast_into_exact::<Lane>().ok();
            let known = match &lane {
                Some(lane) => {
                    let lane = lane.try_borrow()?;
                    (lane.turn.0 == call).then_some(lane.turn.1)
                }
                None => streams.iter().position(|own| own.state.is(&state)),
            };
            number = match known {
                Some(known) => known,
                None => {
                    if let Some(lane) = &lane {
                        lane.try_borrow_mut()?.turn = (call, streams.len());
                    }
                    live.del_item(&name)?;
                    live.set_item(&name, &state)?;
                    streams.push(Own { state, lane, first: i, last: NONE });
                    streams.len() - 1
                }
            };
            key_before = key;
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
    let kind = TYPES_READING.get(py)?.as_ptr().cast();
    let mut known = std::ptr::null_mut(); // a name that was looked at
    for i in 0..count {
        let reading = batch.reading(i)?;
        // SAFETY: a Reading is a tuple of five, which holds what is looked at.
        unsafe {
            if ffi::Py_TYPE(reading.as_ptr()) != kind {
                return Ok(false);
            }
            let item = |j| ffi::PyTuple_GetItem(reading.as_ptr(), j);
            for name in [item(0), item(1)] {
                if name != known && !is_name(py, name) {
                    return Ok(false);
                }
                known = name;
            }
            let (time, values) = (item(2), item(3));
            let mut beyond = 0;
            if ffi::PyLong_CheckExact(time) == 0 || ffi::PyTuple_CheckExact(values) == 0 {
                return Ok(false);
            }
            ffi::PyLong_AsLongLongAndOverflow(time, &mut beyond);
            if beyond != 0 || ffi::PyTuple_Size(values) != d as ffi::Py_ssize_t {
                return Ok(false);
            }
            for j in 0..d {
                let value = ffi::PyTuple_GetItem(values, j as ffi::Py_ssize_t);
                if ffi::PyFloat_CheckExact(value) == 0 {
                    return Ok(false);
                }
                batch.values.push(ffi::PyFloat_AsDouble(value));
            }
        }
    }
    Ok(count > 0)
}

/// Whether it is a text that a snapshot can hold, without the mark that stands before a mode.
unsafe fn is_name(py: Python<'_>, name: *mut ffi::PyObject) -> bool {
    if ffi::PyUnicode_CheckExact(name) == 0 {
        return false;
    }
    let mut size = 0;
    let text = ffi::PyUnicode_AsUTF8AndSize(name, &mut size);
    if text.is_null() {
        drop(PyErr::take(py)); // a lone surrogate
        return false;
    }
    !std::slice::from_raw_parts(text.cast::<u8>(), size as usize).contains(&MODE_MARK)
}
