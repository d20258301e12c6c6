//! What a panic becomes: an error of the product, with the item at which it happened.
//!
//! Whatever Python calls here goes through [`guarded`], so that no `PanicException` crosses over: it
//! is no `Exception`, and would end a process past everything that closes files and commits offsets.

use crate::seam::NATIVE_CORE_BROKE_OFF;
use pyo3::prelude::*;
use std::cell::{Cell, RefCell};
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};

thread_local! {
    static AT: Cell<usize> = const { Cell::new(0) };
    static WHY: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Remember what panics say and where, in the place of writing it to standard error.
pub fn listen() {
    set_hook(Box::new(|panic| WHY.with_borrow_mut(|why| *why = panic.to_string())));
}

/// Note which item the call is at.
#[inline]
pub fn at(item: usize) {
    AT.set(item);
}

/// Call; a panic becomes an error that names the item of `items` it was at.
pub fn guarded<T>(
    items: &Bound<'_, PyAny>,
    call: impl FnOnce() -> PyResult<T>,
) -> PyResult<T> {
    at(0);
    if let Ok(found) = catch_unwind(AssertUnwindSafe(call)) {
        return found;
    }
    let py = items.py();
    let why = WHY.take().replace('\n', " ");
    let item = items.get_item(AT.get()).unwrap_or_else(|_| py.None().into_bound(py));
    Err(PyErr::from_value(NATIVE_CORE_BROKE_OFF.get(py)?.call1((item, why))?))
}
