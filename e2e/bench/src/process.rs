//! Processes under measurement: started on a core of their own, read through /proc, ended by their ids.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep, timeout};

/// A process that this harness started.
pub struct Process {
    child: Child,
    name: String,
}

/// What a process and its children have used so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub cpu: Duration,
    pub rss_kib: u64,
}

impl Process {
    /// Starts a program on one core, its output in a file.
    pub fn start<S: AsRef<OsStr>>(name: &str, core: usize, log: &Path, line: &[S]) -> anyhow::Result<Self> {
        let output = fs::File::create(log).with_context(|| format!("{}", log.display()))?;
        let child = Command::new("taskset")
            .args(["-c", &core.to_string()])
            .args(line)
            // No peer logs its calls.
            .env("RUST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {name} under taskset"))?;
        Ok(Self { child, name: name.to_owned() })
    }

    pub fn id(&self) -> anyhow::Result<u32> {
        self.child.id().with_context(|| format!("{} has ended", self.name))
    }

    /// Waits until it accepts connections.
    pub async fn listening(&mut self, port: u16, log: &Path) -> anyhow::Result<()> {
        let deadline = Instant::now() + Duration::from_secs(30);
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                let said = fs::read_to_string(log).unwrap_or_default();
                bail!("{} ended with {status}:\n{said}", self.name);
            }
            if TcpStream::connect(("127.0.0.1", port)).await.is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(50)).await;
        }
        bail!("{} does not listen on port {port} after 30 s; see {}", self.name, log.display())
    }

    pub fn usage(&self) -> anyhow::Result<Usage> {
        let mut sum = Usage::default();
        for pid in family(self.id()?) {
            sum.cpu += cpu(pid).unwrap_or_default();
            sum.rss_kib += rss_kib(pid).unwrap_or_default();
        }
        Ok(sum)
    }

    /// Asks it to end, and ends what is left of it after five seconds.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        let family = self.child.id().map(family).unwrap_or_default();
        if let Some(pid) = self.child.id().and_then(|id| Pid::from_raw(id.cast_signed())) {
            kill_process(pid, Signal::TERM)?;
        }
        if timeout(Duration::from_secs(5), self.child.wait()).await.is_err() {
            self.child.kill().await?;
        }
        // Children of a master that did not end them; ids are read before it ended.
        for id in family.into_iter().skip(1).filter(|id| Path::new(&format!("/proc/{id}")).exists()) {
            if let Some(pid) = Pid::from_raw(id.cast_signed()) {
                let _ = kill_process(pid, Signal::TERM);
            }
        }
        Ok(())
    }
}

/// The process and its children, as nginx has a worker.
fn family(id: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    let children = children.split_whitespace().filter_map(|child| child.parse().ok());
    std::iter::once(id).chain(children).collect()
}

/// Time on a CPU, in user and kernel mode. The scheduler's count is in nanoseconds; where the kernel keeps none,
/// utime + stime, in ticks of 10 ms.
fn cpu(id: u32) -> Option<Duration> {
    scheduled(id).or_else(|| ticks(id))
}

fn scheduled(id: u32) -> Option<Duration> {
    let mut sum = 0;
    for task in fs::read_dir(format!("/proc/{id}/task")).ok()? {
        let text = fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        sum += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    (sum > 0).then(|| Duration::from_nanos(sum))
}

fn ticks(id: u32) -> Option<Duration> {
    let text = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name in parentheses may hold blanks.
    let fields: Vec<&str> = text[text.rfind(')')? + 2..].split(' ').collect();
    let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(ticks * 10))
}

fn rss_kib(id: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Nobody listens there now.
pub async fn free_port() -> anyhow::Result<u16> {
    Ok(tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr()?.port())
}
