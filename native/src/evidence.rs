//! Why a verdict is what it is (`engine.explanation.Explainer`), for models that score whole rows.

use crate::judge::Names;
use crate::scorers::Scorer;
use crate::seam::*;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::{Arc, Mutex, OnceLock};


/// What an `Explainer` knows: channels with their columns.
pub struct Explainer {
    of: Py<PyAny>,
    channels: Vec<(Py<PyAny>, Vec<usize>)>,
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
        let mut channels = Vec::new();
        let names = EXPLAINER_CHANNELS.get(explainer)?;
        for (name, columns) in names.try_iter()?.zip(EXPLAINER_COLUMNS.get(explainer)?.try_iter()?) {
            channels.push((name?.unbind(), columns?.call_method0("tolist")?.extract()?));
        }
        let contamination = EXPLAINER_CONTAMINATION.get(explainer)?.unbind();
        let of = explainer.clone().unbind();
        let made = Arc::new(Explainer { of, channels, contamination });
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
    pub usual: &'a OnceLock<Vec<f64>>, // medians of the rows that the model knows
    pub age: i64,                      // of the model, at the first event
}

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
        if let Some(known) = self.usual.get() {
            return Ok(known);
        }
        let found = self.model.call_method0(MODEL_MEDIANS.name(self.model.py()))?;
        let found = found.call_method0(intern!(self.model.py(), "tolist"))?.extract()?;
        Ok(self.usual.get_or_init(|| found))
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
        let usual = self.usual()?;
        let (mut altered, mut room) = (event.row.to_vec(), Vec::new());
        let mut found = Vec::with_capacity(self.explainer.channels.len());
        for (i, (_, columns)) in self.explainer.channels.iter().enumerate() {
            columns.iter().for_each(|&j| altered[j] = usual[j]);
            let other = self.scorer.score(py, &altered, &mut room)?;
            columns.iter().for_each(|&j| altered[j] = event.row[j]);
            if !other.is_finite() || !(other - own).is_finite() {
                return Ok(None);
            }
            let cell = ends.iter().filter(|&&edge| edge <= other).count();
            found.push((other - own, i, other, names.label(cell)));
        }
        found.sort_by(|one, other| one.0.partial_cmp(&other.0).expect("finite"));
        let flip = found.iter().find(|(_, _, _, without)| !without.is(label));
        let flip = flip.map(|(_, i, _, _)| &self.explainer.channels[*i].0);
        let made = TYPES_CHANNEL_EVIDENCE.get(py)?;
        let channels = found
            .iter()
            .map(|(_, i, other, without)| {
                let name = &self.explainer.channels[*i].0;
                made.call1((name, own - other, *other, *without))
            })
            .collect::<PyResult<Vec<_>>>()?;
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
