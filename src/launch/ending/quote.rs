//! What of a launcher's log is worth quoting: the beginning, where the cause stands, and the end.
//! Open MPI and PRRTE print boxes, whose first lines name it and whose last lines give advice. Pure
//! but for reading.

use std::path::Path;

/// Lines of the beginning, more where a box would be cut, and of the end.
const FIRST_LINES: usize = 12;
const BOX_LINES_MAX: usize = 30;
const LAST_LINES: usize = 4;
/// A line is cut here.
const LINE_CHARACTERS_MAX: usize = 240;
/// Bytes of the beginning and of the end that are looked at.
const PART_BYTES: usize = 64 << 10;
/// Dashes of a box's edge.
const EDGE_MIN: usize = 20;

/// The lines of a log for people; none where it cannot be read or is empty.
pub fn of_log(path: &Path) -> Vec<String> {
    let body = std::fs::read(path).unwrap_or_default();
    let text = |part: &[u8]| String::from_utf8_lossy(part).into_owned();
    match body.len() > 2 * PART_BYTES {
        false => of(&text(&body)),
        true => {
            let (first, last) = (&body[..PART_BYTES], &body[body.len() - PART_BYTES..]);
            of(&format!("{}\n{}", text(first), text(last)))
        }
    }
}

fn of(text: &str) -> Vec<String> {
    let lines = telling(text);
    let first = first_lines(&lines);
    let last = lines.len().saturating_sub(LAST_LINES).max(first);
    let cut = |line: &String| line.chars().take(LINE_CHARACTERS_MAX).collect::<String>();
    let mut quoted: Vec<String> = lines[..first].iter().map(cut).collect();
    if last > first {
        quoted.push(format!("... {} lines ...", last - first));
    }
    quoted.extend(lines[last..].iter().map(cut));
    quoted
}

/// Without empty lines, and without what stands there already: each rank says it. What a terminal
/// or a reader of logs would take for an order (NUL, ESC) is left out.
fn telling(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let mut line: String = line.chars().filter(|c| *c == '\t' || !c.is_control()).collect();
        line.truncate(line.trim_end().len());
        let again = lines.iter().rev().take(BOX_LINES_MAX).any(|before| *before == line);
        if !line.is_empty() && (is_edge(&line) || !again) {
            lines.push(line);
        }
    }
    lines
}

fn is_edge(line: &str) -> bool {
    let line = line.trim();
    line.len() >= EDGE_MIN && line.bytes().all(|byte| byte == b'-' || byte == b'=')
}

/// How many lines from the beginning are quoted: a box that begins among them is whole.
fn first_lines(lines: &[String]) -> usize {
    let first = lines.len().min(FIRST_LINES);
    let edges = lines[..first].iter().filter(|line| is_edge(line)).count();
    if edges % 2 == 0 {
        return first;
    }
    let rest = lines.iter().take(BOX_LINES_MAX).skip(first);
    let inside = rest.take_while(|line| !is_edge(line)).count();
    (first + inside + 1).min(lines.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    const EDGE: &str = "--------------------------------------------------------------------------";

    #[test]
    fn a_box_is_quoted_from_its_first_line_to_its_edge() {
        let body: String = (0..15).map(|n| format!("detail {n}\n\n")).collect();
        let text = format!("sh: 1: srun: not found\n{EDGE}\nA daemon failed.\n{body}{EDGE}\n");
        let quoted = of(&text);
        assert_eq!(quoted[..3], ["sh: 1: srun: not found", EDGE, "A daemon failed."]);
        assert_eq!(quoted.last().map(String::as_str), Some(EDGE));
        assert_eq!(quoted.len(), 19, "{quoted:?}");
    }

    #[test]
    fn of_a_long_log_beginning_and_end_are_quoted_and_the_rest_is_counted() {
        let text: String = (0..100).map(|n| format!("line {n}\n")).collect();
        let quoted = of(&text);
        assert_eq!(quoted[0], "line 0");
        assert_eq!(quoted[FIRST_LINES], format!("... {} lines ...", 100 - 12 - 4));
        assert_eq!(quoted[quoted.len() - 1], "line 99");
        let unending = format!("{EDGE}\n{text}");
        assert!(of(&unending).len() <= BOX_LINES_MAX + 2 + LAST_LINES, "a box without an end");
    }

    #[test]
    fn a_quotation_is_plain_text() {
        let text = "\0\n \0\x1b\nno\0 \x1b[31mroom\t!\r\n\0";
        assert_eq!(of(text), ["no [31mroom\t!"]);
    }

    #[test]
    fn what_every_rank_says_is_quoted_once() {
        let rank = "*** An error occurred in MPI_Init_thread\n*** on a NULL communicator\n";
        assert_eq!(of(&rank.repeat(8)).len(), 2);
        assert_eq!(of(""), Vec::<String>::new());
        assert_eq!(of_log(Path::new("/no/such/log")), Vec::<String>::new());
        assert_eq!(of(&"x".repeat(9000))[0].len(), LINE_CHARACTERS_MAX);
    }
}
