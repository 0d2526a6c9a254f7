//! A few threads that share the tasks of one job at a time.
#![expect(
    unsafe_code,
    reason = "a job borrows the caller's stack while other threads run it"
)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Rounds a thread looks for work before it sleeps: some 50 us, longer than the time between two jobs of a step.
const SPINS: u32 = 4_000;
/// Rounds the caller waits for the last tasks before it gives its core away.
const CALLER_SPINS: u32 = 2_000;

/// Bit of the state word that says that no more threads may join the job. Below it is the count of threads in the job, above it
/// the job's number.
const CLOSED: u64 = 1 << 16;
const JOB_ONE: u64 = 1 << 17;

type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// Threads that run jobs together with the caller. One job at a time.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: AtomicU64,
    job: UnsafeCell<Option<(*const Job<'static>, usize)>>,
    next: AtomicUsize,
    stop: AtomicBool,
    panicked: AtomicBool,
    sleeping: AtomicUsize,
    lock: Mutex<()>,
    wake: Condvar,
}

// SAFETY: `job` is written by the one caller while no thread is in the job (the state is closed and its count is 0), and read
// only by threads that have joined it, which the state word orders after the write.
unsafe impl Sync for Shared {}
// SAFETY: as above; the pointer is only followed while the caller waits in `run`.
unsafe impl Send for Shared {}

impl Pool {
    /// `threads` includes the caller; 1 runs everything inline.
    pub(crate) fn new(threads: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(CLOSED),
            job: UnsafeCell::new(None),
            next: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            sleeping: AtomicUsize::new(0),
            lock: Mutex::new(()),
            wake: Condvar::new(),
        });
        let spawn = |index: usize| {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name(format!("weir-cpu-{index}"))
                .spawn(move || shared.work())
        };
        let threads = (1..threads).map(spawn).collect::<Result<_, _>>()?;
        Ok(Self { shared, threads })
    }

    /// Threads that run a job, the caller included.
    pub(crate) fn thread_count(&self) -> usize {
        self.threads.len() + 1
    }

    /// Calls `job` once for each task in `0..tasks`, on any thread, and returns when all calls have returned. A thread that wakes
    /// too late does not take part, so a busy machine never makes the caller wait for one that sleeps.
    ///
    /// # Panics
    /// When a task panicked.
    pub(crate) fn run(&mut self, tasks: usize, job: &Job<'_>) {
        if self.threads.is_empty() || tasks <= 1 {
            (0..tasks).for_each(job);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. No thread follows the pointer after this function has returned, see below.
        let erased: &Job<'static> = unsafe { std::mem::transmute::<&Job<'_>, &Job<'static>>(job) };
        // SAFETY: the state is closed with no thread inside (at the start, and at the end of every run), so nobody reads.
        unsafe { *shared.job.get() = Some((std::ptr::from_ref(erased), tasks)) };
        shared.next.store(0, Ordering::Relaxed);
        let open =
            (shared.state.load(Ordering::Relaxed) & !(CLOSED | (CLOSED - 1))).wrapping_add(JOB_ONE);
        // Sequentially consistent with `sleep`: either that thread sees the job or this one sees it sleeping.
        shared.state.store(open, Ordering::SeqCst);
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            drop(shared.lock.lock().unwrap_or_else(PoisonError::into_inner));
            shared.wake.notify_all();
        }
        let closing = Closing { shared };
        shared.run_tasks(job, tasks);
        drop(closing);
        assert!(
            !shared.panicked.swap(false, Ordering::Relaxed),
            "a task of the CPU backend panicked"
        );
    }
}

/// Ends a job even when the caller's own task panics: nobody may hold the borrowed job afterwards.
struct Closing<'a> {
    shared: &'a Shared,
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        // Unwinding must not start more tasks of a job that failed.
        self.shared.next.store(usize::MAX / 2, Ordering::Relaxed);
        self.shared.state.fetch_or(CLOSED, Ordering::AcqRel);
        let mut spins = 0;
        while self.shared.state.load(Ordering::Acquire) & (CLOSED - 1) != 0 {
            spins += 1;
            if spins < CALLER_SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(
            self.shared
                .lock
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        );
        self.shared.wake.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has been reported by the run that used it.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run_tasks(&self, job: &Job<'_>, tasks: usize) {
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= tasks {
                return;
            }
            job(task);
        }
    }

    fn work(&self) {
        let mut done = 0;
        let mut spins = 0;
        while !self.stop.load(Ordering::Relaxed) {
            let state = self.state.load(Ordering::Acquire);
            let number = state & !(JOB_ONE - 1);
            if number == done || state & CLOSED != 0 {
                spins += 1;
                if spins < SPINS {
                    std::hint::spin_loop();
                } else {
                    self.sleep(done);
                }
                continue;
            }
            if self
                .state
                .compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed)
                .is_err()
            {
                continue;
            }
            (done, spins) = (number, 0);
            // SAFETY: this thread has joined the job, so the caller neither writes the cell nor returns until it has left.
            let (job, tasks) = unsafe { (*self.job.get()).expect("an open state has a job") };
            // SAFETY: as above, what the pointer borrows is alive.
            let job = unsafe { &*job };
            let run = std::panic::AssertUnwindSafe(|| self.run_tasks(job, tasks));
            if std::panic::catch_unwind(run).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    /// Sleeps until there is a job with another number.
    fn sleep(&self, done: u64) {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        loop {
            let state = self.state.load(Ordering::SeqCst);
            let is_new = state & CLOSED == 0 && state & !(JOB_ONE - 1) != done;
            if is_new || self.stop.load(Ordering::SeqCst) {
                break;
            }
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_in_every_job() {
        for threads in [1, 2, 5] {
            let mut pool = Pool::new(threads).unwrap();
            for tasks in (0..300).chain([10_000]) {
                let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                pool.run(tasks, &|task| {
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
                assert!(
                    counts
                        .iter()
                        .all(|count| count.load(Ordering::Relaxed) == 1),
                    "{threads} threads, {tasks} tasks"
                );
            }
        }
    }

    #[test]
    fn threads_that_went_to_sleep_wake_for_the_next_job() {
        let mut pool = Pool::new(3).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        for round in 0..3 {
            while pool.shared.sleeping.load(Ordering::SeqCst) < 2 {
                assert!(
                    std::time::Instant::now() < deadline,
                    "threads did not go to sleep"
                );
                std::thread::yield_now();
            }
            // Two tasks that need two threads at once: they meet.
            let met = AtomicUsize::new(0);
            pool.run(2, &|_| {
                met.fetch_add(1, Ordering::SeqCst);
                while met.load(Ordering::SeqCst) < 2 {
                    assert!(
                        std::time::Instant::now() < deadline,
                        "no second thread came in round {round}"
                    );
                    std::thread::yield_now();
                }
            });
        }
    }

    #[test]
    fn a_panic_in_a_task_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(2).unwrap();
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pool.run(64, &|task| assert!(task != 40, "task 40"));
        }));
        assert!(failed.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(64, &|task| {
            sum.fetch_add(task, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 63 * 32);
    }
}
