//! The page of an experiment on memory.

use super::part::{Frame, Part};
use crate::lab::report::svg::escape;
use crate::lab::report::{figure, page_of};

/// The document.
pub fn html(frame: &Frame<'_>, parts: &[Part]) -> String {
    let title = &frame.study.title;
    let mut body = format!("<h1>{}</h1>\n", escape(title));
    if !frame.study.description.is_empty() {
        let text = escape(frame.study.description.trim());
        body.push_str(&format!("<p class=\"lead\">{text}</p>\n"));
    }
    for part in parts {
        body.push_str(&format!("<h2>{}</h2>\n", escape(&part.title)));
        body.push_str(&format!("<p class=\"lead\">{}</p>\n", part.source.words()));
        for (drawing, caption) in &part.drawings {
            body.push_str(&figure(drawing, caption));
        }
        for (table, caption) in &part.tables {
            body.push_str(&table.html(caption));
        }
    }
    body.push_str(&format!(
        "<h2>How it was made</h2>\n<pre>$ {}</pre>\n<p>Machine: {}.</p>\n\
         <details><summary>The experiment file</summary><pre>{}</pre></details>\n",
        escape(frame.command),
        escape(&frame.machine),
        escape(frame.text)
    ));
    page_of(title, &body)
}
