//! How rare a score is among the scores that its model was calibrated with (`rejection.window.Tail`).

use crate::ahead;
use crate::seam::*;
use crate::slot::Slot;
use crate::view::{below, View};
use pyo3::prelude::*;

const LARGEST: f64 = 1e6;

pub struct Tail {
    ordered: View,
    of_ranks: View,
    sigma: f64,
    shape: f64,
    start: f64,
    shade: f64,
}

impl Tail {
    pub fn of(tail: &Bound<'_, PyAny>) -> PyResult<Tail> {
        let number = |slot: &Slot| slot.float(tail);
        Ok(Tail {
            ordered: View::of(&TAIL_ORDERED.get(&tail)?, false)?,
            of_ranks: View::of(&TAIL_ARRAY.get(&tail)?, false)?,
            sigma: number(&TAIL_SIGMA)?,
            shape: number(&TAIL_SHAPE)?,
            start: number(&TAIL_START)?,
            shade: number(&TAIL_SHADE)?,
        })
    }

    /// Ask for its scores.
    pub fn ahead(&self) {
        let ordered = self.ordered.get();
        ahead::bytes(ordered.as_ptr().cast(), (8 * ordered.len()).min(2048));
    }

    pub fn severity(&self, score: f64) -> f64 {
        let (ordered, of_ranks) = (self.ordered.get(), self.of_ranks.get());
        let at = below(ordered, score);
        if at == ordered.len() {
            return self.beyond(score, ordered[at - 1]);
        }
        let rare = of_ranks[at];
        if at == 0 {
            return rare;
        }
        let (a, b) = (ordered[at - 1], ordered[at]);
        let short = (b - score) / (b - a);
        if short <= 1.0 {
            let least = of_ranks[at - 1];
            let shaded = rare - self.shade * short * (rare - least);
            return if shaded > least { shaded } else { least };
        }
        rare
    }

    fn beyond(&self, score: f64, largest: f64) -> f64 {
        if self.sigma == 0.0 {
            return LARGEST;
        }
        let mut nats = (score - largest) / self.sigma;
        if self.shape != 0.0 {
            nats = (self.shape * nats).ln_1p() / self.shape;
        }
        let found = self.start + nats / std::f64::consts::LN_10;
        if LARGEST < found { LARGEST } else { found }
    }
}
