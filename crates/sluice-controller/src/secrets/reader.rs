//! Puts questions about Secrets to the API server, until it has an answer or nobody wants one any more.
//!
//! A replica that starts asks about every Secret that is named, so only so many questions are put at once, and a try
//! counts while it is put: waiting for one's turn is no failure of the Secret's.
//!
//! Everything else in a namespace waits for its Secrets for so many tries, and for no longer than a minute in all,
//! however many stand in line.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::sync::{Semaphore, mpsc};

use super::{Ask, Question, Reply};
use crate::watch::Change;

/// Questions at once.
const AT_ONCE: usize = 32;
const READ_WITHIN: Duration = Duration::from_secs(2);
/// Tries until everything else goes on without a Secret.
const LATE_AFTER: u32 = 4;
/// The time until it does in any case.
const LATE_AT_LATEST: Duration = Duration::from_mins(1);
/// A Secret that could not be read is asked for again after this, and when nothing waits for it any more after that.
const AGAIN: Duration = Duration::from_secs(1);
const AGAIN_WHEN_LATE: Duration = Duration::from_secs(5);

/// Reads Secrets; what is found comes as changes.
#[derive(Clone)]
pub(crate) struct Reader {
    client: Client,
    turns: Arc<Semaphore>,
    changes: mpsc::Sender<Change>,
}

impl Reader {
    pub(crate) fn new(client: Client, changes: mpsc::Sender<Change>) -> Self {
        Self { client, turns: Arc::new(Semaphore::new(AT_ONCE)), changes }
    }

    /// Puts a question, in a task of its own.
    pub(crate) fn put(&self, question: Question) {
        let Question { ask, wanted } = question;
        let reader = self.clone();
        tokio::spawn(wanted.run_until_cancelled_owned(async move { reader.answer(ask).await }));
    }

    async fn answer(&self, ask: Ask) {
        let mut reading = std::pin::pin!(self.read(&ask));
        let in_time = tokio::time::timeout(LATE_AT_LATEST, &mut reading).await;
        let reply = if let Ok(reply) = in_time {
            reply
        } else {
            let why = format!("it was not read within {} s", LATE_AT_LATEST.as_secs());
            self.tell(&ask, Reply::Late(why)).await;
            reading.await
        };
        self.tell(&ask, reply).await;
    }

    /// What is found at last; that it is late is told on the way.
    async fn read(&self, ask: &Ask) -> Reply {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &ask.key.namespace);
        let mut tries = 0;
        loop {
            let why = match self.try_to_read(&secrets, &ask.key.name).await {
                Ok(Some(secret)) => return Reply::Found(Box::new(secret)),
                Ok(None) => return Reply::Absent,
                Err(why) => why,
            };
            tracing::warn!(secret = %ask.key, error = why, "a Secret could not be read: it is tried again");
            tries += 1;
            if tries == LATE_AFTER {
                self.tell(ask, Reply::Late(why)).await;
            }
            tokio::time::sleep(if tries < LATE_AFTER { AGAIN } else { AGAIN_WHEN_LATE }).await;
        }
    }

    async fn try_to_read(&self, secrets: &Api<Secret>, name: &str) -> Result<Option<Secret>, String> {
        // It is never closed.
        let _turn = self.turns.acquire().await.map_err(|error| error.to_string())?;
        match tokio::time::timeout(READ_WITHIN, secrets.get_opt(name)).await {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(_) => Err(format!("no answer within {} s", READ_WITHIN.as_secs())),
        }
    }

    async fn tell(&self, ask: &Ask, reply: Reply) {
        // The plane is gone: so is the need.
        let _ = self.changes.send(Change::Read(ask.clone(), reply)).await;
    }
}
