//! A drawing as a page holds it: one for broad windows, one for narrow ones, and both its SVG and
//! its figures as files to be taken out. Pure.

use super::markup::svg_file;

/// A drawing and what it was made of.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawing {
    /// What its files are called.
    pub name: String,
    /// SVG of about 1000 pixels.
    pub wide: String,
    /// SVG of about 360 pixels, its text as large.
    pub narrow: String,
    /// The figures that are drawn.
    pub csv: String,
}

impl Drawing {
    /// For a page.
    pub fn html(&self) -> String {
        let Self { name, wide, narrow, csv } = self;
        let svg = data_uri("image/svg+xml", &svg_file(wide));
        let csv = data_uri("text/csv", csv);
        format!(
            "<div class=\"wide\">{wide}</div><div class=\"narrow\">{narrow}</div>\
             <p class=\"take\"><a download=\"{name}.svg\" href=\"{svg}\">SVG</a> \
             <a download=\"{name}.csv\" href=\"{csv}\">CSV</a></p>\n"
        )
    }
}

/// The text within the link itself.
fn data_uri(kind: &str, text: &str) -> String {
    use std::fmt::Write;
    let mut uri = format!("data:{kind};charset=utf-8,");
    for &byte in text.as_bytes() {
        let plain = byte.is_ascii_alphanumeric() || b"-_.,:;/=()*+!?".contains(&byte);
        match plain {
            true => uri.push(char::from(byte)),
            false => write!(uri, "%{byte:02X}").expect("writing to a string succeeds"),
        }
    }
    uri
}

/// A figure with eight digits: as many as anybody measures.
pub fn csv_number(value: f64) -> String {
    format!("{value:.7e}").parse::<f64>().unwrap_or(value).to_string()
}

/// One line of a CSV file; a text that needs quotes has them.
pub fn csv_line(cells: &[String]) -> String {
    let quoted = |cell: &String| match cell.contains(['"', ',', '\n']) {
        true => format!("\"{}\"", cell.replace('"', "\"\"")),
        false => cell.clone(),
    };
    cells.iter().map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn decoded(uri: &str) -> Vec<u8> {
        let (_, text) = uri.split_once(',').unwrap();
        let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
        while let Some((&first, after)) = rest.split_first() {
            match first {
                b'%' => {
                    let digits = std::str::from_utf8(&after[..2]).unwrap();
                    bytes.push(u8::from_str_radix(digits, 16).unwrap());
                    rest = &after[2..];
                }
                other => {
                    bytes.push(other);
                    rest = after;
                }
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn a_link_holds_its_text_and_leaves_no_attribute(text in any::<String>()) {
            let uri = data_uri("text/csv", &text);
            prop_assert!(!uri.contains(['"', '<', '>', '#', '&', ' ', '\'']));
            prop_assert_eq!(decoded(&uri), text.as_bytes());
        }
    }

    #[test]
    fn a_number_is_as_long_as_it_has_to_be() {
        assert_eq!(
            [0.1, 1234.0, 1.0 / 3.0, f64::NAN].map(csv_number),
            ["0.1", "1234", "0.33333333", "NaN"]
        );
    }

    #[test]
    fn a_cell_with_a_comma_is_quoted() {
        let cells = ["a, b".to_string(), "1".into(), "say \"no\"".into()];
        assert_eq!(csv_line(&cells), "\"a, b\",1,\"say \"\"no\"\"\"\n");
    }
}
