//! A plan of memory, drawn: what a micro-batch computes and copies when, and what then lives in the
//! near tier. Times are by the plan's prices, in parts of a micro-batch in core.

use crate::engine::memory::shown::{MemoryPlan, Played, Spell, Work};
use crate::lab::report::statistics::{tick_digits, ticks};
use crate::lab::report::svg::{Anchor, Canvas, label_width, spread};
use crate::observe::spans::amount;

const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 520.0;
const LEFT: f64 = 104.0;
const RIGHT: f64 = 190.0;
/// Of the first lane; below the heading and the key.
const LANES_TOP: f64 = 64.0;
const LANE: f64 = 28.0;
const LANE_GAP: f64 = 9.0;
/// Of the bytes.
const TOP: f64 = 196.0;
const BOTTOM: f64 = 52.0;
const LABEL_GAP: f64 = 17.0;
/// Narrower bars have no edges: these would be all that is seen.
const EDGED_MIN: f64 = 4.0;
/// No bar is narrower, so that it is seen.
const BAR_MIN: f64 = 0.6;

/// What goes on, its name in the key, and its colour.
const WORKS: [(Work, &str, &str); 4] = [
    (Work::Forward, "forward", "c1"),
    (Work::Backward, "backward", "c2"),
    (Work::Again, "computed again", "c3"),
    (Work::Wait, "waits for a copy", "p7"),
];
const LANES: [&str; 3] = ["computes", "copies out", "copies back"];
const COPIES: [&str; 2] = ["c4", "c6"];

/// From data to pixels.
struct Scale {
    seconds: f64,
    bytes: f64,
}

impl Scale {
    fn x(&self, seconds: f64) -> f64 {
        LEFT + seconds / self.seconds * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, bytes: f64) -> f64 {
        HEIGHT - BOTTOM - bytes / self.bytes * (HEIGHT - BOTTOM - TOP)
    }
}

/// The drawing, in the colours of a report's page.
pub fn timeline(plan: &MemoryPlan, heading: &str) -> String {
    let seconds = plan.within.forecast.seconds.max(plan.in_core.forecast.seconds);
    let most = plan.near_bytes().into_iter().chain(plan.budget_bytes.filter(|_| is_near(plan)));
    let marks = bytes_marks(most.max().unwrap_or(0));
    let last = marks.last().map_or(1.0, |&(bytes, _)| bytes);
    let scale = Scale { seconds: seconds.max(f64::MIN_POSITIVE), bytes: last };
    let mut canvas = Canvas::new(WIDTH, HEIGHT);
    let budget = plan.budget_bytes.map(|bytes| format!(" within {}", amount(bytes)));
    let heading = format!("{heading}{}", budget.unwrap_or_default());
    canvas.text("bar-label", (LEFT, 20.0), Anchor::Start, &heading);
    key(&mut canvas, plan);
    axes(&mut canvas, &scale, plan, &marks);
    lanes(&mut canvas, &scale, plan);
    bytes(&mut canvas, &scale, plan);
    canvas.finish("What a micro-batch computes and copies, and what lives in the near tier")
}

/// Whether the budget is worth drawing: one far above everything would flatten the rest.
fn is_near(plan: &MemoryPlan) -> bool {
    plan.budget_bytes.is_some_and(|budget| budget <= plan.near_bytes()[0].saturating_mul(2))
}

fn key(canvas: &mut Canvas, plan: &MemoryPlan) {
    let mut left = LEFT;
    for (work, name, class) in WORKS {
        let is_seen = |spell: &Spell| spell.work == work && spell.to_seconds > spell.from_seconds;
        if !plan.within.computing.iter().any(is_seen) {
            continue;
        }
        canvas.rect(&format!("lane {class}"), (left, 33.0), (13.0, 13.0), name);
        canvas.text("tick", (left + 19.0, 44.0), Anchor::Start, name);
        left += 40.0 + label_width(name);
    }
}

/// Sizes at round numbers, up to one that no curve reaches.
fn bytes_marks(most: u64) -> Vec<(f64, String)> {
    let unit = match most {
        b if b >= 1_000_000_000 => (1e9, "GB"),
        b if b >= 1_000_000 => (1e6, "MB"),
        _ => (1e3, "kB"),
    };
    let marks = ticks(0.0, most as f64 / unit.0, 5);
    let digits = tick_digits(&marks);
    marks.into_iter().map(|at| (at * unit.0, format!("{at:.digits$} {}", unit.1))).collect()
}

fn axes(canvas: &mut Canvas, scale: &Scale, plan: &MemoryPlan, marks: &[(f64, String)]) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    for (bytes, text) in marks {
        let y = scale.y(*bytes);
        canvas.line("grid", (LEFT, y), (right, y));
        canvas.text("tick", (LEFT - 8.0, y + 4.0), Anchor::End, text);
    }
    let in_core = plan.in_core.forecast.seconds;
    let parts = ticks(0.0, 100.0 * scale.seconds / in_core.max(f64::MIN_POSITIVE), 8);
    for part in parts {
        let x = scale.x(part / 100.0 * in_core);
        if x > right + 0.5 {
            break;
        }
        canvas.line("grid", (x, LANES_TOP - 6.0), (x, bottom));
        canvas.line("axis", (x, bottom), (x, bottom + 5.0));
        canvas.text("tick", (x, bottom + 19.0), Anchor::Middle, &format!("{part:.0}"));
    }
    canvas.line("axis", (LEFT, bottom), (right, bottom));
    canvas.line("axis", (LEFT, TOP - 6.0), (LEFT, bottom));
    let middle = ((LEFT + right) / 2.0, HEIGHT - 10.0);
    let label = "time by guessed prices / % of a micro-batch in core";
    canvas.text("axis-label", middle, Anchor::Middle, label);
    canvas.text_upwards("axis-label", (18.0, (TOP + bottom) / 2.0), "bytes in the near tier");
}

fn lanes(canvas: &mut Canvas, scale: &Scale, plan: &MemoryPlan) {
    let [out, back] = &plan.within.copies;
    for (lane, (name, spells)) in
        LANES.into_iter().zip([&plan.within.computing, out, back]).enumerate()
    {
        let top = LANES_TOP + (LANE + LANE_GAP) * lane as f64;
        canvas.text("tick", (LEFT - 8.0, top + LANE / 2.0 + 4.0), Anchor::End, name);
        let (from, to) = (scale.x(0.0), scale.x(plan.within.forecast.seconds));
        canvas.rect("well", (from, top), (to - from, LANE), name);
        // Waits are short: nothing lies on them.
        let (waits, others): (Vec<&Spell>, Vec<&Spell>) =
            spells.iter().partition(|spell| spell.work == Work::Wait);
        for spell in others.into_iter().chain(waits) {
            let (name, class) = match WORKS.iter().find(|(work, ..)| *work == spell.work) {
                Some(&(_, name, class)) => (name, class),
                None => (name, COPIES[lane.saturating_sub(1)]),
            };
            let title = format!("{}: {name}", plan.layers[spell.layer]);
            bar(canvas, scale, spell, top, class, &title);
        }
    }
}

fn bar(canvas: &mut Canvas, scale: &Scale, spell: &Spell, top: f64, class: &str, title: &str) {
    let (from, to) = (scale.x(spell.from_seconds), scale.x(spell.to_seconds));
    if to > from {
        let kind = if to - from >= EDGED_MIN { "part" } else { "lane" };
        let size = ((to - from).max(BAR_MIN), LANE);
        canvas.rect(&format!("{kind} {class}"), (from, top), size, title);
    }
}

fn bytes(canvas: &mut Canvas, scale: &Scale, plan: &MemoryPlan) {
    let [in_core, within] = [&plan.in_core, &plan.within].map(|played| steps(scale, plan, played));
    let mut area = within.clone();
    area.extend([(scale.x(plan.within.forecast.seconds), scale.y(0.0)), (LEFT, scale.y(0.0))]);
    canvas.polygon("band c1", &area);
    canvas.polyline("curve c0", &in_core);
    canvas.polyline("curve c1", &within);
    let mut labels = vec![
        ("c0", highest(&in_core), format!("in core {}", amount(plan.near_bytes()[0]))),
        ("c1", highest(&within), format!("this plan {}", amount(plan.near_bytes()[1]))),
    ];
    if let Some(budget) = plan.budget_bytes.filter(|_| is_near(plan)) {
        let y = scale.y(budget as f64);
        canvas.polyline("curve limit bad", &[(LEFT, y), (WIDTH - RIGHT, y)]);
        labels.push(("bad", y, format!("budget {}", amount(budget))));
    }
    let wanted: Vec<f64> = labels.iter().map(|&(_, y, _)| y).collect();
    let placed = spread(&wanted, LABEL_GAP, TOP, HEIGHT - BOTTOM);
    for ((class, _, text), y) in labels.into_iter().zip(placed) {
        let at = (WIDTH - RIGHT + 12.0, y + 4.0);
        canvas.text(&format!("series-label {class}"), at, Anchor::Start, &text);
    }
}

/// Bytes over time, copies of weights among them, as they jump.
fn steps(scale: &Scale, plan: &MemoryPlan, played: &Played) -> Vec<(f64, f64)> {
    let mut points = Vec::with_capacity(played.live.len() * 2);
    let mut before = scale.y(plan.weights_bytes as f64);
    let live = &played.live;
    for (at, &(seconds, bytes)) in live.iter().enumerate() {
        // Of turns that take no time the last one counts.
        if live.get(at + 1).is_some_and(|&(next, _)| next == seconds) {
            continue;
        }
        let (x, y) = (scale.x(seconds), scale.y((bytes + plan.weights_bytes) as f64));
        points.extend([(x, before), (x, y)]);
        before = y;
    }
    points
}

/// Where the curve is highest.
fn highest(points: &[(f64, f64)]) -> f64 {
    points.iter().map(|&(_, y)| y).fold(HEIGHT - BOTTOM, f64::min)
}
