//! Outcomes as messages (`rejex_connectors.kafka.messages.OutcomeMessages`): values and headers.
//!
//! A verdict, its review item and what follows that are made here where all of them are ordinary and
//! surely fit; an outcome with anything else is left to Python, with nothing made of it.

use crate::prefetch;
use crate::guard::{self, guarded};
use crate::object::{bytes_of, is_empty, text_of, tuple_items, whole, Layout, Object, TupleClass};
use crate::seam::*;
use crate::slot::Slot;
use crate::json::{escaped, text, FixedBytes, JsonWriter};
use pyo3::exceptions::{PyTypeError, PyUnicodeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString, PyTuple};

/// A verdict as one line of JSON, full or lean.
#[pyclass(module = "rejex_native._core", frozen)]
pub struct Lines {
    writer: JsonWriter,
    verdict: Layout,
    full: Vec<(FixedBytes, usize)>, // `,"name":`, and where its value is
    lean: Vec<(FixedBytes, usize)>,
    position: usize,
    unset: Py<PyAny>,
    is_lean: bool,
}

#[pymethods]
impl Lines {
    #[new]
    fn new(py: Python<'_>, form: &str) -> PyResult<Lines> {
        let verdict = Layout::of(TYPES_VERDICT.get(py)?)?;
        let lean = RECORDS_LEAN_VERDICT_RECORD.get(py)?;
        let lean: Vec<String> = lean.getattr("__struct_fields__")?.extract()?;
        let named = |name: &str| {
            let written = FixedBytes::of(format!(",\"{name}\":").as_bytes());
            Ok((written.ok_or_else(|| PyTypeError::new_err("a long name"))?, verdict.place(name)?))
        };
        let full = verdict.names().filter(|&name| name != "position");
        Ok(Lines {
            writer: JsonWriter::of(py)?,
            full: full.map(named).collect::<PyResult<_>>()?,
            lean: lean[1..].iter().map(|name| named(name)).collect::<PyResult<_>>()?,
            position: verdict.at(&VERDICT_POSITION)?,
            unset: UNSET.get(py)?.clone().unbind(),
            is_lean: form == "lean",
            verdict,
        })
    }

    /// Return a verdict as Python encodes it; None where Python has to.
    fn verdict<'py>(&self, verdict: &Bound<'py, PyAny>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        guarded(verdict, || {
            let mut line = Vec::with_capacity(1024);
            let found = self.line(verdict.py(), verdict.as_borrowed(), self.is_lean, &mut line);
            let is_ours = ours(verdict.py(), found.map(Some))?.unwrap_or(false);
            Ok(is_ours.then(|| PyBytes::new(verdict.py(), &line)))
        })
    }
}

impl Lines {
    fn line(&self, py: Python<'_>, verdict: Object<'_, '_>, lean: bool, out: &mut Vec<u8>) -> PyResult<bool> {
        if !self.verdict.is(verdict) {
            return Ok(false);
        }
        let Some(place) = Position::of(self.verdict.get(verdict, self.position))? else {
            return Ok(false);
        };
        out.extend_from_slice(b"{\"id\":\"");
        escaped(place.topic, out);
        place.numbers(out);
        out.push(b'"');
        if !lean {
            out.extend_from_slice(b",\"topic\":");
            text(place.topic, out);
            named(b",\"partition\":", place.partition, out);
            named(b",\"offset\":", place.offset, out);
        }
        for (name, at) in if lean { &self.lean } else { &self.full } {
            let value = self.verdict.get(verdict, *at);
            if !value.is(&self.unset) {
                name.write(out);
                self.writer.value(py, value, out)?;
            }
        }
        out.push(b'}');
        Ok(true)
    }

    /// Have the fields of a verdict fetched, or where they lie.
    fn prefetch(&self, verdict: Object<'_, '_>, fields: bool) {
        if !fields {
            prefetch::lines(verdict, 5);
        } else if self.verdict.is(verdict) {
            for (_, at) in if self.is_lean { &self.lean } else { &self.full } {
                prefetch::lines(self.verdict.get(verdict, *at), 1);
            }
        }
    }
}

/// Return what was made; `None` of what cannot be written: Python says so.
fn ours<T>(py: Python<'_>, found: PyResult<Option<T>>) -> PyResult<Option<T>> {
    match found {
        Err(error) if error.is_instance_of::<PyUnicodeError>(py) => Ok(None),
        found => found,
    }
}

/// Return any value as JSON.
#[pyfunction]
pub fn written<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let mut out = Vec::new();
    JsonWriter::of(value.py())?.value(value.py(), value.as_borrowed(), &mut out)?;
    Ok(PyBytes::new(value.py(), &out))
}

fn named(name: &[u8], number: i64, out: &mut Vec<u8>) {
    out.extend_from_slice(name);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// The parts of a position.
struct Position<'a> {
    topic: &'a [u8],
    partition: i64,
    offset: i64,
    reading: i64,
}

impl<'a> Position<'a> {
    fn of(position: Object<'a, '_>) -> PyResult<Option<Position<'a>>> {
        let Some([topic, partition, offset, reading]) = tuple_items::<4>(position) else {
            return Ok(None);
        };
        let numbers = (whole(partition), whole(offset), whole(reading));
        let (Some(partition), Some(offset), Some(reading)) = numbers else { return Ok(None) };
        let Ok(topic) = topic.cast_exact::<PyString>() else { return Ok(None) };
        Ok(Some(Position { topic: text_of(topic)?.as_bytes(), partition, offset, reading }))
    }

    /// Write what stands behind the topic in the id of an event.
    fn numbers(&self, out: &mut Vec<u8>) {
        named(b"-", self.partition, out);
        named(b"-", self.offset, out);
        if self.reading != 0 {
            named(b".", self.reading, out);
        }
    }
}

/// What of its headers an event shares with no other: its id, time, subject and trace.
type OwnHeaders<'py> = [Option<Bound<'py, PyTuple>>; 5];

/// The headers of one kind of event.
struct Headers {
    fixed: Vec<Py<PyAny>>,
    version: String,
    last_ms: i64,
    max_trace: usize, // bytes
}

impl Headers {
    fn of(made: &Bound<'_, PyAny>) -> PyResult<Headers> {
        let fixed = HEADERS_FIXED.get(made)?.try_iter()?.map(|one| Ok(one?.unbind()));
        let fixed = fixed.collect::<PyResult<_>>()?;
        Ok(Headers {
            fixed,
            version: HEADERS_VERSION.get(made)?.extract()?,
            last_ms: MAPPING_MAX_EPOCH_MS.int(made.py())?,
            max_trace: MESSAGES_TRACE_BYTES.get(made.py())?.extract()?,
        })
    }

    fn list<'py>(&self, py: Python<'py>, own: &OwnHeaders<'py>) -> PyResult<Bound<'py, PyList>> {
        let mut all: Vec<Object<'_, 'py>> = Vec::with_capacity(self.fixed.len() + own.len());
        all.extend(self.fixed.iter().map(|one| one.bind_borrowed(py)));
        all.extend(own.iter().flatten().map(|one| one.as_any().as_borrowed()));
        PyList::new(py, all)
    }
}

/// Makes the messages of ordinary outcomes as an `OutcomeMessages` would.
#[pyclass(module = "rejex_native._core", frozen)]
pub struct Messages {
    lines: Lines,
    review: Layout,
    after: Layout,
    message: TupleClass,
    verdict_headers: Headers,
    review_headers: Headers,
    after_headers: Headers,
    topic: Py<PyAny>,
    review_topic: Py<PyAny>,
    n: i64,
    n_review: i64,
    limit: i64,
    surely_fits: i64,
    sensor: usize,
    time: usize,
}

#[pymethods]
impl Messages {
    #[new]
    fn new(of: &Bound<'_, PyAny>, form: &str) -> PyResult<Messages> {
        let py = of.py();
        let lines = Lines::new(py, form)?;
        let headers = MESSAGES_VERDICT_HEADERS.get(of)?;
        let limit = MESSAGES_LIMIT.get(of)?.extract::<i64>()?;
        Ok(Messages {
            review: Layout::of(TYPES_REVIEW_ITEM.get(py)?)?,
            after: Layout::of(TYPES_FOLLOW_UP.get(py)?)?,
            message: TupleClass::of(CLIENTS_MESSAGE.get(py)?)?,
            verdict_headers: Headers::of(&headers)?,
            review_headers: Headers::of(&MESSAGES_REVIEW_HEADERS.get(of)?)?,
            after_headers: Headers::of(&MESSAGES_FOLLOW_UP_HEADERS.get(of)?)?,
            topic: MESSAGES_VERDICTS.get(of)?.unbind(),
            review_topic: MESSAGES_REVIEW.get(of)?.unbind(),
            n: MESSAGES_N_VERDICTS.get(of)?.extract()?,
            n_review: MESSAGES_N_REVIEW.get(of)?.extract()?,
            limit,
            surely_fits: limit - HEADERS_MOST.get(&headers)?.extract::<i64>()?,
            sensor: lines.verdict.at(&VERDICT_SENSOR)?,
            time: lines.verdict.at(&VERDICT_EVENT_TIME_MS)?,
            lines,
        })
    }

    /// Return the messages of outcomes; `python` makes those of one that is not ordinary.
    fn of<'py>(
        &self,
        outcomes: &Bound<'py, PyList>,
        python: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        guarded(outcomes, || {
            let py = outcomes.py();
            let made = PyList::empty(py);
            let mut room = Vec::with_capacity(4096);
            for (at, outcome) in outcomes.iter().enumerate() {
                guard::at(at);
                for (prefetch, fields) in [(3, false), (1, true)] {
                    self.fetch(outcomes, at + prefetch, fields);
                }
                if let Some(ours) = ours(py, self.ordinary(&outcome, &mut room))? {
                    for message in ours.into_iter().flatten() {
                        made.append(message)?;
                    }
                    continue;
                }
                for message in python.call1((PyList::new(py, [outcome])?,))?.try_iter()? {
                    made.append(message?)?;
                }
            }
            Ok(made)
        })
    }
}

impl Messages {
    /// Have an outcome fetched that will be written soon.
    fn fetch(&self, outcomes: &Bound<'_, PyList>, at: usize, fields: bool) {
        let Ok(outcome) = outcomes.get_item(at) else { return };
        let Some([record, verdict, ..]) = tuple_items::<7>(outcome.as_borrowed()) else { return };
        self.lines.prefetch(verdict, fields);
        if !fields {
            prefetch::lines(record, 2);
        } else if let Some([position, key, ..]) = tuple_items::<5>(record) {
            prefetch::lines(position, 2);
            prefetch::lines(key, 1);
        }
    }

    /// Return the messages of an outcome; `None` where Python has to make them.
    fn ordinary<'py>(
        &self,
        outcome: &Bound<'py, PyAny>,
        room: &mut Vec<u8>,
    ) -> PyResult<Option<[Option<Bound<'py, PyTuple>>; 2]>> {
        let py = outcome.py();
        let parts = tuple_items::<7>(outcome.as_borrowed());
        let Some([record, verdict, _, review, incidents, replies, after]) = parts else {
            return Ok(None);
        };
        if !self.lines.verdict.is(verdict) || !is_empty(incidents) || !is_empty(replies) {
            return Ok(None);
        }
        let Some([position, key, _, original, _]) = tuple_items::<5>(record) else { return Ok(None) };
        let Some(place) = Position::of(position)? else { return Ok(None) };
        room.clear();
        if !self.lines.line(py, verdict, self.lines.is_lean, room)? {
            return Ok(None);
        }
        let sensor = self.lines.verdict.get(verdict, self.sensor);
        let Some(time) = whole(self.lines.verdict.get(verdict, self.time)) else { return Ok(None) };
        let Some(own) = own_headers(py, &place, sensor, time, original, &self.verdict_headers, room)? else {
            return Ok(None);
        };
        let n_key = match key.cast::<PyBytes>() {
            Ok(key) => bytes_of(key).len() as i64,
            Err(_) if key.is_none() => 0,
            Err(_) => return Ok(None),
        };
        let n_sensor = sensor.cast::<PyString>()?.to_str()?.len() as i64;
        if room.len() as i64 + n_key + 4 * n_sensor > self.surely_fits {
            return Ok(None);
        }
        let headers = self.verdict_headers.list(py, &own)?;
        let value = PyBytes::new(py, room);
        let first = self.message(py, &self.topic, place.partition % self.n, key, value, headers)?;
        let headers = if !review.is_none() {
            if !self.review(py, review, verdict, room)? {
                return Ok(None);
            }
            self.review_headers.list(py, &own)?
        } else if !after.is_none() {
            let Some(last_ms) = self.follow_up(py, after, &place, room)? else { return Ok(None) };
            let sensor = self.after.get(after, self.after.at(&FOLLOW_UP_SENSOR)?);
            let own = own_headers(py, &place, sensor, last_ms, original, &self.after_headers, room)?;
            let Some(own) = own else { return Ok(None) };
            self.after_headers.list(py, &own)?
        } else {
            return Ok(Some([Some(first), None]));
        };
        let mut most = room.len() as i64 + n_key + 64 * headers.len() as i64;
        for header in headers.iter() {
            most += header.get_item(1)?.len()? as i64;
        }
        if most > self.limit {
            return Ok(None);
        }
        let (value, to) = (PyBytes::new(py, room), place.partition % self.n_review);
        let second = self.message(py, &self.review_topic, to, key, value, headers)?;
        Ok(Some([Some(first), Some(second)]))
    }

    fn message<'py>(
        &self,
        py: Python<'py>,
        topic: &Py<PyAny>,
        partition: i64,
        key: Object<'_, 'py>,
        value: Bound<'py, PyBytes>,
        headers: Bound<'py, PyList>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let partition = partition.into_pyobject(py)?.into_any();
        let (value, headers) = (value.into_any(), headers.into_any());
        let topic = topic.bind_borrowed(py);
        let fields =
            [topic, partition.as_borrowed(), key, value.as_borrowed(), headers.as_borrowed()];
        self.message.make(py, fields)
    }

    /// Write a review item; `out` holds the line of its outcome's verdict. False: Python has to.
    fn review(&self, py: Python<'_>, item: Object<'_, '_>, verdict: Object<'_, '_>, out: &mut Vec<u8>) -> PyResult<bool> {
        if !self.review.is(item) {
            return Ok(false);
        }
        let get = |slot: &Slot| Ok::<_, PyErr>(self.review.get(item, self.review.at(slot)?));
        let Some(lines) = self.points(py, get(&REVIEW_ITEM_CONTEXT)?)? else { return Ok(false) };
        let whose = get(&REVIEW_ITEM_VERDICT)?;
        let line = if self.lines.is_lean || !whose.is(verdict) {
            let mut line = Vec::with_capacity(1024);
            if !self.lines.line(py, whose, false, &mut line)? {
                return Ok(false);
            }
            line
        } else {
            out.clone()
        };
        let Some(place) = Position::of(self.lines.verdict.get(whose, self.lines.position))? else {
            return Ok(false);
        };
        out.clear();
        out.extend_from_slice(b"{\"id\":\"");
        escaped(place.topic, out);
        place.numbers(out);
        out.push(b'"');
        for slot in [
            &REVIEW_ITEM_SCHEMA_VERSION, &REVIEW_ITEM_WHY, &REVIEW_ITEM_CHANNELS, &REVIEW_ITEM_VALUES,
        ] {
            out.extend_from_slice(format!(",\"{}\":", slot.text()).as_bytes());
            self.lines.writer.value(py, get(slot)?, out)?;
        }
        out.extend_from_slice(b",\"verdict\":");
        out.extend_from_slice(&line);
        joined(b",\"context\":[", &lines, out)?;
        out.extend_from_slice(b",\"drawn\":");
        self.lines.writer.value(py, get(&REVIEW_ITEM_DRAWN)?, out)?;
        out.push(b'}');
        Ok(true)
    }

    /// Write a follow-up and return the time of its last point; `None`: Python has to.
    fn follow_up(
        &self,
        py: Python<'_>,
        item: Object<'_, '_>,
        place: &Position<'_>,
        out: &mut Vec<u8>,
    ) -> PyResult<Option<i64>> {
        if !self.after.is(item) {
            return Ok(None);
        }
        let get = |slot: &Slot| Ok::<_, PyErr>(self.after.get(item, self.after.at(slot)?));
        let Some(lines) = self.points(py, get(&FOLLOW_UP_POINTS)?)? else { return Ok(None) };
        let Some(of) = Position::of(get(&FOLLOW_UP_OF)?)? else { return Ok(None) };
        let Some(own) = Position::of(get(&FOLLOW_UP_POSITION)?)? else { return Ok(None) };
        let same = (own.topic, own.partition, own.offset, own.reading)
            == (place.topic, place.partition, place.offset, place.reading);
        let Some(last) = lines.as_ref().and_then(|lines| lines.iter().last()) else { return Ok(None) };
        let last = last.cast_into::<PyBytes>()?;
        let last = last.as_bytes().strip_prefix(b"{\"event_time_ms\":").unwrap_or(b"");
        let digits = last.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let last_ms = std::str::from_utf8(&last[..digits]).ok().and_then(|text| text.parse().ok());
        let (Some(last_ms), true) = (last_ms, same) else { return Ok(None) };
        out.clear();
        out.extend_from_slice(b"{\"id\":\"");
        escaped(place.topic, out);
        place.numbers(out);
        out.extend_from_slice(b"\",\"topic\":");
        text(place.topic, out);
        named(b",\"partition\":", place.partition, out);
        named(b",\"offset\":", place.offset, out);
        out.extend_from_slice(b",\"schema_version\":");
        self.lines.writer.value(py, get(&FOLLOW_UP_SCHEMA_VERSION)?, out)?;
        out.extend_from_slice(b",\"follows\":\"");
        escaped(of.topic, out);
        of.numbers(out);
        out.push(b'"');
        named(b",\"follows_offset\":", of.offset, out);
        for slot in [&FOLLOW_UP_STREAM_KEY, &FOLLOW_UP_SENSOR, &FOLLOW_UP_CHANNELS] {
            out.extend_from_slice(format!(",\"{}\":", slot.text()).as_bytes());
            self.lines.writer.value(py, get(slot)?, out)?;
        }
        joined(b",\"points\":[", &lines, out)?;
        for slot in [&FOLLOW_UP_N_SINCE, &FOLLOW_UP_LAST] {
            out.extend_from_slice(format!(",\"{}\":", slot.text()).as_bytes());
            self.lines.writer.value(py, get(slot)?, out)?;
        }
        out.push(b'}');
        Ok(Some(last_ms))
    }

    /// Return the JSON of points; inside `None` where there are none, outside where Python has them.
    #[allow(clippy::type_complexity)]
    fn points<'py>(&self, py: Python<'py>, points: Object<'_, 'py>) -> PyResult<Option<Option<Bound<'py, PyTuple>>>> {
        if is_empty(points) {
            return Ok(Some(None));
        }
        let Some(lines) = points.getattr_opt(POINTS_LINES.name(py))? else { return Ok(None) };
        Ok(Some(Some(lines.cast_into()?)))
    }
}

fn joined(name: &[u8], lines: &Option<Bound<'_, PyTuple>>, out: &mut Vec<u8>) -> PyResult<()> {
    out.extend_from_slice(name);
    for (at, line) in lines.iter().flat_map(|lines| lines.iter()).enumerate() {
        if at > 0 {
            out.push(b',');
        }
        out.extend_from_slice(line.cast::<PyBytes>()?.as_bytes());
    }
    out.push(b']');
    Ok(())
}

/// Render a time as RFC 3339 has it, from 1970 to the end of 9999.
fn moment(ms: i64) -> [u8; 24] {
    let (days, ms) = (ms / 86_400_000, ms % 86_400_000);
    // Days of the era of 400 years that begins with March of the year 0.
    let shifted = days + 719_468;
    let (era, day) = (shifted / 146_097, shifted % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + 400 * era + i64::from(month <= 2);
    let mut out = *b"0000-00-00T00:00:00.000Z";
    let seconds = ms / 1000;
    for (at, n, mut number) in [
        (0, 4, year),
        (5, 2, month),
        (8, 2, day),
        (11, 2, seconds / 3600),
        (14, 2, seconds / 60 % 60),
        (17, 2, seconds % 60),
        (20, 3, ms % 1000),
    ] {
        for digit in out[at..at + n].iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
    }
    out
}

fn pair<'py>(
    name: &Bound<'py, PyString>,
    value: Bound<'py, PyBytes>,
) -> PyResult<Bound<'py, PyTuple>> {
    PyTuple::new(name.py(), [name.as_any(), value.as_any()])
}

/// Return those headers that no other event has, with its trace; `None`: Python has to make them.
fn own_headers<'py>(
    py: Python<'py>,
    place: &Position<'_>,
    subject: Object<'_, 'py>,
    time: i64,
    original: Object<'_, 'py>,
    of: &Headers,
    room: &mut Vec<u8>,
) -> PyResult<Option<OwnHeaders<'py>>> {
    if !(0..=of.last_ms).contains(&time) {
        return Ok(None);
    }
    let Ok(subject) = subject.cast_exact::<PyString>() else { return Ok(None) };
    let from = room.len(); // behind what is written there
    room.extend_from_slice(place.topic);
    place.numbers(room);
    room.extend_from_slice(of.version.as_bytes());
    let id = pair(intern!(py, "ce_id"), PyBytes::new(py, &room[from..]));
    room.truncate(from);
    let time = pair(intern!(py, "ce_time"), PyBytes::new(py, &moment(time)));
    let subject = pair(intern!(py, "ce_subject"), PyBytes::new(py, text_of(subject)?.as_bytes()));
    let mut own = [Some(id?), Some(time?), Some(subject?), None, None];
    if !is_empty(original) {
        let known = (intern!(py, "traceparent"), intern!(py, "tracestate"));
        let mut found = [false; 2];
        for header in original.cast::<PyTuple>()?.iter_borrowed() {
            let Some([name, value]) = tuple_items::<2>(header) else { return Ok(None) };
            let size = value.cast::<PyBytes>().ok().map(|value| bytes_of(value).len());
            let which = usize::from(!name.eq(known.0)?);
            if which == 1 && !name.eq(known.1)? {
                continue;
            }
            if value.is_none() || size.is_some_and(|size| size > of.max_trace) {
                continue;
            }
            if size.is_none() {
                return Ok(None);
            }
            if !std::mem::replace(&mut found[which], true) {
                let at = if own[3].is_none() { 3 } else { 4 };
                own[at] = Some(PyTuple::new(py, [name, value])?);
            }
        }
    }
    Ok(Some(own))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc_3339_has_them() {
        for (ms, expected) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ] {
            assert_eq!(std::str::from_utf8(&moment(ms)).unwrap(), expected);
        }
    }
}
