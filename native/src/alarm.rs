//! The alarm's statistic of a stream that is not held (`incidents.ewma.EwmaChart`).

use crate::judge::AlarmInput;
use crate::seam::*;
use pyo3::prelude::*;
use pyo3::types::PyList;


/// The numbers of an `EwmaChart`, while no incident is open.
struct Numbers {
    level: f64,
    top: f64,
    events: i64,
    begun_ms: i64,
    length: i64,
    rising: bool,
    are_early: bool, // whether all blocks are of a window that was not full
}

impl Numbers {
    fn of(tracker: &Bound<'_, PyAny>, alarm: &Bound<'_, PyAny>) -> PyResult<Numbers> {
        Ok(Numbers {
            level: ALARM_LEVEL.float(alarm)?,
            top: ALARM_TOP.float(alarm)?,
            events: ALARM_EVENTS.int(alarm)?,
            begun_ms: ALARM_BEGUN_MS.int(alarm)?,
            length: ALARM_BLOCK_LENGTH.int(alarm)?,
            are_early: ALARM_N_EARLY.int(alarm)? as usize == ALARM_BLOCK_MAXIMA.get(alarm)?.len()?,
            rising: !TRACKER_CANDIDATE.is_none(tracker)?,
        })
    }

    fn write_back(&self, tracker: &Bound<'_, PyAny>, alarm: &Bound<'_, PyAny>) -> PyResult<()> {
        ALARM_LEVEL.set_float(alarm, self.level)?;
        ALARM_TOP.set_float(alarm, self.top)?;
        ALARM_EVENTS.set_int(alarm, self.events)?;
        ALARM_BEGUN_MS.set_int(alarm, self.begun_ms)?;
        if !self.rising {
            TRACKER_CANDIDATE.set_none(tracker)?;
        }
        Ok(())
    }
}

/// Look at verdicts as `IncidentTracker.follow` does: event `which[i]` is `inputs[i]`.
///
/// Returns whether Python was asked, which may tell of an incident.
pub fn follow<'py>(
    tracker: &Bound<'py, PyAny>,
    readings: &Bound<'py, PyAny>,
    which: &[usize],
    verdicts: &Bound<'py, PyList>,
    inputs: &[AlarmInput],
) -> PyResult<bool> {
    let py = tracker.py();
    let (weight, reset_level) = (MACHINE_WEIGHT.float(py)?, MACHINE_RESET_LEVEL.float(py)?);
    let largest = MACHINE_MOST_SEVERITY.float(py)?;
    let quiet = TRACKER_ALARM.is_none(tracker)?;
    let (mut i, mut asked) = (0, false);
    while i < inputs.len() {
        let open = !TRACKER_OPEN.is_none(tracker)?;
        if quiet && !open {
            return Ok(asked);
        }
        if quiet || open {
            // Somebody was told: its counts are Python's.
            tracker.call_method1(TRACKER_UPDATE_ALARM.name(py), (readings, which[i..].to_vec(), verdicts))?;
            return Ok(true);
        }
        let alarm = TRACKER_ALARM.get(tracker)?;
        let mut now = Numbers::of(tracker, &alarm)?;
        let first = i;
        while i < inputs.len() {
            let AlarmInput { severity, time_ms, full } = inputs[i];
            let level = now.level
                + weight * (if largest < severity { largest } else { severity } - now.level);
            let counts = full || now.are_early;
            if (counts && now.events + 1 >= now.length) || level >= reset_level {
                break; // a block ends, or something rises
            }
            if !counts {
                (now.level, now.events, now.rising) = (level, 0, false);
                i += 1;
                continue;
            }
            if now.events == 0 {
                (now.begun_ms, now.top) = (time_ms, 0.0);
            }
            now.level = level;
            now.events += 1;
            now.top = if level > now.top { level } else { now.top };
            now.rising = false;
            i += 1;
        }
        if i > first {
            now.write_back(tracker, &alarm)?;
        }
        if i < inputs.len() {
            tracker.call_method1(TRACKER_UPDATE_ALARM.name(py), (readings, [which[i]], verdicts))?;
            asked = true;
            i += 1;
        }
    }
    Ok(asked)
}
