//! The newest rows of a model (`engine.model.RowBuffer`), and their blocks (`engine.packed_rows`).

use crate::recent::{Columns, LARGE};
use crate::seam::*;
use crate::view::{as_bytes, with_bytes};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyTuple};

pub const BLOCK: usize = 64;
pub const DIGITS: u8 = 7;


/// Take rows in, of which some are `left_out` of training, `made` of levels by these columns: so many
/// of the first are `kept`, and so many of the last.
///
/// Returns how many were taken: where it is not all, Python takes the others.
pub fn extend(
    buffer: &Bound<'_, PyAny>,
    rows: &[f64],
    out: &[u8],
    kept: (usize, usize),
    made: Option<Columns>,
) -> PyResult<usize> {
    let count = out.len();
    let width = rows.len() / count;
    let open = BUFFER_OPEN.get(buffer)?.cast_into::<PyByteArray>()?;
    let left_out = BUFFER_LEFT_OUT.get(buffer)?.cast_into::<PyByteArray>()?;
    if open.len() != 8 * width * BLOCK || left_out.len() != BLOCK {
        return Ok(0);
    }
    let mut n_open = BUFFER_N_OPEN.int(buffer)? as usize;
    let (mut taken, mut packed) = (0, false);
    while taken < count {
        if n_open >= BLOCK {
            if n_open > BLOCK || !pack(buffer, &open, &left_out, width, kept, made)? {
                break;
            }
            (n_open, packed) = (0, true);
        }
        let some = (count - taken).min(BLOCK - n_open);
        let part = &rows[taken * width..(taken + some) * width];
        let at = 8 * width * n_open;
        with_bytes(&open, |open| open[at..at + 8 * part.len()].copy_from_slice(as_bytes(part)));
        with_bytes(&left_out, |flags| {
            flags[n_open..n_open + some].copy_from_slice(&out[taken..taken + some]);
        });
        (n_open, taken) = (n_open + some, taken + some);
    }
    BUFFER_N_OPEN.set_int(buffer, n_open as i64)?;
    if packed {
        buffer.call_method0(BUFFER_MAKE_ROOM.name(buffer.py()))?;
    }
    Ok(taken)
}

/// Put the rows of a block away by the numbers of the one before; whether they can be.
fn pack(
    buffer: &Bound<'_, PyAny>,
    open: &Bound<'_, PyByteArray>,
    left_out: &Bound<'_, PyByteArray>,
    width: usize,
    (d, more): (usize, usize),
    made: Option<Columns>,
) -> PyResult<bool> {
    let py = buffer.py();
    let blocks = BUFFER_BLOCKS.get(buffer)?.cast_into::<PyList>()?;
    let Some(before) = blocks.len().checked_sub(1) else { return Ok(false) };
    let before = blocks.get_item(before)?.cast_into::<PyTuple>()?;
    let codes = before.get_item(0)?.cast_into::<PyBytes>()?;
    let (numbers, size) = (before.get_item(1)?.cast_into::<PyBytes>()?, before.get_item(2)?);
    let first = if made.is_some() { d } else { width - more };
    let n_levels = first + more;
    if codes.as_bytes().len() != n_levels || size.extract::<usize>()? != BLOCK {
        return Ok(false);
    }
    let rows: Vec<f64> = open
        .to_vec()
        .chunks_exact(8)
        .map(|bytes| f64::from_ne_bytes(bytes.try_into().expect("eight")))
        .collect();
    let columns = Kinds::of(codes.as_bytes(), width - more - first, first);
    let Some(written) = columns.written(&rows, width) else { return Ok(false) };
    let mut odd = Vec::new();
    if let Some(made) = made {
        let Some(past) = columns.read(numbers.as_bytes()) else { return Ok(false) };
        let levels = (0..BLOCK).flat_map(|i| &rows[i * width..i * width + d]);
        if !past.iter().chain(levels).all(|x| x.abs() <= LARGE) {
            return Ok(false);
        }
        odd = odd_rows(&past, &rows, width, (d, more), made);
    }
    let mut flags = left_out.to_vec();
    if flags.iter().all(|&flag| flag == 0) {
        flags.clear();
    }
    let odd_bytes: Vec<u8> = odd
        .iter()
        .flat_map(|&i| &rows[i as usize * width..(i as usize + 1) * width])
        .flat_map(|x| x.to_ne_bytes())
        .collect();
    let block = PACKED_ROWS_BLOCK.get(py)?;
    let parts = (
        codes,
        PyBytes::new(py, &written),
        BLOCK,
        PyBytes::new(py, &flags),
        PyBytes::new(py, &odd),
        PyBytes::new(py, &odd_bytes),
    );
    blocks.append(block.call1(parts)?)?;
    Ok(true)
}

/// Return which rows are not what their levels and those before make.
fn odd_rows(past: &[f64], rows: &[f64], width: usize, (d, more): (usize, usize), made: Columns) -> Vec<u8> {
    let before = made.reach() * d;
    let mut levels: Vec<f64> = past.chunks_exact(d + more).flat_map(|kept| &kept[..d]).copied().collect();
    levels.drain(..levels.len() - before);
    let (mut row, mut odd) = (Vec::with_capacity(width), Vec::new());
    for (i, whole) in rows.chunks_exact(width).take(BLOCK).enumerate() {
        row.clear();
        made.row(&whole[..d], &levels[levels.len() - before..], &mut row);
        levels.extend_from_slice(&whole[..d]);
        let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits();
        if row.len() + more != width || !row.iter().zip(whole).all(same) {
            odd.push(i as u8);
        }
    }
    odd
}

/// Columns by the kind of numbers that they are kept by, in the order of the kinds (`_Numbers`): how
/// many there are, and how many columns of a row come between the first and the last of them.
struct Kinds {
    kinds: Vec<(u8, Vec<(usize, f64)>)>,
    count: usize,
    gap: usize,
    first: usize,
}

impl Kinds {
    fn of(codes: &[u8], gap: usize, first: usize) -> Kinds {
        let mut kinds: Vec<(u8, Vec<(usize, f64)>)> = Vec::new();
        for (j, code) in codes.iter().enumerate() {
            let (kind, scale) = (code / DIGITS, 10f64.powi(i32::from(code % DIGITS)));
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, columns)) => columns.push((j, scale)),
                None => kinds.push((kind, vec![(j, scale)])),
            }
        }
        Kinds { kinds, count: codes.len(), gap, first }
    }

    /// Return in which column of a row one is.
    fn place(&self, j: usize) -> usize {
        if j < self.first { j } else { j + self.gap }
    }

    /// Return the numbers of levels; `None` where they do not give them back, or fewer would do.
    fn written(&self, rows: &[f64], width: usize) -> Option<Vec<u8>> {
        let mut written = Vec::with_capacity(8 * BLOCK * self.count);
        for (kind, columns) in &self.kinds {
            if *kind == 3 {
                let decimal = |x: f64| (x * 1e6).round_ties_even() / 1e6 == x;
                if columns.iter().any(|&(j, _)| decimal(rows[self.place(j)])) {
                    return None;
                }
            }
            for row in rows.chunks_exact(width) {
                for &(j, scale) in columns {
                    let x = row[self.place(j)];
                    let nearest = || (x * scale).round_ties_even();
                    let back = match kind {
                        0 => {
                            let y = nearest() as i16;
                            written.extend_from_slice(&y.to_le_bytes());
                            f64::from(y) / scale
                        }
                        1 => {
                            let y = nearest() as i32;
                            written.extend_from_slice(&y.to_le_bytes());
                            f64::from(y) / scale
                        }
                        2 => {
                            written.extend_from_slice(&(x as f32).to_le_bytes());
                            f64::from(x as f32) / scale
                        }
                        3 => {
                            written.extend_from_slice(&x.to_le_bytes());
                            x
                        }
                        _ => return None,
                    };
                    if back.to_bits() != x.to_bits() {
                        return None;
                    }
                }
            }
        }
        Some(written)
    }

    /// Return the levels of a block, row after row.
    fn read(&self, numbers: &[u8]) -> Option<Vec<f64>> {
        let mut levels = vec![0.0; BLOCK * self.count];
        let mut at = 0;
        for (kind, columns) in &self.kinds {
            for i in 0..BLOCK {
                for &(j, scale) in columns {
                    let size = [2, 4, 4, 8][*kind as usize];
                    let bytes = numbers.get(at..at + size)?;
                    at += size;
                    levels[i * self.count + j] = match kind {
                        0 => f64::from(i16::from_le_bytes(bytes.try_into().ok()?)) / scale,
                        1 => f64::from(i32::from_le_bytes(bytes.try_into().ok()?)) / scale,
                        2 => f64::from(f32::from_le_bytes(bytes.try_into().ok()?)) / scale,
                        _ => f64::from_le_bytes(bytes.try_into().ok()?),
                    };
                }
            }
        }
        Some(levels)
    }
}


/// Say of whole rows which train, as `Guard.admit` does.
pub fn admit(guard: &Bound<'_, PyAny>, outliers: &[usize], out: &mut [u8]) -> PyResult<()> {
    let (capacity, longest) = (GUARD_CAPACITY.int(guard)? as usize, GUARD_LONGEST.int(guard)? as usize);
    let most = GUARD_MOST.float(guard)?;
    let kept = GUARD_FLAGS.get(guard)?.cast_into::<PyByteArray>()?;
    let begin = kept.len();
    let mut flags = kept.to_vec();
    flags.resize(begin + out.len(), 0);
    for at in outliers.iter().map(|i| begin + i) {
        let before = &flags[(at + 1).saturating_sub(capacity)..at];
        if (before.iter().filter(|&&flag| flag == 1).count() as f64) < most {
            flags[at] = 1;
        }
    }
    out.copy_from_slice(&flags[begin..]);
    let surplus = flags.len().saturating_sub(longest);
    kept.resize(flags.len() - surplus)?;
    with_bytes(&kept, |kept| kept.copy_from_slice(&flags[surplus..]));
    Ok(())
}
