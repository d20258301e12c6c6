//! What the siblings of a sensor read at the same time: `engine.siblings._Group`, bit for bit.

use crate::view::{as_bytes, below, View};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

const LEAST: usize = 3; // of fewer siblings the median is one at fault where one of them is
const SHARE: f64 = 1.0 / 24.0; // of the newest in a smoothed value
const N_SAID: usize = 4; // values said of a channel

/// What siblings in one mode have read, and what of it lies within half a step of a time.
struct Group {
    kept: View,
    part: usize,
    when: Option<(f64, f64)>,
    nearest: Vec<Option<usize>>,
    ordered: Vec<Vec<f64>>,
}

impl Group {
    /// Return where the reading of a sensor begins that is the nearest, if it was not held.
    fn near(&self, row: usize, (time, step): (f64, f64)) -> Option<usize> {
        let kept = self.kept.get();
        let last = row + self.part;
        let (away, of_older) = ((kept[last] - time).abs(), (kept[row] - time).abs());
        let (away, at) = if away > of_older { (of_older, row) } else { (away, last) };
        (2.0 * away <= step && kept[at + 1] == 0.0).then_some(at)
    }

    fn look_at(&mut self, when: (f64, f64)) {
        let n = self.kept.get().len() / (N_SAID * self.part);
        self.nearest = (0..n).map(|i| self.near(i * N_SAID * self.part, when)).collect();
        self.ordered.resize(self.part - 2, Vec::new());
        let kept = self.kept.get();
        for (i, ordered) in self.ordered.iter_mut().enumerate() {
            ordered.clear();
            ordered.extend(self.nearest.iter().flatten().map(|at| kept[at + 2 + i]).filter(|x| !x.is_nan()));
            ordered.sort_unstable_by(f64::total_cmp);
        }
        self.when = Some(when);
    }

    /// Return the median of all but a sensor; `None` where fewer than three are known.
    fn median(&self, sensor: usize, channel: usize) -> Option<f64> {
        let ordered = &self.ordered[channel];
        let own = self.nearest[sensor].map(|at| self.kept.get()[at + 2 + channel]).filter(|x| !x.is_nan());
        let n = ordered.len() - usize::from(own.is_some());
        if n < LEAST {
            return None;
        }
        let gone = own.map_or(usize::MAX, |value| below(ordered, value));
        let at = |i: usize| ordered[i + usize::from(i >= gone)];
        Some((at((n - 1) / 2) + at(n / 2)) / 2.0)
    }

    /// Take a reading; append what its sensor read before it and its siblings then.
    fn beside(&mut self, row: usize, time: f64, held: bool, own: &[f64], said: &mut Vec<f64>) {
        let (part, first) = (self.part, said.len());
        let (last, smooth) = (row + part, row + 2 * part);
        alone(own, said);
        let kept = self.kept.get_mut();
        let (older, then) = (kept[row], kept[last]);
        let before = kept[last + 2..smooth].to_vec();
        kept.copy_within(last..smooth, row);
        (kept[last], kept[last + 1]) = (time, f64::from(u8::from(held)));
        kept[last + 2..smooth].copy_from_slice(own);
        let sensor = row / (N_SAID * part);
        if let Some(when) = self.when {
            let now = self.near(row, when);
            let was = std::mem::replace(&mut self.nearest[sensor], now);
            if now != was.map(|at| at.wrapping_sub(part)) {
                self.when = None; // no longer the same one
            }
        }
        if !(older < then && then < time) {
            return;
        }
        let (long, short) = (time - then, then - older);
        let when = (then, if short < long { short } else { long });
        if self.when != Some(when) {
            self.look_at(when);
        }
        for (i, &read) in before.iter().enumerate() {
            let Some(usual) = self.median(sensor, i).filter(|x| x.is_finite() && read.is_finite()) else { continue };
            let (kept, of_siblings) = (self.kept.get_mut(), smooth + part);
            let mut smoothed = |at: usize, new: f64| {
                let old = kept[at + 2 + i];
                kept[at + 2 + i] = if old.is_nan() { new } else { old + SHARE * (new - old) };
                kept[at + 2 + i]
            };
            let both = [read, usual, smoothed(smooth, read), smoothed(of_siblings, usual)];
            said[first + N_SAID * i..first + N_SAID * (i + 1)].copy_from_slice(&both);
        }
    }
}

/// Append what is said where nobody is beside a sensor: it is like them.
fn alone(own: &[f64], said: &mut Vec<f64>) {
    for &x in own {
        said.extend([if x.is_finite() { x } else { 0.0 }; N_SAID]);
    }
}

/// Return what is beside readings: doubles, row after row.
///
/// Of each reading `kept` is what its group has read, or none, with where its sensor's row begins,
/// and whether it is held; `picked` are the channels that are compared.
#[pyfunction]
pub fn beside<'py>(
    py: Python<'py>,
    readings: &Bound<'py, PyAny>,
    picked: Vec<usize>,
    kept: &Bound<'py, PyList>,
    rows: Vec<usize>,
    held: Vec<bool>,
) -> PyResult<Bound<'py, PyBytes>> {
    let (part, mut groups) = (2 + picked.len(), Vec::<(Bound<'_, PyAny>, Group)>::new());
    let mut said = Vec::with_capacity(rows.len() * N_SAID * picked.len());
    let (mut own, mut newest) = (Vec::new(), 0);
    for (i, (array, (&row, &held))) in kept.iter().zip(rows.iter().zip(&held)).enumerate() {
        let reading = readings.get_item(i)?;
        let (time, values): (f64, Vec<f64>) = (reading.get_item(2)?.extract()?, reading.get_item(3)?.extract()?);
        own.clear();
        for &channel in &picked {
            own.push(values.get(channel).ok_or_else(|| PyValueError::new_err("too few values"))? + 0.0);
        }
        if array.is_none() {
            alone(&own, &mut said);
            continue;
        }
        if !groups.get(newest).is_some_and(|(known, _)| known.is(&array)) {
            newest = groups.iter().position(|(known, _)| known.is(&array)).unwrap_or(groups.len());
        }
        if newest == groups.len() {
            let kept = View::of(&array, true)?;
            let group = Group { kept, part, when: None, nearest: Vec::new(), ordered: Vec::new() };
            groups.push((array, group));
        }
        let group = &mut groups[newest].1;
        if row + N_SAID * part > group.kept.get().len() {
            return Err(PyValueError::new_err("a row beyond what is kept"));
        }
        group.beside(row, time, held, &own, &mut said);
    }
    Ok(PyBytes::new(py, as_bytes(&said)))
}
