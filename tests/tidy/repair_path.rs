//! The table "A rank dies, training goes on" of ARCHITECTURE.md: its files exist, and a person can
//! read them in one sitting.

/// The line above the table.
const HEADING: &str = "\"A rank dies, training goes on\", in reading order:";
const FILES_MAX: usize = 8;
/// Code and comments; blank lines and tests are not counted.
const LINES_MAX: usize = 2_000;

/// What is wrong with the table of this text.
pub fn breaches(architecture: &str, text_of: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let table = architecture.split_once(HEADING).map_or("", |(_, rest)| rest);
    let rows = table.lines().skip_while(|line| line.is_empty()).take_while(|line| !line.is_empty());
    let files: Vec<&str> = rows
        .filter_map(|row| row.strip_prefix("| `")?.split_once('`'))
        .map(|(file, _)| file)
        .collect();
    let mut breaches = Vec::new();
    if files.is_empty() || files.len() > FILES_MAX {
        let number = files.len();
        breaches.push(format!("the table lists {number} files, 1 to {FILES_MAX} are right"));
    }
    let mut lines = 0;
    for file in files {
        match text_of(file) {
            Some(text) => lines += lines_without_tests(&text),
            None => breaches.push(format!("{file} is in the table and does not exist")),
        }
    }
    if lines > LINES_MAX {
        breaches.push(format!("the files have {lines} lines, {LINES_MAX} at most"));
    }
    breaches
}

/// Tests are the last thing in a file.
fn lines_without_tests(text: &str) -> usize {
    let code = text.lines().take_while(|line| *line != "#[cfg(test)]");
    code.filter(|line| !line.trim().is_empty()).count()
}

#[test]
fn a_long_path_and_a_file_that_is_not_there_are_caught() {
    let row = |file: usize| format!("| `src/{file}.rs` | what it says |\n");
    let table = |files: usize| -> String {
        let rows: String = (0..files).map(row).collect();
        format!("# Words\n\n{HEADING}\n\n| file | what it says |\n|---|---|\n{rows}\nMore.\n")
    };
    let of = |lines: usize| {
        let text = "code\n\n".repeat(lines) + "#[cfg(test)]\n" + &"test\n".repeat(9_000);
        move |_: &str| Some(text.clone())
    };
    assert!(breaches(&table(8), &of(250)).is_empty());
    assert!(breaches(&table(8), &of(251))[0].contains("2008 lines, 2000 at most"));
    assert!(breaches(&table(9), &of(1))[0].contains("lists 9 files"));
    assert!(breaches("# No table\n", &of(1))[0].contains("lists 0 files"));
    let missing = breaches(&table(2), &|file| (file == "src/0.rs").then(String::new));
    assert_eq!(missing, ["src/1.rs is in the table and does not exist"]);
}
