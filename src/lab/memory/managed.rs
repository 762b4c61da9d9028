//! Managed memory beyond a card's capacity, played: the ten actions of Negishi et al. (their
//! Fig. 3), sweeps, and the designs of a trainer (Fig. 4).

use super::file::ManagedMemory;
use super::part::{Part, Source};
use crate::lab::report::bar_chart::{Bar, BarChart, Segment};
use crate::lab::report::keys;
use crate::lab::report::line_chart::{LineChart, Series, XAxis};
use crate::lab::report::statistics::{Estimate, MeanCurve};
use crate::lab::report::svg::escape;
use crate::lab::unified_memory::actions::{self, Setting, TOUCHED};
use crate::lab::unified_memory::{designs, published, sweeps, tables};
use crate::observe::progress::duration;

/// Does it.
pub fn played(of: &ManagedMemory) -> Part {
    let rows = Setting::default().play(of.policy);
    let (sweeps, designs) = (sweeps::play(), designs::play(of.policy));
    let tables = vec![
        (
            tables::actions(&rows),
            format!(
                "<b>The ten actions:</b> who is gone after one unit too many. {}",
                escape(&tables::about_actions(&rows))
            ),
        ),
        (
            tables::sweeps(&sweeps),
            format!(
                "<b>Misses in sweeps</b> over X units with room for C, by X/C. {}",
                escape(tables::ABOUT_SWEEPS)
            ),
        ),
        (tables::misses(&designs), "<b>Misses of a step</b> by design and X/C.".into()),
        (
            tables::times(&designs),
            format!(
                "<b>Time of a step</b> as a multiple of one in core. {}",
                escape(tables::ABOUT_TIMES)
            ),
        ),
    ];
    let drawings = [bars(&rows), speeds(&designs)].into_iter().flatten().collect();
    let rows = serde_json::json!({
        "policy": of.policy,
        "published": published(of.policy),
        "actions": rows,
        "sweeps": sweeps,
        "designs": designs,
    });
    Part { title: of.title.clone(), source: Source::Simulated, drawings, tables, rows }
}

/// Classes of the parts of a bar.
const TOUCH_CLASSES: [&str; 3] = ["c3", "c4", "c6"];

fn bars(rows: &[actions::Row]) -> Option<(String, String)> {
    let bar = |row: &actions::Row| {
        let seconds = &row.seconds;
        let part = |name: &str, class, seconds| Segment { name: name.into(), class, seconds };
        let mut parts =
            vec![part("action", "c1", seconds.act), part("overcommit", "c2", seconds.overcommit)];
        let touches = TOUCHED.iter().zip(TOUCH_CLASSES).zip(seconds.touch);
        parts.extend(
            touches.map(|((unit, class), seconds)| part(&format!("touch #{unit}"), class, seconds)),
        );
        let all: f64 = parts.iter().map(|part| part.seconds).sum();
        Bar {
            label: format!("{} {}", row.action, row.calls),
            parts,
            total: Estimate { mean: all, half_width: None, n: 1 },
            value: duration(all),
        }
    };
    let chart = BarChart {
        id: "actions".into(),
        label: "Time of each phase by action".into(),
        heading: "modelled".into(),
        bars: rows.iter().map(bar).collect(),
    };
    let parts: Vec<(String, &'static str)> =
        chart.key().into_iter().map(|(name, class)| (name.to_string(), class)).collect();
    let caption = "<b>The ten actions as bars</b> (Fig. 3 of Negishi et al.), modelled. A long \
                   touch is of a unit that was gone. Each touch is of a run of its own.";
    Some((chart.draw()?.html() + &keys(&parts), caption.into()))
}

/// Images in a second over X/C, as a share of those in core.
fn speeds(rows: &[designs::Row]) -> Option<(String, String)> {
    let groups = rows.chunk_by(|a, b| (a.design, a.policy) == (b.design, b.policy));
    let series = groups.enumerate().map(|(at, own)| {
        let points = own.iter().map(|row| (row.load, 1.0 / row.time)).collect();
        let curve = MeanCurve { points, band: Vec::new() };
        let (label, colour) = (tables::name_of_row(&own[0]), at % 7 + 1);
        Series { label, colour, curve, dots: true, ..Series::default() }
    });
    let plain = MeanCurve { points: vec![(0.5, 1.0), (1.0, 1.0)], band: Vec::new() };
    let label = "plain memory".to_string();
    let plain = Series { label, curve: plain, reference: true, ..Series::default() };
    let chart = LineChart {
        id: "designs".into(),
        label: "Images per second over X/C, by design".into(),
        y_label: "images/s, of those in core".into(),
        y_from: Some(0.0),
        x_axis: XAxis::Numbers { label: "X/C".into() },
        x_to: rows.iter().map(|row| row.load).fold(1.0, f64::max),
        series: std::iter::once(plain).chain(series).collect(),
        ..LineChart::default()
    };
    let caption = "<b>Speed through X/C = 1</b> (Fig. 4 of Negishi et al.), modelled: what all \
                   layers save over what the card has room for. Plain memory ends at 1.";
    Some((chart.draw()?.html(), caption.into()))
}
