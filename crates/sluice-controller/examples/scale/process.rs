//! CPU time and memory of another process, as /proc has them.

use std::time::Duration;

use anyhow::Context as _;

/// One process.
pub(crate) struct Process(u32);

/// Clock ticks per second: Linux has had this for user space since ever.
const TICKS: u64 = 100;

impl Process {
    pub(crate) fn new(pid: u32) -> Self {
        Self(pid)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0
    }

    /// CPU time so far, of user and system.
    pub(crate) fn cpu(&self) -> anyhow::Result<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0))?;
        // The name may hold anything, and ends with the last bracket.
        let (_, fields) = stat.rsplit_once(')').context("stat")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks = |at: usize| fields.get(at).context("stat")?.parse::<u64>().context("stat");
        Ok(Duration::from_millis((ticks(11)? + ticks(12)?) * 1_000 / TICKS))
    }

    /// Resident memory.
    pub(crate) fn memory_mib(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? / 1_024)
    }
}
