//! The loads: paced exchanges, as many as a core can do, paced streams, and many streams at once.
//!
//! Paced loads are open loops: a call starts when it is due, on a connection of its own if all others are busy,
//! so that a peer that stalls is charged for every call that comes due meanwhile.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use anyhow::ensure;
use tokio::task::{JoinSet, spawn_local};
use tokio::time::{Instant, sleep, sleep_until};

use crate::http::Connection;
use crate::mock::{MARK, Mock};
use crate::process::{Process, Usage};
use crate::stats::percentile;

/// Of every load: not measured.
const WARM_UP: Duration = Duration::from_secs(1);
/// Connections of the load without pacing.
const CLOSED_CONNECTIONS: usize = 32;

/// What a load showed.
#[derive(Debug, Clone, Default)]
pub struct Measured {
    pub count: u64,
    /// With those of the warm-up and those that ended later.
    pub total: u64,
    pub seconds: f64,
    pub p50: Duration,
    pub p99: Duration,
    /// Of the peer, while it was measured.
    pub cpu: Duration,
}

/// Where to send to, and whom to watch.
pub struct Subject<'a> {
    pub port: u16,
    /// `None`: straight to the mock.
    pub process: Option<&'a Process>,
    pub mock: &'a Rc<Mock>,
}

impl Subject<'_> {
    fn usage(&self) -> anyhow::Result<Usage> {
        self.process.map_or(Ok(Usage::default()), Process::usage)
    }
}

pub fn request(stream: bool) -> Rc<[u8]> {
    let body = format!(
        "{{\"model\":\"gpt-4o\",\"max_tokens\":150,\"stream\":{stream},\"messages\":[{{\"role\":\"system\",\"content\":\"You answer briefly.\"}},{{\"role\":\"user\",\"content\":\"What does a gateway for model calls have to know before it lets one through?\"}}]}}"
    );
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nauthorization: Bearer sk-bench\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    Rc::from((head + &body).into_bytes())
}

/// Idle connections; the one used last is used next.
#[derive(Default)]
struct Pool(RefCell<Vec<Connection>>);

impl Pool {
    async fn take(&self, port: u16) -> anyhow::Result<Connection> {
        let idle = self.0.borrow_mut().pop();
        match idle {
            Some(connection) => Ok(connection),
            None => Connection::open(port).await,
        }
    }

    fn give(&self, connection: Connection) {
        self.0.borrow_mut().push(connection);
    }
}

/// Exchanges at a fixed rate; latency is from the call to the last byte.
pub async fn paced_exchanges(
    subject: &Subject<'_>,
    rate: u32,
    lasting: Duration,
) -> anyhow::Result<Measured> {
    let pool = Rc::new(Pool::default());
    let samples = Rc::new(RefCell::new(Vec::new()));
    let request = request(false);
    let port = subject.port;
    paced(subject, rate, lasting, samples.clone(), move |measured| {
        let (pool, samples, request) = (pool.clone(), samples.clone(), request.clone());
        async move {
            let start = Instant::now();
            let mut connection = pool.take(port).await?;
            connection.exchange(&request, |_| {}).await?;
            if measured {
                samples.borrow_mut().push(start.elapsed());
            }
            pool.give(connection);
            Ok(())
        }
    })
    .await
}

/// Streams started at a fixed rate; what counts is each event, and its time from being written to being read.
pub async fn paced_streams(subject: &Subject<'_>, rate: u32, lasting: Duration) -> anyhow::Result<Measured> {
    let pool = Rc::new(Pool::default());
    let samples = Rc::new(RefCell::new(Vec::new()));
    let request = request(true);
    let port = subject.port;
    let mock = Rc::clone(subject.mock);
    paced(subject, rate, lasting, samples.clone(), move |measured| {
        let (pool, samples, request, mock) = (pool.clone(), samples.clone(), request.clone(), mock.clone());
        async move {
            let mut connection = pool.take(port).await?;
            let mut lags = Lags::default();
            connection.exchange(&request, |piece| lags.read(piece, mock.origin.elapsed())).await?;
            ensure!(lags.found.len() == mock.script.get().events as usize, "a stream lost events");
            if measured {
                samples.borrow_mut().append(&mut lags.found);
            }
            pool.give(connection);
            Ok(())
        }
    })
    .await
}

async fn paced<F, Call>(
    subject: &Subject<'_>,
    rate: u32,
    lasting: Duration,
    samples: Rc<RefCell<Vec<Duration>>>,
    call: F,
) -> anyhow::Result<Measured>
where
    F: Fn(bool) -> Call,
    Call: Future<Output = anyhow::Result<()>> + 'static,
{
    let gap = Duration::from_secs(1) / rate;
    let start = Instant::now();
    let (from, to) = (start + WARM_UP, start + WARM_UP + lasting);
    let mut calls = JoinSet::new();
    let mut before = None;
    let mut due = start;
    while due < to {
        sleep_until(due).await;
        if before.is_none() && due >= from {
            before = Some(subject.usage()?);
        }
        calls.spawn_local(call(due >= from));
        while let Some(done) = calls.try_join_next() {
            done??;
        }
        due += gap;
    }
    let after = subject.usage()?;
    while let Some(done) = calls.join_next().await {
        done??;
    }
    let mut samples = std::mem::take(&mut *samples.borrow_mut());
    Ok(Measured {
        count: samples.len() as u64,
        total: samples.len() as u64,
        seconds: lasting.as_secs_f64(),
        p50: percentile(&mut samples, 50.0),
        p99: percentile(&mut samples, 99.0),
        cpu: after.cpu.saturating_sub(before.unwrap_or_default().cpu),
    })
}

/// As many exchanges as go through, over a fixed number of connections.
pub async fn closed_exchanges(subject: &Subject<'_>, lasting: Duration) -> anyhow::Result<Measured> {
    let samples = Rc::new(RefCell::new(Vec::with_capacity(200_000)));
    let start = Instant::now();
    let (from, to) = (start + WARM_UP, start + WARM_UP + lasting);
    let request = request(false);
    let total = Rc::new(Cell::new(0));
    let mut loops = JoinSet::new();
    for _ in 0..CLOSED_CONNECTIONS {
        let (samples, request, port) = (samples.clone(), request.clone(), subject.port);
        let total = total.clone();
        loops.spawn_local(async move {
            let mut connection = Connection::open(port).await?;
            loop {
                let sent = Instant::now();
                if sent >= to {
                    return anyhow::Ok(());
                }
                connection.exchange(&request, |_| {}).await?;
                total.set(total.get() + 1);
                if sent >= from {
                    samples.borrow_mut().push(sent.elapsed());
                }
            }
        });
    }
    sleep_until(from).await;
    let (before, at) = (subject.usage()?, Instant::now());
    let counted = samples.borrow().len();
    sleep_until(to).await;
    let (after, seconds) = (subject.usage()?, at.elapsed().as_secs_f64());
    let count = (samples.borrow().len() - counted) as u64;
    while let Some(done) = loops.join_next().await {
        done??;
    }
    let mut samples = std::mem::take(&mut *samples.borrow_mut());
    Ok(Measured {
        count,
        total: total.get(),
        seconds,
        p50: percentile(&mut samples, 50.0),
        p99: percentile(&mut samples, 99.0),
        cpu: after.cpu.saturating_sub(before.cpu),
    })
}

/// KiB of resident memory that each of `count` streams adds while all are open.
pub async fn open_streams(subject: &Subject<'_>, count: usize) -> anyhow::Result<f64> {
    let before = subject.usage()?;
    let request = request(true);
    let begun = Rc::new(RefCell::new(0_usize));
    let mut streams = Vec::with_capacity(count);
    for index in 0..count {
        let (request, begun, port) = (request.clone(), begun.clone(), subject.port);
        streams.push(spawn_local(async move {
            let mut connection = Connection::open(port).await?;
            let mut first = true;
            connection
                .exchange(&request, |_| {
                    if std::mem::take(&mut first) {
                        *begun.borrow_mut() += 1;
                    }
                })
                .await
        }));
        // As a crowd comes, not as a flood: accept queues are not what is measured.
        if index % 20 == 19 {
            sleep(Duration::from_millis(40)).await;
        }
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    while *begun.borrow() < count {
        ensure!(Instant::now() < deadline, "only {} of {count} streams began", begun.borrow());
        sleep(Duration::from_millis(20)).await;
    }
    let during = subject.usage()?;
    let open = streams.iter().filter(|stream| !stream.is_finished()).count();
    ensure!(open == count, "{open} of {count} streams were open at once");
    for stream in streams {
        stream.abort();
    }
    Ok((during.rss_kib.saturating_sub(before.rss_kib)) as f64 / count as f64)
}

/// Reads the times out of a stream of events, wherever it is cut.
#[derive(Default)]
struct Lags {
    found: Vec<Duration>,
    number: Option<u64>,
}

impl Lags {
    fn read(&mut self, piece: &[u8], now: Duration) {
        let mut rest = piece;
        loop {
            match self.number.take() {
                None => {
                    let Some(at) = memchr::memchr(MARK, rest) else { return };
                    self.number = Some(0);
                    rest = &rest[at + 1..];
                }
                Some(mut number) => {
                    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
                    for digit in &rest[..digits] {
                        number = number * 10 + u64::from(digit - b'0');
                    }
                    if digits == rest.len() {
                        self.number = Some(number);
                        return;
                    }
                    self.found.push(now.saturating_sub(Duration::from_nanos(number)));
                    rest = &rest[digits + 1..];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_wherever_the_stream_is_cut() {
        let text = b"data: {\"content\":\"@1000@ \"}\n\ndata: {\"content\":\"@2500@ \"}\n\n";
        for cut in 0..text.len() {
            let mut lags = Lags::default();
            lags.read(&text[..cut], Duration::from_micros(3));
            lags.read(&text[cut..], Duration::from_micros(3));
            assert_eq!(lags.found, [Duration::from_micros(2), Duration::from_nanos(500)], "cut at {cut}");
        }
    }
}
