//! What `--help` promises of commands that start ranks: the rows of `library/forms/forms.txt` that
//! say so. Which rows there must be is checked there.

use crate::support::alone;

#[allow(dead_code, reason = "the parts that check the table itself are the other binary's")]
#[path = "../library/forms/table.rs"]
mod table;

use table::Play;

#[test]
fn every_form_that_starts_ranks_does_what_its_row_says() {
    let _turn = alone();
    let wrong = table::wrong(|play| match play {
        Play::Ranks(line) => Some(line),
        _ => None,
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}
