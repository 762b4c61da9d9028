//! Which shards a path means: a file, the `*.tar` files of a folder, or what a pattern with braces
//! lists (`train-{0000..0099}.tar`, `{a,b}/x.tar`), in the order in which it lists them. The
//! folders above may have braces in their own names.

use std::path::{Path, PathBuf};

use crate::config::Shown;
use crate::data::store::{FetchError, Kind, Store};
use crate::observe::refusal::Meaning;

/// Shards of one set, at most.
const SHARDS_MAX: usize = 100_000;

/// The shards, in their order.
///
/// # Errors
/// There is none, one of them is missing, or nobody knows now.
pub fn shards(store: &dyn Store, path: &Path) -> Result<Vec<PathBuf>, FetchError> {
    let pattern = path.to_str().filter(|text| text.contains('{'));
    match store.look(path) {
        Ok(Kind::File { .. }) => return Ok(vec![path.to_owned()]),
        Ok(Kind::Folder(_)) => return of_folder(store, path),
        // A pattern may be longer than a name can be.
        Err(error) => match Meaning::of(&error) {
            Meaning::Absent => {}
            Meaning::NotAllowed if pattern.is_some() => {}
            _ => return Err(FetchError::from(error).about(path.shown())),
        },
        Ok(_) => {}
    }
    let Some(text) = pattern else {
        let advice = "give a *.tar file, a folder of them or a pattern like train-{0000..0099}.tar";
        let reason = format!("{} does not exist; {advice}", path.shown());
        return Err(FetchError { meaning: Meaning::Absent, reason });
    };
    let is_folder = |path: &Path| match store.look(path) {
        Ok(kind) => Ok(matches!(kind, Kind::Folder(_))),
        Err(error) if Meaning::of(&error) == Meaning::NotNow => {
            Err(FetchError::from(error).about(path.shown()))
        }
        Err(_) => Ok(false),
    };
    let all = listed(path, &is_folder)?;
    let looked = all.iter().map(|shard| is_file(store, shard));
    let there = looked.collect::<Result<Vec<bool>, _>>()?;
    let (count, have) = (all.len(), there.iter().filter(|there| **there).count());
    let Some(missing) = there.iter().position(|there| !there) else { return Ok(all) };
    let missing = all[missing].shown();
    let reason = match have {
        0 => format!("{text:?} matches no file: the first of its {count} names is {missing}"),
        _ => format!("{missing} is missing; {text:?} names {count} shards, {have} are there"),
    };
    Err(FetchError { meaning: Meaning::Absent, reason })
}

fn is_file(store: &dyn Store, shard: &Path) -> Result<bool, FetchError> {
    match store.look(shard) {
        Ok(kind) => Ok(matches!(kind, Kind::File { .. })),
        Err(error) if Meaning::of(&error) == Meaning::Absent => Ok(false),
        Err(error) => Err(FetchError::from(error).about(shard.shown())),
    }
}

fn of_folder(store: &dyn Store, folder: &Path) -> Result<Vec<PathBuf>, FetchError> {
    let listed = store.list(folder);
    let entries = listed.map_err(|error| FetchError::from(error).about(folder.shown()))?;
    let is_shard = |name: &Path| {
        let hidden = name.as_os_str().as_encoded_bytes().starts_with(b".");
        !hidden && name.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("tar"))
    };
    let mut all = Vec::new();
    for entry in entries.into_iter().filter(|entry| is_shard(Path::new(&entry.name))) {
        let shard = folder.join(entry.name);
        match entry.kind {
            Kind::File { .. } => all.push(shard),
            Kind::Dangling => {
                let text = format!("{} leads to nothing; mount what it leads to", shard.shown());
                return Err(FetchError::not_now(text + ", or remove the link"));
            }
            _ => {}
        }
    }
    all.sort_unstable();
    match all.is_empty() {
        true => Err(FetchError::damaged(format!("{} holds no *.tar file", folder.shown()))),
        false => Ok(all),
    }
}

/// The first path that `path` means: where a set is looked for before it is read.
pub fn first(path: &Path) -> PathBuf {
    let is_pattern = path.to_str().is_some_and(|text| text.contains('{')) && !path.exists();
    let listed = is_pattern.then(|| listed(path, &|path| Ok(path.is_dir())).ok()).flatten();
    listed.and_then(|all| all.into_iter().next()).unwrap_or_else(|| path.to_owned())
}

/// Every path that a pattern stands for.
fn listed(
    pattern: &Path,
    is_folder: &dyn Fn(&Path) -> Result<bool, FetchError>,
) -> Result<Vec<PathBuf>, FetchError> {
    // The deepest folder that is there as it is written, whatever braces are in its name.
    let mut above = Path::new("");
    let mut folders: Vec<&Path> = pattern.ancestors().skip(1).collect();
    folders.reverse();
    for folder in folders {
        let name = folder.file_name().unwrap_or_default();
        if name.as_encoded_bytes().contains(&b'{') && !is_folder(folder)? {
            break;
        }
        above = folder;
    }
    let rest = pattern.strip_prefix(above).unwrap_or(pattern).to_string_lossy();
    Ok(expand(&rest)?.into_iter().map(|shard| above.join(shard)).collect())
}

/// Every text that a pattern stands for; the last braces change fastest.
fn expand(pattern: &str) -> Result<Vec<String>, String> {
    let (mut all, mut rest) = (vec![String::new()], pattern);
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, after) = after
            .split_once('}')
            .ok_or_else(|| format!("{pattern:?}: a brace is opened and not closed"))?;
        let choices = choices(inside).map_err(|reason| format!("{pattern:?}: {reason}"))?;
        if all.len().saturating_mul(choices.len()) > SHARDS_MAX {
            return Err(format!("{pattern:?} names more than {SHARDS_MAX} shards"));
        }
        let with = |head: &String| -> Vec<String> {
            choices.iter().map(|choice| format!("{head}{before}{choice}")).collect()
        };
        all = all.iter().flat_map(with).collect();
        rest = after;
    }
    all.iter_mut().for_each(|text| text.push_str(rest));
    Ok(all)
}

/// What stands in one pair of braces: `0000..0099`, both included, or `a,b,c`.
fn choices(inside: &str) -> Result<Vec<String>, String> {
    let Some((first, last)) = inside.split_once("..") else {
        return match inside.split(',').any(str::is_empty) {
            true => Err(format!("{{{inside}}} is neither {{0..9}} nor {{a,b}}")),
            false => Ok(inside.split(',').map(str::to_owned).collect()),
        };
    };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let number = digits.then(|| text.parse::<u64>().ok()).flatten();
        number.ok_or_else(|| format!("{{{inside}}}: {text:?} is no number"))
    };
    let (from, to) = (number(first)?, number(last)?);
    if to < from {
        return Err(format!("{{{inside}}} counts backwards: write the smaller number first"));
    }
    if to - from >= SHARDS_MAX as u64 {
        return Err(format!("{{{inside}}} names more than {SHARDS_MAX} shards"));
    }
    let width = if first.starts_with('0') { first.len() } else { 0 };
    Ok((from..=to).map(|number| format!("{number:0width$}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::store::memory::MemoryStore;

    #[test]
    fn braces_list_numbers_with_their_zeros_and_words() {
        let all = |pattern| expand(pattern).expect("fine");
        assert_eq!(all("a-{008..011}.tar"), ["a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"]);
        assert_eq!(all("{9..10}"), ["9", "10"]);
        assert_eq!(all("{a,b}/{0..1}.tar"), ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]);
        assert_eq!(all("plain.tar"), ["plain.tar"]);
        assert_eq!(first(Path::new("/nowhere/{7..9}.tar")), Path::new("/nowhere/7.tar"));
    }

    #[test]
    fn folders_above_keep_the_braces_of_their_names() {
        let mut store = MemoryStore::default();
        for name in ["x{1}/y{/a-0.tar", "x{1}/y{/a-1.tar"] {
            store.put(name, "x");
        }
        let found = |path: &str| shards(&store, Path::new(path)).map_err(|error| error.reason);
        let both = ["x{1}/y{/a-0.tar", "x{1}/y{/a-1.tar"].map(PathBuf::from).to_vec();
        assert_eq!(found("x{1}/y{/a-{0..1}.tar"), Ok(both.clone()));
        assert_eq!(found("x{1}/y{"), Ok(both));
        let said = found("x{1}/z{0,1}/a.tar").expect_err("none");
        assert!(said.contains("the first of its 2 names is x{1}/z0/a.tar"), "{said}");
    }

    #[test]
    fn what_is_no_pattern_says_what_to_write() {
        for (pattern, says) in [
            ("a{0..1.tar", "not closed"),
            ("{0..x}", "\"x\" is no number"),
            ("{3..1}", "write the smaller number first"),
            ("{0..99999999}", "more than 100000 shards"),
            ("{0..999}{0..999}", "more than 100000 shards"),
            ("{}", "neither"),
            ("{a,}", "neither"),
            ("{..3}", "is no number"),
        ] {
            let text = expand(pattern).expect_err(pattern);
            assert!(text.contains(says), "{pattern}: {text}");
        }
    }

    #[test]
    fn a_path_is_a_file_a_folder_or_a_pattern_whose_shards_are_all_there() {
        let mut store = MemoryStore::default();
        for name in ["b.tar", "a.tar", ".hidden.tar", "a.tar.index", "c.TAR"] {
            store.put(format!("set/{name}"), "x");
        }
        let found = |path: &str| shards(&store, Path::new(path));
        let paths = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(found("set"), Ok(paths(&["set/a.tar", "set/b.tar", "set/c.TAR"])));
        assert_eq!(found("set/b.tar"), Ok(paths(&["set/b.tar"])));
        assert_eq!(found("set/{b,a}.tar"), Ok(paths(&["set/b.tar", "set/a.tar"])));
        let says = |path, text: &str| {
            let error = found(path).expect_err(path).reason;
            assert!(error.contains(text), "{error}");
        };
        says("set/{a,x}.tar", "set/x.tar is missing; \"set/{a,x}.tar\" names 2 shards, 1 are");
        says("set/{x,y}.tar", "matches no file: the first of its 2 names is set/x.tar");
        says("set/z.tar", "does not exist; give a *.tar file");
        store = MemoryStore::default();
        store.put("set/readme", "x");
        let error = shards(&store, Path::new("set")).expect_err("none");
        assert!(error.reason.contains("holds no *.tar"), "{error}");
    }
}
