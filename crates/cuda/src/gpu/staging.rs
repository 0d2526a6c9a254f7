//! Memory of the host that the device copies from and to: a ring of what is on its way to the device, and two places for what comes back.

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

/// Bytes of the ring.
pub(super) const RING_BYTES: usize = 32 << 20;
/// Bytes of each place.
pub(super) const PLACE_BYTES: usize = 2 << 20;
/// Events that only say whether something is done.
const NO_TIMING: sys::CUevent_flags = sys::CUevent_flags_enum::CU_EVENT_DISABLE_TIMING;

/// A place for what comes back.
#[derive(Clone, Copy)]
struct Place {
    memory: *mut u8,
    done: sys::CUevent,
    /// Where the ring stood when the copy began: what lies before is free once it is done.
    mark: u64,
}

/// Pinned memory of one context.
pub(super) struct Staging {
    ring: *mut u8,
    /// Bytes that were ever taken, and how many of them are free again.
    taken: u64,
    freed: u64,
    places: [Place; 2],
}

impl Staging {
    /// For the current context.
    pub(super) fn new() -> Result<Self, DriverError> {
        // SAFETY: a context is current; what is returned is written before it is read.
        let pinned = |bytes| unsafe { result::malloc_host(bytes, 0) };
        let place = || -> Result<Place, DriverError> {
            Ok(Place {
                memory: pinned(PLACE_BYTES)?.cast(),
                done: result::event::create(NO_TIMING)?,
                mark: 0,
            })
        };
        Ok(Self {
            ring: pinned(RING_BYTES)?.cast(),
            taken: 0,
            freed: 0,
            places: [place()?, place()?],
        })
    }

    /// Everything that was begun is done.
    pub(super) fn all_done(&mut self) {
        self.freed = self.taken;
    }

    /// Where so many bytes would begin.
    fn place(&self, bytes: u64) -> Option<u64> {
        let size = RING_BYTES as u64;
        let mut begin = self.taken;
        if begin % size + bytes > size {
            begin = begin.next_multiple_of(size);
        }
        (begin + bytes - self.freed <= size).then_some(begin)
    }

    /// Whether so many bytes can be taken now.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.place(bytes.next_multiple_of(16) as u64).is_some()
    }

    /// So many bytes of the ring behind one another; `None` while too much is on its way.
    pub(super) fn take(&mut self, bytes: usize) -> Option<&mut [u8]> {
        let size = RING_BYTES as u64;
        let taken = bytes.next_multiple_of(16) as u64;
        let begin = self.place(taken)?;
        self.taken = begin + taken;
        let offset = usize::try_from(begin % size).expect("below the ring's size");
        // SAFETY: inside the ring, and nothing on its way reads from there.
        Some(unsafe { std::slice::from_raw_parts_mut(self.ring.add(offset), bytes) })
    }

    /// Begins a copy into a place.
    ///
    /// # Safety
    /// `from` has so many bytes in the current context, and the stream is of it.
    pub(super) unsafe fn begin(
        &mut self,
        place: usize,
        (from, bytes): (u64, usize),
        stream: sys::CUstream,
    ) -> Result<(), DriverError> {
        let place = &mut self.places[place];
        place.mark = self.taken;
        assert!(bytes <= PLACE_BYTES, "a step's results fit");
        // SAFETY: the place is large enough, and whoever begins a copy into it has ended the one before; the rest is the caller's.
        unsafe {
            let memory = std::slice::from_raw_parts_mut(place.memory, bytes);
            result::memcpy_dtoh_async(memory, from, stream)?;
            result::event::record(place.done, stream)
        }
    }

    /// Waits for the copy into a place.
    pub(super) fn end(&mut self, place: usize, data: &mut [u8]) -> Result<(), DriverError> {
        let place = self.places[place];
        // SAFETY: the event lives as long as this value; once it is reached nobody writes to the place.
        unsafe {
            result::event::synchronize(place.done)?;
            data.copy_from_slice(std::slice::from_raw_parts(place.memory, data.len()));
        }
        self.freed = self.freed.max(place.mark);
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        for place in self.places {
            // SAFETY: each was made by `new`; whoever drops this has the context current and nothing on its way.
            unsafe {
                let _ = result::event::destroy(place.done);
                let _ = result::free_host(place.memory.cast());
            }
        }
        // SAFETY: as above.
        let _ = unsafe { result::free_host(self.ring.cast()) };
    }
}
