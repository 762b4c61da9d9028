//! A second user of the machine against a run: reads, kills, and sends bytes to every port of it.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use kintsugi::config::seed::Stream;

use crate::stranger::Stranger;
use crate::support::{
    alone, has_completed, launch, processes_of, result_of, run, run_dir, start, wait_for_step,
};

const STEPS: [&str; 3] = ["train.steps=600", "evaluation.every=never", "checkpoint.every=never"];
const LIMIT: Duration = Duration::from_secs(120);
/// Connections to each port, and bytes in each.
const CONNECTIONS: usize = 25;
const BYTES_MAX: u64 = 600;
/// How long a port may take to accept or to take bytes.
const PATIENCE: Duration = Duration::from_millis(500);

/// A socket of /proc/net/tcp or tcp6 that listens: its inode, and where.
fn listening(table: &str) -> Vec<(String, SocketAddr)> {
    let text = std::fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default();
    let sockets = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (address, port) = fields[1].split_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        let address = match address {
            "0100007F" => IpAddr::V4(Ipv4Addr::LOCALHOST),
            "00000000" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            "00000000000000000000000001000000" => IpAddr::V6(Ipv6Addr::LOCALHOST),
            _ => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        (fields[3] == "0A").then(|| (fields[9].to_owned(), SocketAddr::new(address, port)))
    });
    sockets.collect()
}

/// Where the processes of a run listen.
fn ports_of(folder: &Path) -> BTreeSet<SocketAddr> {
    let all: Vec<_> = ["tcp", "tcp6"].iter().flat_map(|table| listening(table)).collect();
    let mut ports = BTreeSet::new();
    for (pid, _) in processes_of(folder) {
        let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { continue };
        for file in files.flatten().filter_map(|file| std::fs::read_link(file.path()).ok()) {
            let its = |(inode, _): &&(String, _)| file.as_os_str() == &*format!("socket:[{inode}]");
            ports.extend(all.iter().find(its).map(|(_, address)| *address));
        }
    }
    ports
}

/// Connects again and again and sends what comes to mind.
fn disturb(port: SocketAddr, draws: &mut Stream) {
    let host =
        if port.is_ipv4() { IpAddr::V4(Ipv4Addr::LOCALHOST) } else { Ipv6Addr::LOCALHOST.into() };
    for _ in 0..CONNECTIONS {
        let address = SocketAddr::new(host, port.port());
        let Ok(mut stream) = TcpStream::connect_timeout(&address, PATIENCE) else { continue };
        let bytes: Vec<u8> = (0..draws.below(BYTES_MAX)).map(|_| draws.below(256) as u8).collect();
        // Whoever hangs up has understood.
        let _ = stream.set_write_timeout(Some(PATIENCE)).and_then(|()| stream.write_all(&bytes));
    }
}

#[test]
fn random_bytes_into_every_port_of_a_run_change_nothing() {
    let _turn = alone();
    let calm = run_dir("strangers-calm");
    assert_eq!(run(&mut launch(&calm, &STEPS), LIMIT.as_secs()).code, Some(0));
    let folder = run_dir("strangers-bytes");
    let mut running = start(&mut launch(&folder, &STEPS), LIMIT);
    wait_for_step(&folder, 5, &mut running);
    let ports = ports_of(&folder);
    assert!(ports.len() >= 5, "the launcher and four ranks: {ports:?}");
    let open: Vec<_> = ports.iter().filter(|port| !port.ip().is_loopback()).collect();
    assert!(open.is_empty(), "other machines reach {open:?}");
    let mut draws = Stream::new(&[21, 6]);
    for port in &ports {
        disturb(*port, &mut draws);
    }
    assert!(!running.has_ended(), "the run was too short to be disturbed");
    let ended = running.wait();
    let (result, undisturbed) = (has_completed(&ended, &folder), result_of(&calm));
    assert_eq!((result.recoveries.len(), result.restarts.len()), (0, 0), "{}", ended.stderr);
    assert_eq!(result.state_sha256, undisturbed.state_sha256);
}

#[test]
fn a_second_user_reads_nothing_of_a_run_and_ends_nothing_of_it() {
    let _turn = alone();
    let Some(stranger) = Stranger::new("a run's files and processes") else { return };
    let folder = run_dir("strangers-user");
    let mut running = start(&mut launch(&folder, &STEPS), LIMIT);
    wait_for_step(&folder, 5, &mut running);
    let id = kintsugi::launch::start::run_dir::RunDir::at(&folder).unwrap().id();
    let theirs = format!("/dev/shm/kintsugi-{id}-* /tmp/kintsugi-{id}-*");
    let read = stranger
        .tries(&format!("for f in {theirs}; do if [ -d $f ]; then ls $f; else cat $f; fi; done"));
    assert_eq!(String::from_utf8_lossy(&read.stdout), "");
    let refusals = String::from_utf8_lossy(&read.stderr).matches("Permission denied").count();
    assert!(refusals >= 4, "there was something to read: {refusals}");
    let slot = format!("/dev/shm/kintsugi-{id}-0.slots");
    for lock in [slot.as_str(), folder.join("lock").to_str().unwrap()] {
        assert!(!stranger.tries(&format!("exec 9<{lock}")).status.success(), "{lock} is open");
    }
    let victims = processes_of(&folder);
    for (pid, _) in &victims {
        assert!(!stranger.tries(&format!("kill -KILL {pid}")).status.success());
    }
    let ended = running.wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    assert_eq!(result_of(&folder).recoveries.len(), 0);
}
