//! The pictures of a micro-batch on their way to the card. Those of the next one are sent while one
//! is computed, if they are known by then.

use std::sync::Arc;

use kintsugi_ffi::cuda::{Buffer, Context, Staging, Stream};

use crate::engine::error::EngineError;

/// Bytes that are sent at a time: while one part is on its way the next is written.
const SENT_BYTES: usize = 16 << 20;

/// Puts pictures into staging memory and sends them, from the start of both on.
///
/// # Errors
/// The driver's.
pub fn send(
    (to, staging): (&Buffer, &mut Staging),
    images: &[f32],
    (up, threads): (&Stream, usize),
) -> Result<(), EngineError> {
    let images: &[u8] = bytemuck::cast_slice(images);
    for (number, part) in images.chunks(SENT_BYTES).enumerate() {
        let at = number * SENT_BYTES;
        staging.put_together(at, part, threads)?;
        up.upload(to, at, staging, at..at + part.len())?;
    }
    Ok(())
}

/// Pictures that were sent before they are wanted.
pub struct Ahead {
    staging: Staging,
    buffer: Buffer,
    /// Held, so that this memory is nobody else's and stays as it was sent.
    sent: Option<Arc<Vec<f32>>>,
}

impl Ahead {
    /// None yet, and no room for any.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<Context>, bytes_min: usize) -> Result<Self, EngineError> {
        let (staging, buffer) =
            (Staging::new(context, bytes_min)?, Buffer::new(context, bytes_min)?);
        Ok(Self { staging, buffer, sent: None })
    }

    /// Sends these. `bytes`: what a buffer has that takes their place.
    ///
    /// # Errors
    /// The driver's.
    pub fn send(
        &mut self,
        images: Arc<Vec<f32>>,
        bytes: usize,
        context: &Arc<Context>,
        with: (&Stream, usize),
    ) -> Result<(), EngineError> {
        let pictures = size_of_val(&images[..]);
        if pictures > bytes {
            // There is no script yet that takes so many.
            return Ok(());
        }
        if self.buffer.bytes() < bytes {
            self.buffer = Buffer::new(context, bytes)?;
        }
        if self.staging.bytes() < pictures {
            self.staging = Staging::new(context, pictures)?;
        }
        send((&self.buffer, &mut self.staging), &images, with)?;
        self.sent = Some(images);
        Ok(())
    }

    /// Gives `buffer` what was sent, and whether it is these pictures. Otherwise it was for nothing.
    pub fn take(&mut self, images: &[f32], buffer: &mut Buffer) -> Taken {
        let same = |sent: &Arc<Vec<f32>>| std::ptr::eq(&sent[..], images);
        if self.sent.take().as_ref().is_some_and(same) && self.buffer.bytes() >= buffer.bytes() {
            std::mem::swap(&mut self.buffer, buffer);
            return Taken::These;
        }
        Taken::Nothing
    }
}

/// What was sent ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Taken {
    These,
    Nothing,
}
