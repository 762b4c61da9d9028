//! Files of many samples, such as tar shards: each is copied once, and every micro-batch that reads
//! one waits for that copy. A plain value, without threads.

use std::collections::{HashMap, HashSet};

use super::key::Key;

/// The files, and who reads of each.
#[derive(Debug, Default)]
pub struct Many {
    /// Files that are being copied, and the micro-batches that wait for them besides the one whose
    /// turn it was.
    in_hand: HashMap<Key, Vec<u64>>,
    /// Those that cannot be read: they are not tried again for each of their samples.
    given_up: HashSet<Key>,
    /// Those that are counted as there.
    counted: HashSet<Key>,
}

/// What a sample's file needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It is there, and was not met before.
    Here,
    /// Nothing: it was met before.
    Nothing,
    /// The micro-batch has one file more to wait for, which is being copied.
    Wait,
    /// And it is to be copied.
    Copy,
}

impl Need {
    /// Of a file of one sample, which is met only once.
    pub fn of_one(here: bool) -> Self {
        if here { Self::Here } else { Self::Copy }
    }
}

impl Many {
    /// What the file of a sample needs. Micro-batches come in their order.
    pub fn need(&mut self, key: Key, micro_batch: u64, here: bool) -> Need {
        if here {
            // What is in hand is counted when it comes.
            let is_news = !self.in_hand.contains_key(&key) && self.counted.insert(key);
            return if is_news { Need::Here } else { Need::Nothing };
        }
        if self.given_up.contains(&key) {
            return Need::Nothing;
        }
        match self.in_hand.get_mut(&key) {
            None => {
                self.in_hand.insert(key, vec![micro_batch]);
                Need::Copy
            }
            Some(waiting) if waiting.last() == Some(&micro_batch) => Need::Nothing,
            Some(waiting) => {
                waiting.push(micro_batch);
                Need::Wait
            }
        }
    }

    /// A copy is there; the micro-batches that waited for it, where there are many.
    pub fn copied(&mut self, key: Key) -> Option<Vec<u64>> {
        let waiting = self.in_hand.remove(&key)?;
        self.counted.insert(key);
        Some(waiting)
    }

    /// A file cannot be copied; the micro-batches that wait in vain.
    pub fn give_up(&mut self, key: Key) -> Option<Vec<u64>> {
        let waiting = self.in_hand.remove(&key)?;
        self.given_up.insert(key);
        Some(waiting)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_file_is_copied_once_and_each_micro_batch_waits_for_it_once() {
        let (mut many, key) = (Many::default(), Key::of(Path::new("/set/0.tar")));
        let other = Key::of(Path::new("/set/1.tar"));
        assert_eq!(many.need(key, 3, false), Need::Copy);
        assert_eq!(many.need(key, 3, false), Need::Nothing);
        assert_eq!(many.need(other, 4, false), Need::Copy);
        assert_eq!(many.need(key, 4, false), Need::Wait);
        assert_eq!(many.need(key, 6, false), Need::Wait);
        assert_eq!(many.copied(key), Some(vec![3, 4, 6]));
        assert_eq!(many.copied(key), None, "a late word changes nothing");
        assert_eq!(many.need(key, 7, true), Need::Nothing);
        assert_eq!(many.give_up(other), Some(vec![4]));
        assert_eq!(many.need(other, 8, false), Need::Nothing, "it is not tried again");
        let third = Key::of(Path::new("/set/2.tar"));
        assert_eq!([8, 9].map(|at| many.need(third, at, true)), [Need::Here, Need::Nothing]);
        // A copy that was lost is made again.
        assert_eq!(many.need(third, 10, false), Need::Copy);
    }
}
