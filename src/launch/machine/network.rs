//! Whether Open MPI was told to use network interfaces that this machine does not have. Ranks of
//! one machine talk through shared memory all the same; a replacement is reached by TCP, and is
//! not.

/// What names interfaces in the environment of `launch`, and with it of all ranks.
const VARIABLES: [&str; 3] =
    ["OMPI_MCA_btl_tcp_if_include", "PRTE_MCA_prte_if_include", "PRTE_MCA_oob_tcp_if_include"];

/// Why no run can be started: without any interface Open MPI's processes do not find each other,
/// not even those of one machine.
pub fn isolation() -> Option<String> {
    isolated(&kintsugi_ffi::grants::interfaces_up().ok()?)
}

fn isolated(up: &[String]) -> Option<String> {
    up.is_empty().then(|| {
        "no network interface is up, not even lo, by which Open MPI's processes find each other: \
         bring it up (`ip link set lo up`)"
            .to_owned()
    })
}

/// What is wrong, and what to do, for people; empty when nothing is.
pub fn complaints() -> Vec<String> {
    let asked = VARIABLES.iter().filter_map(|name| Some((*name, std::env::var(name).ok()?)));
    let table = std::fs::read_to_string("/proc/net/dev").unwrap_or_default();
    asked.filter_map(|(name, value)| missing(name, &value, &interfaces(&table))).collect()
}

/// The first columns below the two lines of headings.
fn interfaces(table: &str) -> Vec<&str> {
    table.lines().skip(2).filter_map(|line| Some(line.split_once(':')?.0.trim())).collect()
}

/// Entries are interfaces or networks (10.0.0.0/8), which are not looked at.
fn missing(variable: &str, value: &str, present: &[&str]) -> Option<String> {
    let absent = |name: &&str| !name.is_empty() && !name.contains('/') && !present.contains(name);
    let wrong: Vec<&str> = value.split(',').map(str::trim).filter(absent).collect();
    (!wrong.is_empty()).then(|| {
        format!(
            "{variable}={value}: this machine has no interface {}, so ranks that are started later \
             cannot be reached; it has {}",
            wrong.join(", "),
            present.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_any_interface_there_is_no_run() {
        assert!(isolated(&[]).unwrap().contains("ip link set lo up"));
        assert_eq!(isolated(&["lo".to_owned()]), None);
    }

    const TABLE: &str = "Inter-|   Receive\n face |bytes\n    lo: 12 0\n  eth0:99 0\n";

    #[test]
    fn an_interface_that_is_not_there_is_named_with_those_that_are() {
        let present = interfaces(TABLE);
        assert_eq!(present, ["lo", "eth0"]);
        let said = missing("X", "eth0,ib7", &present).unwrap();
        assert!(said.contains("no interface ib7") && said.contains("lo, eth0"), "{said}");
        assert_eq!(missing("X", "eth0, 10.0.0.0/8", &present), None);
    }
}
