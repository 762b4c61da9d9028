//! The pictures of a micro-batch on their way to the card. Those of the next one are sent by a
//! thread of its own while one is computed, if they are known by then.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use kintsugi_ffi::cuda::{self, Buffer, Context, Crew, Staging, Stream, Turn};

use crate::engine::error::EngineError;

/// Bytes that are sent at a time: while one part is on its way the next is written.
const SENT_BYTES: usize = 16 << 20;

/// Puts pictures into staging memory and sends them, from the start of both on.
///
/// # Errors
/// The driver's.
pub fn send(
    images: &[f32],
    to: &Buffer,
    staging: &mut Staging,
    up: &Stream,
    crew: &Crew,
    turn: Turn,
) -> Result<(), cuda::Error> {
    let images: &[u8] = bytemuck::cast_slice(images);
    for (number, part) in images.chunks(SENT_BYTES).enumerate() {
        let at = number * SENT_BYTES;
        staging.put_by(crew, turn, at, part)?;
        up.upload(to, at, staging, at..at + part.len())?;
    }
    Ok(())
}

/// Pictures, held so that their memory is nobody else's and stays as it is sent.
type Images = Arc<Vec<f32>>;

/// Sends pictures before they are wanted.
pub struct Ahead {
    /// Where nothing is being sent to.
    buffer: Option<Buffer>,
    context: Arc<Context>,
    /// Both are there until this ends.
    asked: Option<Sender<(Images, Buffer)>>,
    thread: Option<JoinHandle<()>>,
    answered: Receiver<Answer>,
}

struct Answer {
    images: Images,
    buffer: Buffer,
    sent: Result<(), cuda::Error>,
}

impl Ahead {
    /// None yet, and room for so many bytes.
    ///
    /// # Errors
    /// The driver's; no thread.
    pub fn new(
        context: &Arc<Context>,
        crew: &Arc<Crew>,
        bytes: usize,
    ) -> Result<Self, EngineError> {
        let buffer = Some(Buffer::new(context, bytes)?);
        let (asked, asks) = channel::<(Images, Buffer)>();
        let (answers, answered) = channel();
        let mut sender = Messenger {
            staging: Staging::new(context, bytes)?,
            stream: Stream::new(context)?,
            context: Arc::clone(context),
            crew: Arc::clone(crew),
        };
        let work = move || {
            while let Ok((images, buffer)) = asks.recv() {
                let sent = sender.send(&images, &buffer);
                if answers.send(Answer { images, buffer, sent }).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("pictures".into()).spawn(work);
        let refused = |error| EngineError::Device(format!("no thread sends pictures: {error}"));
        let (asked, thread) = (Some(asked), Some(thread.map_err(refused)?));
        Ok(Self { buffer, context: Arc::clone(context), asked, thread, answered })
    }

    /// Has these sent, to a buffer of so many bytes, beside whatever is computed.
    ///
    /// # Errors
    /// The driver's.
    pub fn send(&mut self, images: Images, bytes: usize) -> Result<(), EngineError> {
        // Where there is no script yet that takes so many they are not sent.
        let fits = |_: &&mut Buffer| size_of_val(&images[..]) <= bytes;
        let Some(buffer) = self.buffer.as_mut().filter(fits) else { return Ok(()) };
        if buffer.bytes() < bytes {
            *buffer = Buffer::new(&self.context, bytes)?;
        }
        let Some(buffer) = self.buffer.take() else { return Ok(()) };
        let asked = self.asked.as_ref().ok_or_else(gone)?;
        asked.send((images, buffer)).map_err(|_| gone())
    }

    /// Waits for what is being sent, and keeps no more than so many bytes.
    ///
    /// # Errors
    /// The driver's.
    pub fn release(&mut self, bytes: usize) -> Result<(), EngineError> {
        if self.buffer.is_none() {
            let answer = self.answered.recv().map_err(|_| gone())?;
            self.buffer = Some(answer.buffer);
            answer.sent?;
        }
        self.buffer = Some(Buffer::new(&self.context, bytes)?);
        Ok(())
    }

    /// Waits for what is being sent. If it is these pictures, `buffer` has them from here on;
    /// otherwise they were sent for nothing.
    ///
    /// # Errors
    /// The driver's.
    pub fn take(&mut self, images: &[f32], buffer: &mut Buffer) -> Result<Taken, EngineError> {
        if self.buffer.is_some() {
            return Ok(Taken::Nothing);
        }
        let answer = self.answered.recv().map_err(|_| gone())?;
        let own = self.buffer.insert(answer.buffer);
        answer.sent?;
        if !std::ptr::eq(&answer.images[..], images) || own.bytes() < buffer.bytes() {
            return Ok(Taken::Nothing);
        }
        std::mem::swap(own, buffer);
        Ok(Taken::These)
    }
}

impl Drop for Ahead {
    /// The thread has a stream of its own: it is not to end it while the process ends.
    fn drop(&mut self) {
        self.asked = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn gone() -> EngineError {
    EngineError::Device("the thread that sends pictures has ended".into())
}

/// What was sent ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Taken {
    These,
    Nothing,
}

/// What the thread has.
struct Messenger {
    staging: Staging,
    stream: Stream,
    context: Arc<Context>,
    crew: Arc<Crew>,
}

impl Messenger {
    /// When this is back they are there.
    fn send(&mut self, images: &[f32], to: &Buffer) -> Result<(), cuda::Error> {
        if self.staging.bytes() < size_of_val(images) {
            self.staging = Staging::new(&self.context, size_of_val(images))?;
        }
        send(images, to, &mut self.staging, &self.stream, &self.crew, Turn::Last)?;
        self.stream.synchronize()
    }
}
