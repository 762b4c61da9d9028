//! Bars on a terminal, drawn through the console: a terminal that is gone or stopped costs the bar.

use std::io;
use std::sync::{Mutex, PoisonError};

use ::console::Term;
use indicatif::{ProgressBar, ProgressDrawTarget, TermLike};

use super::{errors_are_a_screen, write_errors};

/// How often a bar is drawn, at most, a second.
const DRAWS_PER_SECOND: u8 = 8;

/// A bar on stderr where that is a terminal, else none.
pub fn bar(length: Option<u64>) -> ProgressBar {
    let target = match errors_are_a_screen() {
        true => {
            ProgressDrawTarget::term_like_with_hz(Box::new(Screen::default()), DRAWS_PER_SECOND)
        }
        false => ProgressDrawTarget::hidden(),
    };
    ProgressBar::with_draw_target(length, target)
}

/// The terminal at stderr: what is drawn goes there in one write, so that nothing flickers.
#[derive(Debug, Default)]
struct Screen {
    drawn: Mutex<String>,
}

impl Screen {
    fn put(&self, text: &str) -> io::Result<()> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
        Ok(())
    }

    /// A movement of `n` places (ECMA-48: CUU, CUD, CUF, CUB).
    fn moved(&self, n: usize, direction: char) -> io::Result<()> {
        if n > 0 { self.put(&format!("\x1b[{n}{direction}")) } else { Ok(()) }
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        Term::stderr().size().1
    }

    fn height(&self) -> u16 {
        Term::stderr().size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'A')
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'B')
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'C')
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        self.moved(n, 'D')
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.put(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.put(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        self.put("\r\x1b[2K")
    }

    fn flush(&self) -> io::Result<()> {
        let mut drawn = self.drawn.lock().unwrap_or_else(PoisonError::into_inner);
        write_errors(&std::mem::take(&mut *drawn));
        Ok(())
    }
}
