//! Ranks of one machine need no address that others reach: launcher and ranks are told to use the
//! loopback only, unless the user named interfaces (README, "On machines shared with others").

use kintsugi_ffi::grants;

/// What names interfaces for launcher and ranks, either way.
const CHOICES: [&str; 6] = [
    "OMPI_MCA_btl_tcp_if_include",
    "OMPI_MCA_btl_tcp_if_exclude",
    "PRTE_MCA_prte_if_include",
    "PRTE_MCA_prte_if_exclude",
    "PRTE_MCA_oob_tcp_if_include",
    "PRTE_MCA_oob_tcp_if_exclude",
];

/// What limits them to the loopback: the ranks' transport, which else leaves it out, and where both
/// listen (`ulfm-shim/loopback.c`). PRRTE 3.0 refuses to name the loopback to other daemons, of
/// which there are none.
const SETTINGS: [(&str, &str); 3] = [
    ("KINTSUGI_LOOPBACK", "1"),
    ("OMPI_MCA_btl_tcp_if_include", "lo"),
    ("OMPI_MCA_btl_tcp_disable_family", "6"),
];

/// Variables for a world on this machine; none where the user chose interfaces, or where the
/// loopback is down.
pub fn settings() -> Vec<(&'static str, &'static str)> {
    let chosen = CHOICES.iter().any(|name| std::env::var_os(name).is_some());
    let is_up = grants::interfaces_up().is_ok_and(|up| up.iter().any(|name| name == "lo"));
    if chosen || !is_up { Vec::new() } else { SETTINGS.to_vec() }
}
