//! In which order a pass does its steps when values that the backward pass reads do not stay: pure.
//! Values leave after their last use forward, and come back, or are computed again, before the
//! first step backward that reads them. Nothing is told twice, and a mask that is drawn again is
//! the same, since its key is.

use crate::engine::plan::steps::{Action, Draft};

/// What becomes of a value between the forward and the backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fate {
    /// It stays.
    Keep,
    /// It is copied to the far tier, and back.
    Swap,
    /// It is dropped. The steps that computed it run again; what was loaded is loaded again.
    Recompute,
}

/// One thing of a pass, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A step of the draft, by its number; in the backward pass perhaps one that has run before.
    Step(usize),
    /// A value leaves.
    Away(usize),
    /// It is there again.
    Back(usize),
    /// What this step of the draft loads is there for all passes, as long as the state is the same.
    Keep(usize),
    /// The end of a pass for what this step loads.
    Hold(usize),
}

/// What a draft says of its values.
#[derive(Debug)]
pub struct Uses<'a> {
    /// Of which.
    pub draft: &'a Draft,
    /// Its first steps, which are the forward pass.
    pub forward: usize,
    /// Values that the backward pass reads, and those that are loaded.
    pub saved: Vec<usize>,
    /// Whether each value is a copy of a weight.
    pub is_loaded: Vec<bool>,
    /// The last step of the forward pass that touches each value.
    last_forward: Vec<Option<usize>>,
    /// The last step of the backward pass that reads it.
    last_backward: Vec<Option<usize>>,
    /// The step of the forward pass that gives it its contents, if running it again does so again.
    writer: Vec<Option<usize>>,
}

impl<'a> Uses<'a> {
    /// Of this one.
    pub fn of(draft: &'a Draft) -> Self {
        let (forward, values) = (draft.forward_steps(), draft.bytes.len());
        let (mut last_forward, mut last_backward) = (vec![None; values], vec![None; values]);
        let mut writers: Vec<Vec<usize>> = vec![Vec::new(); values];
        for (at, step) in draft.steps.iter().enumerate() {
            let last = if at < forward { &mut last_forward } else { &mut last_backward };
            step.reads.iter().chain(&step.writes).for_each(|&value| last[value] = Some(at));
            if at < forward {
                step.writes.iter().for_each(|&value| writers[value].push(at));
            }
        }
        let again = |(value, of): (usize, &Vec<usize>)| match of[..] {
            [only] if repeats(&draft.steps[only].action) => {
                (!draft.steps[only].reads.contains(&value)).then_some(only)
            }
            _ => None,
        };
        let writer = writers.iter().enumerate().map(again).collect();
        let mut is_loaded = vec![false; values];
        for step in &draft.steps {
            if let Action::Load { value, .. } = step.action {
                is_loaded[value] = true;
            }
        }
        let mut saved = draft.saved();
        saved.extend((0..values).filter(|&value| is_loaded[value]));
        saved.sort_unstable();
        saved.dedup();
        Self { draft, forward, saved, is_loaded, last_forward, last_backward, writer }
    }

    /// Steps that load what is kept by these fates.
    fn kept(&self, fates: &[Fate]) -> impl Iterator<Item = usize> {
        let steps = self.draft.steps[..self.forward].iter().enumerate();
        steps.filter_map(move |(at, step)| match step.action {
            Action::Load { value, .. } => (fates[value] == Fate::Keep).then_some(at),
            _ => None,
        })
    }

    /// The steps that compute a value again, in order, where all that they read is there or
    /// `stays`; `None`: it cannot be.
    pub fn again(&self, value: usize, stays: &dyn Fn(usize) -> bool) -> Option<Vec<usize>> {
        let (mut steps, mut seen) = (Vec::new(), vec![false; self.draft.bytes.len()]);
        self.collect(value, stays, &mut seen, &mut steps)?;
        Some(steps)
    }

    fn collect(
        &self,
        value: usize,
        stays: &dyn Fn(usize) -> bool,
        seen: &mut [bool],
        steps: &mut Vec<usize>,
    ) -> Option<()> {
        let writer = self.writer[value]?;
        for &read in &self.draft.steps[writer].reads {
            if !stays(read) && !seen[read] {
                self.collect(read, stays, seen, steps)?;
            }
        }
        self.draft.steps[writer].writes.iter().for_each(|&written| seen[written] = true);
        steps.push(writer);
        Some(())
    }
}

/// Whether a step may run again: it tells nobody anything, and draws what it drew before.
fn repeats(action: &Action) -> bool {
    use Action::{Average, Load, Mask, Run};
    matches!(action, Run { .. } | Mask { .. } | Average { .. } | Load { .. })
}

/// All of a pass, with a fate for every value of the draft (only saved ones have another than
/// `Keep`, and only recomputable ones `Recompute`).
pub fn sequence(uses: &Uses<'_>, fates: &[Fate]) -> Vec<Entry> {
    let mut pass = Pass { uses, fates, entries: Vec::new(), is_there: vec![false; fates.len()] };
    pass.forward();
    for at in uses.forward..uses.draft.steps.len() {
        pass.backward(at);
    }
    pass.entries.extend(uses.kept(fates).map(Entry::Hold));
    pass.entries
}

struct Pass<'a> {
    uses: &'a Uses<'a>,
    fates: &'a [Fate],
    entries: Vec<Entry>,
    /// Whether a value of the forward pass has its contents now.
    is_there: Vec<bool>,
}

impl Pass<'_> {
    fn forward(&mut self) {
        let mut leaving: Vec<Vec<usize>> = vec![Vec::new(); self.uses.forward];
        for &value in &self.uses.saved {
            match self.fates[value] {
                Fate::Keep => self.is_there[value] = true,
                Fate::Swap => {
                    let last = self.uses.last_forward[value];
                    leaving[last.expect("the forward pass wrote it")].push(value);
                }
                Fate::Recompute => {}
            }
        }
        self.entries.extend(self.uses.kept(self.fates).map(Entry::Keep));
        for (at, leaving) in leaving.into_iter().enumerate() {
            let step = &self.uses.draft.steps[at];
            if let Action::Load { .. } = step.action {
                // It was kept, or is loaded when it is read.
                continue;
            }
            let loaded = step.reads.iter().filter(|&&read| self.uses.is_loaded[read]);
            let loaded: Vec<usize> = loaded.copied().collect();
            loaded.iter().for_each(|&value| self.bring(value, &mut Vec::new()));
            self.entries.push(Entry::Step(at));
            self.entries.extend(leaving.into_iter().map(Entry::Away));
            for value in loaded.into_iter().filter(|&value| self.fates[value] != Fate::Keep) {
                self.is_there[value] = self.uses.last_forward[value].is_some_and(|last| last > at);
            }
        }
    }

    fn backward(&mut self, at: usize) {
        let step = &self.uses.draft.steps[at];
        let mut brought = Vec::new();
        for &value in &step.reads {
            self.bring(value, &mut brought);
        }
        self.entries.push(Entry::Step(at));
        // What nothing reads later is not kept for who might want it to compute something again.
        for value in brought {
            self.is_there[value] = self.uses.last_backward[value].is_some_and(|last| last > at);
        }
    }

    /// Makes a value of the forward pass be there.
    fn bring(&mut self, value: usize, brought: &mut Vec<usize>) {
        if self.uses.last_forward[value].is_none() || self.is_there[value] {
            return;
        }
        if self.fates[value] == Fate::Swap {
            self.entries.push(Entry::Back(value));
            self.is_there[value] = true;
            brought.push(value);
            return;
        }
        let writer = self.uses.writer[value].expect("what does not stay can be computed again");
        let step = &self.uses.draft.steps[writer];
        for &read in &step.reads {
            self.bring(read, brought);
        }
        self.entries.push(Entry::Step(writer));
        for &written in &step.writes {
            // What stays all the time is given the same numbers once more.
            if !self.is_there[written] {
                self.is_there[written] = true;
                brought.push(written);
            }
        }
    }
}
