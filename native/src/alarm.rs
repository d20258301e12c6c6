//! The alarm's statistic of a stream that is not held (`incidents.state_machine.Watch.follow`).

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

const WEIGHT: f64 = 0.1;
const MOST: f64 = 4.0;
const CALM: f64 = 0.75;

/// The numbers of an `Alarm`, while no incident is open.
struct Numbers {
    level: f64,
    top: f64,
    events: i64,
    begun_ms: i64,
    length: i64,
    rising: bool,
}

impl Numbers {
    fn of(watch: &Bound<'_, PyAny>, alarm: &Bound<'_, PyAny>) -> PyResult<Numbers> {
        let py = watch.py();
        Ok(Numbers {
            level: alarm.getattr(intern!(py, "level"))?.extract()?,
            top: alarm.getattr(intern!(py, "_top"))?.extract()?,
            events: alarm.getattr(intern!(py, "_events"))?.extract()?,
            begun_ms: alarm.getattr(intern!(py, "_begun_ms"))?.extract()?,
            length: alarm.getattr(intern!(py, "_length"))?.extract()?,
            rising: !watch.getattr(intern!(py, "_rising"))?.is_none(),
        })
    }

    fn leave(&self, watch: &Bound<'_, PyAny>, alarm: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = watch.py();
        alarm.setattr(intern!(py, "level"), self.level)?;
        alarm.setattr(intern!(py, "_top"), self.top)?;
        alarm.setattr(intern!(py, "_events"), self.events)?;
        alarm.setattr(intern!(py, "_begun_ms"), self.begun_ms)?;
        if !self.rising {
            watch.setattr(intern!(py, "_rising"), py.None())?;
        }
        Ok(())
    }
}

/// Look at verdicts as `Watch.follow` does: of event `start + i` severity and time are `seen[i]`.
pub fn follow<'py>(
    watch: &Bound<'py, PyAny>,
    readings: &Bound<'py, PyAny>,
    start: usize,
    verdicts: &Bound<'py, PyList>,
    seen: &[(f64, i64)],
) -> PyResult<()> {
    let py = watch.py();
    let alarm = watch.getattr(intern!(py, "_alarm"))?;
    let mut i = 0;
    while i < seen.len() {
        let open = !watch.getattr(intern!(py, "open"))?.is_none();
        if alarm.is_none() && !open {
            return Ok(());
        }
        if alarm.is_none() || open {
            // Somebody was told: its counts are Python's.
            let which: Vec<usize> = (start + i..start + seen.len()).collect();
            watch.call_method1(intern!(py, "follow"), (readings, which, verdicts))?;
            return Ok(());
        }
        let mut now = Numbers::of(watch, &alarm)?;
        let first = i;
        while i < seen.len() {
            let (severity, time_ms) = seen[i];
            let level = now.level
                + WEIGHT * (if MOST < severity { MOST } else { severity } - now.level);
            if now.events + 1 >= now.length || level >= CALM {
                break; // a block ends, or something rises
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
            now.leave(watch, &alarm)?;
        }
        if i < seen.len() {
            watch.call_method1(intern!(py, "follow"), (readings, [start + i], verdicts))?;
            i += 1;
        }
    }
    Ok(())
}
