//! What a node reads, in which order: the production order of samples, cut by nodes.

use crate::data::sampler::Order;

/// Which node reads a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Assignment {
    /// The one that its owner lies on: the same in every epoch.
    Owners,
    /// Position p is read by node p modulo the nodes, as samplers of one order over many ranks do.
    Strided,
}

/// The samples that one node reads, epoch by epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Their ids.
    pub ids: Vec<u32>,
    /// How many of them belong to the first epoch.
    pub cold: usize,
}

/// What each of `nodes` nodes reads in `epochs` epochs. At most 2^32 samples.
pub fn traces(order: &Order, epochs: u64, nodes: u32, assignment: Assignment) -> Vec<Trace> {
    let whole = Order { global_batch: order.samples, ..order.clone() };
    let (owners, nodes) = (order.owners as usize, nodes as usize);
    let mut traces = vec![Trace { ids: Vec::new(), cold: 0 }; nodes];
    for epoch in 0..epochs {
        // One step is an epoch of this order.
        let rows: Vec<Vec<u64>> =
            (0..order.owners).map(|owner| whole.owner_samples(epoch, owner)).collect();
        for position in 0..order.samples as usize {
            let node = match assignment {
                Assignment::Owners => position % owners % nodes,
                Assignment::Strided => position % nodes,
            };
            traces[node].ids.push(rows[position % owners][position / owners] as u32);
        }
        if epoch == 0 {
            traces.iter_mut().for_each(|trace| trace.cold = trace.ids.len());
        }
    }
    traces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sampler::Bundling;

    #[test]
    fn a_trace_is_the_order_position_by_position() {
        let bundling = Bundling { ratio: 0.2, alternating: true, ..Bundling::WHOLE };
        let order = Order::new(103, 4, 9, 10).and_then(|order| order.bundled(bundling)).unwrap();
        let alone = traces(&order, 3, 1, Assignment::Owners);
        let positions = (0..3).flat_map(|epoch| (0..103).map(move |at| (epoch, at)));
        let ids: Vec<u32> = positions.map(|(e, at)| order.sample(e, at) as u32).collect();
        assert_eq!((&alone[0].ids, alone[0].cold), (&ids, 103));
        let pair = traces(&order, 3, 2, Assignment::Owners);
        let undivided = Order { owners: 1, ..order };
        let strided = traces(&undivided, 3, 2, Assignment::Strided);
        let sets = |trace: &Trace, from: usize, to: usize| {
            let mut ids = trace.ids[from..to].to_vec();
            ids.sort_unstable();
            ids
        };
        let cold = pair[0].cold;
        assert_eq!(sets(&pair[0], 0, cold), sets(&pair[0], cold, 2 * cold), "a node keeps its own");
        let cold = strided[0].cold;
        assert_ne!(sets(&strided[0], 0, cold), sets(&strided[0], cold, 2 * cold));
    }
}
