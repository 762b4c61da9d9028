//! Progress for people: a bar on a terminal, plain lines elsewhere, drawn from events.
