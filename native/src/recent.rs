//! The columns that roll, of one sensor (`features.preset.NewestRows`): sums kept in Python's rings.

use crate::view::View;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyList;

const RING: usize = 32;

pub type Saved = (Vec<Vec<f64>>, Vec<usize>);

/// The rings of a sensor while a run lasts.
///
/// A row is made in place: what it writes, nobody reads before [`Recent::keep`] goes on by one.
pub struct Recent<'py> {
    next_list: Bound<'py, PyList>,
    rings: Vec<View>,
    next: Vec<usize>,
    n_lags: usize,
    rolls: bool,
}

impl<'py> Recent<'py> {
    /// Return them of a `RecentRows`; `None` where Python has to make its rows.
    pub fn of(recent: &Bound<'py, PyAny>) -> PyResult<Option<Recent<'py>>> {
        let py = recent.py();
        if !recent.getattr(intern!(py, "_picked"))?.is_none() {
            return Ok(None);
        }
        let newest = recent.call_method0(intern!(py, "_begun"))?;
        if newest.is_none() {
            return Ok(None);
        }
        let mut rings = Vec::new();
        for ring in newest.getattr(intern!(py, "_rings"))?.try_iter()? {
            rings.push(View::of(&ring?, true)?);
        }
        let rolls = newest.getattr(intern!(py, "_rolls"))?.is_truthy()?;
        let next_list = newest.getattr(intern!(py, "_next"))?.cast_into::<PyList>()?;
        let next: Vec<usize> = next_list.extract()?;
        let n_lags = newest.getattr(intern!(py, "_n_lags"))?.extract()?;
        let length = if rolls { 7 * RING } else { RING };
        let whole = rings.len() == next.len()
            && rings.iter().all(|ring| ring.get().len() == length)
            && next.iter().all(|&at| at < RING)
            && n_lags < RING;
        Ok(whole.then_some(Recent { next_list, rings, next, n_lags, rolls }))
    }

    /// Append the row of a reading whose every channel is there.
    pub fn row(&mut self, reading: &[f64], row: &mut Vec<f64>) {
        let (d, start) = (reading.len(), row.len());
        row.extend_from_slice(reading);
        if self.rolls {
            row.resize(start + d * if d <= 10 { 7 } else { 5 }, 0.0);
        }
        for c in 0..d {
            let (x, at, ring) = (reading[c], self.next[c], self.rings[c].get_mut());
            if !self.rolls {
                ring[at] = x;
                continue;
            }
            let place = |which: usize, ago: usize| RING * which + (at + RING - ago) % RING;
            let before = ring[place(0, 1)];
            ring[at] = x;
            let sum2 = before + x;
            ring[place(1, 0)] = sum2;
            let gap = before - x;
            let square2 = gap * gap * 0.5;
            ring[place(2, 0)] = square2;
            let older = ring[place(1, 2)];
            let gap = older - sum2;
            let sum4 = older + sum2;
            ring[place(3, 0)] = sum4;
            let square4 = ring[place(2, 2)] + square2 + gap * gap * 0.25;
            ring[place(4, 0)] = square4;
            let older = ring[place(3, 4)];
            let gap = older - sum4;
            let sum8 = older + sum4;
            ring[place(5, 0)] = sum8;
            let square8 = ring[place(4, 4)] + square4 + gap * gap * 0.125;
            ring[place(6, 0)] = square8;
            let older = ring[place(5, 8)];
            let gap = older - sum8;
            let sum16 = older + sum8;
            let square16 = ring[place(6, 8)] + square8 + gap * gap * 0.0625;
            let older = ring[place(5, 16)];
            let gap = older * 2.0 - sum16;
            let mean24 = (older + sum16) / 24.0;
            let mut put = |block: usize, value: f64| row[start + block * d + c] = value;
            put(1, x - before);
            put(2, x - mean24);
            put(3, (ring[place(1, 8)] + sum8) / 10.0);
            let spread = ring[place(6, 16)] + square16 + gap * gap * (8.0 / (16.0 * 24.0));
            put(4, (spread / 23.0).sqrt());
            if d <= 10 {
                let gap = ring[place(1, 4)] * 2.0 - sum4;
                let short = ring[place(2, 4)] + square4 + gap * gap * (2.0 / (4.0 * 6.0));
                put(5, (short / 5.0).sqrt());
                put(6, mean24);
            }
        }
        for ago in 1..=self.n_lags {
            for c in 0..d {
                row.push(self.rings[c].get()[(self.next[c] + RING - ago) % RING]);
            }
        }
    }

    /// Go on to the next reading.
    pub fn keep(&mut self) {
        for at in &mut self.next {
            *at = (*at + 1) % RING;
        }
    }

    /// Return what it takes to go back to now.
    pub fn saved(&self) -> Saved {
        (self.rings.iter().map(|ring| ring.get().to_vec()).collect(), self.next.clone())
    }

    /// Go back.
    pub fn back(&mut self, (rings, next): &Saved) {
        for (ring, saved) in self.rings.iter_mut().zip(rings) {
            ring.get_mut().copy_from_slice(saved);
        }
        self.next.copy_from_slice(next);
    }

    /// Leave the state as it is now.
    pub fn end(self) -> PyResult<()> {
        for (c, at) in self.next.iter().enumerate() {
            self.next_list.set_item(c, at)?;
        }
        Ok(())
    }
}
