//! The two slots in which a rank keeps the state of the last committed step, and that of the step
//! before until the next one begins.
//! A step reads the committed slot and writes the other one; the commit word, stored last, says
//! which of them counts. Until it is stored the older state stays whole, so a rank that dies or
//! fails a vote in the middle of an update has lost nothing.
//!
//! The slots lie in a file of `recovery.resident_dir` that is mapped and locked while its process
//! lives (`file`), so they outlive it; without such a folder they lie in the memory of the process.
//! `header` is what stands before the tensors, `folder` the files of one run, `choice` the decision
//! which state a world that was killed goes on from.

use std::sync::OnceLock;

use kintsugi_ffi::mapping::{Memory, Words};
use kintsugi_ffi::stream;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

pub mod ahead;
mod backing;
pub mod choice;
pub mod file;
pub mod folder;
pub mod header;
mod name;
mod next;
pub mod state;

pub use ahead::Ahead;
pub use file::{Look, SlotFile};
pub use folder::Folder;
pub use header::{Header, Identity, Key, MAGIC, Refusal};
pub use next::{Body, Next};
pub use state::{EXTRA_BYTES_MAX, Part, Shape, SlotMut, SlotView};

use crate::observe::notice::act_on;
use backing::Backing;
use header::{CommitWord, HEADER_WORDS, commit_word, set_commit_word};
use places::Places;

mod places;

/// Room for two states, of which a commit word makes one count.
#[derive(Debug)]
pub struct Slots {
    shape: Shape,
    places: Places,
    /// `None` until it is known where they are to lie: a replacement may take over those of the
    /// dead.
    backing: Option<Backing>,
    identity: Identity,
    ahead: Ahead,
}

impl Slots {
    /// Two slots of zeros in the memory of this process. Nothing is committed: `holds_state` is
    /// false, and `committed` shows zeros of step 0, until the first `commit` or `replace`.
    pub fn new(shape: Shape) -> Self {
        let mut slots = Self::vacant(shape);
        slots.backed();
        slots
    }

    /// Slots that take no memory until they lie in a file or are first written.
    pub fn vacant(shape: Shape) -> Self {
        let (places, identity) = (Places::of(shape), Identity::default());
        Self { shape, places, backing: None, identity, ahead: Ahead::default() }
    }

    /// Files that are mapped already, one of which may become theirs. The others go with the next
    /// step of its own that this process commits.
    pub fn foresee(&mut self, ahead: Ahead) {
        self.ahead = ahead;
    }

    /// The slots lie in this file from now on, and hold what it holds; see `select`. Returns the
    /// file that they lay in.
    ///
    /// # Errors
    /// The kernel's, when the file cannot be mapped; another process that was faster: the slots
    /// stay where they were.
    pub fn move_to(&mut self, mut file: SlotFile) -> std::io::Result<Option<SlotFile>> {
        file.claim()?;
        let body_bytes = self.places.body_bytes();
        let (words, memory) = match self.ahead.take(file.identity()?, body_bytes) {
            Some(mapped) => mapped,
            None => file.map(body_bytes)?,
        };
        let before = self.backing.replace(Backing::new(words, memory, Some(file)));
        // What is written first must not be the newest state.
        let [first, second] = self.headers().map(|header| header.ok().map(|header| header.key));
        self.backed().turn_to(usize::from(second > first));
        Ok(before.and_then(|backing| backing.file))
    }

    /// Bytes of a file that holds such slots.
    pub fn file_bytes(&self) -> u64 {
        file::bytes(self.places.body_bytes())
    }

    /// The file they lie in.
    pub fn file(&self) -> Option<&SlotFile> {
        self.backing.as_ref()?.file.as_ref()
    }

    /// Whether they have a place yet.
    pub fn is_vacant(&self) -> bool {
        self.backing.is_none()
    }

    /// Removes the file they lie in if nothing was ever committed to it: it would only take room.
    pub fn leave_no_empty_file(&self) {
        let empty = |header: &Result<Header, Refusal>| *header == Err(Refusal::Uncommitted);
        if let Some(file) = self.file().filter(|_| self.headers().iter().all(empty)) {
            file.unlink();
        }
    }

    /// Makes every page present, so that no step waits for one.
    pub fn populate(&self) {
        if let Some(backing) = &self.backing {
            backing.populate();
        }
    }

    /// Names the run and the process in the header of every slot written from now on, and the
    /// file after the member.
    pub fn identify(&mut self, identity: Identity) {
        self.identity = identity;
        if let Some(file) = self.backing.as_mut().and_then(|backing| backing.file.as_mut())
            && let Err(error) = file.name_after(identity.member)
        {
            act_on(&format!(
                "{error}; a restart will not find this rank's state in memory, and reads a \
                 checkpoint: let nobody remove such files while the run goes on, and let one \
                 program at a time train it"
            ));
        }
    }

    /// Whose they are.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Names and lengths of the parts.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The header of the committed slot, when there is one.
    pub fn header(&self) -> Option<Header> {
        let current = self.backing.as_ref()?.current;
        let [first, second] = self.headers();
        if current == 0 { first.ok() } else { second.ok() }
    }

    /// Which state is the committed one.
    pub fn key(&self) -> Option<Key> {
        self.header().map(|header| header.key)
    }

    /// What both slots hold, or why they hold nothing that can be used.
    pub fn headers(&self) -> [Result<Header, Refusal>; 2] {
        let Some(backing) = &self.backing else {
            return [Err(Refusal::Uncommitted), Err(Refusal::Uncommitted)];
        };
        [0, 1].map(|slot| {
            let header = Header::read(&header::load(backing.page(slot)))?;
            let checksum =
                backing.with_body(slot, |body| extra(body?, header.extra_bytes).map(xxh3_64));
            if checksum != Some(header.extra_checksum) {
                return Err(Refusal::Damaged("its position has another checksum"));
            }
            Ok(header)
        })
    }

    /// Makes the slot that holds this state the committed one. A later state in the other slot is
    /// given up: nobody else has it, or it is refused. False when neither slot holds the state.
    pub fn select(&mut self, key: Key) -> bool {
        let keys = self.headers().map(|header| header.ok().map(|header| header.key));
        let Some(slot) = keys.iter().position(|found| *found == Some(key)) else { return false };
        self.backed().turn_to(slot);
        if keys[1 - slot].is_none_or(|other| other > key) {
            self.clear(1 - slot);
        }
        true
    }

    /// A state that must not be used by anybody: its commit word is cleared.
    pub fn refuse(&mut self, key: Key) {
        for (slot, header) in self.headers().into_iter().enumerate() {
            if header.is_ok_and(|header| header.key == key) {
                self.clear(slot);
            }
        }
    }

    /// Nothing is committed any more.
    pub fn refuse_all(&mut self) {
        self.clear(0);
        self.clear(1);
    }

    fn clear(&mut self, slot: usize) {
        if let Some(backing) = &self.backing {
            set_commit_word(backing.page(slot), CommitWord::NONE);
        }
    }

    /// Whether a state was ever committed here: false in a newcomer before it is restored.
    pub fn holds_state(&self) -> bool {
        let word = self.backing.as_ref().map(|backing| commit_word(backing.page(backing.current)));
        word.is_some_and(|word| word != CommitWord::NONE)
    }

    /// The newest committed state.
    ///
    /// # Panics
    /// When the slots are vacant.
    pub fn committed(&self) -> SlotView<'_> {
        let backing = self.backing.as_ref().expect("a rank that reads its state has slots");
        let (body, page) = (backing.committed(), backing.page(backing.current));
        let word = commit_word(page);
        let extra = extra(body, header::extra_bytes(page)).unwrap_or_default();
        self.places.view(body, (word.step(), word.generation()), extra)
    }

    /// XXH3-128 over the tensors of the slot that holds this state.
    pub fn hash(&self, key: Key) -> Option<u128> {
        let backing = self.backing.as_ref()?;
        let slot =
            self.headers().into_iter().position(|header| header.is_ok_and(|h| h.key == key))?;
        backing.with_body(slot, |body| Some(hash(&self.places.view(body?, (0, 0), &[]))))
    }

    /// What its writer stored beside the tensors of this state.
    pub fn position_bytes(&self, key: Key) -> Option<Vec<u8>> {
        let backing = self.backing.as_ref()?;
        let holds = |header: &Result<Header, Refusal>| header.as_ref().is_ok_and(|h| h.key == key);
        let headers = self.headers();
        let slot = headers.iter().position(holds)?;
        let bytes = headers[slot].as_ref().ok()?.extra_bytes;
        backing.with_body(slot, |body| extra(body?, bytes).map(<[u8]>::to_vec))
    }

    /// The committed state, and the other slot to write the next one into. The other slot's
    /// commit word is cleared: the state before the last is given up.
    pub fn begin(&mut self) -> (SlotView<'_>, SlotMut<'_>) {
        let places = self.places;
        let backing = self.backed();
        let current = backing.page(backing.current);
        let word = commit_word(current);
        set_commit_word(backing.page(1 - backing.current), CommitWord::NONE);
        let (mine, other) = backing.both();
        (places.view(mine, (word.step(), word.generation()), &[]), places.view_mut(other))
    }

    /// The same other slot for several threads, which read the committed one meanwhile. It has to
    /// come back (`take_back`) before anything is committed.
    ///
    /// # Panics
    /// When the slots are vacant, or it is lent already.
    pub fn lend(&self) -> Body {
        let backing = self.backing.as_ref().expect("a rank that trains has slots");
        set_commit_word(backing.page(1 - backing.current), CommitWord::NONE);
        Body { places: self.places, memory: backing.lend() }
    }

    /// What `lend` gave, whatever was written into it.
    pub fn take_back(&self, body: Body) {
        if let Some(backing) = &self.backing {
            backing.take_back(body.memory);
        }
    }

    /// What was written since `begin` or `lend` becomes the committed state. A thread that wrote
    /// with streaming stores must have fenced itself (`stream::apply` does).
    ///
    /// # Panics
    /// When step or generation are beyond what a commit word holds (2^40, 2^23).
    pub fn commit(&mut self, step: u64, generation: u32, extra: &[u8]) {
        self.ahead = Ahead::default();
        let attempt = self.identity.attempt;
        self.commit_as(Key { attempt, generation, step }, extra);
    }

    /// The same for a state that another process committed.
    ///
    /// # Panics
    /// As `commit`.
    pub fn commit_as(&mut self, key: Key, extra: &[u8]) {
        let word = CommitWord::of(key.step, key.generation);
        let extra = if extra.len() <= EXTRA_BYTES_MAX { extra } else { too_long(extra.len()) };
        let header = Header {
            identity: self.identity,
            key,
            shape: self.shape.words(),
            extra_bytes: extra.len() as u64,
            extra_checksum: xxh3_64(extra),
        };
        let backing = self.backed();
        let next = 1 - backing.current;
        backing.both().1[..extra.len()].copy_from_slice(extra);
        header.write(backing.page(next));
        stream::fence();
        set_commit_word(backing.page(next), word);
        if let Some(file) = &mut backing.file {
            file.settle();
        }
        backing.turn_to(next);
    }

    /// A received state becomes the committed one; the state held before is given up, so that a
    /// rollback can never meet a slot later than its target.
    ///
    /// # Panics
    /// When the parts are not as long as this rank's.
    pub fn replace(&mut self, state: SlotView<'_>) {
        let (_, mut slot) = self.begin();
        slot.copy_from(&state);
        self.commit(state.step, state.generation, state.extra);
        let before = 1 - self.backed().current;
        self.clear(before);
    }

    /// Copies the state from another process's file into the slot that `commit_as` will make the
    /// committed one. False when the file does not hold it, or stopped holding it meanwhile.
    ///
    /// # Errors
    /// The kernel's.
    pub fn copy_from(&mut self, look: &Look, key: Key) -> std::io::Result<bool> {
        let holds = || -> std::io::Result<Option<usize>> {
            let headers = look.headers()?;
            Ok(headers.iter().position(|header| header.as_ref().is_ok_and(|h| h.key == key)))
        };
        let Some(slot) = holds()? else { return Ok(false) };
        let body_bytes = self.places.body_bytes();
        let places = self.places;
        let (_, mut into) = self.begin();
        for ((_, part), start) in into.parts().zip(places.starts()) {
            look.copy(part, file::body_at(slot, body_bytes) + *start as u64)?;
        }
        Ok(holds()? == Some(slot))
    }

    fn backed(&mut self) -> &mut Backing {
        let body_bytes = self.places.body_bytes();
        self.backing.get_or_insert_with(|| {
            let room = "no memory for the state: start fewer ranks or a smaller model";
            let words = Words::anonymous(2 * HEADER_WORDS).expect(room);
            let memory = Memory::anonymous(2 * body_bytes).expect(room);
            Backing::new(words, memory, None)
        })
    }
}

/// What its writer stored beside the tensors of a body.
fn extra(body: &[u8], bytes: u64) -> Option<&[u8]> {
    let length = usize::try_from(bytes).ok().filter(|length| *length <= EXTRA_BYTES_MAX)?;
    body.get(..length)
}

/// Said once: such a slot serves its own process, and no other can go on from it.
fn too_long(length: usize) -> &'static [u8] {
    static SAID: OnceLock<()> = OnceLock::new();
    SAID.get_or_init(|| {
        act_on(&format!(
            "a position of {length} bytes does not fit a resident slot ({EXTRA_BYTES_MAX}): a \
             restart will read a checkpoint"
        ));
    });
    &[]
}

/// XXH3-128 over a state's tensors, at memory speed.
pub fn hash(state: &SlotView<'_>) -> u128 {
    let mut hasher = Xxh3::new();
    for (_, part) in state.parts() {
        hasher.update(bytemuck::cast_slice(part));
    }
    hasher.digest128()
}

#[cfg(test)]
mod tests;
