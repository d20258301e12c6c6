//! The columns that roll, of one sensor (`features.preset.NewestRows`): sums kept in Python's rings.

use crate::seam::*;
use crate::view::View;
use pyo3::prelude::*;
use pyo3::types::PyList;

pub const RING: usize = 32;
const SUMS: usize = 7;
const FEW_CHANNELS: usize = 10;


pub type Saved = (Vec<Vec<f64>>, Vec<usize>);

/// What a row is made of besides its reading.
#[derive(Clone, Copy)]
pub struct Columns {
    pub rolls: bool,
    pub n_lags: usize,
}

impl Columns {
    pub fn ring(&self) -> usize {
        if self.rolls { SUMS * RING } else { RING }
    }

    /// Append the row of a reading whose every channel is there: `ring` and `next` are a channel's.
    pub fn row<'a>(
        &self,
        reading: &[f64],
        mut ring: impl FnMut(usize) -> &'a mut [f64],
        next: &[usize],
        row: &mut Vec<f64>,
    ) {
        let (d, start) = (reading.len(), row.len());
        row.extend_from_slice(reading);
        if self.rolls {
            row.resize(start + d * if d <= FEW_CHANNELS { 7 } else { 5 }, 0.0);
        }
        for c in 0..d {
            let (x, at, ring) = (reading[c], next[c], ring(c));
            if self.rolls {
                rolled(x, at, ring, d, |block, value| row[start + block * d + c] = value);
            } else {
                ring[at] = x;
            }
        }
        for ago in 1..=self.n_lags {
            for c in 0..d {
                row.push(ring(c)[(next[c] + RING - ago) % RING]);
            }
        }
    }
}

fn rolled(x: f64, at: usize, ring: &mut [f64], d: usize, mut put: impl FnMut(usize, f64)) {
    let ring: &mut [f64; SUMS * RING] = ring.try_into().expect("checked when it was met");
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
    put(1, x - before);
    put(2, x - mean24);
    put(3, (ring[place(1, 8)] + sum8) / 10.0);
    let spread = ring[place(6, 16)] + square16 + gap * gap * (8.0 / (16.0 * 24.0));
    put(4, (spread / 23.0).sqrt());
    if d <= FEW_CHANNELS {
        let gap = ring[place(1, 4)] * 2.0 - sum4;
        let short = ring[place(2, 4)] + square4 + gap * gap * (2.0 / (4.0 * 6.0));
        put(5, (short / 5.0).sqrt());
        put(6, mean24);
    }
}

/// The rings of a sensor, which stay as long as what makes its rows.
pub struct Recent {
    newest: Py<PyAny>,
    rings: Vec<View>,
    next: Vec<usize>, // of the run that lasts
    pub columns: Columns,
}

impl Recent {
    /// Return them of a `RecentRows`; `None` where Python has to make its rows.
    pub fn of(recent: &Bound<'_, PyAny>) -> PyResult<Option<Recent>> {
        let py = recent.py();
        if !RECENT_PICKED.is_none(recent)? {
            return Ok(None);
        }
        let newest = match RECENT_NEWEST.get(recent)? {
            newest if !newest.is_none() => newest,
            _ => recent.call_method0(RECENT_BEGUN.name(py))?,
        };
        if newest.is_none() {
            return Ok(None);
        }
        let mut rings = Vec::new();
        for ring in NEWEST_RINGS.get(&newest)?.try_iter()? {
            rings.push(View::of(&ring?, true)?);
        }
        let rolls = NEWEST_ROLLS.truth(&newest)?;
        let n_lags = NEWEST_N_LAGS.int(&newest)? as usize;
        let columns = Columns { rolls, n_lags };
        let whole = rings.iter().all(|ring| ring.get().len() == columns.ring()) && n_lags < RING;
        let mut made = Recent { newest: newest.unbind(), rings, next: Vec::new(), columns };
        Ok((whole && made.begin(py)?).then_some(made))
    }

    pub fn channels(&self) -> usize {
        self.rings.len()
    }

    /// Whether it is of the same that makes the rows of now.
    pub fn is_of(&self, recent: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(RECENT_NEWEST.is(recent, &self.newest)? && RECENT_PICKED.is_none(recent)?)
    }

    /// Look where the channels go on; whether they are whole.
    pub fn begin(&mut self, py: Python<'_>) -> PyResult<bool> {
        let next = NEWEST_NEXT.get(self.newest.bind(py))?.cast_into::<PyList>()?;
        self.next.clear();
        for at in next.iter() {
            self.next.push(at.extract()?);
        }
        Ok(self.next.len() == self.rings.len() && self.next.iter().all(|&at| at < RING))
    }

    /// Append the row of a reading whose every channel is there.
    ///
    /// It is made in place: what it writes, nobody reads before [`Recent::keep`] goes on by one.
    pub fn row(&mut self, reading: &[f64], row: &mut Vec<f64>) {
        let rings = self.rings.as_mut_ptr();
        // SAFETY: one ring is there at a time, and there are as many as channels.
        let ring = |c: usize| unsafe { (*rings.add(c)).get_mut() };
        debug_assert!(reading.len() == self.rings.len());
        self.columns.row(reading, ring, &self.next, row);
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
    pub fn end(&self, py: Python<'_>) -> PyResult<()> {
        let next = NEWEST_NEXT.get(self.newest.bind(py))?.cast_into::<PyList>()?;
        for (c, at) in self.next.iter().enumerate() {
            next.set_item(c, at)?;
        }
        Ok(())
    }
}
