//! The credit of a budget that holds (`rejection.token_bucket.Governor`), for numbers of 64 bits.

use crate::slot::Slot;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;

static CLOCK: Slot = Slot::new("_clock");
static CREDIT: Slot = Slot::new("credit");
static ASKED: Slot = Slot::new("asked");
static MOST: Slot = Slot::new("most");
static PRICE: Slot = Slot::new("price");
static EARNS: Slot = Slot::new("_earns");
static NOW_MS: Slot = Slot::new("now_ms");
static NESTED: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

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
            CREDIT.int(governor),
            ASKED.int(governor),
            MOST.int(governor),
            PRICE.int(governor),
            EARNS.int(governor),
        ) else {
            return Ok(None);
        };
        if credit < 0 || most < 1 {
            return Ok(None);
        }
        Ok(Some(Credit {
            clock: if CLOCK.is_none(governor)? { None } else { Some(CLOCK.get(governor)?) },
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
            let before: Option<i64> = NOW_MS.get(clock)?.extract()?;
            let now = clock.call_method1(intern!(py, "advance"), (sensor, time_ms))?;
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
        let nested = NESTED.get_or_try_init(py, || {
            let found = py.import("rejex_stream.rejection.band")?.getattr("nested_band")?;
            Ok::<_, PyErr>(found.unbind())
        })?;
        let gamma = self.governor.getattr("_policy")?.getattr("contamination")?;
        let band = nested.bind(py).call1((n, gamma, width))?;
        bands.set_item(width, &band)?;
        Ok(band)
    }

    pub fn spend(&mut self) {
        self.credit -= self.price;
    }

    /// Leave the state as it is now.
    pub fn end(self) -> PyResult<()> {
        CREDIT.set_int(&self.governor, self.credit)?;
        ASKED.set_int(&self.governor, self.asked)
    }
}
