//! What is linked into the program: licences, sources and bans of `deny.toml`, checked without a
//! network from the lock file. Where `cargo deny` is installed, its own judgement is asked too.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Command;

use serde_json::Value;

fn deny() -> toml::Table {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deny.toml");
    toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn strings(list: &toml::Value) -> BTreeSet<String> {
    list.as_array().unwrap().iter().map(|v| v.as_str().unwrap().to_owned()).collect()
}

/// `cargo metadata` of the locked graph, as it is built on this machine.
fn metadata() -> Value {
    let version = Command::new("rustc").arg("-vV").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    let host = version.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--format-version", "1"])
        .args(["--filter-platform", host])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn packages(metadata: &Value) -> &Vec<Value> {
    metadata["packages"].as_array().unwrap()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Whether an SPDX expression can be satisfied with the allowed licences.
fn satisfied(expression: &str, allowed: &BTreeSet<String>) -> bool {
    // The old form `MIT/Apache-2.0` means OR.
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut at = 0;
    let value = any_of(&words, &mut at, allowed);
    value && at == words.len()
}

fn any_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut value = all_of(words, at, allowed);
    while words.get(*at) == Some(&"OR") {
        *at += 1;
        value |= all_of(words, at, allowed);
    }
    value
}

fn all_of(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    let mut value = one(words, at, allowed);
    while words.get(*at) == Some(&"AND") {
        *at += 1;
        value &= one(words, at, allowed);
    }
    value
}

fn one(words: &[&str], at: &mut usize, allowed: &BTreeSet<String>) -> bool {
    if words.get(*at) == Some(&"(") {
        *at += 1;
        let value = any_of(words, at, allowed);
        let closed = words.get(*at) == Some(&")");
        *at += 1;
        return value && closed;
    }
    let mut name = words.get(*at).copied().unwrap_or_default().to_owned();
    *at += 1;
    if words.get(*at) == Some(&"WITH") {
        name = format!("{name} WITH {}", words.get(*at + 1).copied().unwrap_or_default());
        *at += 2;
    }
    allowed.contains(&name)
}

#[test]
fn every_licence_is_on_the_list() {
    let (deny, metadata) = (deny(), metadata());
    let allowed = strings(&deny["licenses"]["allow"]);
    for package in packages(&metadata) {
        let (name, licence) = (text(package, "name"), text(package, "license"));
        assert!(satisfied(licence, &allowed), "{name}: licence `{licence}` is not allowed");
    }
}

#[test]
fn every_package_comes_from_the_one_registry_or_this_repository() {
    let (deny, metadata) = (deny(), metadata());
    let registries = strings(&deny["sources"]["allow-registry"]);
    for package in packages(&metadata) {
        let source = package["source"].as_str();
        let known = source.is_none_or(|source| {
            source.strip_prefix("registry+").is_some_and(|url| registries.contains(url))
        });
        assert!(known, "{}: comes from {source:?}", text(package, "name"));
    }
}

#[test]
fn banned_packages_come_only_through_those_that_are_excused() {
    let (deny, metadata) = (deny(), metadata());
    let nodes = metadata["resolve"]["nodes"].as_array().unwrap();
    let name_of = |id: &str| {
        let package = packages(&metadata).iter().find(|p| text(p, "id") == id).unwrap();
        text(package, "name").to_owned()
    };
    for ban in deny["bans"]["deny"].as_array().unwrap() {
        let banned = ban["crate"].as_str().unwrap();
        let excused = ban.get("wrappers").map(strings).unwrap_or_default();
        for node in nodes {
            let user = name_of(text(node, "id"));
            let uses = node["deps"].as_array().unwrap().iter();
            let uses = uses.map(|dep| name_of(text(dep, "pkg"))).any(|name| name == banned);
            assert!(!uses || excused.contains(&user), "{user} uses {banned}: {ban}");
        }
    }
}

#[test]
fn no_dependency_is_a_wildcard_and_bincode_is_pinned() {
    let metadata = metadata();
    for package in packages(&metadata).iter().filter(|package| package["source"].is_null()) {
        for dependency in package["dependencies"].as_array().unwrap() {
            let (name, wanted) = (text(dependency, "name"), text(dependency, "req"));
            let local = dependency["path"].is_string();
            assert!(local || wanted != "*", "{name} = \"*\" in {}", text(package, "name"));
            if name == "bincode" {
                assert_eq!(wanted, "=1.3.3", "its format is that of state.bin");
            }
        }
    }
}

#[test]
fn cargo_deny_agrees_where_it_is_installed() {
    let installed = Command::new("cargo-deny").arg("--version").output();
    if !installed.is_ok_and(|output| output.status.success()) {
        // Past the test's own output, which is only shown when it fails: skips are counted.
        let _ = writeln!(std::io::stderr(), "skipped: cargo-deny is not installed");
        return;
    }
    let output = Command::new("cargo-deny")
        .args(["--offline", "check", "licenses", "bans", "sources"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn licence_expressions_are_read_as_spdx_means_them() {
    let allowed =
        BTreeSet::from(["MIT", "Zlib", "Apache-2.0 WITH LLVM-exception"].map(String::from));
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("GPL-3.0/MIT", true),
        ("GPL-3.0 AND MIT", false),
        ("(GPL-3.0 OR MIT) AND Zlib", true),
        ("GPL-3.0 OR MIT AND Zlib", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("Apache-2.0", false),
        ("(MIT", false),
        ("", false),
    ] {
        assert_eq!(satisfied(expression, &allowed), expected, "{expression}");
    }
}
