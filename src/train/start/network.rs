//! What the network between the nodes of a world can do, measured once when a launch starts its
//! ranks: an agreement, which every step pays, and what neighbours can send each other. A wrong
//! interface shows here before it costs hours. Bounded: two rounds of a few messages each, between
//! disjoint pairs, whatever the number of nodes.

use std::net::Ipv4Addr;
use std::time::Duration;

use crate::cluster::comm::{CommError, Communicator};
use crate::cluster::wire;
use crate::cluster::world::World;
use crate::observe::clock::Clock;
use crate::observe::event::{Kind, Link};
use crate::observe::spans::amount;

use crate::train::start::surroundings::Surroundings;
use crate::train::trainer::Trainer;

/// Agreements that are timed; the median counts.
const AGREEMENTS: usize = 15;
/// The first message of a link says how long the others may be.
const PROBE_BYTES: usize = 64 << 10;
/// The others may take so long, and be so long; the best counts, for a busy node holds one up.
const PAYLOADS: usize = 3;
const LINK_MAX: Duration = Duration::from_millis(10);
const LINK_BYTES_MAX: usize = 4 << 20;
/// Addresses of a node that are compared.
const ADDRESSES: usize = 4;
/// An interface's name: Linux allows 15 bytes.
const NAME_WORDS: usize = 2;
const RESULT_WORDS: usize = 1 + NAME_WORDS;
/// Tag of these messages.
const TAG: u32 = 77;
/// A link this much slower than the middle one is named.
const SLOW_FACTOR: f64 = 4.0;
/// An agreement that takes longer costs more than short steps do.
const AGREE_MAX: Duration = Duration::from_millis(5);

/// Measures it where launch asks for that.
pub(super) fn look(
    around: &Surroundings,
    comm: &mut dyn Communicator,
    world: &World,
) -> Result<Option<Kind>, CommError> {
    match around.arguments.measure_network {
        true => measure(comm, world, around.clock.as_ref()),
        false => Ok(None),
    }
}

/// What was found, and what to look into.
pub(super) fn announce(trainer: &mut Trainer, network: Option<Kind>) {
    let Some(kind) = network else { return };
    let doubts = match &kind {
        Kind::Network { agree_seconds, links } => doubts(*agree_seconds, links),
        _ => Vec::new(),
    };
    trainer.record.event(&trainer.rank, kind);
    for message in doubts {
        trainer.record.event(&trainer.rank, Kind::Warning { message });
    }
}

/// `None` for a world on one node. Every rank calls it.
fn measure(
    comm: &mut dyn Communicator,
    world: &World,
    clock: &dyn Clock,
) -> Result<Option<Kind>, CommError> {
    let leaders = leaders(world);
    if leaders.len() < 2 {
        return Ok(None);
    }
    let agree_seconds = time_agreements(comm, clock)?;
    let addresses = comm.all_gather_u64(&to_words(&local_addresses()))?;
    let place = leaders.iter().position(|leader| *leader == comm.rank());
    let mut mine = [0; RESULT_WORDS];
    for round in 0..2 {
        let Some(place) = place else { continue };
        if place % 2 == round && place + 1 < leaders.len() {
            let peer = leaders[place + 1];
            let theirs = &addresses[peer * ADDRESSES..][..ADDRESSES];
            mine[0] = send_to(comm, peer, clock)? as u64;
            mine[1..].copy_from_slice(&wire::of_text::<NAME_WORDS>(&interface_towards(theirs)));
        } else if place % 2 != round && place > 0 {
            receive_from(comm, leaders[place - 1])?;
        }
    }
    let all = comm.all_gather_u64(&mine)?;
    let host = |rank: usize| world.member_at(rank).map_or_else(String::new, |m| m.host.clone());
    let link = |pair: &[usize]| {
        let words = &all[pair[0] * RESULT_WORDS..][..RESULT_WORDS];
        let interface = wire::to_text(&words[1..]);
        let (from, to) = (host(pair[0]), host(pair[1]));
        Link { from, to, interface, bytes_per_second: words[0] as f64 }
    };
    let links = leaders.windows(2).map(link).collect();
    Ok(Some(Kind::Network { agree_seconds, links }))
}

/// The lowest rank of each node, in order.
fn leaders(world: &World) -> Vec<usize> {
    let mut hosts: Vec<&str> = Vec::new();
    let mut leaders = Vec::new();
    for rank in 0..world.ranks() {
        let Some(member) = world.member_at(rank) else { continue };
        if !hosts.contains(&member.host.as_str()) {
            hosts.push(&member.host);
            leaders.push(rank);
        }
    }
    leaders
}

fn time_agreements(comm: &mut dyn Communicator, clock: &dyn Clock) -> Result<f64, CommError> {
    let mut times = Vec::with_capacity(AGREEMENTS);
    for _ in 0..AGREEMENTS {
        let begun = clock.now();
        comm.agree(u32::MAX).outcome?;
        times.push(clock.now().saturating_sub(begun));
    }
    times.sort_unstable();
    Ok(times[AGREEMENTS / 2].as_secs_f64())
}

/// Bytes per second to a peer, which answers every message with a short one.
fn send_to(comm: &mut dyn Communicator, peer: usize, clock: &dyn Clock) -> Result<f64, CommError> {
    let mut answer = [0; 8];
    let mut body = vec![0x5a; PROBE_BYTES];
    let begun = clock.now();
    comm.send(&body, peer, TAG)?;
    comm.recv(&mut answer, peer, TAG)?;
    let length = payload_length(clock.now().saturating_sub(begun));
    comm.send(&(length as u64).to_le_bytes(), peer, TAG)?;
    body.resize(length, 0x5a);
    let mut best = Duration::MAX;
    for _ in 0..PAYLOADS {
        let begun = clock.now();
        comm.send(&body, peer, TAG)?;
        comm.recv(&mut answer, peer, TAG)?;
        best = best.min(clock.now().saturating_sub(begun));
    }
    Ok(length as f64 / best.as_secs_f64().max(1e-9))
}

fn receive_from(comm: &mut dyn Communicator, peer: usize) -> Result<(), CommError> {
    let mut body = vec![0; PROBE_BYTES];
    comm.recv(&mut body, peer, TAG)?;
    comm.send(&[0; 8], peer, TAG)?;
    let mut length = [0; 8];
    comm.recv(&mut length, peer, TAG)?;
    let length = usize::try_from(u64::from_le_bytes(length)).unwrap_or(LINK_BYTES_MAX);
    body.resize(length.min(LINK_BYTES_MAX), 0);
    for _ in 0..PAYLOADS {
        comm.recv(&mut body, peer, TAG)?;
        comm.send(&[0; 8], peer, TAG)?;
    }
    Ok(())
}

/// As much as the link should take in its time, judged by the first message.
fn payload_length(first: Duration) -> usize {
    let fits = LINK_MAX.as_secs_f64() / first.as_secs_f64().max(1e-9) * PROBE_BYTES as f64;
    (fits as usize).clamp(PROBE_BYTES, LINK_BYTES_MAX)
}

/// What a person should look into.
fn doubts(agree_seconds: f64, links: &[Link]) -> Vec<String> {
    let mut doubts = Vec::new();
    let mut rates: Vec<f64> = links.iter().map(|link| link.bytes_per_second).collect();
    rates.sort_unstable_by(f64::total_cmp);
    let middle = rates.get(rates.len() / 2).copied().unwrap_or_default();
    for link in links.iter().filter(|link| link.bytes_per_second * SLOW_FACTOR < middle) {
        doubts.push(format!(
            "the network from {} to {} ({}) carries {}/s, and {}/s between others: \
             every step waits for it",
            link.from,
            link.to,
            link.interface,
            amount(link.bytes_per_second as u64),
            amount(middle as u64)
        ));
    }
    if let Some(other) = links.iter().find(|link| link.interface != links[0].interface) {
        doubts.push(format!(
            "{} sends by {} and {} by {}: is one of them the wrong network?",
            links[0].from, links[0].interface, other.from, other.interface
        ));
    }
    if agree_seconds > AGREE_MAX.as_secs_f64() {
        doubts.push(format!(
            "an agreement of all ranks takes {:.1} ms, and every step needs one",
            agree_seconds * 1e3
        ));
    }
    doubts
}

/// This node's addresses but the loopback's, as the kernel lists them.
fn local_addresses() -> Vec<Ipv4Addr> {
    let table = std::fs::read_to_string("/proc/net/fib_trie").unwrap_or_default();
    addresses_in(&table)
}

fn addresses_in(table: &str) -> Vec<Ipv4Addr> {
    let mut addresses: Vec<Ipv4Addr> = Vec::new();
    let mut leaf: Option<Ipv4Addr> = None;
    for line in table.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("|-- ") {
            leaf = text.parse().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = leaf
            && !address.is_loopback()
            && !addresses.contains(&address)
        {
            addresses.push(address);
        }
    }
    addresses
}

/// The interface that packets to a peer leave by; a network that both are on comes first.
fn interface_towards(addresses: &[u64]) -> String {
    let routes = std::fs::read_to_string("/proc/net/route").unwrap_or_default();
    let peers = addresses.iter().filter(|word| **word != 0);
    let peers = peers.map(|word| Ipv4Addr::from(*word as u32));
    let ways = peers.filter_map(|peer| route_to(&routes, peer));
    let best = ways.max_by_key(|(prefix, _)| *prefix);
    best.map_or_else(|| "unknown".into(), |(_, name)| name)
}

/// The longest matching prefix of a routing table, and its interface.
fn route_to(table: &str, peer: Ipv4Addr) -> Option<(u32, String)> {
    let route = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number = |field: usize| u32::from_str_radix(fields.get(field)?, 16).ok();
        // Printed as the bytes lie in memory.
        let (to, mask) = (number(1)?, number(7)?);
        let peer = u32::from_le_bytes(peer.octets());
        (peer & mask == to).then(|| (mask.count_ones(), fields[0].to_owned()))
    };
    table.lines().skip(1).filter_map(route).max_by_key(|(prefix, _)| *prefix)
}

fn to_words(addresses: &[Ipv4Addr]) -> [u64; ADDRESSES] {
    let mut words = [0; ADDRESSES];
    for (word, address) in words.iter_mut().zip(addresses) {
        *word = u64::from(u32::from(*address));
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::world::Member;

    fn link(from: &str, interface: &str, megabytes: f64) -> Link {
        let bytes_per_second = megabytes * 1e6;
        Link { from: from.into(), to: "next".into(), interface: interface.into(), bytes_per_second }
    }

    #[test]
    fn a_slow_link_another_interface_and_a_long_agreement_are_named() {
        let even = [link("a", "ib0", 900.0), link("b", "ib0", 1100.0), link("c", "ib0", 1000.0)];
        assert!(doubts(50e-6, &even).is_empty() && doubts(50e-6, &[]).is_empty());
        let odd = [link("a", "ib0", 900.0), link("b", "eth0", 110.0), link("c", "ib0", 1000.0)];
        let found = doubts(9e-3, &odd);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].contains("from b to next (eth0) carries 110.0 MB/s"), "{}", found[0]);
        assert!(found[1].contains("a sends by ib0 and b by eth0"), "{}", found[1]);
        assert!(found[2].contains("9.0 ms"), "{}", found[2]);
    }

    #[test]
    fn payloads_fit_their_time() {
        assert_eq!(payload_length(Duration::from_secs(3)), PROBE_BYTES);
        assert_eq!(payload_length(Duration::ZERO), LINK_BYTES_MAX);
        assert_eq!(payload_length(LINK_MAX / 4), 4 * PROBE_BYTES);
    }

    const ROUTES: &str = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\n\
        eth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
        eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n\
        ib0\t00004D0A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";

    #[test]
    fn the_interface_is_that_of_the_longest_route() {
        let way = |address: [u8; 4]| route_to(ROUTES, address.into());
        assert_eq!(way([10, 77, 0, 2]), Some((24, "ib0".into())));
        assert_eq!(way([10, 0, 0, 9]), Some((24, "eth0".into())));
        assert_eq!(way([192, 168, 1, 1]), Some((0, "eth0".into())));
        assert_eq!(route_to("Iface\n", [10, 77, 0, 2].into()), None);
        assert_eq!(route_to("Iface\nnonsense\n", [10, 77, 0, 2].into()), None);
    }

    #[test]
    fn addresses_are_found_once_and_without_the_loopback() {
        let table = "Main:\n  +-- 10.77.0.0/24 2 0 2\n |-- 10.77.0.0\n /24 link UNICAST\n\
            |-- 10.77.0.1\n  /32 host LOCAL\n|-- 127.0.0.1\n /32 host LOCAL\nLocal:\n\
            |-- 10.77.0.1\n  /32 host LOCAL\n";
        assert_eq!(addresses_in(table), [Ipv4Addr::new(10, 77, 0, 1)]);
        assert_eq!(to_words(&addresses_in(table))[..2], [0x0a4d_0001, 0]);
        assert!(addresses_in("").is_empty());
    }

    #[test]
    fn names_survive_the_wire() {
        for name in ["", "eth0", "a-name-of-fifte"] {
            assert_eq!(wire::to_text(&wire::of_text::<NAME_WORDS>(name)), name);
        }
    }

    #[test]
    fn a_node_is_led_by_its_lowest_rank() {
        let member = |rank: u32, host: &str| Member { host: host.into(), ..Member::of_test(rank) };
        let members = vec![member(0, "a"), member(1, "b"), member(2, "a"), member(3, "c")];
        assert_eq!(leaders(&World::initial(1, members, 8)), [0, 1, 3]);
    }
}
