//! The columns that roll, of one sensor (`features.preset.RecentRows`), made of its newest readings.

use crate::seam::*;
use crate::view::View;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

const LONG: usize = 24; // events of the windows that roll: what is added up below is made for these
const MIDDLE: usize = 10;
const SHORT: usize = 6;
const FEW_CHANNELS: usize = 10;
/// Rows with a larger number are Python's: below it squares and their sums are finite.
pub const LARGE: f64 = 1e140;

/// Require that Python's windows are those that this is made for.
pub fn require(py: Python<'_>) -> PyResult<()> {
    PRESET_LONG.require(py, LONG)?;
    PRESET_MIDDLE.require(py, MIDDLE)?;
    PRESET_SHORT.require(py, SHORT)?;
    PRESET_FEW_CHANNELS.require(py, FEW_CHANNELS)
}

/// What a row is made of besides its reading.
#[derive(Clone, Copy)]
pub struct Columns {
    rolls: bool,
    n_lags: usize,
}

impl Columns {
    /// Return the columns of a preset from its blocks.
    fn of(blocks: &Bound<'_, PyAny>) -> PyResult<Columns> {
        let mut columns = Columns { rolls: false, n_lags: 0 };
        for block in blocks.cast::<PyTuple>()?.iter() {
            match block.get_item(0)?.extract::<&str>()? {
                "std" => columns.rolls = true,
                "lag" => columns.n_lags += 1,
                _ => (),
            }
        }
        Ok(columns)
    }

    /// Return how many readings before its own a row looks back at.
    pub fn reach(&self) -> usize {
        self.n_lags.max(if self.rolls { LONG - 1 } else { 0 })
    }

    /// Append the row of a reading whose every channel is there; `past` are those it looks back at.
    pub fn row(&self, reading: &[f64], past: &[f64], row: &mut Vec<f64>) {
        let (d, start) = (reading.len(), row.len());
        row.extend_from_slice(reading);
        if self.rolls {
            row.resize(start + d * if d <= FEW_CHANNELS { 7 } else { 5 }, 0.0);
            let first = past.len() - (LONG - 1) * d;
            for c in 0..d {
                let mut window = [reading[c]; LONG];
                for (level, past) in window.iter_mut().zip(past[first + c..].iter().step_by(d)) {
                    *level = *past;
                }
                rolled(&window, d, |block, value| row[start + block * d + c] = value);
            }
        }
        for ago in 1..=self.n_lags {
            row.extend_from_slice(&past[past.len() - ago * d..][..d]);
        }
    }
}

/// A sum, and one of squares around the mean (`features.preset.Part`).
#[derive(Clone, Copy, Default)]
struct Sums(f64, f64);

impl Sums {
    /// Join an older part with a newer one, which has `ratio` times as many readings.
    fn join(self, newer: Sums, ratio: f64, weight: f64) -> Sums {
        let gap = self.0 * ratio - newer.0;
        Sums(self.0 + newer.0, self.1 + newer.1 + gap * gap * weight)
    }
}

/// Join neighbours, by two.
fn halved<const N: usize, const HALF: usize>(parts: &[Sums; N], weight: f64) -> [Sums; HALF] {
    let mut made = [Sums::default(); HALF];
    for (made, pair) in made.iter_mut().zip(parts.chunks_exact(2)) {
        *made = pair[0].join(pair[1], 1.0, weight);
    }
    made
}

fn rolled(window: &[f64; LONG], d: usize, mut put: impl FnMut(usize, f64)) {
    let twos: [Sums; 12] = halved(&window.map(|x| Sums(x, 0.0)), 0.5);
    let fours: [Sums; 6] = halved(&twos, 0.25);
    let eights: [Sums; 3] = halved(&fours, 0.125);
    let all = eights[0].join(eights[1].join(eights[2], 1.0, 0.0625), 2.0, 8.0 / (16.0 * 24.0));
    let (now, mean) = (window[LONG - 1], all.0 / 24.0);
    put(1, now - window[LONG - 2]);
    put(2, now - mean);
    put(3, (twos[7].0 + eights[2].0) / 10.0);
    put(4, (all.1 / 23.0).sqrt());
    if d <= FEW_CHANNELS {
        put(5, (twos[9].join(fours[5], 2.0, 2.0 / (4.0 * 6.0)).1 / 5.0).sqrt());
        put(6, mean);
    }
}

/// The newest readings of a sensor: Python's array of them, and what came since.
pub struct Recent {
    past: Py<PyAny>,
    view: View,
    levels: Vec<f64>, // the past, then the readings of the run that lasts
    channels: usize,
    pub columns: Columns,
}

impl Recent {
    /// Return them of a `RecentRows`; `None` where Python has to make its rows.
    pub fn of(recent: &Bound<'_, PyAny>) -> PyResult<Option<Recent>> {
        if !RECENT_PICKED.is_none(recent)? {
            return Ok(None);
        }
        let (past, columns) = (RECENT_PAST.get(recent)?, Columns::of(&RECENT_BLOCKS.get(recent)?)?);
        let (view, shape) = (View::of(&past, true)?, past.getattr("shape")?);
        let (count, channels): (usize, usize) = shape.extract()?;
        if count != columns.reach() {
            return Ok(None); // the windows fill
        }
        let mut made = Recent { past: past.unbind(), view, levels: Vec::new(), channels, columns };
        made.begin();
        Ok(Some(made))
    }

    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Whether it is of the same readings that make the rows of now.
    pub fn is_of(&self, recent: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(RECENT_PAST.is(recent, &self.past)? && RECENT_PICKED.is_none(recent)?)
    }

    /// Begin a run with what is known.
    pub fn begin(&mut self) {
        self.levels.clear();
        self.levels.extend_from_slice(self.view.get());
    }

    /// Append the row of the next reading of the run, whose every channel is there.
    pub fn row(&mut self, reading: &[f64], row: &mut Vec<f64>) {
        debug_assert!(reading.len() == self.channels);
        let first = self.levels.len() - self.view.get().len();
        self.columns.row(reading, &self.levels[first..], row);
        self.levels.extend_from_slice(reading);
    }

    /// End the run after so many readings, and leave the state as it is then.
    pub fn end(&mut self, count: usize) {
        let past = self.view.get_mut();
        past.copy_from_slice(&self.levels[count * self.channels..][..past.len()]);
    }
}
