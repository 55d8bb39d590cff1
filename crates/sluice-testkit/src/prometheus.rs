//! A real Prometheus that scrapes given ports.

use std::fs;
use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use serde_json::Value;

use crate::http::{encode, get};
use crate::redis::wait_for;
use crate::tool::{Tool, find, free_ports};

/// One series of an instant query.
#[derive(Debug, Clone, PartialEq)]
pub struct Sample {
    /// `__name__` among them, where the query keeps it.
    pub labels: std::collections::BTreeMap<String, String>,
    pub value: f64,
}

/// What `promtool check metrics` says of a page in Prometheus' text format: the rules of good names and types.
///
/// # Errors
/// When it has something to complain of, or is not installed.
pub fn check_metrics(page: &str) -> Result<()> {
    let program = find("SLUICE_PROMTOOL", "promtool", "prometheus/usr/bin/promtool")?;
    let mut child = Command::new(&program)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("{} could not be started", program.display()))?;
    child.stdin.take().context("promtool without an input")?.write_all(page.as_bytes())?;
    let output = child.wait_with_output()?;
    let said = [output.stdout, output.stderr].concat();
    if !output.status.success() || !said.is_empty() {
        bail!("promtool: {}\n{page}", String::from_utf8_lossy(&said));
    }
    Ok(())
}

/// A Prometheus, ended when dropped.
pub struct Prometheus {
    process: Tool,
    port: u16,
}

impl Prometheus {
    /// Starts one that scrapes `/metrics` on these ports twice a second.
    ///
    /// # Errors
    /// When it is not installed or does not start.
    pub fn start(targets: &[u16]) -> Result<Self> {
        let program = find("SLUICE_PROMETHEUS", "prometheus", "prometheus/usr/bin/prometheus")?;
        let [port] = free_ports()?;
        let dir = tempfile::tempdir()?;
        let targets: Vec<_> = targets.iter().map(|port| format!("'127.0.0.1:{port}'")).collect();
        let config = format!(
            "global: {{scrape_interval: 500ms, scrape_timeout: 500ms}}\n\
             scrape_configs:\n- job_name: sluice\n  static_configs:\n  - targets: [{}]\n",
            targets.join(", ")
        );
        fs::write(dir.path().join("prometheus.yml"), config)?;
        let process = Tool::start(&program, dir, |dir| {
            vec![
                format!("--config.file={}", dir.join("prometheus.yml").display()),
                format!("--storage.tsdb.path={}", dir.join("data").display()),
                format!("--web.listen-address=127.0.0.1:{port}"),
                "--log.level=warn".to_owned(),
            ]
        })?;
        let mut prometheus = Self { process, port };
        wait_for("Prometheus to be ready", || {
            prometheus.process.check()?;
            Ok(get(port, "/-/ready").is_ok())
        })
        .with_context(|| prometheus.process.log())?;
        Ok(prometheus)
    }

    /// An instant query.
    ///
    /// # Errors
    /// When the query is wrong or Prometheus does not answer.
    pub fn query(&self, query: &str) -> Result<Vec<Sample>> {
        let answer: Value =
            serde_json::from_str(&get(self.port, &format!("/api/v1/query?query={}", encode(query)))?)?;
        let result = &answer["data"]["result"];
        let Some(series) = result.as_array() else { bail!("no result in {answer}") };
        series
            .iter()
            .map(|one| {
                let labels = one["metric"].as_object().into_iter().flatten();
                let labels = labels
                    .map(|(name, value)| (name.clone(), value.as_str().unwrap_or_default().to_owned()))
                    .collect();
                let value = one["value"][1].as_str().context("a series without a value")?.parse()?;
                Ok(Sample { labels, value })
            })
            .collect()
    }

    /// Waits until an instant query's sum is as the test wants it.
    ///
    /// # Errors
    /// When it does not become so.
    pub fn wait_for_sum(&self, query: &str, wanted: impl Fn(f64) -> bool) -> Result<f64> {
        let mut sum = 0.0;
        wait_for(query, || {
            sum = self.query(query)?.iter().map(|sample| sample.value).sum();
            Ok(wanted(sum))
        })
        .with_context(|| format!("the last sum was {sum}"))?;
        Ok(sum)
    }
}
