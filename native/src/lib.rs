//! The way of an ordinary event through rejex-stream, compiled: readings in, verdicts out.

use pyo3::prelude::*;

mod alarm;
mod credit;
mod judge;
mod lane;
mod poll;
mod recent;
mod rows;
mod scorers;
mod slot;
mod tail;
mod view;

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<lane::Lane>()?;
    module.add_function(wrap_pyfunction!(lane::lane_of, module)?)?;
    module.add_function(wrap_pyfunction!(poll::poll, module)?)?;
    Ok(())
}
