//! From a row to a score, bit for bit as the product's scorers do it: the same additions in order.

use crate::prefetch;
use crate::seam::*;
use crate::view::{below, View};
use pyo3::prelude::*;
use pyo3::types::PyList;


/// What scores a row here; `Python` where that is done there.
pub enum Scorer {
    Histograms { edges: View, heights: View },
    Gaussian { constant: f64, mean: Vec<f64>, columns: Vec<Vec<f64>> },
    MaxDistance(Box<MaxDistance>),
    Members(Box<Members>),
    Python,
}

/// A distance from the mean: `detectors.sensor.distance.Distance`, with what it is multiplied by.
pub struct Distance {
    centre: View,
    spread: View,
    mean: View,
    root: View,
    linear: f64, // beyond it the product adds logarithms; numpy's are other machines' other bits
}


impl Distance {
    fn of(distance: &Bound<'_, PyAny>, root: &Bound<'_, PyAny>) -> PyResult<Option<Distance>> {
        let scale = DISTANCE_SCALE.get(distance)?;
        let made = Distance {
            centre: View::of(&SCALE_CENTRE.get(&scale)?, false)?,
            spread: View::of(&SCALE_SPREAD.get(&scale)?, false)?,
            mean: View::of(&DISTANCE_MEAN.get(distance)?, false)?,
            root: View::of(root, false)?,
            linear: DISTANCE_LINEAR.float(root.py())?,
        };
        let d = made.mean.get().len();
        let whole = made.centre.get().len() == d
            && made.spread.get().len() == d
            && d > 0
            && made.root.get().len().is_multiple_of(d);
        Ok(whole.then_some(made))
    }

    /// Turn a scaled and centred row by the root into `turned`; whether no column is absurd.
    fn turn(&self, row: impl Iterator<Item = f64>, turned: &mut Vec<f64>) -> bool {
        self.turn_by(self.root.get(), row, turned)
    }

    /// Turn it by another matrix of as many rows.
    pub fn turn_by(&self, root: &[f64], row: impl Iterator<Item = f64>, turned: &mut Vec<f64>) -> bool {
        let (centre, spread, mean) = (self.centre.get(), self.spread.get(), self.mean.get());
        let width = root.len() / mean.len();
        turned.clear();
        turned.resize(width, 0.0);
        for (j, x) in row.enumerate() {
            let z = (x - centre[j]) / spread[j];
            if !(-self.linear..=self.linear).contains(&z) {
                return false;
            }
            let z = z - mean[j];
            for (sum, weight) in turned.iter_mut().zip(&root[j * width..(j + 1) * width]) {
                *sum += z * weight;
            }
        }
        true
    }

    /// Centre and spread of a column.
    pub fn scale(&self, column: usize) -> (f64, f64) {
        (self.centre.get()[column], self.spread.get()[column])
    }
}

fn squares(white: &[f64]) -> f64 {
    white.iter().fold(0.0, |sum, x| sum + x * x)
}

/// What puts a second distance on the scale of the first (`Knots`).
pub struct Knots([f64; 6]);

impl Knots {
    fn of(knots: &Bound<'_, PyAny>) -> PyResult<Knots> {
        Ok(Knots(knots.extract::<(f64, f64, f64, f64, f64, f64)>()?.into()))
    }

    pub fn rescaled(&self, second: f64) -> f64 {
        let [middle, start, middle_second, start_second, slope, slope_beyond] = self.0;
        if second < start_second {
            middle + (second - middle_second) * slope
        } else {
            start + (second - start_second) * slope_beyond
        }
    }
}

pub struct LowVarianceDistance {
    pub inner: Distance,
    near: Vec<f64>,
    pub each: Vec<(usize, f64, f64)>,
    pub knots: Knots,
}

impl LowVarianceDistance {
    /// Return the columns of a row with its standard deviations as logarithms, where one is low.
    pub fn with_logarithms(&self, x: &[f64]) -> Option<Vec<f64>> {
        if !self.each.iter().zip(&self.near).any(|((column, _, _), near)| x[*column] < *near) {
            return None;
        }
        let mut y = x.to_vec();
        for &(column, floor, _) in &self.each {
            let spread = x[column];
            y[column] = ((if 0.0 > spread { 0.0 } else { spread }) + floor).ln();
        }
        Some(y)
    }
}

/// The largest of distances (`detectors.sensor.distance.MaxDistance`) of some columns of a row.
pub struct MaxDistance {
    which: Vec<usize>,
    pub plain: Distance,
    pub low_variance: Option<LowVarianceDistance>,
    pub columns: Py<PyAny>, // what it was made of
    prediction_error: Option<Knots>,
    python: Py<PyAny>, // for the rows that are not scored here
    wild: f64, // errors of a forecast beyond it count by their logarithm
}

/// Return column, floor and usual logarithm of each that is taken as a logarithm.
fn logarithms(low_variance: &Bound<'_, PyAny>) -> PyResult<Vec<(usize, f64, f64)>> {
    let columns: Vec<usize> = LOW_VARIANCE_LOGS.get(low_variance)?.call_method0("tolist")?.extract()?;
    let floors = View::of(&LOW_VARIANCE_FLOORS.get(low_variance)?, false)?;
    let usual = View::of(&LOW_VARIANCE_USUAL.get(low_variance)?, false)?;
    let both = floors.get().iter().zip(usual.get());
    Ok(columns.into_iter().zip(both).map(|(column, (floor, usual))| (column, *floor, *usual)).collect())
}

impl MaxDistance {
    fn of(scorer: &Bound<'_, PyAny>, columns: &Bound<'_, PyAny>) -> PyResult<Option<MaxDistance>> {
        let inner = COLUMNS_INNER.get(columns)?;
        let Some(plain) = Distance::of(&MAX_PLAIN.get(&inner)?, &MAX_JOINT.get(&inner)?)? else {
            return Ok(None);
        };
        let (low_variance, prediction_error) = (MAX_LOW_VARIANCE.get(&inner)?, MAX_PREDICTION_ERROR.get(&inner)?);
        let low_variance = if low_variance.is_none() {
            None
        } else {
            let distance = LOW_VARIANCE_INNER.get(&low_variance)?;
            let Some(inner) = Distance::of(&distance, &DISTANCE_ROOT.get(&distance)?)? else {
                return Ok(None);
            };
            Some(LowVarianceDistance {
                inner,
                near: View::of(&LOW_VARIANCE_NEAR.get(&low_variance)?, false)?.get().to_vec(),
                each: logarithms(&low_variance)?,
                knots: Knots::of(&LOW_VARIANCE_KNOTS.get(&low_variance)?)?,
            })
        };
        let prediction_error = if prediction_error.is_none() {
            None
        } else {
            Some(Knots::of(&PREDICTION_ERROR_KNOTS.get(&prediction_error)?)?)
        };
        let which: Vec<usize> = COLUMNS_WHICH.get(columns)?.call_method0("tolist")?.extract()?;
        let d = plain.mean.get().len();
        let whole = which.len() == d
            && low_variance.as_ref().is_none_or(|low_variance| {
                low_variance.inner.mean.get().len() == d
                    && low_variance.inner.root.get().len() == d * d
                    && low_variance.near.len() == low_variance.each.len()
                    && low_variance.each.iter().all(|(column, _, _)| *column < d)
            })
            && plain.root.get().len() >= d * d
            && (prediction_error.is_some() == (plain.root.get().len() > d * d));
        let python = TABLE_SCORE.get(scorer)?.unbind();
        let wild = DISTANCE_WILD.float(scorer.py())?;
        let columns = columns.clone().unbind();
        Ok(whole.then_some(MaxDistance { which, plain, low_variance, columns, prediction_error, python, wild }))
    }

    /// Return the columns of a row that it scores.
    pub fn picked(&self, row: &[f64]) -> Vec<f64> {
        self.which.iter().map(|&j| row[j]).collect()
    }

    fn score(&self, row: &[f64], room: &mut Vec<f64>) -> Option<f64> {
        let d = self.which.len();
        if !self.plain.turn(self.which.iter().map(|&j| row[j]), room) {
            return None;
        }
        let mut score = squares(&room[..d]);
        let error = room[d..].iter().fold(0.0, |most: f64, x| if x.abs() > most { x.abs() } else { most });
        if error > self.wild {
            return None;
        }
        if let Some(low_variance) = &self.low_variance {
            let is_near = |((column, _, _), near): (&(usize, f64, f64), &f64)| row[self.which[*column]] < *near;
            if low_variance.each.iter().zip(&low_variance.near).any(is_near) {
                let y = low_variance.with_logarithms(&self.picked(row)).expect("one is low");
                if low_variance.each.iter().any(|&(column, _, usual)| y[column] < usual) {
                    if !low_variance.inner.turn(y.into_iter(), room) {
                        return None;
                    }
                    let own = low_variance.knots.rescaled(squares(room));
                    score = if own > score { own } else { score };
                }
            }
        }
        if let Some(knots) = &self.prediction_error {
            let own = error * error;
            if own > knots.0[3] {
                let own = knots.rescaled(own);
                score = if own > score { own } else { score };
            }
        }
        Some(score)
    }
}

/// What siblings leave of readings (`detectors.sensor.siblings.Residual`) of some columns of a row.
pub struct Siblings {
    which: Vec<usize>,
    centre: View,
    spread: View,
    weights: View,
    pub inner: Distance,
    targets: usize,
    pub columns: Py<PyAny>, // what it was made of
}

impl Siblings {
    fn of(columns: &Bound<'_, PyAny>) -> PyResult<Option<Siblings>> {
        let forecast = SIBLINGS_FORECAST.get(&COLUMNS_INNER.get(columns)?)?;
        let distance = RESIDUAL_INNER.get(&forecast)?;
        let Some(inner) = Distance::of(&distance, &DISTANCE_ROOT.get(&distance)?)? else { return Ok(None) };
        let scale = RESIDUAL_SCALE.get(&forecast)?;
        let made = Siblings {
            which: COLUMNS_WHICH.get(columns)?.call_method0("tolist")?.extract()?,
            centre: View::of(&SCALE_CENTRE.get(&scale)?, false)?,
            spread: View::of(&SCALE_SPREAD.get(&scale)?, false)?,
            weights: View::of(&RESIDUAL_WEIGHTS.get(&forecast)?, false)?,
            targets: inner.mean.get().len(),
            inner,
            columns: columns.clone().unbind(),
        };
        let (t, d) = (made.targets, made.centre.get().len());
        let whole = d >= 2 * t
            && made.spread.get().len() == d
            && made.which.len() == d + t / 2
            && made.inner.root.get().len() == t * t
            && made.weights.get().len() == t * (d - t);
        Ok(whole.then_some(made))
    }

    fn score(&self, row: &[f64], room: &mut Vec<f64>) -> Option<f64> {
        let left = self.left(row)?;
        self.inner.turn(left.into_iter(), room).then(|| squares(room))
    }

    /// Return how many channels siblings explain.
    pub fn channels(&self) -> usize {
        self.targets / 2
    }

    /// Return what they make one expect of the level of a channel, and how far it may be from that.
    pub fn given(&self, row: &[f64], left: &[f64], channel: usize) -> [f64; 3] {
        let spread = self.spread.get()[channel];
        let value = row[self.which[channel]] - (left[channel] - self.inner.mean.get()[channel]) * spread;
        let width = LIKELY * self.inner.spread.get()[channel] * spread;
        [value, value - width, value + width]
    }

    /// Return what is left of a row; `None` where a column is absurd.
    pub fn left(&self, row: &[f64]) -> Option<Vec<f64>> {
        let (centre, spread, t) = (self.centre.get(), self.spread.get(), self.targets);
        let x = |j: usize| row[self.which[t / 2 + j]];
        let mut z = Vec::with_capacity(centre.len());
        for j in 0..centre.len() {
            z.push((x(j) - centre[j]) / spread[j]);
            if !(-self.inner.linear..=self.inner.linear).contains(&z[j]) {
                return None;
            }
        }
        let mut sums = vec![0.0; t];
        for (z, weights) in z[t..].iter().zip(self.weights.get().chunks_exact(t)) {
            for (sum, weight) in sums.iter_mut().zip(weights) {
                *sum += z * weight;
            }
        }
        Some((0..t).map(|j| if x(j) == x(t + j) { 0.0 } else { z[j] + sums[j] }).collect())
    }
}

const LIKELY: f64 = 1.96;

/// A member of an ensemble.
pub enum Member {
    Distance(Box<MaxDistance>),
    Siblings(Box<Siblings>),
}

impl Member {
    pub fn score(&self, row: &[f64], room: &mut Vec<f64>) -> Option<f64> {
        match self {
            Member::Distance(member) => member.score(row, room),
            Member::Siblings(member) => member.score(row, room),
        }
    }
}

/// How rare a member's score is (`detectors.sensor.ensemble.LogTail`).
pub struct LogTail {
    ordered: View,
    start: f64,
    slope: f64,
}

impl LogTail {
    fn of(tail: &Bound<'_, PyAny>) -> PyResult<LogTail> {
        let (start, slope) = (LOG_TAIL_START.get(tail)?.extract()?, LOG_TAIL_SLOPE.get(tail)?.extract()?);
        Ok(LogTail { ordered: View::of(&LOG_TAIL_ORDERED.get(tail)?, false)?, start, slope })
    }

    pub fn of_one(&self, score: f64) -> f64 {
        let n = self.ordered.get().len();
        let at_or_above = n - below(self.ordered.get(), if self.start < score { self.start } else { score });
        let beyond = score - self.start;
        let beyond = if beyond > 0.0 { beyond } else { 0.0 } * self.slope;
        beyond - ((at_or_above + 1) as f64 / (n + 1) as f64).log10()
    }
}

/// Several members, each with its tail (`detectors.sensor.ensemble.Members`).
pub struct Members {
    pub members: Vec<(Member, LogTail)>,
    sure: usize,
    python: Py<PyAny>, // for the rows that are not scored here
}

impl Members {
    fn of(scorer: &Bound<'_, PyAny>, inner: &Bound<'_, PyAny>) -> PyResult<Option<Members>> {
        let (py, mut members) = (scorer.py(), Vec::new());
        let tails = MEMBERS_TAILS.get(inner)?;
        for (i, own) in MEMBERS_SCORERS.get(inner)?.try_iter()?.enumerate() {
            let own = own?;
            if !own.get_type().is(TABLE_TABLE_SCORER.get(py)?) || !TABLE_SCALE.get(&own)?.is_none() {
                return Ok(None);
            }
            let columns = TABLE_INNER.get(&own)?;
            if !columns.get_type().is(RECIPES_COLUMNS.get(py)?) {
                return Ok(None);
            }
            let kind = COLUMNS_INNER.get(&columns)?.get_type();
            let member = if kind.is(DISTANCE_MAX_DISTANCE.get(py)?) {
                MaxDistance::of(&own, &columns)?.map(|own| Member::Distance(Box::new(own)))
            } else if kind.is(SIBLINGS_RESIDUAL.get(py)?) {
                Siblings::of(&columns)?.map(|own| Member::Siblings(Box::new(own)))
            } else {
                None
            };
            let Some(member) = member else { return Ok(None) };
            members.push((member, LogTail::of(&tails.get_item(i)?)?));
        }
        let sure = MEMBERS_SURE.get(inner)?.extract()?;
        Ok(Some(Members { members, sure, python: TABLE_SCORE.get(scorer)?.unbind() }))
    }

    fn score(&self, row: &[f64], room: &mut Vec<f64>) -> Option<f64> {
        let tail = |(member, tail): &(Member, LogTail)| Some(tail.of_one(member.score(row, room)?));
        let tails: Option<Vec<f64>> = self.members.iter().map(tail).collect();
        Some(self.joint(&tails?))
    }

    /// Return the joint score of the members' tails (`_joint_of_one`).
    pub fn joint(&self, tails: &[f64]) -> f64 {
        let (n, mut total, mut largest) = (tails.len(), 0.0, 0.0);
        for (i, &own) in tails.iter().enumerate() {
            total += own.ln_1p();
            if i + self.sure >= n && own > largest {
                largest = own;
            }
        }
        let mean = total / n as f64;
        if self.sure == 0 {
            return mean;
        }
        let alone = largest - (n as f64).log10();
        let alone = if alone > 0.0 { alone } else { 0.0 }.ln_1p();
        if alone > mean { alone } else { mean }
    }
}

/// Have Python score a row.
fn in_python(scorer: &Py<PyAny>, py: Python<'_>, row: &[f64]) -> PyResult<f64> {
    let rows = PyList::new(py, [PyList::new(py, row)?])?;
    scorer.bind(py).call1((rows,))?.get_item(0)?.extract()
}

impl Scorer {
    /// Return what scores as a fitted scorer of the product does.
    pub fn of(scorer: &Bound<'_, PyAny>) -> PyResult<Scorer> {
        let py = scorer.py();
        let table = TABLE_TABLE_SCORER.get(py)?;
        if !scorer.get_type().is(table) || !TABLE_SCALE.get(scorer)?.is_none() {
            return Ok(Scorer::Python);
        }
        let inner = TABLE_INNER.get(scorer)?;
        let kind = inner.get_type();
        if kind.is(SCORERS_COLUMN_HISTOGRAMS.get(py)?) {
            let edges = View::of(&HISTOGRAMS_EDGES.get(&inner)?, false)?;
            let heights = View::of(&HISTOGRAMS_HEIGHTS.get(&inner)?, false)?;
            return Ok(Scorer::Histograms { edges, heights });
        }
        if kind.is(SCORERS_GAUSSIAN_MIXTURE.get(py)?) {
            let plain = MIXTURE_PLAIN.get(&inner)?;
            if plain.is_none() {
                return Ok(Scorer::Python);
            }
            let mut columns = Vec::new();
            for column in plain.get_item(2)?.try_iter()? {
                columns.push(View::of(&column?, false)?.get().to_vec());
            }
            return Ok(Scorer::Gaussian {
                constant: plain.get_item(0)?.extract()?,
                mean: plain.get_item(1)?.extract()?,
                columns,
            });
        }
        if kind.is(RECIPES_COLUMNS.get(py)?)
            && COLUMNS_INNER.get(&inner)?.get_type().is(DISTANCE_MAX_DISTANCE.get(py)?)
        {
            if let Some(larger) = MaxDistance::of(scorer, &inner)? {
                return Ok(Scorer::MaxDistance(Box::new(larger)));
            }
        }
        if kind.is(ENSEMBLE_MEMBERS.get(py)?) {
            if let Some(members) = Members::of(scorer, &inner)? {
                return Ok(Scorer::Members(Box::new(members)));
            }
        }
        Ok(Scorer::Python)
    }

    /// Whether it says here why a score is what it is.
    pub fn explains(&self) -> bool {
        !matches!(self, Scorer::Python)
    }

    /// Ask for its numbers.
    pub fn prefetch(&self) {
        if let Scorer::Histograms { edges, heights } = self {
            for part in [edges.get(), heights.get()] {
                prefetch::bytes(part.as_ptr().cast(), (8 * part.len()).min(1024));
            }
        }
    }

    /// Score a finite row; `room` is for numbers on the way.
    pub fn score(&self, py: Python<'_>, row: &[f64], room: &mut Vec<f64>) -> PyResult<f64> {
        let centred = room;
        Ok(match self {
            Scorer::MaxDistance(larger) => match larger.score(row, centred) {
                Some(score) => score,
                None => in_python(&larger.python, py, row)?,
            },
            Scorer::Members(members) => match members.score(row, centred) {
                Some(score) => score,
                None => in_python(&members.python, py, row)?,
            },
            Scorer::Histograms { edges, heights } => {
                let (edges, heights) = (edges.get(), heights.get());
                let width = edges.len() / row.len();
                let mut total = None;
                for (j, &x) in row.iter().enumerate() {
                    let (at, end) = (j * width, (j + 1) * width - 1);
                    let found = at + edges[at..end].partition_point(|&edge| edge < x);
                    let height = heights[found];
                    total = Some(total.map_or(height, |sum: f64| sum + height));
                }
                -total.unwrap_or(f64::NAN)
            }
            Scorer::Gaussian { constant, mean, columns } => {
                centred.clear();
                centred.extend(row.iter().zip(mean).map(|(x, mean)| x - mean));
                let mut total = 0.0;
                for column in columns {
                    let mut white = 0.0;
                    for (x, weight) in centred.iter().zip(column) {
                        white += x * weight;
                    }
                    total += white * white;
                }
                -(constant - 0.5 * total)
            }
            Scorer::Python => f64::NAN,
        })
    }
}
