//! ImageFolder (torchvision's layout): one folder per class, images anywhere below it. Classes
//! and images are sorted by name. It is listed in threads, once for all ranks, and the listing is
//! saved: `crawl` lists folders, `walk` puts them in order, `table` holds the names, `saved` says
//! when a saved one is trusted.

use std::io;
use std::path::{Path, PathBuf};

use crate::config::Shown;
use crate::data::index::Cache;
use crate::data::store::{Location, Store};
use crate::data::{Cut, DataError, Image};

use super::{Source, Wanted, decode};

mod classes;
mod crawl;
mod kept;
mod saved;
mod table;
mod walk;

pub use classes::class_names;
use table::Table;

/// A folder of class folders of pictures.
pub struct ImageFolder {
    root: PathBuf,
    classes: Vec<String>,
    table: Table,
    news: Option<String>,
}

impl ImageFolder {
    /// Lists the folder; nothing is decoded. `key` is the configuration key that named it. The
    /// listing is saved in `cache`, for all who open the folder with the same one; who goes on with
    /// a run, or joins it, gets the one that it began with.
    pub fn open(
        store: &dyn Store,
        root: &Path,
        key: &str,
        cache: Option<Cache<'_>>,
    ) -> Result<Self, DataError> {
        let kept = match cache {
            Some(cache) => kept::listing(store, root, key, cache)?,
            None => None,
        };
        let (table, news) = match kept {
            Some(kept) => {
                let news = news(key, &kept);
                (kept.table, news)
            }
            None => (saved::listing(store, root, key, cache.map(|cache| cache.folder))?, None),
        };
        let folders = table.about.classes.iter();
        let classes = folders.map(|(folder, _)| classes::name(folder)).collect();
        Ok(Self { root: root.to_owned(), classes, table, news })
    }

    fn path(&self, id: u64) -> PathBuf {
        let (folder, _) = &self.table.about.classes[self.table.class(id)];
        self.root.join(folder).join(self.table.name(id))
    }
}

/// What to say of pictures that came to the folder after the run had begun.
fn news(key: &str, kept: &kept::Kept) -> Option<String> {
    let (new, of_run) = (kept.news, kept.table.count());
    (new > 0).then(|| {
        format!(
            "{key}: {new} pictures have come since the run began, which goes on with its own \
             {of_run}; to take them in, begin anew with `launch --fresh`"
        )
    })
}

impl Source for ImageFolder {
    fn len(&self) -> u64 {
        self.table.count()
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn channels(&self) -> u32 {
        3
    }

    fn label(&self, id: u64) -> u32 {
        self.table.class(id) as u32
    }

    fn location(&self, id: u64) -> Option<Location<'_>> {
        Some(Location::whole(self.path(id), self.table.size(id)))
    }

    fn decode(&self, _: u64, bytes: &[u8]) -> Result<Image, String> {
        decode::rgb(bytes)
    }

    fn decode_part(&self, _: u64, bytes: &[u8], wanted: Wanted<'_>) -> Result<Cut, String> {
        decode::rgb_part(bytes, wanted)
    }

    fn name(&self, id: u64) -> String {
        self.path(id).shown()
    }

    fn key(&self, id: u64, into: &mut Vec<u8>) -> bool {
        let (folder, _) = &self.table.about.classes[self.table.class(id)];
        into.extend(folder.as_os_str().as_encoded_bytes());
        into.push(b'/');
        into.extend(self.table.name(id).as_os_str().as_encoded_bytes());
        true
    }

    fn fingerprint(&self) -> u64 {
        self.table.about.fingerprint
    }

    fn remarks(&self) -> &[String] {
        &self.table.about.remarks
    }

    fn news(&self) -> Option<&str> {
        self.news.as_deref()
    }

    fn keep(&self, folder: &Path) -> io::Result<()> {
        kept::keep(&self.table, &self.root, folder)
    }
}
