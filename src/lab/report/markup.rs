//! What all pages are made of: the document, which loads nothing from elsewhere, its figures and
//! its tables.

use super::svg::escape;

/// Of what is inside figures.
const FIGURE_STYLE: &str = include_str!("figure.css");
const PAGE_STYLE: &str = include_str!("page.css");

/// The pattern of the hatched bars.
const PATTERNS: &str = "<defs><pattern id=\"hatch\" width=\"7\" height=\"7\" \
     patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\">\
     <rect class=\"hatch-ground\" width=\"7\" height=\"7\"/>\
     <rect class=\"hatch-line\" width=\"2\" height=\"7\"/></pattern></defs>\n";

/// The document around a body.
pub fn document(title: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{}</title>\n\
         <style>\n{FIGURE_STYLE}{PAGE_STYLE}</style>\n</head>\n<body>\n\
         <svg class=\"definitions\" aria-hidden=\"true\">{PATTERNS}</svg>\n\
         <main>\n{body}</main>\n</body>\n</html>\n",
        escape(title)
    )
}

/// A cell without a figure.
pub const NONE: &str = "–";

/// What a cell with a figure begins with.
const FIGURES: [char; 14] = ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', '±', '+', '-', '–'];

/// A table whose first column is left-aligned text and whose others are figures.
pub struct Table {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    /// Without rows.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Cells are HTML, but for a table that is for terminals too: those are plain words.
    pub fn row(&mut self, cells: impl Into<Vec<String>>) {
        self.rows.push(cells.into());
    }

    /// For a terminal, where cells are no HTML: columns of figures stand right, others left.
    pub fn text(&self) -> String {
        let is_figure = |cell: &String| cell.is_empty() || cell.starts_with(FIGURES);
        let column = |at: usize| {
            let cells = || self.rows.iter().filter_map(move |row| row.get(at));
            let width = cells().chain(self.head.get(at)).map(|cell| cell.chars().count()).max();
            (width.unwrap_or(0), cells().all(is_figure))
        };
        let columns: Vec<(usize, bool)> = (0..self.head.len()).map(column).collect();
        let mut text = String::new();
        for row in std::iter::once(&self.head).chain(&self.rows) {
            let cell = |(cell, (width, figures)): (&String, &(usize, bool))| match figures {
                true => format!("{cell:>width$}"),
                false => format!("{cell:<width$}"),
            };
            let cells: Vec<String> = row.iter().zip(&columns).map(cell).collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    /// The caption is HTML.
    pub fn html(&self, caption: &str) -> String {
        let head: String = self.head.iter().map(|cell| format!("<th>{cell}</th>")).collect();
        let mut body = String::new();
        for row in &self.rows {
            let cells: String = row.iter().map(|cell| format!("<td>{cell}</td>")).collect();
            body.push_str(&format!("<tr>{cells}</tr>\n"));
        }
        format!(
            "<div class=\"table\"><table>\n<caption>{caption}</caption>\n\
             <thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody></table></div>\n"
        )
    }
}

/// A drawing (HTML) with its caption (HTML).
pub fn figure(drawing: &str, caption: &str) -> String {
    format!("<figure>\n{drawing}<figcaption>{caption}</figcaption>\n</figure>\n")
}

/// What the parts of bars are: names and CSS classes.
pub fn keys(parts: &[(String, &'static str)]) -> String {
    let key = |(name, class): &(String, &str)| {
        format!(
            "<span><svg viewBox=\"0 0 14 14\" class=\"key\"><rect class=\"part {class}\" \
             width=\"14\" height=\"14\"/></svg>{}</span>",
            escape(name)
        )
    };
    match parts {
        [] => String::new(),
        parts => {
            format!("<p class=\"keys\">{}</p>\n", parts.iter().map(key).collect::<String>())
        }
    }
}

/// What there is to say of one thing, a line for each; values are HTML.
pub fn facts(caption: &str, facts: &[(&str, String)]) -> String {
    let row =
        |(name, value): &(&str, String)| format!("<tr><th>{name}</th><td>{value}</td></tr>\n");
    let rows: String = facts.iter().map(row).collect();
    format!(
        "<div class=\"table\"><table class=\"facts\">\n<caption>{caption}</caption>\n\
         <tbody>\n{rows}</tbody></table></div>\n"
    )
}

/// A drawing as a file of its own: with the page's colours, patterns and type.
pub fn svg_file(svg: &str) -> String {
    svg.replacen('>', &format!(">\n<style>\n{FIGURE_STYLE}</style>\n{PATTERNS}"), 1)
}
