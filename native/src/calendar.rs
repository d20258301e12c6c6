//! The phases of the calendar that a row ends with (`features.columns.phases_of`).

use std::f64::consts::PI;

pub const PHASES: usize = 6; // a sine and a cosine of day, week and month
const DAY_MS: i64 = 86_400_000;
const MONDAY_MS: i64 = 4 * DAY_MS; // 1970-01-05
const LONGEST_MONTH: f64 = 31.0;
const ENDS: (i64, i64) = (-719_162, 2_932_896); // days of the first and of the last date of Python
const MARCH_OF_0: i64 = 719_468; // days from there to 1970
const FEBRUARY: i64 = 11; // months are counted from March

/// Append the phases of a time in milliseconds since 1970.
pub fn phases(at_ms: i64, row: &mut Vec<f64>) {
    for period in [DAY_MS, 7 * DAY_MS] {
        let since = (at_ms.rem_euclid(period) - MONDAY_MS).rem_euclid(period);
        on_circle(2.0 * PI * since as f64 / period as f64, row);
    }
    let day = at_ms.div_euclid(DAY_MS).clamp(ENDS.0, ENDS.1);
    on_circle(2.0 * PI * days_to_month_end(day) as f64 / LONGEST_MONTH, row);
}

fn on_circle(angle: f64, row: &mut Vec<f64>) {
    row.extend([angle.sin(), angle.cos()]);
}

/// Return how many days of its month come after a day, in days since 1970.
///
/// With years that begin in March only the last month changes its length, and the months before
/// it have 153 days in five (H. Hinnant: *chrono-compatible low-level date algorithms*).
fn days_to_month_end(day: i64) -> i64 {
    let of_cycle = (day + MARCH_OF_0).rem_euclid(146_097); // of 400 years
    let year = (of_cycle - of_cycle / 1_460 + of_cycle / 36_524 - of_cycle / 146_096) / 365;
    let of_year = of_cycle - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let february = year + 1;
    let is_leap = february % 4 == 0 && (february % 100 != 0 || february % 400 == 0);
    let next = if month == FEBRUARY { 365 + i64::from(is_leap) } else { (153 * (month + 1) + 2) / 5 };
    next - 1 - of_year
}

#[cfg(test)]
mod tests {
    use super::days_to_month_end;

    #[test]
    fn a_month_has_as_many_days_as_its_year_gives_it() {
        // 2024-02-01, 2023-02-28, 2000-02-28, 1900-02-28, 1970-01-01, 2023-12-31
        let days = [(19_754, 28), (19_416, 0), (11_015, 1), (-25_509, 0), (0, 30), (19_722, 0)];
        for (day, left) in days {
            assert_eq!(days_to_month_end(day), left, "{day}");
        }
    }
}
