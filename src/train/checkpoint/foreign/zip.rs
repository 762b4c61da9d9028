//! Zip archives as `torch.save` writes them: entries lie as they are, one behind the other, and a
//! directory at the end names them (APPNOTE.TXT of PKWARE, sections 4.3 and 4.5.3). Whatever else
//! an archive can do is refused by name: compressed or encrypted entries, entries that share
//! bytes, several disks. So nothing grows, and no entry is larger than the file.

use std::collections::BTreeMap;
use std::ops::Range;

use flate2::Crc;

/// What an archive begins with: the header of its first entry.
pub(super) const START: &[u8] = b"PK\x03\x04";

const ENTRY: &[u8] = b"PK\x01\x02";
const END: &[u8] = b"PK\x05\x06";
const LONG_END: &[u8] = b"PK\x06\x06";
const LONG_LOCATOR: &[u8] = b"PK\x06\x07";
/// Fixed parts of the records.
const START_BYTES: usize = 30;
const ENTRY_BYTES: usize = 46;
const END_BYTES: usize = 22;
const LONG_LOCATOR_BYTES: usize = 20;
const LONG_END_BYTES: usize = 56;
/// A comment behind the end is at most so long.
const COMMENT_BYTES_MAX: usize = 0xFFFF;
/// The number of the field that holds what 32 bits do not.
const LONG_FIELD: u64 = 1;
/// A 32-bit field that says: look there.
const LONG: u64 = 0xFFFF_FFFF;
/// Most entries: one for each tensor, and a few.
const ENTRIES_MAX: u64 = 1 << 17;

/// An entry.
#[derive(Debug)]
struct Entry<'a> {
    name: &'a str,
    sum: u32,
    place: Range<usize>,
}

/// Where the directory lies.
struct Directory {
    entries: u64,
    place: Range<usize>,
}

/// An archive's entries by name, each compared with its checksum.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn open(file: &[u8]) -> Result<BTreeMap<&str, &[u8]>, String> {
    let directory = directory(file)?;
    if directory.entries > ENTRIES_MAX {
        let count = directory.entries;
        return Err(format!("its directory names {count} entries, at most {ENTRIES_MAX}"));
    }
    let mut rest = &file[directory.place.clone()];
    let mut entries = Vec::new();
    // Each entry is read from the file: what it names too many of ends the loop.
    for _ in 0..directory.entries {
        let (entry, length) = entry(file, rest, directory.place.start)?;
        entries.push(entry);
        rest = &rest[length..];
    }
    entries.sort_by_key(|entry| (entry.place.start, entry.place.end));
    if let Some(two) = entries.windows(2).find(|two| two[0].place.end > two[1].place.start) {
        return Err(format!("its entries {:?} and {:?} share bytes", two[0].name, two[1].name));
    }
    // No byte is in two entries, so this reads the file once at most.
    let mut bodies = BTreeMap::new();
    for Entry { name, sum, place } in entries {
        let body = &file[place];
        let mut found = Crc::new();
        found.update(body);
        if found.sum() != sum {
            return Err(format!("its entry {name:?} is damaged: the checksum differs"));
        }
        if bodies.insert(name, body).is_some() {
            return Err(format!("two of its entries are called {name:?}"));
        }
    }
    Ok(bodies)
}

/// An unsigned number of so many bytes at a place; the caller has checked that they are there.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    bytes[at..at + width].iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

fn record<'a>(file: &'a [u8], at: usize, start: &[u8], length: usize) -> Result<&'a [u8], String> {
    let end = at.checked_add(length).filter(|end| *end <= file.len());
    let record = end.map(|end| &file[at..end]).filter(|record| record.starts_with(start));
    record.ok_or_else(|| "its directory leads to no record: cut off or damaged".into())
}

fn within(from: u64, length: u64, whole: usize) -> Option<Range<usize>> {
    let end = from.checked_add(length).filter(|end| *end <= whole as u64)?;
    Some(from as usize..end as usize)
}

fn directory(file: &[u8]) -> Result<Directory, String> {
    let first = file.len().saturating_sub(END_BYTES + COMMENT_BYTES_MAX);
    let tail = &file[first..];
    let at =
        (0..=tail.len().saturating_sub(END_BYTES)).rev().find(|at| tail[*at..].starts_with(END));
    let at = first + at.ok_or("its end is not there: the file is cut off")?;
    let end = record(file, at, END, END_BYTES)?;
    let mut fields = (number(end, 10, 2), number(end, 12, 4), number(end, 16, 4));
    if number(end, 4, 2) != 0 && number(end, 4, 2) != 0xFFFF {
        return Err("it is a part of an archive on several disks".into());
    }
    if fields.0 == 0xFFFF || fields.1 == LONG || fields.2 == LONG {
        let locator = at.checked_sub(LONG_LOCATOR_BYTES).ok_or("its end is cut off")?;
        let locator = record(file, locator, LONG_LOCATOR, LONG_LOCATOR_BYTES)?;
        let at = usize::try_from(number(locator, 8, 8)).unwrap_or(usize::MAX);
        let long = record(file, at, LONG_END, LONG_END_BYTES)?;
        fields = (number(long, 32, 8), number(long, 40, 8), number(long, 48, 8));
    }
    let (entries, length, from) = fields;
    let place = within(from, length, at).ok_or("its directory lies outside of the file")?;
    Ok(Directory { entries, place })
}

/// The first entry of the rest of a directory, and the length of its record there. Bodies lie
/// before the directory.
fn entry<'a>(
    file: &'a [u8],
    rest: &'a [u8],
    directory: usize,
) -> Result<(Entry<'a>, usize), String> {
    let fixed = record(rest, 0, ENTRY, ENTRY_BYTES)
        .map_err(|_| "its directory names more entries than it holds".to_string())?;
    let (flags, method) = (number(fixed, 8, 2), number(fixed, 10, 2));
    let lengths = [28, 30, 32].map(|at| number(fixed, at, 2) as usize);
    let length = ENTRY_BYTES + lengths.iter().sum::<usize>();
    let whole = record(rest, 0, ENTRY, length)?;
    let name = std::str::from_utf8(&whole[ENTRY_BYTES..ENTRY_BYTES + lengths[0]])
        .map_err(|_| "the name of an entry is no UTF-8")?;
    let extra = &whole[ENTRY_BYTES + lengths[0]..][..lengths[1]];
    if flags & 1 != 0 {
        return Err(format!("its entry {name:?} is encrypted"));
    }
    if method != 0 {
        return Err(format!(
            "its entry {name:?} is compressed (method {method}), as no entry of torch.save is: \
             another program has packed it, or it is a TorchScript program; save the weights \
             alone, with torch.save(model.state_dict(), \"NEW.pth\")"
        ));
    }
    let (packed, size, from) = sizes(fixed, extra).ok_or_else(|| {
        format!("its entry {name:?} is longer than 32 bits say, and does not say how long")
    })?;
    if packed != size {
        return Err(format!("its entry {name:?} has {packed} bytes and says {size}"));
    }
    let outside = || format!("its entry {name:?} lies outside of the file");
    let start = usize::try_from(from).map_err(|_| outside())?;
    let local = record(file, start, START, START_BYTES).map_err(|_| outside())?;
    let skipped = START_BYTES as u64 + number(local, 26, 2) + number(local, 28, 2);
    let from = from.checked_add(skipped).ok_or_else(outside)?;
    let place = within(from, size, directory).ok_or_else(outside)?;
    Ok((Entry { name, sum: number(fixed, 16, 4) as u32, place }, length))
}

/// Packed size, size and place of an entry: from its record, or from the field for long ones.
fn sizes(fixed: &[u8], extra: &[u8]) -> Option<(u64, u64, u64)> {
    let [mut size, mut packed, mut from] = [24, 20, 42].map(|at| number(fixed, at, 4));
    let mut long = long_field(extra).unwrap_or_default();
    // Only those that do not fit stand there, in this order.
    for field in [&mut size, &mut packed, &mut from] {
        if *field == LONG {
            let (eight, rest) = long.split_at_checked(8)?;
            *field = number(eight, 0, 8);
            long = rest;
        }
    }
    Some((packed, size, from))
}

fn long_field(mut extra: &[u8]) -> Option<&[u8]> {
    // Each field takes four bytes at least.
    while extra.len() >= 4 {
        let (kind, length) = (number(extra, 0, 2), number(extra, 2, 2) as usize);
        let (field, rest) = extra[4..].split_at_checked(length)?;
        if kind == LONG_FIELD {
            return Some(field);
        }
        extra = rest;
    }
    None
}
