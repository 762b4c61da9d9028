//! No file imports a file that needs it: import circles within a crate, upward imports included. A
//! child module that names what its parent defines, while the parent uses the child, is a circle;
//! what a file merely passes on with `pub use` is the defining file's. The same of rooms (the
//! files and folders that stand in one folder), and of C files, by the functions that they name.

use std::collections::{BTreeMap, BTreeSet};

use crate::imports::{Outline, Path, outline};
use crate::words::{Word, words};

/// File -> file that it needs -> what it takes from there.
type Needs = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// The files of a crate by module, as `mod` lines reach them from its root; tests are not reached.
struct Crate {
    files: BTreeMap<Path, (String, Outline)>,
}

impl Crate {
    fn read(root: &str, text_of: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut files = BTreeMap::new();
        let mut open = vec![(Path::new(), root.to_owned())];
        while let Some((module, file)) = open.pop() {
            let Some(text) = text_of(&file) else { continue };
            let outline = outline(&text);
            let folder = file.rsplit_once('/').map_or("", |(folder, _)| folder);
            let stem = file.rsplit('/').next().unwrap_or_default().trim_end_matches(".rs");
            let below = match stem {
                "mod" | "lib" | "main" => folder.to_owned(),
                stem => format!("{folder}/{stem}"),
            };
            for (child, named) in &outline.children {
                let candidates = match named {
                    Some(named) => vec![format!("{folder}/{named}")],
                    None => vec![format!("{below}/{child}.rs"), format!("{below}/{child}/mod.rs")],
                };
                let found = candidates.into_iter().find(|path| text_of(path).is_some());
                if let Some(found) = found {
                    open.push(([module.clone(), vec![child.clone()]].concat(), found));
                }
            }
            files.insert(module, (file, outline));
        }
        Self { files }
    }

    /// A path that a file of `module` writes, from the crate's root; `None` for other crates.
    fn absolute(&self, module: &Path, path: &[String]) -> Option<Path> {
        let (_, outline) = &self.files[module];
        let (first, rest) = path.split_first()?;
        let supers = path.iter().take_while(|name| *name == "super").count();
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some([module, rest].concat()),
            "super" if supers <= module.len() => {
                Some([&module[..module.len() - supers], &path[supers..]].concat())
            }
            name if outline.children.contains_key(name) => Some([module, path].concat()),
            name => {
                let import = outline.imports.get(name).filter(|import| import[0] != *name)?;
                Some([self.absolute(module, import)?.as_slice(), rest].concat())
            }
        }
    }

    /// The file that defines what a path from the root names; `None` where it names a module.
    fn definer(&self, path: &[String], depth: usize) -> Option<&str> {
        let known = (0..=path.len()).rev().find(|end| self.files.contains_key(&path[..*end]))?;
        let (file, outline) = &self.files[&path[..known]];
        let item = path.get(known)?;
        let module = path[..known].to_vec();
        if outline.items.contains(item) || depth == 0 {
            return Some(file);
        }
        let passed_on =
            outline.imports.get(item).and_then(|_| self.absolute(&module, &path[known..]));
        if let Some(passed_on) = passed_on {
            return self.definer(&passed_on, depth - 1);
        }
        let through = outline.globs.iter().filter_map(|glob| self.absolute(&module, glob));
        let mut through = through.filter(|glob| {
            self.files.get(glob).is_some_and(|(_, outline)| outline.items.contains(item))
        });
        match through.next() {
            Some(glob) => self.definer(&[glob, path[known..].to_vec()].concat(), depth - 1),
            None => Some(file),
        }
    }

    fn needs(&self) -> Needs {
        let mut needs = Needs::new();
        let mut need = |file: &str, other: &str, what: &str| {
            if file != other {
                let of_file = needs.entry(file.to_owned()).or_default();
                of_file.entry(other.to_owned()).or_default().insert(what.to_owned());
            }
        };
        for (module, (file, outline)) in &self.files {
            let used = outline.imports.iter().filter(|(name, _)| {
                !outline.passed_on.contains(*name) || outline.names.contains(*name)
            });
            for path in used.map(|(_, path)| path).chain(&outline.paths) {
                let Some(absolute) = self.absolute(module, path) else { continue };
                if let Some(other) = self.definer(&absolute, 8) {
                    need(file, other, path.last().map_or("", String::as_str));
                }
            }
            for (of, methods) in &outline.methods {
                let Some(absolute) = self.absolute(module, of) else { continue };
                let Some(other) = self.definer(&absolute, 8) else { continue };
                let callers = self.files.values().filter(|(path, _)| path == other);
                for (_, caller) in callers {
                    caller.calls.intersection(methods).for_each(|name| need(other, file, name));
                }
            }
        }
        needs
    }
}

fn reached(needs: &Needs, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for other in needs.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(other.clone()) {
                open.push(other);
            }
        }
    }
    reached
}

/// One breach per circle: its files, and what ties each to the next.
fn circles(needs: &Needs) -> Vec<String> {
    let reach: BTreeMap<&String, BTreeSet<String>> =
        needs.keys().map(|file| (file, reached(needs, file))).collect();
    let mut told = BTreeSet::new();
    let mut breaches = Vec::new();
    for (file, others) in &reach {
        if !others.contains(*file) || !told.insert((*file).clone()) {
            continue;
        }
        let back = |other: &String| reach.get(other).is_some_and(|reach| reach.contains(*file));
        let circle: BTreeSet<&String> = others.iter().filter(|other| back(other)).collect();
        told.extend(circle.iter().map(|file| (*file).clone()));
        let mut breach = format!("{} files import each other in a circle:", circle.len());
        for from in &circle {
            for (to, what) in needs[*from].iter().filter(|(to, _)| circle.contains(to)) {
                let what: Vec<&str> = what.iter().map(String::as_str).collect();
                breach += &format!("\n  {from} -> {to}: {}", what.join(", "));
            }
        }
        breaches.push(breach);
    }
    breaches
}

/// Circles of a crate's files.
pub fn circle_breaches(root: &str, text_of: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    circles(&Crate::read(root, text_of).needs())
}

/// Circles of a crate's rooms: in every folder, of the files and folders that stand there.
pub fn room_circle_breaches(root: &str, text_of: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let mut of_rooms = Needs::new();
    for (file, others) in Crate::read(root, text_of).needs() {
        for (other, what) in others {
            let (from, to) = rooms_apart(&file, &other);
            if from != to {
                let ties = what.iter().map(|name| format!("{name} ({file} -> {other})"));
                of_rooms.entry(from).or_default().entry(to).or_default().extend(ties);
            }
        }
    }
    circles(&of_rooms)
}

/// Where the ways to two files part: `src/lab/a/x.rs`, `src/lab/b.rs` -> `src/lab/a`, `src/lab/b`.
fn rooms_apart(file: &str, other: &str) -> (String, String) {
    let ways = [file, other].map(|file| file.trim_end_matches(".rs").split('/'));
    let [way, other_way] = ways.map(Iterator::collect::<Vec<&str>>);
    let same = way.iter().zip(&other_way).take_while(|(a, b)| a == b).count();
    let up_to = |way: &[&str]| way[..(same + 1).min(way.len())].join("/");
    (up_to(&way), up_to(&other_way))
}

/// Circles of C files, each with its text: a file needs those that define what its functions name.
pub fn c_circle_breaches(files: &[(String, String)]) -> Vec<String> {
    let outlines = files.iter().map(|(file, text)| (file, c_outline(text)));
    let outlines: Vec<(&String, [BTreeSet<String>; 2])> = outlines.collect();
    let mut needs = Needs::new();
    for (file, [_, named]) in &outlines {
        for (other, [defined, _]) in outlines.iter().filter(|(other, _)| other != file) {
            let what: BTreeSet<String> = named.intersection(defined).cloned().collect();
            if !what.is_empty() {
                needs.entry((*file).clone()).or_default().insert((*other).clone(), what);
            }
        }
    }
    circles(&needs)
}

/// The functions that a C file defines for others, and the names inside its functions.
fn c_outline(text: &str) -> [BTreeSet<String>; 2] {
    let (mut defined, mut named) = (BTreeSet::new(), BTreeSet::new());
    let (mut depth, mut of_file, mut last, mut function) = (0, false, None, None);
    for word in words(text) {
        match &word {
            Word::Sign('{') => {
                defined.extend(function.take().filter(|_| depth == 0 && !of_file));
                depth += 1;
            }
            Word::Sign('}') => depth -= 1,
            Word::Name(name) if depth > 0 => drop(named.insert(name.clone())),
            Word::Name(name) => of_file |= name == "static",
            Word::Sign('(') if depth == 0 => function = function.or_else(|| last.take()),
            _ => {}
        }
        if depth == 0 && matches!(word, Word::Sign('}' | ';')) {
            (of_file, function) = (false, None);
        }
        last = word.name().map(str::to_owned);
    }
    [defined, named]
}

/// Circles of a planted crate whose root is `src/lib.rs`: of its files, and of its rooms.
fn planted_circles(files: &[(&str, &str)]) -> [String; 2] {
    let text_of =
        |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| text.to_string());
    [circle_breaches, room_circle_breaches]
        .map(|breaches| breaches("src/lib.rs", &text_of).join("\n"))
}

fn planted(files: &[(&str, &str)]) -> String {
    let [of_files, _] = planted_circles(files);
    of_files
}

#[test]
fn two_files_that_import_each_other_are_caught() {
    let a = ("src/lab/a.rs", "use crate::lab::b::B;\npub struct A(B);");
    for b in ["use super::a::A;\npub struct B;", "pub struct B;\nfn f() -> crate::lab::a::A {}"] {
        let files = [("src/lib.rs", "mod lab;"), ("src/lab/mod.rs", "mod a;\nmod b;"), a];
        let told = planted(&[&files[..], &[("src/lab/b.rs", b)]].concat());
        assert!(told.contains("src/lab/a.rs -> src/lab/b.rs: B"), "{told}");
        assert!(told.contains("src/lab/b.rs -> src/lab/a.rs: A"), "{told}");
    }
}

#[test]
fn a_circle_through_a_name_that_is_passed_on_is_caught_and_passing_on_is_none() {
    let lab = "mod a;\nmod b;\npub use a::A;\npub use b::B;";
    let files = [("src/lib.rs", "mod lab;"), ("src/lab/mod.rs", lab)];
    let a = ("src/lab/a.rs", "use super::B;\npub struct A(B);");
    let back = ("src/lab/b.rs", "use crate::lab;\npub struct B;\nfn f(a: lab::A) {}");
    assert!(planted(&[&files[..], &[a, back]].concat()).contains("b.rs -> src/lab/a.rs: A"));
    let fine = ("src/lab/b.rs", "pub struct B;");
    assert_eq!(planted(&[&files[..], &[a, fine]].concat()), "");
}

#[test]
fn a_child_that_reaches_up_to_a_parent_that_uses_it_is_caught() {
    let root = ("src/lib.rs", "mod lab;");
    let child = ("src/lab/child.rs", "use super::Limit;\npub fn child(limit: Limit) {}");
    let uses = ("src/lab.rs", "mod child;\npub struct Limit;\nfn f() { child::child(Limit) }");
    assert!(planted(&[root, child, uses]).contains("src/lab/child.rs -> src/lab.rs: Limit"));
    let only_declares = ("src/lab.rs", "pub mod child;\npub struct Limit;");
    assert_eq!(planted(&[root, child, only_declares]), "");
}

#[test]
fn a_type_that_calls_its_methods_in_another_file_is_caught() {
    let root = ("src/lib.rs", "mod lab;");
    let child = ("src/lab/child.rs", "use super::Loop;\nimpl<'a> Loop<'a> { fn look(&self) {} }");
    let loops = "mod child;\npub struct Loop<'a>(&'a u8);\nfn f(l: Loop<'_>) { l.look() }";
    assert!(planted(&[root, child, ("src/lab.rs", loops)]).contains("child.rs: look"));
    let no_call = "mod child;\npub struct Loop<'a>(&'a u8);\nfn look() {}";
    assert_eq!(planted(&[root, child, ("src/lab.rs", no_call)]), "");
}

#[test]
fn tests_comments_and_strings_import_nothing() {
    let root = ("src/lib.rs", "mod a;\nmod b;");
    let a = ("src/a.rs", "use crate::b::B;\npub struct A(B);");
    for b in [
        "pub struct B;\n#[cfg(test)]\nmod tests { use crate::a::A; }",
        "pub struct B; // crate::a::A\n/* crate::a::A */",
        "pub const B: &str = \"crate::a::A\";\npub type C<'a> = &'a u8;",
        "pub const B: &str = r#\"\"crate::a::A\"#;\npub const C: char = '\"';",
    ] {
        assert_eq!(planted(&[root, a, ("src/b.rs", b)]), "");
    }
}

#[test]
fn c_files_that_call_each_other_are_caught() {
    let told = |b: &str| {
        let a = "#include \"ab.h\"\n\nint of_a(int x)\n{\n    return of_b(x);\n}\n";
        let files = [("a.c", a), ("b.c", b)].map(|(file, text)| (file.into(), text.into()));
        c_circle_breaches(&files).join("\n")
    };
    let circle = told("int of_b(int x)\n{\n    return x ? of_a(x - 1) : 0;\n}\n");
    assert!(circle.contains("a.c -> b.c: of_b") && circle.contains("b.c -> a.c: of_a"), "{circle}");
    for b in [
        "int of_a(int x);\n/* of_a() */\nint of_b(int x)\n{\n    return x;\n}\n",
        "static int of_a(int x)\n{\n    return x;\n}\nint of_b(int x)\n{\n    return x;\n}\n",
    ] {
        assert_eq!(told(b), "");
    }
}

#[test]
fn rooms_that_import_each_other_are_caught_though_no_files_do() {
    let files = [
        ("src/lib.rs", "mod lab;"),
        ("src/lab.rs", "mod near;\nmod far;"),
        ("src/lab/near/mod.rs", "mod a;\nmod b;"),
        ("src/lab/near/a.rs", "use crate::lab::far::Far;\npub struct A(Far);"),
        ("src/lab/near/b.rs", "pub struct B;"),
    ];
    let told = |far: &str| {
        let [of_files, of_rooms] =
            planted_circles(&[&files[..], &[("src/lab/far.rs", far)]].concat());
        assert_eq!(of_files, "");
        of_rooms
    };
    let circle = told("use super::near::b::B;\npub struct Far(B);");
    assert!(circle.contains("src/lab/far -> src/lab/near: B"), "{circle}");
    assert_eq!(told("pub struct Far;"), "");
}
