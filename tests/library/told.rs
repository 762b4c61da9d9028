//! What a run says of itself is what it did: the rate of its steps, where its weights came from.
//! The program itself, as a world of one.

use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;

use super::numbers::Place;

/// Ends well, and what it said.
#[track_caller]
fn completed(place: &Place, run: &str, overrides: &[&str]) -> String {
    let ended = place.train(run, overrides).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{said}");
    said
}

#[test]
fn the_rate_of_a_step_is_the_one_that_moved_its_weights() {
    let place = Place::new();
    for (run, exchange) in [("plain", "synchronous"), ("free", "asynchronous")] {
        let exchange = format!("train.exchange={exchange}");
        let _ = completed(&place, run, &["schedule.warm_up=1", "optimizer.momentum=0", &exchange]);
        let events = read_events(&place.path(run).join("events.jsonl")).unwrap();
        let rates: Vec<(u64, f64)> = events
            .iter()
            .filter_map(|event| match event.kind {
                Kind::Step { learning_rate, .. } => Some((event.step, learning_rate)),
                _ => None,
            })
            .collect();
        assert!(!rates.is_empty());
        // A straight line to the whole rate in the last of 12 steps.
        for &(step, rate) in rates.iter().filter(|_| run == "plain") {
            assert!((rate - 0.05 * step as f64 / 12.0).abs() < 1e-12, "{rates:?}");
        }
        assert!(rates.iter().all(|(_, rate)| *rate > 0.0 && *rate <= 0.05), "{run}: {rates:?}");
    }
}

#[test]
fn first_weights_of_a_file_are_not_called_scratch() {
    let place = Place::new();
    let said = completed(&place, "first", &[]);
    assert!(said.contains("training samples, from scratch"), "{said}");
    let first = place.path("first").display().to_string();
    let init = format!("model.init={first}");
    let said = completed(&place, "second", &[&init]);
    assert!(said.contains(&format!("training samples, from weights {first}")), "{said}");
    let said = completed(&place, "second", &[&init, "train.steps=13"]);
    assert!(said.contains("training samples, from checkpoint"), "{said}");
}
