//! From a row to a score, bit for bit as the product's scorers do it: the same additions in order.

use crate::view::View;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

static HISTOGRAMS: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static MIXTURE: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static TABLE: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// What scores a row here; `Python` where that is done there.
pub enum Scorer {
    Histograms { edges: View, heights: View },
    Gaussian { constant: f64, mean: Vec<f64>, columns: Vec<Vec<f64>> },
    Python,
}

impl Scorer {
    /// Return what scores as a fitted scorer of the product does.
    pub fn of(scorer: &Bound<'_, PyAny>) -> PyResult<Scorer> {
        let py = scorer.py();
        let known = "rejex_stream.detectors.scorers";
        let table = TABLE.import(py, "rejex_stream.detectors.table", "TableScorer")?;
        if !scorer.get_type().is(table) || !scorer.getattr("scale")?.is_none() {
            return Ok(Scorer::Python);
        }
        let inner = scorer.getattr("inner")?;
        let kind = inner.get_type();
        if kind.is(HISTOGRAMS.import(py, known, "ColumnHistograms")?) {
            let edges = View::of(&inner.getattr("_edges")?, false)?;
            let heights = View::of(&inner.getattr("_heights")?, false)?;
            return Ok(Scorer::Histograms { edges, heights });
        }
        if kind.is(MIXTURE.import(py, known, "GaussianMixture")?) {
            let plain = inner.getattr("_plain")?;
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
        Ok(Scorer::Python)
    }

    /// Score a finite row; `centred` is room for as many numbers.
    pub fn score(&self, row: &[f64], centred: &mut Vec<f64>) -> f64 {
        match self {
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
        }
    }
}
