//! What a run measures its error on, as its configuration says it.

use kintsugi::config::{Config, check_measured};

use super::{GOOD, load, refused};

#[test]
fn a_share_is_split_off_a_named_set_that_has_names() {
    let (share, train) = ("data.validation=10%", "data.train=set");
    let config = load(GOOD, &[share, train]).unwrap();
    let text = kintsugi::config::identity::resolved_text(&config);
    assert!(text.contains("validation = \"10%\""), "{text}");
    let read: Config = toml::from_str(&text).unwrap();
    assert_eq!(read.data, config.data);
    assert!(load(GOOD, &[share, train, "data.format=tar"]).is_ok());
    // What lacks is the set, whatever may be split.
    for key in ["data.format=image_folder", "data.format=tar"] {
        refused(GOOD, &[share, key], &["data.validation = 10%", "-s data.train=FOLDER"]);
    }
    let own = ["a validation set of their own", "leave the key out"];
    refused(GOOD, &[share, train, "data.format=mnist"], &own);
    refused(GOOD, &[share, "data.format=synthetic"], &own);
    refused(GOOD, &["data.validation=60%", train], &["data.validation", "above 0 %, to 50 %"]);
    // What belongs together is named by a regular expression.
    let grouped = r#"data.validation={ share = "10%", group = '^(.*)_\d+' }"#;
    let config = load(GOOD, &[grouped, train]).unwrap();
    let written = config.data.validation.as_ref().unwrap();
    assert_eq!(written.group().map(|group| group.text()), Some(r"^(.*)_\d+"));
    let text = kintsugi::config::identity::resolved_text(&config);
    assert_eq!(toml::from_str::<Config>(&text).unwrap().data, config.data, "{text}");
    for (value, says) in [
        (r#"{ share = "10%", group = "(" }"#, "group = \"(\" is no regular expression"),
        (r#"{ share = "ten", group = "a" }"#, "share = \"ten\" is no share"),
        (r#"{ share = "10%", groups = "a" }"#, "unknown field `groups`"),
        (r#"{ share = "10%" }"#, "missing field `group`"),
        ("7", "a path, a share such as"),
    ] {
        refused(GOOD, &[&format!("data.validation={value}"), train], &["data.validation", says]);
    }
}

#[test]
fn a_run_that_measures_its_error_has_something_to_measure_it_on() {
    let train = "data.train=set";
    let check = |keys: &[&str]| check_measured(&load(GOOD, keys).unwrap());
    for format in ["image_folder", "tar"] {
        let format = format!("data.format={format}");
        let error = check(&[train, &format]).unwrap_err().to_string();
        for part in ["`data.validation = unset`", "\"10%\"", "evaluation.every = \"never\""] {
            assert!(error.contains(part), "`{part}` is not in: {error}");
        }
        for key in ["data.validation=10%", "data.validation=other", "evaluation.every=never"] {
            check(&[train, &format, key]).unwrap_or_else(|error| panic!("{key}: {error}"));
        }
    }
    // A set that is made, and those whose files hold both.
    check(&[]).unwrap();
    for format in ["cifar10", "cifar100", "mnist"] {
        check(&[train, &format!("data.format={format}")]).unwrap();
    }
    check(&["data.format=synthetic"]).unwrap();
    // Whoever only looks at the training set is not refused.
    assert!(load(GOOD, &[train]).is_ok());
}
