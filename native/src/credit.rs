//! The credit of a budget that holds (`rejection.token_bucket.TokenBucket`), for numbers of 64 bits.

use crate::seam::*;
use pyo3::prelude::*;
use pyo3::types::PyList;


/// The numbers of a `TokenBucket` while a run lasts.
pub struct Credit<'py> {
    bucket: Bound<'py, PyAny>,
    clock: Option<Bound<'py, PyAny>>,
    credit: i64,
    capacity: i64,
    cost: i64,
    earns: i64,
}

impl<'py> Credit<'py> {
    /// Return them; `None` where Python has to be asked.
    pub fn of(bucket: &Bound<'py, PyAny>) -> PyResult<Option<Credit<'py>>> {
        if BUCKET_IS_SHARED.truth(bucket)? {
            return Ok(None); // it counts the events of all its streams
        }
        let (Ok(credit), Ok(capacity), Ok(cost), Ok(earns)) = (
            BUCKET_CREDIT.int(bucket),
            BUCKET_CAPACITY.int(bucket),
            BUCKET_COST_PER_REJECTION.int(bucket),
            BUCKET_EARNS.int(bucket),
        ) else {
            return Ok(None);
        };
        if credit < 0 || capacity < 1 {
            return Ok(None);
        }
        Ok(Some(Credit {
            clock: if BUCKET_CLOCK.is_none(bucket)? { None } else { Some(BUCKET_CLOCK.get(bucket)?) },
            bucket: bucket.clone(),
            credit,
            capacity,
            cost,
            earns,
        }))
    }

    /// Earn for an event ranked among n; return the one of its `bands` by width that is allowed.
    pub fn allow(
        &mut self,
        n: usize,
        bands: &Bound<'py, PyList>,
        sensor: &Bound<'py, PyAny>,
        time_ms: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = sensor.py();
        let mut earned = i128::from(self.earns);
        if let Some(clock) = &self.clock {
            let before: Option<i64> = CLOCK_NOW_MS.get(clock)?.extract()?;
            let now = clock.call_method1(CLOCK_ADVANCE.name(py), (sensor, time_ms))?;
            let now: Option<i64> = now.extract()?;
            earned *= match (before, now) {
                (Some(before), Some(now)) => (i128::from(now) - i128::from(before)).max(0),
                _ => 0,
            };
        }
        let credit = (i128::from(self.credit) + earned).min(i128::from(self.capacity));
        self.credit = credit as i64; // no more than the capacity, which has 64 bits
        let mut width = 0;
        if self.credit >= self.cost {
            let widest = bands.len() as i128 - 1;
            width = (widest * credit / i128::from(self.capacity)) as usize;
        }
        let band = bands.get_item(width)?;
        if !band.is_none() {
            return Ok(band);
        }
        let policy = BUCKET_POLICY.get(&self.bucket)?;
        let gamma = POLICY_CONTAMINATION.get(&policy)?;
        let band = BAND_NESTED_BAND.get(py)?.call1((n, gamma, width))?;
        bands.set_item(width, &band)?;
        Ok(band)
    }

    pub fn spend(&mut self) {
        self.credit -= self.cost;
    }

    /// Leave the state as it is now.
    pub fn write_back(self) -> PyResult<()> {
        BUCKET_CREDIT.set_int(&self.bucket, self.credit)
    }
}
