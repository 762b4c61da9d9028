//! Pictures whose labels are a table's: the lines of src/data/README.md make class folders of them.

use std::path::Path;
use std::process::Command;

use super::{kintsugi, pictures, said};

/// The only lines of shell in that file.
fn lines() -> String {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/data/README.md");
    let text = std::fs::read_to_string(readme).unwrap();
    let (_, after) = text.split_once("### Labels in a CSV file").unwrap();
    let (_, after) = after.split_once("```sh\n").unwrap();
    after.split_once("```").unwrap().0.to_owned()
}

#[test]
fn a_flat_folder_and_a_table_become_class_folders_by_the_lines_of_the_manual() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    pictures(&at("made"), 0);
    std::fs::create_dir(at("pictures")).unwrap();
    let mut table = "name,label,more\r\n".to_owned();
    for index in 0..20 {
        let class = if index % 2 == 0 { "even" } else { "odd" };
        // A name and a label with a blank.
        let (from, name) = (format!("made/{class}/{index}.png"), format!("no {index}.png"));
        std::fs::rename(at(&from), at("pictures").join(&name)).unwrap();
        table += &format!("{name},\"an {class} one\",{index}\r\n");
    }
    // Many a table has no end of line at its end.
    std::fs::write(at("labels.csv"), table.trim_end()).unwrap();
    for (words, part) in [
        (["init", "pictures"], "src/data/README.md sorts pictures by one"),
        (["init", "labels.csv"], "labels.csv is a file"),
    ] {
        let refused = kintsugi(place.path(), &words);
        assert_eq!(refused.status.code(), Some(3), "{words:?}: {}", said(&refused));
        assert!(said(&refused).contains(part), "{words:?}: {}", said(&refused));
    }
    let sorted = Command::new("sh").arg("-ec").arg(lines()).current_dir(place.path()).output();
    let sorted = sorted.unwrap();
    assert!(sorted.status.success(), "{}", said(&sorted));
    let init = kintsugi(place.path(), &["init", "sorted", "-n", "1"]);
    assert_eq!(init.status.code(), Some(0), "{}", said(&init));
    assert!(said(&init).contains("20 pictures of 2 classes (10 each)"), "{}", said(&init));
    assert!(at("sorted/an odd one").is_dir());
}
