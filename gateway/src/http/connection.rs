//! One connection from its first byte to its end: what it may be idle for, and how many an address may have.

use std::collections::HashMap;
use std::net::IpAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::time::{Duration, Instant};

/// Connections by address.
#[derive(Default)]
pub(crate) struct Addresses(Mutex<HashMap<IpAddr, usize>>);

/// One connection's place, given back when dropped.
pub(crate) struct Place {
    addresses: Arc<Addresses>,
    address: IpAddr,
}

impl Addresses {
    /// A place for a connection of this address, unless it has `most` already.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr, most: usize) -> Option<Place> {
        let mut counts = self.0.lock();
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Place {
            addresses: Arc::clone(self),
            address,
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.addresses.0.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// What a connection is busy with.
pub(crate) struct Activity {
    begun: Instant,
    /// Requests that are not answered to their end.
    open: AtomicU64,
    /// When the last of them ended, in milliseconds since `begun`.
    idle_since_ms: AtomicU64,
}

impl Activity {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            begun: Instant::now(),
            open: AtomicU64::new(0),
            idle_since_ms: AtomicU64::new(0),
        })
    }

    /// A request has come.
    pub(crate) fn request(self: &Arc<Self>) -> Busy {
        self.open.fetch_add(1, Ordering::AcqRel);
        Busy(Arc::clone(self))
    }

    /// Returns when nothing has been asked for this long.
    pub(crate) async fn idle(&self, limit: Duration) {
        loop {
            let since = Duration::from_millis(self.idle_since_ms.load(Ordering::Acquire));
            let due = if self.open.load(Ordering::Acquire) > 0 {
                Instant::now() + limit
            } else {
                self.begun + since + limit
            };
            if due <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(due).await;
        }
    }
}

/// Held while a request is being answered.
pub(crate) struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        let now = self.0.begun.elapsed().as_millis() as u64;
        self.0.idle_since_ms.store(now, Ordering::Release);
        self.0.open.fetch_sub(1, Ordering::AcqRel);
    }
}

/// What the two protocols' connections have in common.
pub(crate) trait Closing: Future {
    /// Finish what is under way, then end.
    fn close(self: Pin<&mut Self>);
}

/// Drives a connection; asks it to end when it was idle for `limit`, or when `stop` is.
pub(crate) async fn drive<C: Closing>(
    connection: C,
    activity: &Activity,
    limit: Duration,
    stop: impl Future<Output = ()>,
) -> C::Output {
    let mut connection = pin!(connection);
    {
        let mut idle = pin!(activity.idle(limit));
        let mut stop = pin!(stop);
        tokio::select! {
            biased;
            ended = &mut connection => return ended,
            () = &mut stop => {}
            () = &mut idle => {}
        }
    }
    connection.as_mut().close();
    connection.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_no_more_than_its_places() {
        let addresses = Arc::<Addresses>::default();
        let [one, two] = [[127, 0, 0, 1], [127, 0, 0, 2]].map(IpAddr::from);
        let held: Vec<_> = (0..3).map(|_| addresses.take(one, 3).unwrap()).collect();
        assert!(addresses.take(one, 3).is_none());
        assert!(addresses.take(two, 3).is_some());
        drop(held);
        assert!(addresses.take(one, 3).is_some());
        assert!(addresses.0.lock().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_only_when_nothing_was_asked_for_long_enough() {
        let activity = Activity::new();
        let limit = Duration::from_secs(10);
        let busy = activity.request();
        let patience = Duration::from_secs(100);
        let idle = tokio::time::timeout(patience, activity.idle(limit));
        assert!(idle.await.is_err(), "it is busy");
        drop(busy);
        let begun = Instant::now();
        activity.idle(limit).await;
        assert!(
            begun.elapsed() >= Duration::from_millis(9_990),
            "{:?}",
            begun.elapsed()
        );
    }
}
