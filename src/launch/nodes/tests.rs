//! Launch and agents in one process, over the loopback: how a node comes, obeys and is lost.

use std::net::{TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use super::agent::{Duties, Parting, serve};
use super::connections::Loss;
use super::fleet::{Fleet, Muster};
use super::message::{self, Beat, Order, Report};

/// Long enough for a busy machine, short enough for a test.
const TIMEOUT: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(20);

fn fleet(names: &[&str], folder: &Path) -> Fleet {
    let muster = Muster {
        nodes: names.iter().map(|name| (*name).to_owned()).collect(),
        program: "/bin/true".into(),
        host: "localhost".into(),
        run: run(),
        resident_dir: folder.to_owned(),
        logs: folder.to_owned(),
        timeout: TIMEOUT,
    };
    Fleet::listen(muster).unwrap()
}

/// A run that no other test has.
fn run() -> String {
    format!("{:08x}", std::process::id() ^ 0x5a5a_5a5a)
}

fn agent(fleet: &Fleet, node: &str, folder: &Path) -> Receiver<Parting> {
    let (port, beats, key) = fleet.address().unwrap();
    let duties = Duties {
        hosts: vec!["127.0.0.1".into()],
        port,
        beats,
        key,
        node: node.into(),
        run: run(),
        resident_dir: folder.to_owned(),
        timeout: TIMEOUT,
    };
    let (sender, parting) = mpsc::channel();
    std::thread::spawn(move || {
        let _ = sender.send(serve(&duties, PathBuf::from("/bin/true")).unwrap());
    });
    parting
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "{what}: not within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn lives(fleet: &mut Fleet, name: &str) -> bool {
    fleet.look();
    fleet.standings(&[]).iter().any(|node| node.name == name && node.lives)
}

fn loss(fleet: &mut Fleet) -> Loss {
    let mut losses = Vec::new();
    until("a loss", || {
        fleet.look();
        losses.extend(fleet.losses());
        !losses.is_empty()
    });
    losses.remove(0)
}

/// Says hello and nothing more.
fn stranger(fleet: &Fleet, node: &str, key: &str) -> TcpStream {
    let (port, _, _) = fleet.address().unwrap();
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let hello = Report::Hello { key: key.into(), node: node.into(), newest: None };
    message::send(&stream, &hello).unwrap();
    stream
}

#[test]
fn an_agent_comes_obeys_and_is_dismissed() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&["a"], folder.path());
    let slots = folder.path().join(format!("kintsugi-{}-0.slots", run()));
    std::fs::write(&slots, "state").unwrap();
    let parting = agent(&fleet, "a", folder.path());
    until("an agent", || lives(&mut fleet, "a"));
    fleet.order(&["a".into()], &Order::ClearSlots);
    assert!(!slots.exists() && lives(&mut fleet, "a"));
    fleet.dismiss();
    assert_eq!(parting.recv_timeout(PATIENCE), Ok(Parting::Dismissed));
    assert!(fleet.losses().is_empty());
}

#[test]
fn a_node_that_is_given_back_is_cleared_left_and_no_loss() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&["a", "b"], folder.path());
    let slots = folder.path().join(format!("kintsugi-{}-0.slots", run()));
    std::fs::write(&slots, "state").unwrap();
    let parting = agent(&fleet, "a", folder.path());
    until("an agent", || lives(&mut fleet, "a"));
    fleet.release(&["a".into()]);
    assert_eq!(parting.recv_timeout(PATIENCE), Ok(Parting::Dismissed));
    assert!(!slots.exists() && !lives(&mut fleet, "a"));
    assert_eq!(fleet.away(), ["a"]);
    fleet.recall();
    assert_eq!(fleet.away(), ["a"], "nobody asked for it");
    assert!(fleet.losses().is_empty());
}

#[test]
fn an_agent_whose_launch_is_gone_ends() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&["a"], folder.path());
    let parting = agent(&fleet, "a", folder.path());
    until("an agent", || lives(&mut fleet, "a"));
    fleet.cut("a");
    assert!(matches!(parting.recv_timeout(PATIENCE), Ok(Parting::Orphaned(_))));
}

#[test]
fn a_connection_that_closes_is_a_loss_at_once_and_silence_one_after_the_time_out() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&["a", "b"], folder.path());
    let (_, _, key) = fleet.address().unwrap();
    let (first, second) = (stranger(&fleet, "a", &key), stranger(&fleet, "b", &key));
    until("both", || lives(&mut fleet, "a") && lives(&mut fleet, "b"));
    drop(first);
    let closed = loss(&mut fleet);
    assert_eq!((closed.node.as_str(), closed.why.as_str()), ("a", "its connection closed"));
    let silent = loss(&mut fleet);
    assert_eq!(silent.node, "b");
    assert!(silent.why.contains("nothing was heard of it"), "{}", silent.why);
    drop(second);
}

#[test]
fn datagrams_alone_keep_a_node_alive() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&["a"], folder.path());
    let (_, beats, key) = fleet.address().unwrap();
    let _link = stranger(&fleet, "a", &key);
    until("it", || lives(&mut fleet, "a"));
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let beat = serde_json::to_vec(&Beat { key, node: "a".into() }).unwrap();
    let end = Instant::now() + TIMEOUT * 3 / 2;
    while Instant::now() < end {
        socket.send_to(&beat, ("127.0.0.1", beats)).unwrap();
        assert!(lives(&mut fleet, "a"));
        std::thread::sleep(TIMEOUT / 20);
    }
}

#[test]
fn whoever_does_not_know_the_word_or_is_not_expected_is_not_heard() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&["a"], folder.path());
    let (_, _, key) = fleet.address().unwrap();
    let _wrong = stranger(&fleet, "a", "guess");
    let _unknown = stranger(&fleet, "z", &key);
    let _right = stranger(&fleet, "a", &key);
    until("the right one", || lives(&mut fleet, "a"));
    let _twice = stranger(&fleet, "a", &key);
    assert!(fleet.losses().is_empty());
    // It gives no answers, which is found out without waiting for ever: it is silent first.
    fleet.order(&["a".into()], &Order::ClearSlots);
    assert!(!lives(&mut fleet, "a"));
}

/// Longer than any cool-down.
const LONG: Duration = Duration::from_secs(1000);
const HOUR: Duration = Duration::from_secs(3600);

/// An agent that comes now is taken in, however busy the machine is.
fn comes_back(fleet: &mut Fleet, node: &str) -> TcpStream {
    taken_in(fleet, node, Duration::from_secs(30)).expect("it is taken in")
}

/// Likewise it is not.
fn stays_out(fleet: &mut Fleet, node: &str) -> bool {
    taken_in(fleet, node, Duration::from_secs(1)).is_none()
}

/// Its link, where it is taken in within this time.
fn taken_in(fleet: &mut Fleet, node: &str, within: Duration) -> Option<TcpStream> {
    let (_, _, key) = fleet.address().unwrap();
    let link = stranger(fleet, node, &key);
    let end = Instant::now() + within;
    while !lives(fleet, node) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    lives(fleet, node).then_some(link)
}

#[test]
fn a_node_that_was_lost_is_used_again_once_it_has_cooled_down_and_answers() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&["a"], folder.path());
    let _first = comes_back(&mut fleet, "a");
    fleet.cut("a");
    fleet.recall();
    assert!(stays_out(&mut fleet, "a"), "it was not asked yet");
    fleet.backdate("a", Duration::from_secs(4));
    fleet.recall();
    assert!(stays_out(&mut fleet, "a"), "not yet");
    fleet.backdate("a", Duration::from_secs(14));
    fleet.recall();
    assert!(!lives(&mut fleet, "a"), "it has not answered");
    comes_back(&mut fleet, "a");
}

#[test]
fn the_third_loss_is_for_good_unless_an_hour_of_service_lay_before_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&["a", "b"], folder.path());
    for node in ["a", "b"] {
        let mut links = Vec::new();
        for loss in 1..=3 {
            links.push(comes_back(&mut fleet, node));
            if node == "b" && loss == 3 {
                fleet.backdate(node, HOUR);
            }
            fleet.cut(node);
            fleet.backdate(node, LONG);
            fleet.recall();
        }
    }
    assert!(stays_out(&mut fleet, "a"));
    comes_back(&mut fleet, "b");
    assert_eq!(fleet.losses().len(), 6);
}
