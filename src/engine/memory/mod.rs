//! Training beyond the near tier of memory (Imai et al.): which values leave it, when, and what
//! copies them. What decides is pure; `far`, `link` and `copies` move bytes.
//!
//! A draft's saved values get a fate each (`sequence`), copies get their times (`schedule`), a
//! play says what that takes (`play`), the planner picks fates by price (`planner`), and `arrange`
//! does what the configuration asks. `loads` makes values of copies of weights. `shown` has it all
//! as data, for people.

pub mod arrange;
pub mod copies;
pub mod expected;
pub mod far;
mod lanes;
pub mod limits;
pub mod link;
pub mod loads;
pub mod outlook;
pub mod planner;
pub mod play;
pub mod schedule;
pub mod sequence;
pub mod shown;
pub mod unified;

#[cfg(test)]
mod tests;
