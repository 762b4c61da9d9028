//! Launch and agents in one process, over the loopback: how a node comes, obeys and is lost.

use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::config::seed::Stream;
use crate::launch::traces::folders::Folders;

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

/// A run that no other test has: each has a thread with its name.
fn run() -> String {
    let current = std::thread::current();
    let name = format!("{} {}", std::process::id(), current.name().unwrap_or_default());
    format!("{:08x}", xxhash_rust::xxh3::xxh3_64(name.as_bytes()) >> 32)
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
fn a_node_whose_agent_cannot_be_started_is_lost_at_once_with_srun_s_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&["a", "b"], folder.path());
    let line =
        "echo 'execve(): /x: Permission denied' >&2; echo 'task 0: exit code 13' >&2; exit 13";
    fleet.started("a", Command::new("sh").args(["-c", line]));
    fleet.started("b", Command::new("sleep").arg("60"));
    let why = loss(&mut fleet).why;
    let words = "(exit code 13: execve(): /x: Permission denied; task 0: exit code 13); see ";
    assert!(why.contains(words) && why.ends_with("agent-a.log"), "{why}");
    assert!(fleet.losses().is_empty(), "b may still report");
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
    // Where this process stood still, both are seen in one look.
    let mut losses = Vec::new();
    until("both losses", || {
        fleet.look();
        losses.extend(fleet.losses());
        losses.len() >= 2
    });
    losses.sort_by(|one, other| one.node.cmp(&other.node));
    let [closed, silent] = &losses[..] else { panic!("{losses:?}") };
    assert_eq!((closed.node.as_str(), closed.why.as_str()), ("a", "its connection closed"));
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

#[test]
fn bytes_that_mean_nothing_change_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&["a"], folder.path());
    let (port, beats, key) = fleet.address().unwrap();
    let parting = agent(&fleet, "a", folder.path());
    until("an agent", || lives(&mut fleet, "a"));
    let mut draws = Stream::new(&[21, 6]);
    let mut noise = || -> Vec<u8> { (0..700).map(|_| draws.below(256) as u8).collect() };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut kept = Vec::new();
    for number in 0..20 {
        let words = [
            noise(),
            format!("{{\"report\":\"hello\",\"key\":\"{key}").into_bytes(),
            b"{\"report\":\"ended\",\"error\":null,\"newest\":[1,2,3]}\n".to_vec(),
            vec![b'['; 10_000],
        ];
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // Whoever hangs up has understood.
        let _ = stream.write_all(&words[number % words.len()]);
        kept.push(stream);
        socket.send_to(&noise(), ("127.0.0.1", beats)).unwrap();
        let guess = serde_json::to_vec(&Beat { key: "guess".into(), node: "a".into() }).unwrap();
        socket.send_to(&guess, ("127.0.0.1", beats)).unwrap();
    }
    let slots = folder.path().join(format!("kintsugi-{}-0.slots", run()));
    std::fs::write(&slots, "state").unwrap();
    fleet.order(&["a".into()], &Order::ClearSlots);
    assert!(!slots.exists() && lives(&mut fleet, "a") && fleet.losses().is_empty());
    fleet.dismiss();
    assert_eq!(parting.recv_timeout(PATIENCE), Ok(Parting::Dismissed));
}

#[test]
fn an_order_for_folders_of_nobodys_attempt_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let foreign = folder.path().join("foreign");
    let orders = [
        (format!("kintsugi-{}-1", run()), foreign.clone()),
        ("kintsugi-00000001-1".to_owned(), "/tmp/kintsugi-00000001-1.1a".into()),
    ];
    for (job, place) in orders {
        let mut fleet = fleet(&["a"], folder.path());
        let parting = agent(&fleet, "a", folder.path());
        until("an agent", || lives(&mut fleet, "a"));
        let (temporary, shared_memory) = (place.clone(), place.clone());
        fleet.order(&["a".into()], &Order::Begin { job, temporary, shared_memory });
        let loss = loss(&mut fleet);
        assert!(loss.why.contains("no attempt of this run"), "{}", loss.why);
        assert!(!place.exists());
        assert!(parting.recv_timeout(PATIENCE).is_ok());
    }
}

#[test]
fn folders_of_an_attempt_are_made_once_and_go_with_the_agent_whatever_its_janitor_does() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = fleet(&["a"], folder.path());
    let parting = agent(&fleet, "a", folder.path());
    until("an agent", || lives(&mut fleet, "a"));
    let job = format!("kintsugi-{}-5", run());
    let Folders { temporary, shared_memory } = Folders::draw(&job);
    let places = [temporary.clone(), shared_memory.clone()];
    let begin = Order::Begin { job, temporary, shared_memory };
    for _ in 0..2 {
        fleet.order(&["a".into()], &begin);
        assert!(lives(&mut fleet, "a") && places.iter().all(|place| place.is_dir()));
    }
    // Its program is no janitor.
    fleet.dismiss();
    assert_eq!(parting.recv_timeout(PATIENCE), Ok(Parting::Dismissed));
    assert!(places.iter().all(|place| !place.exists()));
}

#[test]
fn an_agent_that_hears_no_order_of_a_launch_ends() {
    let folder = tempfile::tempdir().unwrap();
    for words in [&b"\xff\xfe\x00\n"[..], b"{\"order\":\"burn\"}\n", &[b'{'; 10_000]] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let duties = Duties {
            hosts: vec!["127.0.0.1".into()],
            port: listener.local_addr().unwrap().port(),
            beats: 9,
            key: "key".into(),
            node: "a".into(),
            run: run(),
            resident_dir: folder.path().to_owned(),
            timeout: TIMEOUT,
        };
        let served = std::thread::spawn(move || serve(&duties, PathBuf::from("/bin/true")));
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(words).unwrap();
        let parting = served.join().expect("no panic").unwrap();
        assert!(matches!(parting, Parting::Orphaned(_)), "{parting:?}");
    }
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
    let _link = comes_back(&mut fleet, "b");
    assert_eq!(fleet.losses().len(), 6);
}
