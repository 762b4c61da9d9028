//! What a source file says of itself and others: the modules it declares, the items it defines,
//! what it imports, and every path and method that its code names. Test code is left out.

use std::collections::{BTreeMap, BTreeSet};

use crate::words::{Word, words};

/// A path as written: `["super", "lock", "RunLock"]`.
pub type Path = Vec<String>;

/// A file, as far as imports matter.
#[derive(Debug, Default)]
pub struct Outline {
    /// `mod x;` with the file that `#[path]` names.
    pub children: BTreeMap<String, Option<String>>,
    /// Items at the top of the file.
    pub items: BTreeSet<String>,
    /// Imports: the name here, and what it names.
    pub imports: BTreeMap<String, Path>,
    /// Those of them that are only passed on: `pub use`.
    pub passed_on: BTreeSet<String>,
    /// `use path::*`.
    pub globs: Vec<Path>,
    /// Paths of two names or more in the code.
    pub paths: BTreeSet<Path>,
    /// Single names in the code.
    pub names: BTreeSet<String>,
    /// Methods that are called.
    pub calls: BTreeSet<String>,
    /// `impl Type { fn method }`: the type as written, and its methods.
    pub methods: BTreeMap<Path, BTreeSet<String>>,
}

/// Reads a file.
pub fn outline(text: &str) -> Outline {
    let mut reader = Reader { words: words(text), at: 0, depth: 0, inner: Vec::new(), of: None };
    let mut outline = Outline::default();
    while reader.at < reader.words.len() {
        reader.step(&mut outline);
    }
    outline
}

struct Reader {
    words: Vec<Word>,
    at: usize,
    depth: usize,
    /// Depths of the inline modules around.
    inner: Vec<usize>,
    /// The inherent `impl` around, and the depth of its brace.
    of: Option<(Path, usize)>,
}

const DEFINES: [&str; 8] = ["fn", "struct", "enum", "trait", "type", "const", "static", "union"];

impl Reader {
    fn word(&self, ahead: usize) -> Option<&Word> {
        self.words.get(self.at + ahead)
    }

    fn sign(&self, ahead: usize, sign: char) -> bool {
        self.word(ahead) == Some(&Word::Sign(sign))
    }

    fn name(&self, ahead: usize) -> Option<&str> {
        self.word(ahead).and_then(Word::name)
    }

    fn step(&mut self, outline: &mut Outline) {
        match &self.words[self.at] {
            Word::Sign('#') if self.sign(1, '[') => self.attribute(),
            Word::Sign('{') => self.open(),
            Word::Sign('}') => self.close(),
            Word::Name(word) => match word.as_str() {
                "mod" if self.name(1).is_some() => self.module(outline),
                "use" if !self.sign(1, '<') => self.import(outline),
                "impl" if self.depth == 0 => self.implementation(),
                "macro_rules" => self.definition(2, outline),
                word if DEFINES.contains(&word) => self.definition(1, outline),
                _ => self.path(outline),
            },
            _ => self.at += 1,
        }
    }

    fn open(&mut self) {
        self.depth += 1;
        self.at += 1;
    }

    fn close(&mut self) {
        self.depth = self.depth.saturating_sub(1);
        self.inner.retain(|depth| *depth < self.depth + 1);
        self.of = self.of.take().filter(|(_, depth)| *depth < self.depth + 1);
        self.at += 1;
    }

    /// Passes over an attribute; what is for tests only is passed over with it.
    fn attribute(&mut self) {
        let begin = self.at;
        self.at = self.behind_brackets(begin + 1);
        let inside = &self.words[begin..self.at];
        let for_tests = inside.iter().any(|word| word.is("cfg"))
            && inside.iter().any(|word| word.is("test"))
            && !inside.iter().any(|word| word.is("not"));
        if !for_tests {
            return;
        }
        while self.sign(0, '#') {
            self.at = self.behind_brackets(self.at + 1);
        }
        while let Some(word) = self.word(0).cloned() {
            match word {
                Word::Sign(';') => return self.at += 1,
                Word::Sign('{') => return self.at = self.behind_brackets(self.at),
                _ => self.at += 1,
            }
        }
    }

    /// Behind the bracket that closes the one at `from`.
    fn behind_brackets(&self, from: usize) -> usize {
        let mut depth = 0;
        for (at, word) in self.words.iter().enumerate().skip(from) {
            match word {
                Word::Sign('[' | '{' | '(') => depth += 1,
                Word::Sign(']' | '}' | ')') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at + 1;
            }
        }
        self.words.len()
    }

    fn module(&mut self, outline: &mut Outline) {
        let name = self.name(1).unwrap_or_default().to_owned();
        match self.sign(2, ';') {
            true => {
                outline.children.insert(name, self.path_attribute());
            }
            false => self.inner.push(self.depth + 1),
        }
        self.at += 2;
    }

    /// The file of `#[path = "file"] mod x;`.
    fn path_attribute(&self) -> Option<String> {
        let before = &self.words[self.at.saturating_sub(6)..self.at];
        let at = before.iter().position(|word| word.is("path"))?;
        match (before.get(at + 1), before.get(at + 2)) {
            (Some(Word::Sign('=')), Some(Word::Text(file))) => Some(file.clone()),
            _ => None,
        }
    }

    fn definition(&mut self, ahead: usize, outline: &mut Outline) {
        let Some(name) = self.name(ahead).map(str::to_owned) else { return self.at += 1 };
        match &self.of {
            Some((of, depth)) if *depth == self.depth => {
                outline.methods.entry(of.clone()).or_default().insert(name);
            }
            _ if self.depth == 0 => drop(outline.items.insert(name)),
            _ => {}
        }
        self.at += ahead + 1;
    }

    /// `impl<..> Type<..> {`: methods of a type; of a trait nothing is noted.
    fn implementation(&mut self) {
        let end = self.words[self.at..].iter().position(|word| *word == Word::Sign('{'));
        let head = &self.words[self.at + 1..self.at + end.unwrap_or(1)];
        let mut angles = 0;
        let mut of = Path::new();
        for word in head {
            match word {
                Word::Sign('<') => angles += 1,
                Word::Sign('>') => angles -= 1,
                Word::Name(name) if name == "for" || name == "where" => {
                    of = if name == "for" { Path::new() } else { of };
                    break;
                }
                Word::Name(name) if angles == 0 => of.push(name.clone()),
                _ => {}
            }
        }
        if !of.is_empty() {
            self.of = Some((of, self.depth + 1));
        }
        self.at += 1;
    }

    fn import(&mut self, outline: &mut Outline) {
        let public = self.at > 0
            && (self.words[self.at - 1].is("pub") || self.words[self.at - 1] == Word::Sign(')'));
        self.at += 1;
        let mut found = Vec::new();
        self.tree(Path::new(), &mut found);
        for (name, path) in found {
            let path = self.seen_from_the_file(path);
            if name == "*" {
                outline.globs.push(path);
                continue;
            }
            // `use x as _` cannot be named twice.
            let name = if name == "_" { path.join("::") } else { name };
            if public {
                outline.passed_on.insert(name.clone());
            }
            outline.imports.insert(name, path);
        }
    }

    /// One branch of an import: up to a comma or bracket at its level.
    fn tree(&mut self, mut path: Path, found: &mut Vec<(String, Path)>) {
        let mut name = None;
        while let Some(word) = self.word(0).cloned() {
            self.at += 1;
            match word {
                Word::Name(word) if word == "as" => {
                    name = self.name(0).map(str::to_owned);
                    self.at += 1;
                }
                Word::Name(word) if word == "self" && !path.is_empty() => {}
                Word::Name(word) => path.push(word),
                Word::Path => {}
                Word::Sign('*') => return found.push(("*".into(), path)),
                Word::Sign('{') => {
                    while !self.sign(0, '}') && self.word(0).is_some() {
                        self.tree(path.clone(), found);
                        self.at += usize::from(self.sign(0, ','));
                    }
                    return self.at += 1;
                }
                _ => {
                    self.at -= 1;
                    break;
                }
            }
        }
        if let Some(last) = path.last() {
            found.push((name.unwrap_or_else(|| last.clone()), path));
        }
    }

    /// In an inline module the first `super` names the file itself.
    fn seen_from_the_file(&self, mut path: Path) -> Path {
        let supers = path.iter().take_while(|name| *name == "super").count();
        let inside = supers.min(self.inner.len());
        if inside > 0 {
            path.splice(..inside, ["self".to_owned()]);
        }
        if path.len() > 1 && path[0] == "self" && path[1] == "super" {
            path.remove(0);
        }
        path
    }

    fn path(&mut self, outline: &mut Outline) {
        let before = self.at.checked_sub(1).map(|at| self.words[at].clone());
        let mut path = Path::new();
        while let Some(name) = self.name(0) {
            path.push(name.to_owned());
            self.at += 1;
            let goes_on = self.word(0) == Some(&Word::Path) && self.name(1).is_some();
            if !goes_on {
                break;
            }
            self.at += 1;
        }
        let calls = self.sign(0, '(') || self.word(0) == Some(&Word::Path);
        match before {
            Some(Word::Sign('.')) if calls => outline.calls.extend(path),
            Some(Word::Sign('.') | Word::Path) => {}
            _ if path.len() == 1 => outline.names.extend(path),
            _ => {
                outline.names.insert(path[0].clone());
                let path = self.seen_from_the_file(path);
                outline.paths.insert(path);
            }
        }
    }
}
