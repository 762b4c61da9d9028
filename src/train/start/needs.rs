//! What a rank holds at the least, against what its machine has: a run that cannot fit is refused
//! in words, before anything is allocated.

use crate::config::Config;
use crate::engine;
use crate::model::spec::elements;
use crate::model::{Graph, Layout, cost};
use crate::train::state::parts::of_optimizer;

/// Bytes of one value.
const F32: u128 = 4;
/// Copies of the weights beside each worker's activations: its engine's, and its gradients.
const WORKER_COPIES: u128 = 2;
/// Slots of the state.
const SLOTS: u128 = 2;

/// What a rank needs, in bytes, and which keys decide it.
struct Part {
    bytes: u128,
    what: String,
    keys: &'static str,
}

/// Why this run does not fit into `memory_bytes`; `None`: as far as can be told it does. `samples`
/// are the training set's, `owners` the run's.
pub(in crate::train) fn refusal(
    config: &Config,
    (graph, layout): (&Graph, &Layout),
    (samples, owners): (u64, u32),
    memory_bytes: u64,
) -> Option<String> {
    let parts = parts(config, (graph, layout), (samples, owners));
    let need: u128 = parts.iter().map(|part| part.bytes).sum();
    if need <= u128::from(memory_bytes) {
        return None;
    }
    let largest = parts.iter().max_by_key(|part| part.bytes)?;
    Some(format!(
        "a rank of this run needs {} of memory at the least, and this machine or its control \
         group has {}: {} take {}; {}",
        readable(need),
        readable(u128::from(memory_bytes)),
        largest.what,
        readable(largest.bytes),
        largest.keys
    ))
}

fn parts(
    config: &Config,
    (graph, layout): (&Graph, &Layout),
    (samples, owners): (u64, u32),
) -> [Part; 3] {
    let (train, side) = (&config.train, config.data.image_size);
    let owners = owners.max(1);
    let batch = train.global_batch.min(samples);
    let micro_batch = u128::from(batch.div_ceil(u64::from(owners)));
    let at_a_time = micro_batch.div_ceil(u128::from(train.pieces()));
    let own = u128::from(owners.div_ceil(config.run.ranks.max(1)));
    let workers = u128::from(train.workers).min(own);
    let picture = F32 * elements(graph.input) as u128;
    let ahead = own * u128::from(config.data.prefetch);
    let costs = cost::of(graph, layout, engine::value_bytes(&config.device.precision));
    let saved: u128 = costs.iter().map(|cost| u128::from(cost.saved_bytes)).sum();
    let (parameters, statistics) = (layout.parameters as u128, layout.statistics as u128);
    let of_optimizer = of_optimizer(config).len() as u128;
    let state = SLOTS * ((1 + of_optimizer) * parameters + statistics) + parameters;
    [
        Part {
            bytes: F32 * (state + WORKER_COPIES * u128::from(train.workers) * parameters),
            what: format!("{parameters} parameters with {} workers", train.workers),
            keys: "lower model.width, data.image_size or train.workers, or choose another model",
        },
        Part {
            bytes: (workers + ahead) * micro_batch * picture,
            what: format!("decoded pictures of {side} x {side} pixels, {micro_batch} an owner"),
            keys: "lower data.image_size, train.global_batch or data.prefetch",
        },
        Part {
            // Half of it: values that are computed within another layer are not kept.
            bytes: workers * at_a_time * saved / 2,
            what: format!("activations of {at_a_time} pictures of {side} x {side} pixels"),
            keys: "lower data.image_size or train.global_batch, or raise train.owners or \
                   train.accumulate",
        },
    ]
}

fn readable(bytes: u128) -> String {
    format!("{:.1} GiB", bytes as f64 / (1_u64 << 30) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{catalogue, layout};

    const GIB: u64 = 1 << 30;

    fn refused(change: impl FnOnce(&mut Config), memory_bytes: u64) -> Option<String> {
        let mut config = Config::default();
        change(&mut config);
        let side = config.data.image_size as usize;
        let (name, width) = (&config.model.name, config.model.width);
        let graph = catalogue::build(name, [3, side, side], 10, width).unwrap();
        let (layout, owners) = (layout::of(&graph), crate::config::resolve_owners(&config));
        refusal(&config, (&graph, &layout), (60_000, owners), memory_bytes)
    }

    #[test]
    fn what_people_train_fits() {
        assert_eq!(refused(|_| {}, 2 * GIB), None);
        let imagenet = |config: &mut Config| {
            config.model.name = "resnet18".into();
            (config.data.image_size, config.train.global_batch) = (224, 256);
            config.train.workers = 4;
        };
        assert_eq!(refused(imagenet, 32 * GIB), None);
    }

    #[test]
    fn what_cannot_fit_is_refused_by_the_key_that_decides_it() {
        type Change = fn(&mut Config);
        let huge: Change = |c| {
            // A layer of cnn11's would have more weights than any model may.
            (c.model.name, c.data.image_size) = ("resnet18".into(), 16_384);
        };
        let cases: [(Change, &str, &str); 4] = [
            (huge, "16384 x 16384", "data.image_size"),
            (|c| c.train.global_batch = 1 << 24, "60000", "train.global_batch"),
            (|c| c.model.width = 16.0, "parameters", "model.width"),
            (|c| c.train.workers = 4096, "4096 workers", "train.workers"),
        ];
        for (change, what, key) in cases {
            let text = refused(change, 4 * GIB).unwrap();
            assert!(text.contains(what) && text.contains(key), "{text}");
            assert!(text.contains("has 4.0 GiB"), "{text}");
        }
    }
}
