//! Images per second of forward + backward and of evaluation, one worker. With one thread they
//! are per second of CPU time.
//! `cargo bench --bench engine -- [MODEL SIDE BATCH [THREADS [WIDTH]]]`

use std::time::Instant;

use kintsugi::config::Device;
use kintsugi::engine::memory::limits::Limits;
use kintsugi::engine::{self, EngineError, Flat, Footprint};
use kintsugi::model::{catalogue, init, layout};

const SECONDS_MAX: f64 = 3.0;
const REPEATS_MAX: usize = 20;

/// Seconds this thread has computed, which a busy machine does not stretch; else wall time. With
/// several threads only wall time means something.
fn clock(begin: Instant, threads: usize) -> f64 {
    let on_cpu = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = on_cpu.and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
    match nanoseconds {
        Some(time) if threads == 1 => time as f64 / 1e9,
        _ => begin.elapsed().as_secs_f64(),
    }
}

/// Seconds per call: least and median.
fn measure(
    threads: usize,
    mut run: impl FnMut() -> Result<(), EngineError>,
) -> Result<[f64; 2], EngineError> {
    run()?;
    let begin = Instant::now();
    let mut seconds = Vec::new();
    while seconds.len() < 3
        || (begin.elapsed().as_secs_f64() < SECONDS_MAX && seconds.len() < REPEATS_MAX)
    {
        let start = clock(begin, threads);
        run()?;
        seconds.push(clock(begin, threads) - start);
    }
    seconds.sort_by(f64::total_cmp);
    Ok([seconds[0], seconds[seconds.len() / 2]])
}

fn case(
    name: &str,
    side: usize,
    batch: usize,
    threads: usize,
    width: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let graph = catalogue::build(name, [3, side, side], 32, width)?;
    let layout = layout::of(&graph);
    let parameters = init::parameters(&graph, &layout, 1);
    let running = init::statistics(&layout);
    let images = vec![0.5; batch * 3 * side * side];
    let labels = vec![1; batch];
    let mut statistics = vec![0.0; layout.statistics];
    let mut engine = engine::open(&Device::default(), &graph, threads)?;
    let weights = &Flat { parameters: &parameters, statistics: &running };
    let mut sum = 0.0;
    let train = measure(threads, || {
        let ready = &mut |_: usize, part: &[f32]| sum += part[0];
        engine
            .train(&images, (&labels).into(), [1, 2, 3], weights, &mut statistics, ready)
            .map(|_| ())
    })?;
    let load = measure(threads, || {
        engine.renew();
        engine.load(batch, weights)
    })?;
    let Footprint { activations_bytes, weights_bytes, .. } =
        engine::footprint(&graph, &Device::default(), batch, threads, &Limits::none())?;
    let memory = (activations_bytes + weights_bytes) as f64 / (1 << 20) as f64;
    let evaluate = measure(threads, || engine.infer(&images, &labels, weights, None).map(|_| ()))?;
    let rate = |[best, median]: [f64; 2]| {
        format!("{:.1} ({:.1} at best) images/s", batch as f64 / median, batch as f64 / best)
    };
    println!(
        "{name}@{side} batch {batch} threads {threads} width {width}: train {}, {:.2} ms; \
         load {:.2} ms; evaluate {}; {memory:.0} MiB",
        rate(train),
        train[1] * 1e3,
        load[1] * 1e3,
        rate(evaluate),
    );
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).filter(|w| !w.starts_with("--")).collect();
    let number = |at: usize, default: usize| words.get(at).map_or(Ok(default), |w| w.parse());
    if let Some(name) = words.first() {
        let width = words.get(4).map_or(Ok(1.0), |word| word.parse())?;
        return case(name, number(1, 32)?, number(2, 32)?, number(3, 1)?, width);
    }
    case("cnn11", 32, 24, 1, 1.0)?;
    case("cnn11", 224, 24, 1, 1.0)?;
    case("resnet20", 32, 32, 1, 1.0)
}
