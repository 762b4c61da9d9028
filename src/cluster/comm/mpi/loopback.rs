//! Ranks of one machine need no address that others reach: launcher and ranks are told to use the
//! loopback only, unless the user or the site named interfaces (cluster-scripts/README.md, "On
//! machines shared with others").

use std::path::{Path, PathBuf};

use kintsugi_ffi::grants;

/// What names interfaces for launcher and ranks, either way: a parameter, in the environment behind
/// the prefix of the library that reads it. Of the transport's two, both together switch it off.
const CHOICES: [(&str, &str); 6] = [
    ("OMPI_MCA_", "btl_tcp_if_include"),
    ("OMPI_MCA_", "btl_tcp_if_exclude"),
    ("PRTE_MCA_", "prte_if_include"),
    ("PRTE_MCA_", "prte_if_exclude"),
    ("PRTE_MCA_", "oob_tcp_if_include"),
    ("PRTE_MCA_", "oob_tcp_if_exclude"),
];

/// Variables that name other parameter files for the ranks, in the order in which they count.
const FILE_VARIABLES: [&str; 2] = ["OMPI_MCA_mca_base_param_files", "OMPI_MCA_mca_param_files"];
/// The user's parameter files, below his home.
const USER_FILE: &str = ".openmpi/mca-params.conf";
const USER_LAUNCHER_FILE: &str = ".prte/mca-params.conf";
/// The site's, below the installation's `etc`: the last one overrules even the environment.
const SITE_FILE: &str = "openmpi-mca-params.conf";
const SITE_OTHER_FILES: [&str; 2] = ["prte-mca-params.conf", "openmpi-mca-params-override.conf"];
/// Where distributions keep the site's files of what lies in `/usr`.
const DISTRIBUTION: (&str, &str) = ("/usr", "/etc/openmpi");

/// What limits them to the loopback: the ranks' transport, which else leaves it out, and where both
/// listen (`ulfm-shim/loopback.c`). PRRTE 3.0 refuses to name the loopback to other daemons, of
/// which there are none.
pub const SETTINGS: [(&str, &str); 3] = [
    ("KINTSUGI_LOOPBACK", "1"),
    ("OMPI_MCA_btl_tcp_if_include", "lo"),
    ("OMPI_MCA_btl_tcp_disable_family", "6"),
];

/// Variables for a world on this machine under this mpirun; none where somebody chose interfaces,
/// or where the loopback is down.
pub fn settings(mpirun: &Path) -> Vec<(&'static str, &'static str)> {
    let chosen = CHOICES.iter().any(|(prefix, name)| {
        let variable = format!("{prefix}{name}");
        std::env::var_os(variable).is_some()
    });
    let is_up = || grants::interfaces_up().is_ok_and(|up| up.iter().any(|name| name == "lo"));
    let none = chosen || files(mpirun).iter().any(|file| chooses(file)) || !is_up();
    if none { Vec::new() } else { SETTINGS.to_vec() }
}

/// Whether the user or the site has a say about this parameter, without the prefix, in a file.
pub fn is_in_a_file(mpirun: &Path, parameter: &str) -> bool {
    let says = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.lines().any(|line| name_of(line) == Some(parameter))
    };
    files(mpirun).iter().any(says)
}

/// Where this user's launcher and ranks look for parameters.
fn files(mpirun: &Path) -> Vec<PathBuf> {
    let named = FILE_VARIABLES.iter().find_map(std::env::var_os);
    let named = named.map(|files| files.to_string_lossy().into_owned());
    let home = std::env::var_os("HOME").map(PathBuf::from);
    parameter_files(home.as_deref(), named.as_deref(), mpirun)
}

/// Where launcher and ranks look for parameters; `named` is a list that replaces two of them.
fn parameter_files(home: Option<&Path>, named: Option<&str>, mpirun: &Path) -> Vec<PathBuf> {
    let site = site_folder(mpirun);
    let of_home = |name: &str| home.map(|home| home.join(name));
    let of_site = |name: &str| site.as_ref().map(|site| site.join(name));
    let mut files: Vec<PathBuf> = match named {
        Some(list) => list.split([',', ':']).map(|name| PathBuf::from(name.trim())).collect(),
        None => [of_home(USER_FILE), of_site(SITE_FILE)].into_iter().flatten().collect(),
    };
    files.extend(of_home(USER_LAUNCHER_FILE));
    files.extend(SITE_OTHER_FILES.iter().filter_map(|name| of_site(name)));
    files
}

/// The `etc` of the installation that mpirun belongs to.
fn site_folder(mpirun: &Path) -> Option<PathBuf> {
    // What the installation is built for lies where links lead.
    let mpirun = mpirun.canonicalize().unwrap_or_else(|_| mpirun.to_owned());
    let prefix = mpirun.parent()?.parent()?;
    let (usual, etc) = DISTRIBUTION;
    Some(if prefix == Path::new(usual) { etc.into() } else { prefix.join("etc") })
}

/// Whether a file, if it is there, names interfaces.
fn chooses(file: &Path) -> bool {
    std::fs::read_to_string(file).is_ok_and(|text| text.lines().any(is_choice))
}

fn is_choice(line: &str) -> bool {
    name_of(line).is_some_and(|name| CHOICES.iter().any(|(_, choice)| name == *choice))
}

/// Lines are `name = value` or comments.
fn name_of(line: &str) -> Option<&str> {
    line.split_once('=').map(|(name, _)| name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_names_interfaces_is_a_choice() {
        for line in ["btl_tcp_if_include = eth0", " btl_tcp_if_exclude=lo,docker0 "] {
            assert!(is_choice(line), "{line}");
        }
        for line in ["# btl_tcp_if_include = eth0", "btl_tcp_links = 2", "btl_tcp_if_include", ""] {
            assert!(!is_choice(line), "{line}");
        }
    }

    #[test]
    fn the_files_are_the_user_s_and_the_site_s_unless_others_are_named() {
        let texts = |named| {
            let mpirun = Path::new("/no/such/openmpi/bin/mpirun");
            let files = parameter_files(Some(Path::new("/home/ann")), named, mpirun);
            files.iter().map(|file| file.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        let always = [
            "/home/ann/.prte/mca-params.conf",
            "/no/such/openmpi/etc/prte-mca-params.conf",
            "/no/such/openmpi/etc/openmpi-mca-params-override.conf",
        ];
        let usual =
            ["/home/ann/.openmpi/mca-params.conf", "/no/such/openmpi/etc/openmpi-mca-params.conf"];
        assert_eq!(texts(None), [&usual[..], &always].concat());
        assert_eq!(texts(Some("/a, /b")), [&["/a", "/b"], &always[..]].concat());
        assert_eq!(
            site_folder(Path::new("/usr/bin/no-mpirun")).unwrap(),
            Path::new("/etc/openmpi")
        );
    }
}
