//! The paper's table, and what becomes of it under other policies and advice.

use super::*;

fn setting(hint: Option<Hint>) -> Setting {
    Setting { units: 14, unit_size: Bytes(1 << 30), hint }
}

fn gone(policy: MemoryPolicy, hint: Option<Hint>) -> Vec<Vec<usize>> {
    setting(hint).play(policy).into_iter().map(|row| row.evicted).collect()
}

/// Actions 1 to 9, and 10 twice.
fn paper() -> Vec<Vec<usize>> {
    [&[0][..], &[1], &[2], &[], &[1], &[], &[0], &[0], &[0], &[0], &[0]].map(Vec::from).into()
}

#[test]
fn the_driver_does_what_the_paper_saw_whatever_the_sizes() {
    assert_eq!(gone(MemoryPolicy::Driver, None), paper());
    for units in [4, 5, 14, 40] {
        for unit_bytes in [1, 3 << 20, 1 << 30, UNIT_BYTES_MAX] {
            let setting = Setting { units, unit_size: Bytes(unit_bytes), hint: None };
            let rows = setting.play(MemoryPolicy::Driver);
            assert!(rows.iter().all(Row::as_in_paper), "{units} x {unit_bytes}: {rows:?}");
        }
    }
    let numbers = ACTIONS.map(|action| action.number);
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10]);
}

#[test]
fn under_lru_only_the_first_action_has_another_end() {
    let mut wanted = paper();
    wanted[0] = vec![1];
    assert_eq!(gone(MemoryPolicy::Lru, None), wanted);
}

#[test]
fn belady_takes_what_is_not_touched_again() {
    for (row, wanted) in gone(MemoryPolicy::Belady, None).iter().zip(paper()) {
        assert!(row.iter().all(|unit| !TOUCHED.contains(unit)) || *row == [1], "{row:?}");
        assert_eq!(row.len(), wanted.len());
    }
}

#[test]
fn advice_on_all_units_saves_none() {
    for hint in [Hint::PreferredLocation, Hint::AccessedBy] {
        assert_eq!(gone(MemoryPolicy::Driver, Some(hint)), paper(), "{hint:?}");
    }
    // A copy is made for the host and the card keeps its own, so that action 5 exposes nothing.
    let mut wanted = paper();
    wanted[4] = vec![0];
    assert_eq!(gone(MemoryPolicy::Driver, Some(Hint::ReadMostly)), wanted);
}

#[test]
fn who_is_gone_shows_in_the_seconds() {
    for row in setting(None).play(MemoryPolicy::Driver) {
        let left = row.calls.contains("to CPU").then_some(if row.action == 5 { 1 } else { 0 });
        for unit in TOUCHED {
            let seconds = row.seconds.touch[unit];
            let away = row.evicted.contains(&unit) || left == Some(unit);
            match row.action {
                // Read where it is: quicker than bringing it, slower than on the card.
                7 if away => assert!((0.21..1.0).contains(&seconds), "{row:?}"),
                _ if away => assert!((20.0..40.0).contains(&seconds), "{row:?}"),
                _ => assert!((0.1..1.0).contains(&seconds), "{row:?}"),
            }
        }
        // Free memory costs nothing, a victim's contents must leave first.
        let [leaves, seconds] = [row.action != 4, row.seconds.overcommit > 0.01];
        assert_eq!(leaves, seconds, "{row:?}");
        assert_eq!((row.to_gpu_bytes, row.to_cpu_bytes), (0, u64::from(leaves) << 30));
    }
}
