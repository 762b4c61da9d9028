//! What was simulated, for people: curves on one self-contained page.

use crate::config::WithinBundle;
use crate::data::sampler::Bundling;
use crate::lab::report::line_chart::{LineChart, Series, Unit, XAxis};
use crate::lab::report::statistics::MeanCurve;
use crate::lab::report::svg::escape;
use crate::lab::report::{NONE, Table, figure, page_of};
use crate::observe::event::name_of;

use super::figure4::{Improvement, Relative, best, is_method};
use super::sizes::Set;
use super::trace::Assignment;
use super::{Policy, Row, Setting, forms};

/// An order in words.
pub fn order_name(order: Bundling) -> String {
    let Bundling { ratio, alternating, within } = order;
    let reverse = within == WithinBundle::Reverse;
    match (ratio == 1.0, alternating, reverse) {
        (true, _, false) => "global shuffle".into(),
        (true, _, true) => "global shuffle, then its reverse".into(),
        (false, _, true) => format!("bundles {ratio}, then the reverse"),
        (false, true, false) => format!("bundles {ratio}, alternating"),
        (false, false, false) => format!("bundles {ratio}, same direction"),
    }
}

fn name(row: &Row) -> String {
    order_name(row.bundling)
}

/// Names in the order of their first rows.
fn names<'a>(rows: impl Iterator<Item = &'a Row>, of: impl Fn(&Row) -> String) -> Vec<String> {
    let mut names = Vec::new();
    for name in rows.map(of) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Curves of miss rates against the cache's size, one for each name, and the bound 1 - c.
fn chart(id: &str, rows: &[&Row], of: impl Fn(&Row) -> String) -> Option<String> {
    let curve = |points: Vec<(f64, f64)>| MeanCurve { points, band: Vec::new() };
    let largest = rows.iter().map(|row| row.cache).fold(0.0, f64::max);
    let mut series = vec![Series {
        label: "bound 1 - c".into(),
        curve: curve(vec![(0.0, 1.0), (largest, forms::bound(largest))]),
        reference: true,
        ..Series::default()
    }];
    for (index, name) in names(rows.iter().copied(), &of).into_iter().enumerate() {
        let own = rows.iter().filter(|row| of(row) == name);
        series.push(Series {
            curve: curve(own.map(|row| (row.cache, row.miss)).collect()),
            label: name,
            colour: index % 7 + 1,
            dots: true,
            ..Series::default()
        });
    }
    LineChart {
        id: id.into(),
        label: "Miss rate against the size of the cache".into(),
        y_label: "misses / reads".into(),
        unit: Unit::Percent,
        y_from: Some(0.0),
        x_axis: XAxis::Shares { label: "cache, of the training set".into() },
        x_to: largest,
        series,
        ..LineChart::default()
    }
    .draw()
    .map(|drawing| drawing.html())
}

/// All curves with their captions, HTML.
fn drawings(rows: &[Row], first_nodes: u32) -> String {
    let reshuffled = |row: &&Row| row.bundling.within == WithinBundle::Reshuffle;
    let one = |row: &&Row| row.nodes == first_nodes && row.assignment == Assignment::Owners;
    let lru = |row: &&Row| row.policy == Policy::Lru;
    let orders: Vec<&Row> = rows.iter().filter(lru).filter(one).filter(reshuffled).collect();
    let global: Vec<&Row> =
        rows.iter().filter(one).filter(|row| name(row) == "global shuffle").collect();
    let tenth = |row: &&Row| row.bundling.ratio < 1.0 && row.bundling.alternating;
    let ratio = rows.iter().filter(reshuffled).find(|row| tenth(row) && row.bundling.ratio <= 0.1);
    let ratio = ratio.map_or(1.0, |row| row.bundling.ratio);
    let nodes: Vec<&Row> = rows
        .iter()
        .filter(lru)
        .filter(reshuffled)
        .filter(|row| tenth(row) && row.bundling.ratio == ratio)
        .collect();
    let of_nodes = |row: &Row| match (row.nodes, row.assignment) {
        (1, _) => "1 node".into(),
        (nodes, Assignment::Owners) => format!("{nodes} nodes, by owner"),
        (nodes, Assignment::Strided) => format!("{nodes} nodes, in turn"),
    };
    [
        (
            "<b>LRU under each order.</b> After the first epoch. No policy under any order that \
             reads each sample once an epoch is below the bound.",
            chart("clip-orders", &orders, name),
        ),
        (
            "<b>Policies under the global shuffle.</b> Keep (never evict) and Belady reach the \
             bound whatever the order.",
            chart("clip-policies", &global, |row| name_of(&row.policy)),
        ),
        (
            "<b>Several nodes, LRU, alternating bundles.</b> The cache is that of all nodes \
             together. By owner: a node reads the same samples in every epoch. In turn: positions \
             are dealt to the nodes one after another.",
            chart("clip-nodes", &nodes, of_nodes),
        ),
    ]
    .into_iter()
    .filter_map(|(caption, chart)| Some(figure(&chart?, caption)))
    .collect()
}

/// What is put in, and the best improvement, in sentences.
pub fn sentences(setting: &Setting, set: &Set, improvements: &[Improvement]) -> Vec<String> {
    let mut lines = vec![format!(
        "Simulated. {}. {} owners, {} epochs of which the first is cold, seed {}.",
        set.about, setting.owners, setting.epochs, setting.seed
    )];
    if let Some(best) = best(improvements) {
        lines.push(format!(
            "Best improvement of the paper's method: {:.1} % (grid {}, at a cache of {:.0} %; {}; \
             {}).",
            best.best * 100.0,
            best.grid,
            best.best_at * 100.0,
            order_name(best.bundling),
            cold_epoch(best),
        ));
    }
    lines
}

fn cold_epoch(gain: &Improvement) -> &'static str {
    if gain.cold_epoch { "cold epoch counted" } else { "cold epoch left out" }
}

/// The page.
pub fn html(
    setting: &Setting,
    set: &Set,
    rows: &[Row],
    relative: &[Relative],
    gains: &[Improvement],
    command: &str,
) -> String {
    let mut body = "<h1>Misses of caches under the orders of training</h1>\n".to_string();
    for line in sentences(setting, set, gains) {
        body.push_str(&format!("<p class=\"lead\">{}</p>\n", escape(&line)));
    }
    body.push_str(&drawings(rows, setting.nodes[0]));
    body.push_str(&relative_table(relative).html(&escape(RELATIVE)));
    body.push_str(&gains_table(set, gains).html(&escape(GAINS)));
    body.push_str(&format!("<pre>$ {}</pre>\n", escape(command)));
    page_of("Misses of caches", &body)
}

/// What [`relative_table`] shows.
pub const RELATIVE: &str = "Misses under LRU as a share of the global shuffle's (Lee and Bahn, \
                            Fig. 4): alternating bundles, by ratio; cold epoch left out.";

/// By the size of the cache.
pub fn relative_table(relative: &[Relative]) -> Table {
    let method = |order: &&Relative| is_method(order.bundling) && !order.cold_epoch;
    let orders: Vec<&Relative> = relative.iter().filter(method).collect();
    let ratios = orders.iter().map(|order| format!("{}", order.bundling.ratio));
    let mut table = Table::new(std::iter::once("cache".to_string()).chain(ratios));
    for size in super::cache_sizes().into_iter().filter(|&size| size > 0.0) {
        let share = |order: &&Relative| {
            let point = order.points.iter().find(|point| point.0 == size);
            point.map_or(NONE.into(), |point| format!("{:.1} %", point.1 * 100.0))
        };
        let mut row = vec![format!("{:.0} %", size * 100.0)];
        row.extend(orders.iter().map(share));
        table.row(row);
    }
    table
}

/// What [`gains_table`] shows.
pub const GAINS: &str = "How much less LRU misses than under the global shuffle. The paper states \
                         neither its grid nor its ratios.";

/// What the paper states, and what was played.
pub fn gains_table(set: &Set, gains: &[Improvement]) -> Table {
    let mut table =
        Table::new(["order", "grid of cache sizes", "cold epoch", "best", "at", "mean"]);
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    for paper in set.published {
        let name = format!("Lee and Bahn, {}", paper.set);
        let unknown = || NONE.to_string();
        let (best, mean) = (percent(paper.best), percent(paper.mean));
        table.row([name, unknown(), unknown(), best, unknown(), mean]);
    }
    for gain in gains {
        table.row([
            order_name(gain.bundling),
            gain.grid.to_string(),
            cold_epoch(gain).replace("cold epoch ", ""),
            percent(gain.best),
            format!("{:.0} %", gain.best_at * 100.0),
            percent(gain.mean),
        ]);
    }
    table
}
