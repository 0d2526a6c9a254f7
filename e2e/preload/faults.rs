//! Loaded into a process under test before libc: its clock is what a file says, and one of its syncs fails when the file says so.
//!
//! The file that `WEIR_FAULTS` names holds two numbers of eight bytes: milliseconds that the wall clock is ahead, and which sync from now
//! on fails with EIO (0: none). Built by `weir_e2e::preload` with rustc alone; no crate of the workspace.

use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, AtomicPtr, Ordering};

#[repr(C)]
pub struct Timespec {
    seconds: i64,
    nanoseconds: i64,
}

#[repr(C)]
struct Control {
    ahead_ms: AtomicI64,
    fails: AtomicI64,
}

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
    fn getenv(name: *const c_char) -> *const c_char;
    fn open(path: *const c_char, flags: c_int, ...) -> c_int;
    fn mmap(at: *mut c_void, length: usize, protection: c_int, flags: c_int, file: c_int, offset: i64) -> *mut c_void;
    fn __errno_location() -> *mut c_int;
}

#[cfg(target_arch = "x86_64")]
const CALLS: [c_long; 3] = [228, 74, 75];
#[cfg(target_arch = "aarch64")]
const CALLS: [c_long; 3] = [113, 82, 83];
const WALL_CLOCKS: [c_int; 2] = [0, 5];
const EIO: c_int = 5;

/// The file's memory; none where there is no file.
fn control() -> Option<&'static Control> {
    static CONTROL: AtomicPtr<Control> = AtomicPtr::new(null_mut());
    let mut known = CONTROL.load(Ordering::Acquire);
    if known.is_null() {
        // SAFETY: the name ends with a zero; a failed call is seen by its result; two threads may map twice, which is no harm.
        unsafe {
            let path = getenv(c"WEIR_FAULTS".as_ptr());
            if path.is_null() || CStr::from_ptr(path).is_empty() {
                return None;
            }
            let file = open(path, 2);
            let memory = mmap(null_mut(), size_of::<Control>(), 3, 1, file, 0);
            if file < 0 || memory as isize == -1 {
                return None;
            }
            known = memory.cast();
        }
        CONTROL.store(known, Ordering::Release);
    }
    // SAFETY: mapped for ever, aligned to a page.
    Some(unsafe { &*known })
}

/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut Timespec) -> c_int {
    // SAFETY: what the caller gave is passed on; the time is there when the call has succeeded.
    unsafe {
        let done = syscall(CALLS[0], clock, time) as c_int;
        if done == 0
            && WALL_CLOCKS.contains(&clock)
            && let Some(control) = control()
        {
            let ahead = control.ahead_ms.load(Ordering::Relaxed);
            (*time).seconds += ahead.div_euclid(1000);
        }
        done
    }
}

fn sync(call: c_long, file: c_int) -> c_int {
    if let Some(control) = control()
        && control.fails.load(Ordering::Relaxed) > 0
        && control.fails.fetch_sub(1, Ordering::Relaxed) == 1
    {
        // SAFETY: the calling thread's own.
        unsafe { *__errno_location() = EIO };
        return -1;
    }
    // SAFETY: a descriptor is all it takes.
    unsafe { syscall(call, file) as c_int }
}

#[unsafe(no_mangle)]
pub extern "C" fn fsync(file: c_int) -> c_int {
    sync(CALLS[1], file)
}

#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(file: c_int) -> c_int {
    sync(CALLS[2], file)
}
