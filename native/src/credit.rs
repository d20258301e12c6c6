//! The credit of a budget that holds (`rejection.token_bucket.Governor`), for numbers of 64 bits.

use crate::seam::*;
use pyo3::prelude::*;
use pyo3::types::PyList;


/// The numbers of a `Governor` while a run lasts.
pub struct Credit<'py> {
    governor: Bound<'py, PyAny>,
    clock: Option<Bound<'py, PyAny>>,
    credit: i64,
    asked: i64,
    most: i64,
    price: i64,
    earns: i64,
}

impl<'py> Credit<'py> {
    /// Return them; `None` where Python has to be asked.
    pub fn of(governor: &Bound<'py, PyAny>) -> PyResult<Option<Credit<'py>>> {
        let (Ok(credit), Ok(asked), Ok(most), Ok(price), Ok(earns)) = (
            GOVERNOR_CREDIT.int(governor),
            GOVERNOR_ASKED.int(governor),
            GOVERNOR_MOST.int(governor),
            GOVERNOR_PRICE.int(governor),
            GOVERNOR_EARNS.int(governor),
        ) else {
            return Ok(None);
        };
        if credit < 0 || most < 1 {
            return Ok(None);
        }
        Ok(Some(Credit {
            clock: if GOVERNOR_CLOCK.is_none(governor)? { None } else { Some(GOVERNOR_CLOCK.get(governor)?) },
            governor: governor.clone(),
            credit,
            asked,
            most,
            price,
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
        self.asked += 1;
        if let Some(clock) = &self.clock {
            let before: Option<i64> = CLOCK_NOW_MS.get(clock)?.extract()?;
            let now = clock.call_method1(CLOCK_ADVANCE.name(py), (sensor, time_ms))?;
            let now: Option<i64> = now.extract()?;
            earned *= match (before, now) {
                (Some(before), Some(now)) => (i128::from(now) - i128::from(before)).max(0),
                _ => 0,
            };
        }
        let credit = (i128::from(self.credit) + earned).min(i128::from(self.most));
        self.credit = credit as i64; // no more than the most
        let mut width = 0;
        if self.credit >= self.price {
            let widest = bands.len() as i128 - 1;
            width = (widest * credit / i128::from(self.most)) as usize;
        }
        let band = bands.get_item(width)?;
        if !band.is_none() {
            return Ok(band);
        }
        let policy = GOVERNOR_POLICY.get(&self.governor)?;
        let gamma = POLICY_CONTAMINATION.get(&policy)?;
        let band = BAND_NESTED_BAND.get(py)?.call1((n, gamma, width))?;
        bands.set_item(width, &band)?;
        Ok(band)
    }

    pub fn spend(&mut self) {
        self.credit -= self.price;
    }

    /// Leave the state as it is now.
    pub fn end(self) -> PyResult<()> {
        GOVERNOR_CREDIT.set_int(&self.governor, self.credit)?;
        GOVERNOR_ASKED.set_int(&self.governor, self.asked)
    }
}
