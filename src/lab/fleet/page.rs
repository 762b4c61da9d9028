//! The forecast for people: one self-contained page with a curve for every arm and the table.

use crate::lab::report::line_chart::{LineChart, Series, Unit, XAxis, grouped};
use crate::lab::report::statistics::MeanCurve;
use crate::lab::report::svg::escape;
use crate::lab::report::{NONE, Table, figure, page_of};

use crate::observe::event::name_of;

use super::{ARMS, Arm, FAILURES_MIN, Forecast};

/// The page; `assumptions` are lines of what was put in.
pub fn html(forecasts: &[Forecast], assumptions: &[String], command: &str) -> String {
    let mut body = "<h1>Goodput of a fleet, by the way it survives failures</h1>\n".to_string();
    body.push_str(
        "<p class=\"lead\">Goodput: work done, as a fraction of what the nodes that train would \
         have done in the same time without failures and checkpoints.</p>\n",
    );
    if let Some(chart) = chart(forecasts) {
        body.push_str(&figure(
            &chart,
            "<b>Goodput against the number of nodes.</b> Lines: means of the runs that were \
             played; the shaded areas hold 95 of 100 single runs.",
        ));
    }
    let few = few_failures(forecasts).map_or(String::new(), |words| format!(" {words}"));
    body.push_str(&table(forecasts).html(&format!("<b>Every arm at every size.</b>{few}")));
    body.push_str("<h2>What was put in</h2>\n<ul>\n");
    for line in assumptions {
        body.push_str(&format!("<li>{}</li>\n", escape(line)));
    }
    body.push_str(&format!("</ul>\n<pre>$ {}</pre>\n", escape(command)));
    page_of("Fleet forecast", &body)
}

fn of(forecasts: &[Forecast], arm: Arm) -> impl Iterator<Item = &Forecast> {
    forecasts.iter().filter(move |forecast| forecast.arm == arm)
}

fn chart(forecasts: &[Forecast]) -> Option<String> {
    let sizes = || forecasts.iter().map(|forecast| forecast.nodes as f64);
    let series = ARMS.iter().enumerate().map(|(index, &arm)| {
        let points = of(forecasts, arm).map(|f| (f.nodes as f64, f.goodput)).collect();
        let band = of(forecasts, arm).map(|f| (f.nodes as f64, f.runs[0], f.runs[1])).collect();
        let curve = MeanCurve { points, band };
        let (label, colour) = (name_of(&arm), index + 1);
        Series { label, colour, curve, dots: true, ..Series::default() }
    });
    LineChart {
        id: "clip-fleet".into(),
        label: "Goodput against the number of nodes, a curve for every arm".into(),
        // No label of the y axis: there is no room beside figures of this length.
        unit: Unit::Percent,
        x_axis: XAxis::Logarithmic {
            from: sizes().fold(f64::INFINITY, f64::min),
            label: "nodes".into(),
        },
        x_to: sizes().fold(0.0, f64::max),
        series: series.filter(|series| !series.curve.points.is_empty()).collect(),
        ..LineChart::default()
    }
    .draw()
    .map(|drawing| drawing.html())
}

/// Why lines have no interval, where some have none.
pub fn few_failures(forecasts: &[Forecast]) -> Option<String> {
    let any = forecasts.iter().any(|forecast| forecast.half_width.is_none());
    any.then(|| {
        format!(
            "No interval: one run was played, or fewer than {FAILURES_MIN} failures, which do not \
             tell how runs spread; --replicas plays more."
        )
    })
}

/// Every arm at every size; ! marks what does not agree with its formula.
pub fn table(forecasts: &[Forecast]) -> Table {
    let head = ["nodes", "arm", "failures a day", "checkpoint every", "goodput", "95 % interval"];
    let mut table =
        Table::new(head.into_iter().chain(["formula", "difference", "first order", ""]));
    for forecast in forecasts {
        let percent = |value: f64| format!("{:.3} %", value * 100.0);
        let or_none = |value: Option<f64>| value.map_or(NONE.to_string(), percent);
        table.row([
            grouped(forecast.nodes as f64),
            name_of(&forecast.arm),
            format!("{:.2}", forecast.failures_per_day),
            format!("{:.0} s", forecast.checkpoint_every_seconds),
            percent(forecast.goodput),
            forecast.half_width.map_or(NONE.to_string(), |half| format!("± {}", percent(half))),
            or_none(forecast.formula),
            or_none(forecast.difference),
            or_none(forecast.first_order),
            if forecast.agrees { "" } else { "!" }.to_string(),
        ]);
    }
    table
}
