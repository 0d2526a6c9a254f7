//! Old bytes: what was removed is still in segments that were not written over yet, and in the checkpoint's free pages.

use super::frame::BLOCK;
use super::{Core, Named};
use crate::Scrub;
use crate::kv::KvError;

/// Written at a time.
const ZEROS: usize = 1 << 20;

impl Core {
    /// Carries everything over, fills every segment with zeros and writes the checkpoint anew. Commits wait; views that are open keep the
    /// old file, which has no name any more, until they are closed.
    pub(super) fn scrub(&self) -> Result<Scrub, KvError> {
        let mut tail = self.tail.lock();
        self.sound()?;
        if tail.segment.is_some() {
            self.next_segment(&mut tail, BLOCK as u64)?;
        }
        while self.carry_over()? {}
        // The keeper has nothing to carry over as long as the tail is held; a spare that it makes is of zeros.
        let scrubbed = self.zero(tail.segment.as_ref()).and_then(|()| {
            let _carrying = self.carrying.lock();
            self.base.renew()
        });
        scrubbed
            .map_err(|error| self.fail(error))
            .map(|_| Scrub::Done)
    }

    /// Every spare, and the segment that is next to be written, which holds nothing yet.
    fn zero(&self, tail: Option<&Named>) -> Result<(), KvError> {
        let spares = self.spares.lock();
        for segment in spares.iter().chain(tail) {
            let zeros = vec![0; ZEROS];
            let mut offset = 0;
            while offset < segment.bytes {
                let left = usize::try_from(segment.bytes - offset).unwrap_or(usize::MAX);
                let part = &zeros[..left.min(ZEROS)];
                let written = segment.file.write_at(offset, part);
                written.map_err(|error| KvError::from_io(&error))?;
                offset += part.len() as u64;
            }
            let synced = segment.file.sync();
            synced.map_err(|error| KvError::from_io(&error))?;
            segment.file.forget();
        }
        Ok(())
    }
}
