//! While values live: from the step that gives a value contents to the last that needs them.
//! Contents that are given anew (read back, computed again) begin another interval, which may lie
//! elsewhere: what happens in between is what out-of-core training and recomputation gain.

/// Steps between which contents are kept, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval {
    /// The step that writes them.
    pub first: usize,
    /// The last step that touches them.
    pub last: usize,
}

/// Something that steps compute: as many bytes whenever it lives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// Size.
    pub bytes: usize,
    /// While it lives, in order. Between two of them its contents are elsewhere, or nowhere.
    pub intervals: Vec<Interval>,
}

/// The values that a step reads and those that it writes.
#[derive(Debug, Clone, Copy)]
pub struct Touches<'a> {
    /// Contents needed.
    pub reads: &'a [usize],
    /// Contents given. What is also read is changed in place: its interval goes on.
    pub writes: &'a [usize],
}

/// The intervals of each of `values` values.
///
/// # Panics
/// If a step reads a value that no step before it has written: a layer's mistake.
pub fn intervals<'a>(
    steps: impl Iterator<Item = Touches<'a>>,
    values: usize,
) -> Vec<Vec<Interval>> {
    let mut lives: Vec<Vec<Interval>> = vec![Vec::new(); values];
    for (at, Touches { reads, writes }) in steps.enumerate() {
        for &value in reads {
            let current = lives[value].last_mut();
            current.expect("a step reads only values that were written").last = at;
        }
        for &value in writes.iter().filter(|value| !reads.contains(value)) {
            lives[value].push(Interval { first: at, last: at });
        }
    }
    lives
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(steps: &[(&[usize], &[usize])], values: usize) -> Vec<Vec<(usize, usize)>> {
        let touches = steps.iter().map(|&(reads, writes)| Touches { reads, writes });
        let pairs = |lives: Vec<Interval>| lives.iter().map(|i| (i.first, i.last)).collect();
        intervals(touches, values).into_iter().map(pairs).collect()
    }

    #[test]
    fn a_value_lives_from_its_writer_to_its_last_reader() {
        let lives = of(&[(&[], &[0]), (&[0], &[1]), (&[0], &[]), (&[1], &[])], 2);
        assert_eq!(lives, [vec![(0, 2)], vec![(1, 3)]]);
    }

    #[test]
    fn a_value_that_is_written_again_is_dead_in_between() {
        let lives = of(&[(&[], &[0]), (&[0], &[]), (&[], &[]), (&[], &[0]), (&[0], &[])], 1);
        assert_eq!(lives, [vec![(0, 1), (3, 4)]]);
    }

    #[test]
    fn a_change_in_place_ends_nothing() {
        assert_eq!(of(&[(&[], &[0]), (&[0], &[0]), (&[0], &[])], 1), [vec![(0, 2)]]);
    }

    #[test]
    #[should_panic(expected = "only values that were written")]
    fn a_value_that_nobody_wrote_cannot_be_read() {
        of(&[(&[0], &[])], 1);
    }
}
