//! What a launcher of MPI says through the environment, and what it wants to find there. A shell
//! that was started among its ranks, and all that is started from it, keeps its variables when it
//! is long gone: they say nothing then.

use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::Duration;

/// Which process of its job this is: every launcher of this MPI says so.
const RANK: &str = "PMIX_RANK";
/// Which job, and where the launcher listens: `NAME;tcp4://ADDRESS:PORT`, under several names that
/// begin so.
const JOB: &str = "PMIX_NAMESPACE";
const SERVER: &str = "PMIX_SERVER_URI";
/// A launcher on this machine answers at once, or nobody listens there.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// Where settings of the user's lie.
const HOME: &str = "HOME";

/// What a launcher of its own would take for its parent's.
const LEFT_BY_LAUNCHERS: [&str; 6] = [
    "PMIX_",
    "PRTE_LAUNCHED",
    "OMPI_COMM_WORLD_",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_WORLD_",
    "OMPI_FILE_",
];
/// What users set themselves begins so.
const OF_USERS: &str = "PMIX_MCA_";

/// Whether a launcher that lives started the process with these variables. `answers` says whether
/// somebody listens at an address.
pub fn started_by_launcher(
    variables: &[(String, String)],
    answers: &dyn Fn(SocketAddr) -> bool,
) -> bool {
    let is_set = |name: &str| variables.iter().any(|(known, _)| known == name);
    let servers: Vec<&str> = variables
        .iter()
        .filter(|(name, _)| name.starts_with(SERVER))
        .map(|(_, value)| value.as_str())
        .collect();
    if !is_set(RANK) || !is_set(JOB) || servers.is_empty() {
        return false;
    }
    let mut addresses: Vec<Option<SocketAddr>> = servers.into_iter().map(address).collect();
    addresses.sort_unstable();
    addresses.dedup();
    // Who is reached by other means is believed: MPI says what is wrong then.
    addresses.into_iter().any(|address| address.is_none_or(answers))
}

fn address(server: &str) -> Option<SocketAddr> {
    server.rsplit_once("://")?.1.split(';').next()?.parse().ok()
}

/// Whether somebody listens there. Only a refusal says that nobody does.
pub fn answers(address: SocketAddr) -> bool {
    match TcpStream::connect_timeout(&address, ANSWER_MAX) {
        Ok(_) => true,
        Err(error) => error.kind() != std::io::ErrorKind::ConnectionRefused,
    }
}

/// This process's variables, those that are text.
pub fn own() -> Vec<(String, String)> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// Those of another launcher, which a new one must not see.
pub fn of_launchers(variables: &[(String, String)]) -> Vec<String> {
    let theirs = |name: &str| {
        LEFT_BY_LAUNCHERS.iter().any(|start| name.starts_with(start)) && !name.starts_with(OF_USERS)
    };
    variables.iter().map(|(name, _)| name).filter(|name| theirs(name)).cloned().collect()
}

/// What this command starts is a launcher of its own: it sees nothing of another one, and has a
/// home, without which Open MPI does not begin. A service of systemd has none.
pub fn suit(command: &mut Command) {
    for name in of_launchers(&own()) {
        command.env_remove(name);
    }
    if std::env::var_os(HOME).is_none() {
        let home = std::env::home_dir().filter(|home| home.is_absolute());
        command.env(HOME, home.unwrap_or_else(|| "/".into()));
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn set(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect()
    }

    const PROCESS: [(&str, &str); 2] = [("PMIX_RANK", "0"), ("PMIX_NAMESPACE", "prterun-n-1@1")];

    fn served_at(address: SocketAddr) -> Vec<(String, String)> {
        let uri = format!("prterun-n-1@0.0;tcp4://{address}");
        set(&[PROCESS[0], PROCESS[1], ("PMIX_SERVER_URI41", &uri), ("PMIX_SERVER_URI2", &uri)])
    }

    #[test]
    fn only_a_launcher_that_answers_has_started_this_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let variables = served_at(listener.local_addr().unwrap());
        assert!(started_by_launcher(&variables, &answers));
        drop(listener);
        assert!(!started_by_launcher(&variables, &answers));
    }

    #[test]
    fn variables_without_a_launcher_are_left_over() {
        let nobody = |_| -> bool { panic!("nobody is to be asked") };
        for pairs in [
            &[][..],
            &PROCESS,
            &PROCESS[..1],
            &[("OMPI_COMM_WORLD_SIZE", "4"), ("OMPI_COMM_WORLD_RANK", "0")],
            &[("PMIX_SERVER_URI2", "n@0.0;tcp4://127.0.0.1:1")],
        ] {
            assert!(!started_by_launcher(&set(pairs), &nobody), "{pairs:?}");
        }
        let elsewhere = [PROCESS[0], PROCESS[1], ("PMIX_SERVER_URI", "n@0.0;usock:/tmp/x")];
        assert!(started_by_launcher(&set(&elsewhere), &nobody));
    }

    #[test]
    fn a_new_launcher_sees_what_users_set_and_nothing_of_an_old_one() {
        let variables = set(&[
            ("PMIX_SERVER_URI41", "x"),
            ("PMIX_MCA_gds", "hash"),
            ("OMPI_MCA_btl", "self"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("HOME", "/root"),
            ("PRTE_MCA_x", "1"),
        ]);
        assert_eq!(of_launchers(&variables), ["PMIX_SERVER_URI41", "OMPI_COMM_WORLD_SIZE"]);
    }
}
