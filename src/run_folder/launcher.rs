//! The launcher of MPI that started this process, if one did. Its variables are inherited by every
//! process below a rank, and stay in a shell when it is gone: they are believed only where the
//! server that they name answers. Without one MPI itself would start a world of one.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// Names of what a rank is told; one of them makes it a rank.
const RANK: [&str; 2] = ["OMPI_COMM_WORLD_RANK", "PMIX_RANK"];
const SIZE: &str = "OMPI_COMM_WORLD_SIZE";
const LOCAL_RANK: &str = "OMPI_COMM_WORLD_LOCAL_RANK";
const LOCAL_SIZE: &str = "OMPI_COMM_WORLD_LOCAL_SIZE";
/// The addresses of the server begin so; what follows is a version.
const SERVER: &str = "PMIX_SERVER_URI";
/// A server that is there but does not answer in this time is taken for alive: MPI will say.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Where settings of the user's lie.
const HOME: &str = "HOME";

/// What a launcher tells each rank by variables that a job of its own does not need: its parameters
/// (`OMPI_MCA_`, `PMIX_MCA_`, `PRTE_MCA_`) are the user's and stay.
const TOLD: [&str; 14] = [
    "OMPI_COMM_WORLD_",
    "OMPI_WORLD_",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_NUM_APP_CTX",
    "OMPI_FILE_LOCATION",
    "OMPI_MCA_num_procs",
    "OMPI_MCA_initial_wdir",
    "PMIX_NAMESPACE",
    "PMIX_RANK",
    "PMIX_SERVER_",
    "PMIX_GDS_MODULE",
    "PMIX_BFROP_BUFFER_TYPE",
    "PMIX_SECURITY_MODE",
    "PRTE_LAUNCHED",
];

/// This process's place in its launcher's world; what is not told is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Its rank.
    pub rank: Option<u32>,
    /// Ranks of the first world, spares included.
    pub size: Option<u32>,
    /// Its number among those of its node.
    pub local_rank: Option<u32>,
    /// Ranks of that world on its node.
    pub local_size: Option<u32>,
}

/// This process's place; `None`: no launcher that lives started it. Looked up once.
pub fn place() -> Option<Place> {
    static PLACE: OnceLock<Option<Place>> = OnceLock::new();
    *PLACE.get_or_init(|| place_of(&variables(), &mut answers))
}

/// Variables with which a launcher told this process, or one that it descends from, its place. A
/// launcher that this process starts must not find them.
pub fn leftovers() -> Vec<String> {
    let names = variables().into_iter().map(|(name, _)| name);
    names.filter(|name| TOLD.iter().any(|told| name.starts_with(told))).collect()
}

/// What this command starts is a launcher of its own: it sees nothing of another one, and has a
/// home, without which Open MPI does not begin. A service of systemd has none.
pub fn suit(command: &mut Command) {
    for name in leftovers() {
        command.env_remove(name);
    }
    if std::env::var_os(HOME).is_none() {
        let home = std::env::home_dir().filter(|home| home.is_absolute());
        command.env(HOME, home.unwrap_or_else(|| "/".into()));
    }
}

/// What is not text names no launcher.
fn variables() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

fn place_of(
    variables: &[(String, String)],
    answers: &mut dyn FnMut(SocketAddr) -> bool,
) -> Option<Place> {
    let value = |wanted: &str| {
        let found = variables.iter().find(|(name, _)| name == wanted);
        found.map(|(_, value)| value.as_str())
    };
    let number = |wanted: &str| value(wanted)?.parse().ok();
    RANK.iter().find_map(|name| value(name))?;
    let mut servers: Vec<Option<SocketAddr>> = variables
        .iter()
        .filter(|(name, _)| name.starts_with(SERVER))
        .map(|(_, uri)| address(uri))
        .collect();
    servers.sort_unstable();
    servers.dedup();
    let rank = RANK.iter().find_map(|name| number(name));
    let told = Place {
        rank,
        size: number(SIZE),
        local_rank: number(LOCAL_RANK),
        local_size: number(LOCAL_SIZE),
    };
    // Who is reached by other means is believed: MPI says what is wrong then.
    servers.into_iter().any(|server| server.is_none_or(&mut *answers)).then_some(told)
}

/// Of `NAMESPACE.RANK;tcp4://ADDRESS:PORT`, or with `tcp6` and brackets.
fn address(uri: &str) -> Option<SocketAddr> {
    let (_, rest) = uri.split_once(';')?;
    let (_, address) = rest.split_once("://")?;
    address.split(';').next()?.parse().ok()
}

/// Only a refusal, or no way to it, proves that nobody is there.
fn answers(server: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&server, ANSWER_MAX) {
        Ok(_) => true,
        Err(error) => !matches!(
            error.kind(),
            ErrorKind::ConnectionRefused
                | ErrorKind::HostUnreachable
                | ErrorKind::NetworkUnreachable
                | ErrorKind::AddrNotAvailable
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    const TOLD_BY_MPIRUN: [(&str, &str); 6] = [
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_RANK", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("PMIX_RANK", "2"),
        ("PMIX_SERVER_URI41", "prterun-vm-25664@0.0;tcp4://127.0.0.1:42213"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
    ];

    #[test]
    fn a_launcher_that_answers_is_believed() {
        let told = variables(&TOLD_BY_MPIRUN);
        let place =
            Place { rank: Some(2), size: Some(4), local_rank: Some(1), local_size: Some(3) };
        let mut asked = Vec::new();
        let found = place_of(&told, &mut |server| {
            asked.push(server.to_string());
            true
        });
        assert_eq!((found, asked), (Some(place), vec!["127.0.0.1:42213".to_owned()]));
    }

    #[test]
    fn what_a_launcher_left_behind_is_not() {
        let told = variables(&TOLD_BY_MPIRUN);
        assert_eq!(place_of(&told, &mut |_| false), None, "it is gone");
        for some in [&TOLD_BY_MPIRUN[..1], &TOLD_BY_MPIRUN[1..4], &TOLD_BY_MPIRUN[3..4]] {
            assert_eq!(place_of(&variables(some), &mut |_| true), None, "{some:?}");
        }
        assert_eq!(place_of(&variables(&TOLD_BY_MPIRUN[4..]), &mut |_| true), None, "no rank");
    }

    #[test]
    fn nobody_answers_at_a_port_that_was_closed() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let server = listener.local_addr().expect("bound");
        assert!(answers(server));
        drop(listener);
        assert!(!answers(server));
    }

    #[test]
    fn addresses_of_both_kinds_are_read() {
        let read = |uri: &str| address(uri).map(|address| address.to_string());
        assert_eq!(read("a-1@0.0;tcp4://10.0.0.7:5").as_deref(), Some("10.0.0.7:5"));
        assert_eq!(read("a-1@0.0;tcp6://[::1]:5").as_deref(), Some("[::1]:5"));
        for broken in ["", "a-1@0.0", "a;tcp4://host:5", "a;tcp4://10.0.0.7"] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }
}
