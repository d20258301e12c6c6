//! The way of an ordinary event through rejex-stream, compiled: readings in, verdicts out.

// `unsafe` is for the four modules that allow it: object, prefetch, slot and view.
#![deny(unsafe_code)]
#![deny(unsafe_op_in_unsafe_fn, clippy::undocumented_unsafe_blocks)]

use pyo3::prelude::*;

mod admit;
mod alarm;
mod calendar;
mod cells;
mod counts;
mod credit;
mod evidence;
mod fast_path;
mod flat;
mod guard;
mod json;
mod judge;
mod messages;
mod monitors;
mod object;
mod points;
mod poll;
mod prefetch;
mod recent;
mod rows;
mod scorers;
mod seam;
mod siblings;
mod slot;
mod tail;
mod view;
mod without;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    guard::listen();
    module.add("REACHED", seam::reached())?;
    module.add_class::<cells::Cells>()?;
    module.add_class::<flat::Flat>()?;
    module.add_class::<fast_path::FastPath>()?;
    module.add_class::<messages::Lines>()?;
    module.add_class::<messages::Messages>()?;
    module.add_class::<points::Points>()?;
    module.add_function(wrap_pyfunction!(admit::admit, module)?)?;
    module.add_function(wrap_pyfunction!(fast_path::fast_path_of, module)?)?;
    module.add_function(wrap_pyfunction!(counts::plain, module)?)?;
    module.add_function(wrap_pyfunction!(messages::written, module)?)?;
    module.add_function(wrap_pyfunction!(monitors::note, module)?)?;
    module.add_function(wrap_pyfunction!(poll::poll, module)?)?;
    module.add_function(wrap_pyfunction!(siblings::beside, module)?)?;
    Ok(())
}
