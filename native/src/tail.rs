//! How severity a score is among the scores that its model was calibrated with (`rejection.window.Tail`).

use crate::prefetch;
use crate::seam::*;
use crate::slot::Slot;
use crate::view::{below, View};
use pyo3::prelude::*;

pub struct Tail {
    ordered: View,
    of_ranks: View,
    sigma: f64,
    shape: f64,
    start: f64,
    shade: f64,
    largest: f64,
}

impl Tail {
    pub fn of(tail: &Bound<'_, PyAny>) -> PyResult<Tail> {
        let number = |slot: &Slot| slot.float(tail);
        Ok(Tail {
            ordered: View::of(&TAIL_ORDERED.get(tail)?, false)?,
            of_ranks: View::of(&TAIL_ARRAY.get(tail)?, false)?,
            sigma: number(&TAIL_SIGMA)?,
            shape: number(&TAIL_SHAPE)?,
            start: number(&TAIL_START)?,
            shade: number(&TAIL_SHADE)?,
            largest: WINDOW_LARGEST_SEVERITY.float(tail.py())?,
        })
    }

    /// Ask for its scores.
    pub fn prefetch(&self) {
        let ordered = self.ordered.get();
        prefetch::bytes(ordered.as_ptr().cast(), (8 * ordered.len()).min(2048));
    }

    pub fn severity(&self, score: f64) -> f64 {
        let (ordered, of_ranks) = (self.ordered.get(), self.of_ranks.get());
        let at = below(ordered, score);
        if at == ordered.len() {
            return self.gpd_severity(score, ordered[at - 1]);
        }
        let severity = of_ranks[at];
        if at == 0 {
            return severity;
        }
        let (a, b) = (ordered[at - 1], ordered[at]);
        let short = (b - score) / (b - a);
        if short <= 1.0 {
            let min = of_ranks[at - 1];
            let shaded = severity - self.shade * short * (severity - min);
            return if shaded > min { shaded } else { min };
        }
        severity
    }

    fn gpd_severity(&self, score: f64, largest: f64) -> f64 {
        if self.sigma == 0.0 {
            return self.largest;
        }
        let mut nats = (score - largest) / self.sigma;
        if self.shape != 0.0 {
            nats = (self.shape * nats).ln_1p() / self.shape;
        }
        let found = self.start + nats / std::f64::consts::LN_10;
        if self.largest < found { self.largest } else { found }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(py: Python<'_>, numbers: Vec<f64>) -> View {
        let array = py.import("array").unwrap().getattr("array").unwrap();
        View::of(&array.call1(("d", numbers)).unwrap(), false).unwrap()
    }

    #[test]
    fn a_severity_never_falls_with_its_score_and_goes_on_beyond_the_largest() {
        Python::initialize();
        Python::attach(|py| {
            let mut tail = Tail {
                ordered: view(py, vec![1.0, 2.0, 2.0, 4.0]),
                of_ranks: view(py, vec![0.1, 0.2, 0.2, 0.5]),
                sigma: 1.0,
                shape: 0.0,
                start: 0.7,
                shade: 1.0,
                largest: 1e6,
            };
            let of = |tail: &Tail, x| tail.severity(x);
            assert_eq!([0.0, 1.0, 2.0, 4.0].map(|x| of(&tail, x)), [0.1, 0.1, 0.2, 0.5]);
            assert_eq!(of(&tail, 3.0), 0.35); // halfway between two
            let scores: Vec<f64> = (0..80).map(|i| f64::from(i) / 10.0).collect();
            let found: Vec<f64> = scores.iter().map(|&x| of(&tail, x)).collect();
            assert!(found.windows(2).all(|two| two[0] <= two[1]), "{found:?}");
            let gpd_severity = of(&tail, 4.0 + std::f64::consts::LN_10);
            assert!((gpd_severity - 1.7).abs() < 1e-12, "a tenth as often a power of ten further");
            tail.shape = 0.5;
            assert!(of(&tail, 9.0) < 0.7 + 5.0 / std::f64::consts::LN_10, "a heavier tail");
            assert_eq!(of(&tail, f64::MAX), 0.7 + (0.5 * (f64::MAX - 4.0)).ln_1p() / 0.5 / std::f64::consts::LN_10);
            tail.sigma = 0.0;
            assert_eq!(of(&tail, 5.0), 1e6); // a constant tail has nothing gpd_severity it
        });
    }
}
