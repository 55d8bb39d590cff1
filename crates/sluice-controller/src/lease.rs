//! Who writes status and Events: the holder of a Lease.
//!
//! As client-go's leader election does it: a record is another's for as long as it changes within the duration that it
//! names, by *our* clock from when we saw it change, so clocks of other machines don't matter. The holder renews every
//! few seconds and stops to be it when [`Paces::lease_give_up`] has passed since its last renewal, well before others
//! may take over; every write of a record names the version that it replaces, so of two who try one succeeds.
//!
//! [`decide`] is pure; [`Election::run`] carries it out.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::config::Paces;

/// Until when this replica may write. `None`: it may not.
pub(crate) type Tenure = watch::Receiver<Option<Instant>>;

/// Carries out one write of the holder's. `None`: this replica is not the holder, or ceased to be while it wrote; then
/// the write was let go where it stood. A renewal meanwhile gives it more time.
///
/// The deadline is looked at before the write begins: a timeout alone would let it take its first step. What was sent
/// before the deadline may take effect after it, within the time that others wait on top; a process that was suspended
/// may be later still, so writes of objects name the version that they were made from.
pub(crate) async fn within_tenure<T>(tenure: &Tenure, write: impl Future<Output = T>) -> Option<T> {
    let mut tenure = tenure.clone();
    tokio::select! {
        biased;
        () = over(&mut tenure) => None,
        done = write => Some(done),
    }
}

/// Whether this replica may write now.
pub(crate) fn holds(tenure: &Tenure, now: Instant) -> bool {
    tenure.borrow().is_some_and(|until| now < until)
}

/// Until this replica may write. `false`: it never will again.
pub(crate) async fn held(tenure: &mut Tenure) -> bool {
    loop {
        if tenure.borrow_and_update().is_some_and(|until| clock::now() < until) {
            return true;
        }
        if tenure.changed().await.is_err() {
            return false;
        }
    }
}

/// Until the tenure is over: let go, lost, or not renewed before its deadline.
pub(crate) async fn over(tenure: &mut Tenure) {
    loop {
        let Some(deadline) = *tenure.borrow_and_update() else { return };
        if clock::now() >= deadline {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => {}
            changed = tenure.changed() => if changed.is_err() { return },
        }
    }
}

/// The record as it was last seen to change, and when.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    record: LeaseSpec,
    at: Instant,
}

/// What to do now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// It is ours, free, or was left.
    Take,
    /// It is another's.
    Wait,
}

fn decide(seen: Option<&Seen>, me: &str, now: Instant) -> Step {
    let Some(seen) = seen else { return Step::Take };
    let holder = seen.record.holder_identity.as_deref().unwrap_or_default();
    let seconds = seen.record.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let duration = Duration::from_secs(seconds.unwrap_or(0));
    if holder.is_empty() || holder == me || now >= seen.at + duration { Step::Take } else { Step::Wait }
}

/// The record that makes it ours.
fn record(before: Option<&LeaseSpec>, me: &str, times: &Paces, now: MicroTime) -> LeaseSpec {
    let ours = before.filter(|spec| spec.holder_identity.as_deref() == Some(me));
    let transitions = before.and_then(|spec| spec.lease_transitions).unwrap_or(0);
    LeaseSpec {
        holder_identity: Some(me.to_owned()),
        lease_duration_seconds: i32::try_from(times.lease_duration.as_secs()).ok(),
        acquire_time: ours.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
        renew_time: Some(now),
        lease_transitions: Some(if before.is_none() || ours.is_some() {
            transitions
        } else {
            transitions + 1
        }),
        ..LeaseSpec::default()
    }
}

/// One candidate.
pub(crate) struct Election {
    leases: Api<Lease>,
    name: String,
    me: Arc<str>,
    times: Paces,
    seen: Option<Seen>,
    tenure: watch::Sender<Option<Instant>>,
}

impl Election {
    pub(crate) fn new(
        client: Client,
        namespace: &str,
        name: &str,
        me: Arc<str>,
        times: Paces,
    ) -> (Self, Tenure) {
        let (tenure, receiver) = watch::channel(None);
        let leases = Api::namespaced(client, namespace);
        (Self { leases, name: name.to_owned(), me, times, seen: None, tenure }, receiver)
    }

    /// Runs until `stop`, and then lets go, so that another need not wait.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            let began = clock::now();
            let within = self.times.lease_retry.max(Duration::from_secs(1));
            let looked = tokio::time::timeout(within, self.step(began)).await;
            // Also when it is renewed now: who saw the deadline pass has begun anew.
            self.expire();
            match looked {
                Ok(Ok(true)) => self.hold_until(Some(began + self.times.lease_give_up)),
                Ok(Ok(false)) => self.hold_until(None),
                Ok(Err(error)) => {
                    tracing::warn!(lease = self.name, %error, "the lease could not be looked at");
                }
                Err(_) => tracing::warn!(lease = self.name, "the lease could not be looked at in time"),
            }
            self.expire();
            tokio::select! {
                () = stop.cancelled() => break,
                () = tokio::time::sleep(self.times.lease_retry) => {}
                () = until(*self.tenure.borrow()) => self.expire(),
            }
        }
        if self.tenure.send_replace(None).is_some() {
            self.release().await;
        }
    }

    fn hold_until(&self, until: Option<Instant>) {
        let before = self.tenure.send_replace(until);
        match (before, until) {
            (None, Some(_)) => tracing::info!(lease = self.name, "this replica writes status and Events now"),
            (Some(_), None) => {
                tracing::info!(lease = self.name, "another replica writes status and Events now");
            }
            _ => {}
        }
    }

    fn expire(&self) {
        let now = clock::now();
        if self.tenure.borrow().is_some_and(|until| until <= now) {
            self.tenure.send_replace(None);
            tracing::warn!(
                lease = self.name,
                "the lease was not renewed in time: this replica writes nothing now"
            );
        }
    }

    /// Whether it is ours now.
    async fn step(&mut self, now: Instant) -> kube::Result<bool> {
        let Some(mut lease) = self.leases.get_opt(&self.name).await? else {
            let metadata = ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() };
            let spec = Some(record(None, &self.me, &self.times, clock::micro_time()));
            return won(self.leases.create(&PostParams::default(), &Lease { metadata, spec }).await);
        };
        let found = lease.spec.clone().unwrap_or_default();
        if self.seen.as_ref().is_none_or(|seen| seen.record != found) {
            self.seen = Some(Seen { record: found.clone(), at: now });
        }
        if decide(self.seen.as_ref(), &self.me, now) == Step::Wait {
            return Ok(false);
        }
        lease.spec = Some(record(Some(&found), &self.me, &self.times, clock::micro_time()));
        won(self.leases.replace(&self.name, &PostParams::default(), &lease).await)
    }

    async fn release(&self) {
        let freed = async {
            let Some(mut lease) = self.leases.get_opt(&self.name).await? else { return Ok(()) };
            let spec = lease.spec.get_or_insert_default();
            if spec.holder_identity.as_deref() == Some(&*self.me) {
                spec.holder_identity = None;
                self.leases.replace(&self.name, &PostParams::default(), &lease).await?;
            }
            Ok::<_, kube::Error>(())
        };
        // Nobody is kept waiting for longer than the lease's duration when this fails.
        if let Ok(Err(error)) = tokio::time::timeout(self.times.lease_retry, freed).await {
            tracing::warn!(lease = self.name, %error, "the lease was not let go");
        }
    }
}

/// A conflict means that another was faster.
fn won(answer: kube::Result<Lease>) -> kube::Result<bool> {
    match answer {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

async fn until(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(holder: &str, renewed_ms: i64) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(k8s_openapi::jiff::Timestamp::from_millisecond(renewed_ms).unwrap())),
            ..LeaseSpec::default()
        }
    }

    #[test]
    fn another_is_waited_for_until_its_record_stands_still_for_its_duration() {
        let at = clock::now();
        let seen = Seen { record: spec("b", 0), at };
        assert_eq!(decide(None, "a", at), Step::Take);
        assert_eq!(decide(Some(&seen), "b", at), Step::Take, "its own");
        assert_eq!(decide(Some(&seen), "a", at + Duration::from_millis(14_999)), Step::Wait);
        assert_eq!(decide(Some(&seen), "a", at + Duration::from_secs(15)), Step::Take);
        let free = Seen { record: spec("", 0), at };
        assert_eq!(decide(Some(&free), "a", at), Step::Take, "let go");
    }

    #[test]
    fn a_change_of_hands_is_counted_and_a_renewal_is_not() {
        let (times, now) = (Paces::default(), clock::micro_time());
        let first = record(None, "a", &times, now.clone());
        assert_eq!((first.lease_transitions, first.acquire_time.clone()), (Some(0), Some(now.clone())));
        let later = MicroTime(now.0 + k8s_openapi::jiff::SignedDuration::from_secs(2));
        let renewed = record(Some(&first), "a", &times, later.clone());
        assert_eq!((renewed.lease_transitions, renewed.acquire_time), (Some(0), Some(now)));
        let taken = record(Some(&first), "b", &times, later.clone());
        assert_eq!((taken.lease_transitions, taken.acquire_time), (Some(1), Some(later)));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_written_after_the_deadline_and_a_renewal_gives_more_time() {
        let second = Duration::from_secs(1);
        let (sender, tenure) = watch::channel(None);
        let begun = std::sync::atomic::AtomicU32::new(0);
        let write = |lasts: Duration| {
            let begun = &begun;
            async move {
                begun.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                tokio::time::sleep(lasts).await;
            }
        };
        assert_eq!(within_tenure(&tenure, write(second)).await, None, "another's");
        let start = clock::now();
        sender.send_replace(Some(start + 10 * second));
        assert_eq!(within_tenure(&tenure, write(9 * second)).await, Some(()));
        assert_eq!(within_tenure(&tenure, write(9 * second)).await, None, "it lasts too long");
        assert_eq!(clock::now(), start + 10 * second);
        assert_eq!(begun.swap(0, std::sync::atomic::Ordering::Relaxed), 2);
        // Nobody has noticed yet that it is over.
        assert_eq!(within_tenure(&tenure, write(Duration::ZERO)).await, None);
        assert_eq!(begun.load(std::sync::atomic::Ordering::Relaxed), 0, "not even begun");

        sender.send_replace(Some(clock::now() + 10 * second));
        let renewing = async {
            tokio::time::sleep(8 * second).await;
            sender.send_replace(Some(clock::now() + 10 * second));
        };
        let (done, ()) = tokio::join!(within_tenure(&tenure, write(15 * second)), renewing);
        assert_eq!(done, Some(()));
        let letting_go = async {
            tokio::time::sleep(second).await;
            sender.send_replace(None);
        };
        let (done, ()) = tokio::join!(within_tenure(&tenure, write(2 * second)), letting_go);
        assert_eq!(done, None, "it was let go");
    }

    #[test]
    fn the_holder_gives_up_well_before_others_may_take_over() {
        let times = Paces::default();
        assert!(times.lease_give_up + 2 * times.lease_retry < times.lease_duration);
    }
}
