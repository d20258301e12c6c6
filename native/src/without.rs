//! What a row scores without each channel, and what the others make one expect of that channel:
//! `detectors.sensor.recipes.Columns` for one finite row, bit for bit.

use crate::scorers::{Distance, MaxDistance, Member, Siblings};
use crate::seam::*;
use crate::view::View;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};

/// What whitens a row, all of it and apart for each channel (`Distance._apart`).
struct Apart {
    joint: View,
    whose: View,
    left: Vec<usize>,
}

impl Apart {
    fn of(distance: &Bound<'_, PyAny>, own: &Bound<'_, PyAny>) -> PyResult<Apart> {
        let made = distance.call_method1(DISTANCE_APART.name(distance.py()), (own,))?;
        Ok(Apart {
            joint: View::of(&made.get_item(0)?, false)?,
            whose: View::of(&made.get_item(1)?, false)?,
            left: made.get_item(2)?.extract()?,
        })
    }

    /// Score a row without each channel, on the scale of all columns; `None` where one is absurd.
    fn scores(&self, py: Python<'_>, distance: &Distance, row: &[f64]) -> PyResult<Option<Vec<f64>>> {
        let mut room = Vec::new();
        let (joint, whose) = (self.joint.get(), self.whose.get());
        if !distance.turn_by(joint, row.iter().copied(), &mut room) {
            return Ok(None);
        }
        let mut sums = vec![0.0; self.left.len()];
        for (x, signs) in room.iter().zip(whose.chunks_exact(sums.len())) {
            for (sum, sign) in sums.iter_mut().zip(signs) {
                *sum += x * x * sign;
            }
        }
        let cbrt = CBRT.get(py)?;
        let scored = |(sum, &n): (f64, &usize)| {
            rescaled_sum(if sum > 0.0 { sum } else { 0.0 }, n, row.len(), |x| cbrt.call1((x,))?.extract())
        };
        sums.into_iter().zip(&self.left).map(scored).collect::<PyResult<_>>().map(Some)
    }
}

/// Return the sum of `of` squares of normal deviates that is as rare as that of `n`.
fn rescaled_sum(squares: f64, n: usize, of: usize, cbrt: impl Fn(f64) -> PyResult<f64>) -> PyResult<f64> {
    if n == 0 || n == of {
        return Ok(if n > 0 { squares } else { 0.0 });
    }
    let (few, all) = (2.0 / (9.0 * n as f64), 2.0 / (9.0 * of as f64));
    let deviate = (cbrt(squares / n as f64)? - (1.0 - few)) / few.sqrt();
    let root = 1.0 - all + deviate * all.sqrt();
    Ok(of as f64 * (if root > 0.0 { root } else { 0.0 }).powf(3.0))
}

/// What is made of a model for the channels of an explainer: once.
pub struct Without {
    plain: Apart,
    low_variance: Option<(Apart, Vec<Vec<bool>>)>, // and of each channel which logarithms are left
    is_apart: Vec<bool>,                           // channels that are in no column
    known: Vec<(usize, usize)>, // channels of which something is expected, and their first columns
    along: Vec<f64>,
    sure: Vec<f64>,
}

impl Without {
    pub fn of(columns: &Bound<'_, PyAny>, channels: &[Vec<usize>], groups: &Bound<'_, PyAny>) -> PyResult<Without> {
        let py = columns.py();
        let own = columns.call_method1(COLUMNS_OWN.name(py), (groups,))?;
        let places: Vec<usize> = COLUMNS_WHICH.get(columns)?.call_method0("tolist")?.extract()?;
        let at: Vec<Vec<usize>> =
            own.try_iter()?.map(|group| group?.call_method0("tolist")?.extract()).collect::<PyResult<_>>()?;
        let inner = COLUMNS_INNER.get(columns)?;
        let low_variance = MAX_LOW_VARIANCE.get(&inner)?;
        let low_variance = if low_variance.is_none() {
            None
        } else {
            let logs: Vec<usize> = LOW_VARIANCE_LOGS.get(&low_variance)?.call_method0("tolist")?.extract()?;
            let left = at.iter().map(|group| logs.iter().map(|log| !group.contains(log)).collect()).collect();
            Some((Apart::of(&LOW_VARIANCE_INNER.get(&low_variance)?, &own)?, left))
        };
        let is_known = |&i: &usize| at[i].first().is_some_and(|&first| places[first] == channels[i][0]);
        let known: Vec<usize> = (0..at.len()).filter(is_known).collect();
        let named = PyList::empty(py);
        for &i in &known {
            named.append(own.get_item(i)?)?;
        }
        let plain = MAX_PLAIN.get(&inner)?;
        let (mut along, mut sure) = (Vec::new(), Vec::new());
        if !known.is_empty() {
            let made = plain.call_method1(DISTANCE_OTHERS_EXPLAIN.name(py), (named,))?;
            along = View::of(&made.get_item(1)?, false)?.get().to_vec();
            sure = View::of(&made.get_item(2)?, false)?.get().to_vec();
        }
        Ok(Without {
            plain: Apart::of(&plain, &own)?,
            low_variance,
            is_apart: at.iter().map(Vec::is_empty).collect(),
            known: known.into_iter().map(|i| (i, at[i][0])).collect(),
            along,
            sure,
        })
    }

    /// Return what a row that scores `own` scores without each channel; `None`: Python finds it.
    pub fn scores(&self, py: Python<'_>, max: &MaxDistance, row: &[f64], own: f64) -> PyResult<Option<Vec<f64>>> {
        let x = max.picked(row);
        let Some(mut scores) = self.plain.scores(py, &max.plain, &x)? else { return Ok(None) };
        if let (Some(low), Some((apart, left))) = (&max.low_variance, &self.low_variance) {
            if let Some(y) = low.with_logarithms(&x) {
                let is_quiet: Vec<bool> = low.each.iter().map(|&(column, _, usual)| y[column] < usual).collect();
                let counts = |left: &Vec<bool>| left.iter().zip(&is_quiet).any(|(&left, &quiet)| left && quiet);
                if left.iter().any(counts) {
                    let Some(still) = apart.scores(py, &low.inner, &y)? else { return Ok(None) };
                    for ((score, still), left) in scores.iter_mut().zip(still).zip(left) {
                        let still = low.knots.rescaled(still);
                        if counts(left) && still > *score {
                            *score = still;
                        }
                    }
                }
            }
        }
        scores.iter_mut().zip(&self.is_apart).filter(|(_, apart)| **apart).for_each(|(score, _)| *score = own);
        Ok(Some(scores))
    }

    /// Return what the others make one expect, and the ends of its likely range, where that is known.
    pub fn given_others(&self, max: &MaxDistance, row: &[f64], n: usize) -> Option<Vec<Option<[f64; 3]>>> {
        let (x, mut room, mut said) = (max.picked(row), Vec::new(), vec![None; n]);
        if self.known.is_empty() {
            return Some(said);
        }
        if !max.plain.turn_by(&self.along, x.iter().copied(), &mut room) {
            return None;
        }
        for ((&(i, first), along), &sure) in self.known.iter().zip(&room).zip(&self.sure) {
            let (centre, spread) = max.plain.scale(first);
            let value = (x[first] - centre) / spread - along;
            said[i] = Some([value, value - sure, value + sure].map(|end| end * spread + centre));
        }
        Some(said)
    }
}

/// The same of what siblings leave of a row (`detectors.sensor.siblings.Residual`).
pub struct WithoutSiblings {
    apart: Apart,
    is_apart: Vec<bool>,
    known: Vec<(usize, usize)>, // channels that siblings explain, and which of theirs it is
}

impl WithoutSiblings {
    fn of(siblings: &Siblings, channels: &[Vec<usize>], groups: &Bound<'_, PyAny>) -> PyResult<WithoutSiblings> {
        let (py, k) = (groups.py(), siblings.channels());
        let columns = siblings.columns.bind(py);
        let own = columns.call_method1(COLUMNS_OWN.name(py), (groups,))?;
        let places: Vec<usize> = COLUMNS_WHICH.get(columns)?.call_method0("tolist")?.extract()?;
        let (array, named) = (py.import("numpy")?.getattr("frombuffer")?, PyList::empty(py));
        let (mut is_apart, mut known) = (Vec::new(), Vec::new());
        for (i, group) in own.try_iter()?.enumerate() {
            let at: Vec<usize> = group?.call_method0("tolist")?.extract()?;
            is_apart.push(at.is_empty());
            known.extend(at.first().filter(|&&first| places[first] == channels[i][0]).map(|&first| (i, first)));
            let levels = || at.iter().copied().filter(|&j| j < k);
            let both = levels().chain(levels().map(|j| k + j)).map(|j| j as i64);
            let both: Vec<u8> = both.flat_map(i64::to_ne_bytes).collect();
            named.append(array.call1((PyBytes::new(py, &both), "int64"))?)?;
        }
        let distance = RESIDUAL_INNER.get(&SIBLINGS_FORECAST.get(&COLUMNS_INNER.get(columns)?)?)?;
        Ok(WithoutSiblings { apart: Apart::of(&distance, named.as_any())?, is_apart, known })
    }
}

/// What a member of an ensemble scores without each channel.
pub enum MemberWithout {
    Distance(Box<Without>),
    Siblings(Box<WithoutSiblings>),
}

/// What is expected of a channel: a value, the ends of its range, and whether siblings say so.
pub type Given = Option<([f64; 3], bool)>;

impl MemberWithout {
    pub fn of(member: &Member, channels: &[Vec<usize>], groups: &Bound<'_, PyAny>) -> PyResult<MemberWithout> {
        Ok(match member {
            Member::Distance(max) => {
                MemberWithout::Distance(Box::new(Without::of(max.columns.bind(groups.py()), channels, groups)?))
            }
            Member::Siblings(own) => MemberWithout::Siblings(Box::new(WithoutSiblings::of(own, channels, groups)?)),
        })
    }

    /// Return both of a row of which the member scores `own`; `None`: Python finds it.
    pub fn said(&self, py: Python<'_>, member: &Member, row: &[f64], own: f64) -> PyResult<Option<(Vec<f64>, Vec<Given>)>> {
        match (self, member) {
            (MemberWithout::Distance(without), Member::Distance(max)) => {
                let Some(scores) = without.scores(py, max, row, own)? else { return Ok(None) };
                let Some(given) = without.given_others(max, row, scores.len()) else { return Ok(None) };
                Ok(Some((scores, given.into_iter().map(|said| said.map(|said| (said, false))).collect())))
            }
            (MemberWithout::Siblings(without), Member::Siblings(siblings)) => {
                let Some(left) = siblings.left(row) else { return Ok(None) };
                let Some(mut scores) = without.apart.scores(py, &siblings.inner, &left)? else { return Ok(None) };
                let is_apart = scores.iter_mut().zip(&without.is_apart).filter(|(_, apart)| **apart);
                is_apart.for_each(|(score, _)| *score = own);
                let mut given = vec![None; scores.len()];
                for &(i, channel) in &without.known {
                    given[i] = Some((siblings.given(row, &left, channel), true));
                }
                Ok(Some((scores, given)))
            }
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_as_rare_as_that_of_more_squares() {
        let of = |squares, n, of| rescaled_sum(squares, n, of, |x| Ok(x.cbrt())).expect("no error");
        assert_eq!((of(7.5, 4, 4), of(7.5, 0, 4)), (7.5, 0.0));
        let median = of(11.340, 12, 24); // of chi-square by its degrees of freedom
        assert!((median - 23.337).abs() < 0.02, "{median}");
    }
}
