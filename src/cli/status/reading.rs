//! What `status` says of a run's reading: bytes by where they came from, the cache's misses, what
//! steps waited for, how far files are copied.

use serde::Serialize;

use crate::observe::copies::Copies;
use crate::observe::data_use::{DataUse, Waits};
use crate::observe::event::{Event, Kind, Staged};
use crate::observe::spans::amount;

/// Reports of steps that shares are taken over.
const REPORTS: usize = 50;

/// What the cache does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct CacheGauge {
    /// Share of misses among the newest samples.
    pub(super) misses: f64,
    /// The least that it can be in an epoch after the first, 1-c.
    pub(super) bound: f64,
}

/// Sums over the lines that were read.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(super) struct Reading {
    /// Of all steps so far.
    pub(super) data: DataUse,
    /// Shares of the newest steps that a worker waited.
    pub(super) waits: Waits,
    /// Where there is one.
    pub(super) cache: Option<CacheGauge>,
    /// Where files are copied.
    pub(super) staging: Option<Staged>,
}

impl Reading {
    /// From the events of a run.
    pub(super) fn of(events: &[Event]) -> Self {
        let (mut data, mut copies) = (DataUse::default(), Copies::default());
        for event in events {
            copies.on(event);
            if let Kind::Data { used, .. } = &event.kind {
                data.add(used);
            }
        }
        let newest = || {
            let reports = events.iter().rev().filter_map(|event| match &event.kind {
                Kind::Data { used, waits } => Some((used, waits)),
                _ => None,
            });
            reports.take(REPORTS)
        };
        let steps = events.iter().rev().filter_map(|event| match event.kind {
            Kind::Step { seconds, .. } => Some(seconds),
            _ => None,
        });
        let (mut waits, seconds) = (Waits::default(), steps.take(REPORTS).sum());
        newest().for_each(|(_, one)| waits.add(one));
        let (hits, misses) = newest()
            .fold((0, 0), |(hits, misses), (used, _)| (hits + used.hits, misses + used.misses));
        let share = misses as f64 / (hits + misses).max(1) as f64;
        let cache = data.bound.map(|bound| CacheGauge { misses: share, bound });
        Self { data, waits: waits.shares(seconds), cache, staging: copies.newest() }
    }

    /// For a person; nothing of a run that reads no files.
    pub(super) fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let data = &self.data;
        lines.extend(self.staging.map(|staged| staged.line()));
        if data.opens > 0 || data.bytes.local > 0 || data.bytes.cache > 0 {
            lines.push(format!(
                "read {} from its storage in {} fetches, {} from copies, {} from the cache",
                amount(data.bytes.shared),
                data.opens,
                amount(data.bytes.local),
                amount(data.bytes.cache)
            ));
        }
        if let Some(cache) = self.cache {
            let CacheGauge { misses, bound } = cache;
            lines.push(format!("cache misses {misses:.3} of samples, at least {bound:.3} (1-c)"));
        }
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        let Waits { data, decode, staging, peers } = self.waits;
        if data + decode + staging + peers > 0.0 {
            lines.push(format!(
                "steps wait: data {}, decode {}, staging {}, peers {}",
                percent(data),
                percent(decode),
                percent(staging),
                percent(peers)
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::data_use::TierBytes;
    use crate::observe::event::samples;

    fn step(used: DataUse, waits: Waits) -> [Event; 2] {
        [Kind::Data { used, waits }, samples::step(8, 2.0)].map(|kind| samples::event(1, 0.0, kind))
    }

    #[test]
    fn reading_is_summed_over_the_run_and_gauges_over_the_newest_steps() {
        let bytes = TierBytes { shared: 1_500_000, local: 2_000_000, ..TierBytes::default() };
        let cold = DataUse { opens: 3, bytes, misses: 8, bound: Some(0.25), ..DataUse::default() };
        let warm = DataUse { hits: 8, misses: 0, ..cold };
        let waits = Waits { staging: 0.5, peers: 0.1, ..Waits::default() };
        let mut events: Vec<Event> = step(cold, waits).into();
        (0..REPORTS).for_each(|_| events.extend(step(warm, waits)));
        let reading = Reading::of(&events);
        assert_eq!((reading.data.misses, reading.data.opens), (8, 3 * 51));
        assert_eq!(reading.cache, Some(CacheGauge { misses: 0.0, bound: 0.25 }));
        let lines = reading.lines();
        let read = "read 76.5 MB from its storage in 153 fetches, 102.0 MB from copies, 0 B \
                    from the cache";
        assert_eq!(lines[0], read);
        assert_eq!(lines[1], "cache misses 0.000 of samples, at least 0.250 (1-c)");
        assert_eq!(lines[2], "steps wait: data 0%, decode 0%, staging 25%, peers 5%");
        assert_eq!(Reading::of(&[]).lines(), Vec::<String>::new());
    }
}
