//! A cache over real files: what is kept, what goes, and whose it is after a death.

use std::fs;
use std::path::Path;

use kintsugi_ffi::mapping::PAGE_BYTES;

use super::*;

const PAGE: u64 = PAGE_BYTES as u64;

fn key(number: u64) -> Key {
    Key::of(Path::new(&number.to_string()))
}

fn open(place: &tempfile::TempDir, pages: u64, policy: CachePolicy) -> Cache {
    open_for(place, pages, policy, Occasion::GoesOn)
}

fn open_for(
    place: &tempfile::TempDir,
    pages: u64,
    policy: CachePolicy,
    occasion: Occasion,
) -> Cache {
    Cache::open(&place.path().join("cache"), pages * PAGE, policy, occasion).expect("opened")
}

fn has(cache: &Cache, number: u64) -> bool {
    let mut bytes = Vec::new();
    let found = cache.fetch(key(number), &mut bytes);
    assert!(!found || bytes == number.to_string().as_bytes());
    found
}

fn offer(cache: &Cache, number: u64) {
    cache.offer(key(number), number.to_string().as_bytes());
}

/// What a rank uses, and others of its node use.
fn plan(cache: &Cache, mine: std::ops::Range<u64>, beside: std::ops::Range<u64>) {
    let keys = |numbers: std::ops::Range<u64>| -> Keys { Box::new(numbers.map(key)) };
    cache.plan(Holdings { mine: keys(mine), beside: keys(beside) });
}

#[test]
fn one_that_keeps_takes_what_fits_and_never_gives_it_up() {
    let place = tempfile::tempdir().expect("temporary folder");
    let cache = open(&place, 3, CachePolicy::Keep);
    (0..5).for_each(|number| offer(&cache, number));
    offer(&cache, 1);
    assert_eq!(
        (0..5).map(|n| has(&cache, n)).collect::<Vec<_>>(),
        [true, true, true, false, false]
    );
    assert_eq!(cache.used_bytes(), 3 * PAGE);
}

#[test]
fn a_run_that_begins_finds_nothing_of_an_earlier_one_and_one_that_goes_on_finds_all() {
    let place = tempfile::tempdir().expect("temporary folder");
    let opened = |occasion| open_for(&place, 3, CachePolicy::Keep, occasion);
    offer(&opened(Occasion::Begins), 1);
    assert!(has(&opened(Occasion::GoesOn), 1) && has(&opened(Occasion::Joins), 1));
    let first = opened(Occasion::Begins);
    assert!(!has(&first, 1) && first.used_bytes() == 0);
    offer(&first, 2);
    let second = opened(Occasion::Begins);
    assert!(has(&first, 2) && has(&second, 2), "the first of a node has looked, others use it");
}

#[test]
fn the_least_recently_used_goes_first() {
    let place = tempfile::tempdir().expect("temporary folder");
    let cache = open(&place, 3, CachePolicy::Lru);
    (0..3).for_each(|number| offer(&cache, number));
    assert!(has(&cache, 0));
    offer(&cache, 3);
    assert!(!has(&cache, 1) && has(&cache, 0) && has(&cache, 2) && has(&cache, 3));
    cache.offer(key(9), &vec![1; 4 * PAGE_BYTES]);
    assert!(has(&cache, 3), "what never fits displaces nothing");
}

#[test]
fn ranks_of_a_node_share_one_budget_and_a_newcomer_finds_it_warm() {
    let place = tempfile::tempdir().expect("temporary folder");
    let one = open(&place, 3, CachePolicy::Lru);
    let two = open(&place, 3, CachePolicy::Lru);
    offer(&one, 0);
    offer(&two, 1);
    offer(&two, 2);
    assert!(has(&one, 0) && has(&two, 2) && has(&two, 1));
    // It is dead: nothing of it is said or written.
    drop(two);
    let newcomer = open(&place, 3, CachePolicy::Lru);
    plan(&newcomer, 1..10, 0..1);
    // It goes on in the order of its predecessor's uses, and of its neighbour's.
    assert!(has(&newcomer, 1));
    offer(&newcomer, 3);
    assert_eq!(newcomer.used_bytes(), 3 * PAGE);
    assert!(!has(&one, 0) && has(&newcomer, 2), "the least recently used of the node");
    assert!(has(&newcomer, 1) && has(&newcomer, 3));
}

/// One rank filled the cache before the other had its turn. From then on the cache is the node's:
/// what each has of it follows from what each uses.
#[test]
fn ranks_that_came_late_get_what_they_use() {
    let place = tempfile::tempdir().expect("temporary folder");
    let ranks = [open(&place, 40, CachePolicy::Lru), open(&place, 40, CachePolicy::Lru)];
    (0..40).for_each(|number| offer(&ranks[0], number));
    (0..20).for_each(|number| {
        offer(&ranks[1], 100 + number);
        assert!(has(&ranks[0], 20 + number));
    });
    let there = |range: std::ops::Range<u64>| {
        let file =
            |number: &u64| place.path().join("cache").join(key(*number).to_string()).exists();
        range.filter(file).count()
    };
    assert_eq!((there(0..20), there(20..40), there(100..120)), (0, 20, 20));
    assert_eq!(ranks[1].used_bytes(), 40 * PAGE);
}

/// Two ranks of a node; the one that dies had 4 to 8. Of them the node has 6 and 7 still to read.
#[test]
fn what_a_dead_rank_leaves_is_its_heirs_and_what_nobody_reads_here_goes_first() {
    for policy in [CachePolicy::Keep, CachePolicy::Lru] {
        let place = tempfile::tempdir().expect("temporary folder");
        let (heir, dead) = (open(&place, 8, policy), open(&place, 8, policy));
        (0..4).for_each(|number| offer(&heir, number));
        (4..8).for_each(|number| offer(&dead, number));
        drop(dead);
        offer(&heir, 10);
        // Without a word a full cache that keeps takes nothing, the other gives up its own.
        assert_eq!(
            [has(&heir, 10), has(&heir, 0)],
            [policy == CachePolicy::Lru, policy == CachePolicy::Keep]
        );
        let (mine, beside) =
            (Box::new((0..4).chain([6, 7, 10, 11, 12]).map(key)), Box::new(None.into_iter()));
        heir.plan(Holdings { mine, beside });
        assert!((4..8).all(|number| has(&heir, number)), "nothing goes before room is needed");
        offer(&heir, 11);
        offer(&heir, 12);
        assert!(has(&heir, 11) && has(&heir, 12), "{policy:?}");
        assert!((4..6).all(|number| !has(&heir, number)) && has(&heir, 6) && has(&heir, 7));
        assert!((1..4).all(|number| has(&heir, number)), "{policy:?}: what is used stays");
        assert_eq!(heir.used_bytes(), 8 * PAGE);
        // All of it is in use now.
        offer(&heir, 13);
        assert_eq!((has(&heir, 13), has(&heir, 6)), (policy == CachePolicy::Lru, true));
    }
}

#[test]
fn what_killed_ranks_counted_wrong_is_counted_anew_by_the_next_start() {
    let place = tempfile::tempdir().expect("temporary folder");
    let cache = open(&place, 4, CachePolicy::Lru);
    (0..2).for_each(|number| offer(&cache, number));
    assert!(has(&cache, 0));
    cache.counts.set(USED, 4 * PAGE);
    cache.counts.set(TICKS, 0);
    fs::write(place.path().join("cache/x.part"), b"torn").expect("written");
    drop(cache);
    let cache = open(&place, 4, CachePolicy::Lru);
    plan(&cache, 0..10, 0..0);
    assert_eq!(cache.used_bytes(), 2 * PAGE);
    assert!(!place.path().join("cache/x.part").exists());
    (2..5).for_each(|number| offer(&cache, number));
    assert!(!has(&cache, 1) && has(&cache, 0) && has(&cache, 4), "in the order of their uses");
    cache.retire();
    assert!(!place.path().join("cache").exists());
}
