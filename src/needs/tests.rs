//! What a run needs: which fit, what is refused, and what is said.

use super::*;
use crate::config::Bytes;
use crate::model::catalogue;

const GIB: u64 = 1 << 30;

fn of(change: impl FnOnce(&mut Config)) -> Needs {
    let mut config = Config::default();
    config.run.ranks = 4;
    change(&mut config);
    let side = config.data.image_size as usize;
    let (name, width) = (&config.model.name, config.model.width);
    let graph = catalogue::build(name, [3, side, side], 10, width).unwrap();
    let load = Load { ranks: 4, samples: 60_000, planned: None };
    needs(&config, &graph, load)
}

#[test]
fn what_people_train_fits() {
    assert_eq!(of(|_| {}).refusal(2 * GIB), None);
    let imagenet = |config: &mut Config| {
        config.model.name = "resnet18".into();
        (config.data.image_size, config.train.global_batch) = (224, 256);
        config.train.workers = 4;
    };
    assert_eq!(of(imagenet).refusal(32 * GIB), None);
}

#[test]
fn what_cannot_fit_is_refused_by_the_key_that_decides_it() {
    type Change = fn(&mut Config);
    let huge: Change = |c| {
        // A layer of cnn11's would have more weights than any model may.
        (c.model.name, c.data.image_size) = ("resnet18".into(), 16_384);
    };
    let wide: Change = |c| (c.model.name, c.model.width) = ("cnn11".into(), 16.0);
    let cases: [(Change, &str, &str); 4] = [
        (huge, "estimated activations", "data.image_size"),
        (|c| c.train.global_batch = 1 << 24, "estimated activations", "train.global_batch"),
        (wide, "both slots of the state", "smaller model"),
        (|c| c.train.workers = 4096, "4096 x", "train.workers"),
    ];
    for (change, what, key) in cases {
        let text = of(change).refusal(4 * GIB).unwrap();
        assert!(text.contains(what) && text.contains(key), "{text}");
        assert!(text.contains("has 4.3 GB"), "{text}");
    }
}

#[test]
fn what_is_said_of_a_run_is_what_its_engine_plans() {
    let mut config = Config::default();
    config.model.name = "resnet20".into();
    let graph = catalogue::build("resnet20", [3, 32, 32], 10, 1.0).unwrap();
    let guess = estimated(&config, &graph, &layout::of(&graph), at_a_time(&config, 60_000));
    let plan = planned(&config, &graph, 60_000).expect("this machine computes it");
    assert!(plan.activations_bytes > guess.activations_bytes, "at the least, {plan:?}");
    assert!(plan.weights_bytes >= guess.weights_bytes, "{plan:?}");
    let load = Load { ranks: 1, samples: 60_000, planned: Some(plan) };
    let line = needs(&config, &graph, load).line();
    assert!(line.contains(&format!("activations {}", amount(plan.activations_bytes))), "{line}");
}

#[test]
fn a_cache_is_the_machine_s_memory_and_no_rank_s() {
    let without = of(|_| {});
    let cached = of(|config| config.data.cache = CacheSize::Bytes(Bytes(2 * GIB)));
    for (limit, more) in
        [(Limit::Memory, 2 * GIB), (Limit::SharedMemory, 2 * GIB), (Limit::Process, 0)]
    {
        assert_eq!(cached.bytes(limit), without.bytes(limit) + more, "{limit:?}");
    }
}
