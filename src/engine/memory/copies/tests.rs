//! Copies over both places, with and without a link.

use proptest::prelude::*;

use super::*;
use crate::engine::memory::far::Place;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn near(bytes: usize) -> Arc<Arena> {
    Arc::new(Arena::zeroed(bytes))
}

fn span(offset: usize, bytes: usize) -> Span {
    Span { offset, bytes }
}

fn in_memory(bytes: usize, link: Option<Rate>) -> Copies {
    Copies::new(Far::new(&Place::Ram, bytes).expect("memory"), [link; 2]).expect("threads")
}

/// The same place twice over, and the folder of one.
fn both(bytes: usize) -> (tempfile::TempDir, [Copies; 2]) {
    let folder = tempfile::tempdir().expect("a folder");
    let places = [Place::Ram, Place::File(folder.path().to_owned())];
    let copies = places.map(|place| {
        Copies::new(Far::new(&place, bytes).expect("room"), [None; 2]).expect("threads")
    });
    (folder, copies)
}

fn byte(value: usize, at: usize) -> u8 {
    (value * 31 + at * 7 + at / 251) as u8
}

fn fill(near: &Arc<Arena>, span: Span, value: usize) {
    let mut held = near.hold(span, Access::Write);
    held.bytes_mut().iter_mut().enumerate().for_each(|(at, to)| *to = byte(value, at));
}

fn is(near: &Arc<Arena>, span: Span, value: usize) -> bool {
    let held = near.hold(span, Access::Read);
    held.bytes().iter().enumerate().all(|(at, found)| *found == byte(value, at))
}

/// One behind the other, each beginning at a multiple.
fn places(bytes: &[usize], align: usize) -> (Vec<usize>, usize) {
    let mut end = 0;
    let place = |bytes: &usize| {
        let start = end;
        end += bytes.next_multiple_of(align);
        start
    };
    (bytes.iter().map(place).collect(), end)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn what_is_copied_out_comes_back_the_same_elsewhere(
        sizes in prop::collection::vec(
            prop_oneof![0usize..200, 4000usize..9000, (MIB - 3)..(MIB + 70)], 1..7),
        order in any::<usize>(),
    ) {
        let (starts, near_bytes) = places(&sizes, 64);
        let (far_starts, far_bytes) = places(&sizes, FAR_ALIGN_BYTES);
        let (_folder, copies) = both(far_bytes);
        for mut copies in copies {
            // Back behind all, in another order.
            let near = near(2 * near_bytes + 64);
            let number = sizes.len();
            let turned: Vec<usize> = (0..number).map(|at| (at + order % number) % number).collect();
            let sizes_back: Vec<usize> = turned.iter().map(|&at| sizes[at]).collect();
            let (starts_back, _) = places(&sizes_back, 64);
            let mut tickets = Vec::new();
            for at in 0..number {
                let value = span(starts[at], sizes[at]);
                fill(&near, value, at);
                tickets.push(copies.begin(Way::Out, &near, value, far_starts[at]));
            }
            for ticket in tickets.drain(..) {
                copies.finish(ticket)?;
            }
            near.hold(span(0, near_bytes), Access::Write).bytes_mut().fill(0xEE);
            let back = |at: usize| span(near_bytes + starts_back[at], sizes_back[at]);
            for (at, &value) in turned.iter().enumerate() {
                tickets.push(copies.begin(Way::In, &near, back(at), far_starts[value]));
            }
            for ticket in tickets {
                copies.finish(ticket)?;
            }
            for (at, &value) in turned.iter().enumerate() {
                prop_assert!(is(&near, back(at), value), "{at}");
            }
            let total = sizes.iter().sum::<usize>() as u64;
            let traffic = copies.take_traffic();
            prop_assert_eq!((traffic.out.bytes, traffic.back.bytes), (total, total));
            let after = copies.take_traffic();
            prop_assert_eq!(after, Traffic::default());
        }
    }
}

#[test]
fn both_ways_at_once_beside_a_thread_that_computes() {
    // More than goes at once.
    let part = 4 * MIB + 13;
    let room = part.next_multiple_of(FAR_ALIGN_BYTES);
    let (_folder, copies) = both(2 * room);
    for mut copies in copies {
        let near = near(3 * room);
        fill(&near, span(0, part), 0);
        let ticket = copies.begin(Way::Out, &near, span(0, part), 0);
        copies.finish(ticket).expect("copied");
        for round in 1..5 {
            // What went out last comes back, while the next goes out and something is computed.
            let [from, to] = [round % 2 * room, (round + 1) % 2 * room];
            fill(&near, span(0, part), round);
            let out = copies.begin(Way::Out, &near, span(0, part), from);
            let back = copies.begin(Way::In, &near, span(room, part), to);
            fill(&near, span(2 * room, part), 99);
            copies.finish(back).expect("copied");
            assert!(is(&near, span(room, part), round - 1), "{round}");
            assert!(is(&near, span(2 * room, part), 99), "{round}");
            copies.finish(out).expect("copied");
        }
    }
}

#[test]
fn a_direction_copies_in_the_order_in_which_it_was_told_to() {
    let (_folder, copies) = both(MIB);
    for mut copies in copies {
        let near = near(8 * MIB);
        for round in 0..20 {
            let [first, second] = [0, 4].map(|at| span(at * MIB, (round % 3 + 1) * 100 * KIB));
            fill(&near, first, round);
            fill(&near, second, round + 1);
            // Both to one place: the later stays.
            drop(copies.begin(Way::Out, &near, first, 0));
            let last = copies.begin(Way::Out, &near, second, 0);
            copies.finish(last).expect("copied");
            // The earlier has ended, too: its span can be lent.
            let back = copies.begin(Way::In, &near, first, 0);
            copies.finish(back).expect("copied");
            assert!(is(&near, first, round + 1), "{round}");
        }
    }
}

#[test]
fn more_copies_than_wait_in_a_queue_can_be_begun() {
    let mut copies = in_memory(4 * KIB, None);
    let near = near(64);
    let begun = (0..4 * QUEUE_MAX).map(|_| copies.begin(Way::Out, &near, span(0, 64), 0));
    let last = begun.last().expect("some");
    copies.finish(last).expect("copied");
    assert_eq!(copies.take_traffic().out.bytes, 4 * 64 * QUEUE_MAX as u64);
}

#[test]
fn a_link_takes_its_time_with_large_copies_and_with_small_ones() {
    let rate = Rate(8 * MIB as u64);
    for number in [1, 3, 64] {
        let mut copies = in_memory(MIB, Some(rate));
        let (near, bytes) = (near(2 * MIB), MIB / number / 64 * 64);
        let begun = Instant::now();
        let mut tickets = Vec::new();
        for at in 0..number {
            tickets.push(copies.begin(Way::Out, &near, span(at * bytes, bytes), 0));
        }
        tickets.into_iter().for_each(|ticket| copies.finish(ticket).expect("copied"));
        let least = Duration::from_secs_f64((number * bytes) as f64 / rate.0 as f64);
        assert!(begun.elapsed() >= least, "{:?} {least:?}", begun.elapsed());
        let traffic = copies.take_traffic();
        assert!(traffic.waited >= least / 2 && traffic.waited <= begun.elapsed(), "{traffic:?}");
        assert!(traffic.out.busy >= least / 2, "{traffic:?}");
        // The other direction has a link of its own.
        assert_eq!(traffic.back, Flow::default());
    }
}

#[test]
fn speed_is_measured_and_an_emulated_link_is_as_fast_as_it_says() {
    let near = &near(MIB);
    let measured = |copies: &Copies| copies.measure(near).expect("there is room");
    let [out, back] = measured(&in_memory(MIB, None)).expect("enough to tell");
    assert!(out.is_finite() && out > 1e6 && back.is_finite() && back > 1e6, "{out} {back}");
    let mut slow = in_memory(MIB, Some(Rate(1000)));
    assert_eq!(slow.rates(near), [1000.0; 2]);
    assert_eq!(slow.take_traffic(), Traffic::default());
    assert_eq!(in_memory(64 * KIB, None).rates(near), [ASSUMED_RATE; 2]);
    let folder = tempfile::tempdir().expect("a folder");
    let far = Far::new(&Place::File(folder.path().to_owned()), MIB).expect("room");
    let speeds = measured(&Copies::new(far, [None; 2]).expect("threads")).expect("enough to tell");
    assert!(speeds.iter().all(|speed| speed.is_finite() && *speed > 0.0), "{speeds:?}");
}

#[test]
fn the_first_error_of_a_direction_comes_out_of_it_until_it_is_drained() {
    let folder = tempfile::tempdir().expect("a folder");
    let far = Far::short(folder.path(), MIB).expect("room");
    let (mut copies, near) = (Copies::new(far, [None; 2]).expect("threads"), near(MIB));
    let mut copy = |way, offset| {
        let ticket = copies.begin(way, &near, span(0, 64), offset);
        copies.finish(ticket)
    };
    copy(Way::In, 0).expect("before the end");
    for offset in [8192, 4096, 0] {
        let text = copy(Way::In, offset).expect_err("the file has one block").to_string();
        let shown = folder.path().to_string_lossy();
        assert!(text.contains("read at byte 8192: the file ends after 0 of 4096"), "{text}");
        assert!(text.contains("memory.far: ") && text.contains(&*shown), "{text}");
    }
    copy(Way::Out, 4096).expect("another direction");
    copies.drain();
    let ticket = copies.begin(Way::In, &near, span(0, 64), 4096);
    copies.finish(ticket).expect("it was written");
}

/// A copy that does not end by itself.
fn endless() -> (Copies, Arc<Arena>, Ticket) {
    let (mut copies, near) = (in_memory(MIB, Some(Rate(1))), near(MIB));
    let ticket = copies.begin(Way::Out, &near, span(0, 300 * KIB), 0);
    (copies, near, ticket)
}

#[test]
fn what_was_drained_has_ended_and_whatever_follows_is_copied() {
    let (mut copies, near) = (in_memory(64 * MIB, Some(Rate(MIB as u64))), near(64 * MIB));
    for round in 0..5 {
        let tickets = [Way::Out, Way::In].map(|way| {
            let offset = way as usize * 32 * MIB;
            copies.begin(way, &near, span(offset, 32 * MIB), offset)
        });
        copies.drain();
        fill(&near, span(0, 4096), round);
        for ticket in tickets {
            assert!(copies.finish(ticket).expect_err("drained").to_string().contains("given up"));
        }
        // Across both: nothing of them is under way.
        let out = copies.begin(Way::Out, &near, span(0, 4096), 32 * MIB);
        copies.finish(out).expect("copied");
        let back = copies.begin(Way::In, &near, span(8192, 4096), 32 * MIB);
        copies.finish(back).expect("copied");
        assert!(is(&near, span(8192, 4096), round));
    }
}

#[test]
fn who_drops_copies_that_wait_waits_for_none_of_them() {
    let (mut copies, near, _) = endless();
    for at in 0..100 {
        drop(copies.begin(Way::Out, &near, span(at * 64, 64), 0));
        drop(copies.begin(Way::In, &near, span(MIB - (at + 1) * 64, 64), MIB / 2));
    }
    drop(copies);
    // All is given back.
    near.hold(span(0, MIB), Access::Write);
}

#[test]
#[should_panic(expected = "is lent already")]
fn what_is_on_its_way_out_is_not_written() {
    let (_copies, near, _) = endless();
    near.lease([(span(0, 64), Access::Write)]);
}

#[test]
#[should_panic(expected = "is lent already")]
fn what_is_computed_is_not_copied() {
    let (mut copies, near) = (in_memory(MIB, None), near(MIB));
    let _computes = near.lease([(span(0, 64), Access::Write)]);
    drop(copies.begin(Way::Out, &near, span(0, 64), 0));
}

#[test]
#[should_panic(expected = "may not have ended")]
fn nothing_is_brought_back_before_somebody_has_waited_for_its_way_out() {
    let (mut copies, near) = (in_memory(MIB, None), near(MIB));
    drop(copies.begin(Way::Out, &near, span(0, 4097), 0));
    drop(copies.begin(Way::In, &near, span(8192, 64), 4096));
}

#[test]
#[should_panic(expected = "has no place at 4096")]
fn a_copy_beyond_the_far_tier_is_refused() {
    let (mut copies, near) = (in_memory(8192, None), near(MIB));
    drop(copies.begin(Way::Out, &near, span(0, 4097), 4096));
}

#[test]
#[should_panic(expected = "has no place at 64")]
fn a_copy_to_where_no_disk_takes_it_is_refused() {
    let (mut copies, near) = (in_memory(8192, None), near(MIB));
    drop(copies.begin(Way::Out, &near, span(0, 64), 64));
}
