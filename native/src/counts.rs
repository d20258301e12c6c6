//! Outcomes of which nothing is to be told but their label (`types.OutcomeCounts`).

use crate::prefetch;
use crate::guard::guarded;
use crate::object::{is_empty, tuple_items, Layout, Object};
use crate::seam::*;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;

/// What a verdict has in these places where it is plain, and its labels.
struct Plain {
    verdict: Layout,
    label: usize,
    fields: Vec<(usize, Py<PyAny>)>,
    labels: Vec<Py<PyAny>>,
}

const AHEAD: usize = 4; // outcomes, as far as memory takes to answer

static PLAIN: PyOnceLock<Plain> = PyOnceLock::new();

impl Plain {
    fn of(py: Python<'_>) -> PyResult<Plain> {
        let verdict = Layout::of(TYPES_VERDICT.get(py)?)?;
        let unset = UNSET.get(py)?.clone().unbind();
        let no = pyo3::types::PyBool::new(py, false).to_owned().into_any().unbind();
        let fields = [
            (&VERDICT_REASON, py.None()),
            (&VERDICT_STATUS, py.None()),
            (&VERDICT_WITHHELD, no.clone_ref(py)),
            (&VERDICT_HELD, no.clone_ref(py)),
            (&VERDICT_PLANNED, no),
            (&VERDICT_MUTED, unset.clone_ref(py)),
            (&VERDICT_LIMITED, unset),
        ];
        let fields = fields.into_iter().map(|(name, value)| Ok((verdict.at(name)?, value)));
        let fields = fields.collect::<PyResult<_>>()?;
        let labels = TYPES_LABEL.get(py)?.try_iter()?.map(|one| Ok(one?.unbind()));
        let labels = labels.collect::<PyResult<_>>()?;
        Ok(Plain { label: verdict.at(&VERDICT_LABEL)?, verdict, fields, labels })
    }

    /// Return which label a plain outcome has.
    fn label(&self, outcome: Object<'_, '_>) -> Option<usize> {
        let [_, verdict, invalid, review, incidents, replies, after] = tuple_items::<7>(outcome)?;
        let _ = (replies, after); // counted by nobody
        if !invalid.is_none() || !review.is_none() || !is_empty(incidents) || !self.verdict.is(verdict) {
            return None;
        }
        let get = |at| self.verdict.get(verdict, at);
        if self.fields.iter().any(|(at, value)| !get(*at).is(value)) {
            return None;
        }
        self.labels.iter().position(|label| get(self.label).is(label))
    }
}

/// Count plain outcomes by label, and return the others.
#[pyfunction]
pub fn plain<'py>(
    outcomes: &Bound<'py, PyList>,
) -> PyResult<Counted<'py>> {
    guarded(outcomes, || counted(outcomes))
}

type Counted<'py> = (Vec<(Py<PyAny>, usize)>, Bound<'py, PyList>);

fn counted<'py>(outcomes: &Bound<'py, PyList>) -> PyResult<Counted<'py>> {
    let py = outcomes.py();
    let of = PLAIN.get_or_try_init(py, || Plain::of(py))?;
    let (mut counts, others) = (vec![0; of.labels.len()], PyList::empty(py));
    for (at, outcome) in outcomes.iter().enumerate() {
        if let Ok(later) = outcomes.get_item(at + AHEAD) {
            if let Some([_, verdict, ..]) = tuple_items::<7>(later.as_borrowed()) {
                prefetch::lines(verdict, 5);
            }
        }
        match of.label(outcome.as_borrowed()) {
            Some(label) => counts[label] += 1,
            None => others.append(outcome)?,
        }
    }
    let labels = of.labels.iter().map(|label| label.clone_ref(py));
    Ok((labels.zip(counts).filter(|(_, n)| *n > 0).collect(), others))
}
