//! Why a verdict is what it is (`engine.explanation.Explainer`).

use crate::judge::Names;
use crate::scorers::{Members, Scorer};
use crate::seam::*;
use crate::without::{Given, MemberWithout, Without};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::{Arc, Mutex, OnceLock};


/// What an `Explainer` knows: channels with their columns.
pub struct Explainer {
    of: Py<PyAny>,
    names: Vec<Py<PyAny>>,
    columns: Vec<Vec<usize>>, // of each channel
    are_levels: Vec<bool>,    // whether the first of them is one that people could expect a value of
    groups: Py<PyAny>,
    contamination: Py<PyAny>,
}

static KNOWN: Mutex<Vec<Arc<Explainer>>> = Mutex::new(Vec::new());
const MAX_KNOWN: usize = 16;

impl Explainer {
    /// Return what one knows, the same for all streams.
    pub fn of(explainer: &Bound<'_, PyAny>) -> PyResult<Arc<Explainer>> {
        if let Some(found) = Explainer::known(explainer) {
            return Ok(found);
        }
        let names = EXPLAINER_CHANNELS.get(explainer)?.try_iter()?.map(|name| Ok(name?.unbind()));
        let names = names.collect::<PyResult<_>>()?;
        let groups = EXPLAINER_COLUMNS.get(explainer)?;
        let columns = groups.try_iter()?.map(|group| group?.call_method0("tolist")?.extract());
        let columns = columns.collect::<PyResult<_>>()?;
        let are_levels = EXPLAINER_ARE_LEVELS.get(explainer)?.call_method0("tolist")?.extract()?;
        let groups = groups.unbind();
        let contamination = EXPLAINER_CONTAMINATION.get(explainer)?.unbind();
        let of = explainer.clone().unbind();
        let made = Arc::new(Explainer { of, names, columns, are_levels, groups, contamination });
        let mut known = KNOWN.lock().expect("nobody panics with it");
        if known.len() >= MAX_KNOWN {
            known.remove(0);
        }
        known.push(made.clone());
        Ok(made)
    }

    fn known(explainer: &Bound<'_, PyAny>) -> Option<Arc<Explainer>> {
        let known = KNOWN.lock().expect("nobody panics with it");
        known.iter().find(|one| one.is_of(explainer)).cloned()
    }

    pub fn is_of(&self, explainer: &Bound<'_, PyAny>) -> bool {
        self.of.is(explainer)
    }
}

/// What explains the events of a run.
pub struct Explaining<'a, 'py> {
    pub explainer: &'a Explainer,
    pub model: &'a Bound<'py, PyAny>,
    pub scorer: &'a Scorer,
    pub known: &'a Known,
    pub age: i64, // of the model, at the first event
}

/// What is made of a model once, where it explains something.
#[derive(Default)]
pub struct Known {
    usual: OnceLock<Vec<f64>>, // medians of the rows that it was fitted on
    without: OnceLock<Without>,
    of_members: OnceLock<Vec<MemberWithout>>,
}

/// By channel the score without it, and what the others make one expect of it: value, low, high.
type Said = (Vec<f64>, Vec<Given>);

/// What there is to explain: a verdict before it is made.
pub struct Unexplained<'a> {
    pub row: &'a [f64],
    pub label: &'a Py<PyAny>,
    pub score: f64,
    pub rank: usize,
    pub band: [i64; 2],          // first and last rejected rank
    pub edges: [Option<f64>; 3], // scores at which labels change
}

impl<'py> Explaining<'_, 'py> {
    fn usual(&self) -> PyResult<&Vec<f64>> {
        if let Some(known) = self.known.usual.get() {
            return Ok(known);
        }
        let found = self.model.call_method0(MODEL_MEDIANS.name(self.model.py()))?;
        let found = found.call_method0(intern!(self.model.py(), "tolist"))?.extract()?;
        Ok(self.known.usual.get_or_init(|| found))
    }

    /// Return what a row scores without each channel, and what the others make one expect of it.
    fn said(&self, py: Python<'py>, event: &Unexplained<'_>) -> PyResult<Option<Said>> {
        let columns = &self.explainer.columns;
        if let Scorer::MaxDistance(max) = self.scorer {
            if self.known.without.get().is_none() {
                let made = Without::of(max.columns.bind(py), columns, self.explainer.groups.bind(py))?;
                let _ = self.known.without.set(made);
            }
            let without = self.known.without.get().expect("made above");
            let scores = without.scores(py, max, event.row, event.score)?;
            let given = without.given_others(max, event.row, columns.len());
            let given = given.map(|given| given.into_iter().map(|said| said.map(|said| (said, false))).collect());
            return Ok(scores.zip(given));
        }
        if let Scorer::Members(members) = self.scorer {
            return self.said_by(py, members, event.row);
        }
        let usual = self.usual()?;
        let (mut altered, mut room, mut scores) = (event.row.to_vec(), Vec::new(), Vec::new());
        for columns in columns {
            columns.iter().for_each(|&j| altered[j] = usual[j]);
            scores.push(self.scorer.score(py, &altered, &mut room)?);
            columns.iter().for_each(|&j| altered[j] = event.row[j]);
        }
        let nothing = vec![None; scores.len()];
        Ok(Some((scores, nothing)))
    }

    /// Return the same of an ensemble: what is beyond the range of a later member, that one says.
    fn said_by(&self, py: Python<'py>, members: &Members, row: &[f64]) -> PyResult<Option<Said>> {
        let (columns, groups) = (&self.explainer.columns, self.explainer.groups.bind(py));
        if self.known.of_members.get().is_none() {
            let made = members.members.iter().map(|(member, _)| MemberWithout::of(member, columns, groups));
            let _ = self.known.of_members.set(made.collect::<PyResult<_>>()?);
        }
        let of_members = self.known.of_members.get().expect("made above");
        let (mut room, mut tails, mut given) = (Vec::new(), vec![Vec::new(); columns.len()], Vec::new());
        for ((member, tail), without) in members.members.iter().zip(of_members) {
            let Some(own) = member.score(row, &mut room) else { return Ok(None) };
            let Some((scores, said)) = without.said(py, member, row, own)? else { return Ok(None) };
            tails.iter_mut().zip(scores).for_each(|(tails, score)| tails.push(tail.of_one(score)));
            if given.is_empty() {
                given = said;
                continue;
            }
            for ((given, own), columns) in given.iter_mut().zip(said).zip(columns) {
                let read = row[columns[0]];
                if own.is_some_and(|([_, low, high], _)| read < low || read > high) {
                    *given = own;
                }
            }
        }
        Ok(Some((tails.iter().map(|tails| members.joint(tails)).collect(), given)))
    }

    /// Return the evidence of the event with this number; `None` where Python has to find it.
    pub fn evidence(
        &self,
        py: Python<'py>,
        names: &Names,
        event: &Unexplained<'_>,
        at: usize,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let Unexplained { score: own, label, edges, .. } = *event;
        let Some(flagged) = edges[1] else { return Ok(None) };
        let ends = [edges[0].unwrap_or(f64::NEG_INFINITY), flagged, edges[2].unwrap_or(f64::INFINITY)];
        let explainer = self.explainer;
        let Some((scores, given)) = self.said(py, event)? else { return Ok(None) };
        let mut found = Vec::with_capacity(scores.len());
        for (i, (other, given)) in scores.into_iter().zip(given).enumerate() {
            if !other.is_finite() || !(other - own).is_finite() {
                return Ok(None);
            }
            let read = event.row[explainer.columns[i][0]];
            let is_told = |(said, _): &([f64; 3], bool)| explainer.are_levels[i] && (read < said[1] || read > said[2]);
            let told = given.filter(is_told).map(|([value, low, high], by)| ((read, value, low, high), by));
            let cell = ends.iter().filter(|&&edge| edge <= other).count();
            found.push((other - own, i, other, names.label(cell), told));
        }
        found.sort_by(|one, other| one.0.partial_cmp(&other.0).expect("finite"));
        let flip = found.iter().find(|(_, _, _, without, _)| !without.is(label));
        let flip = flip.map(|(_, i, ..)| &explainer.names[*i]);
        let made = TYPES_CHANNEL_EVIDENCE.get(py)?;
        // Siblings know it whatever the others are: what these make one expect counts where it is all.
        let is_shown = |without: &Py<PyAny>, by: bool| by || !names.is_anomaly(without);
        // Where others are at fault as well, of the first it says more than that it is usual.
        let is_first = !found.iter().any(|(.., without, told)| told.is_some_and(|(_, by)| is_shown(without, by)));
        let mut channels = Vec::with_capacity(found.len());
        for (place, (_, i, other, without, told)) in found.into_iter().enumerate() {
            let told = told.filter(|(_, by)| is_shown(without, *by) || (is_first && place == 0));
            let expected = match told {
                Some(((read, value, low, high), true)) => {
                    READABLE_EXPECTED.get(py)?.call1((read, value, low, high, "siblings"))?
                }
                Some((told, _)) => READABLE_EXPECTED.get(py)?.call1(told)?,
                None => UNSET.get(py)?.clone(),
            };
            channels.push(made.call1((&explainer.names[i], own - other, other, without, expected))?);
        }
        let (ranks, in_score) = distance(event, names);
        let evidence = TYPES_EVIDENCE.get(py)?;
        let age = self.age + at as i64;
        let channels = PyTuple::new(py, channels)?;
        let contamination = &self.explainer.contamination;
        Ok(Some(evidence.call1((channels, flip, ranks, in_score, contamination, age))?))
    }
}

/// Ranks and score units to the nearest edge of the band.
fn distance(event: &Unexplained<'_>, names: &Names) -> (i64, Option<f64>) {
    let ([lower, _, above], rank) = (event.edges, event.rank as i64);
    let ways = [lower, above].into_iter().flatten().map(|edge| (event.score - edge).abs());
    let in_score = ways.reduce(f64::min);
    if !names.is_rejected(event.label) {
        return (rank - event.band[1], in_score);
    }
    let up = lower.map(|_| rank - event.band[0] + 1);
    let down = above.map(|_| event.band[1] + 1 - rank);
    (up.into_iter().chain(down).min().unwrap_or(0), in_score)
}
