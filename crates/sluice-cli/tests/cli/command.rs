//! The command as a child process, ended by its id.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncRead, BufReader, Lines};
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Far above anything that is waited for, on a busy machine.
pub(crate) const BOUND: Duration = Duration::from_mins(1);

pub(crate) fn sluice() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.kill_on_drop(true).stdin(Stdio::null()).env_remove("RUST_LOG").env_remove("SLUICE_REDIS_URL");
    command
}

/// Runs a command that ends by itself.
pub(crate) async fn output(command: &mut Command) -> Output {
    tokio::time::timeout(BOUND, command.output()).await.expect("the command ends by itself").unwrap()
}

/// Asks again until there is an answer.
pub(crate) async fn eventually<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let looking = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(BOUND, looking)
        .await
        .unwrap_or_else(|_| panic!("waited {BOUND:?} in vain for {what}"))
}

/// `sluice run --plain`, and what it has printed.
pub(crate) struct Run {
    child: Child,
    printed: watch::Receiver<Vec<String>>,
    reading: JoinHandle<()>,
    errors: JoinHandle<Vec<String>>,
    pub(crate) agents: Vec<SocketAddr>,
    pub(crate) admins: Vec<SocketAddr>,
}

impl Run {
    /// Starts it on free ports and waits until it says that it serves.
    pub(crate) async fn start(directory: &Path, arguments: &[&str]) -> Self {
        Self::start_by(sluice(), directory, arguments).await
    }

    /// The same with a command that was prepared.
    pub(crate) async fn start_by(mut command: Command, directory: &Path, arguments: &[&str]) -> Self {
        command.arg("run").arg("-f").arg(directory).arg("--plain");
        command.args(["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let (print, printed) = watch::channel(Vec::new());
        let mut out = lines(child.stdout.take().unwrap());
        let reading = tokio::spawn(async move {
            while let Ok(Some(line)) = out.next_line().await {
                print.send_modify(|printed| printed.push(line));
            }
        });
        let mut err = lines(child.stderr.take().unwrap());
        let errors = tokio::spawn(async move {
            let mut all = Vec::new();
            while let Ok(Some(line)) = err.next_line().await {
                all.push(line);
            }
            all
        });
        let mut run = Self { child, printed, reading, errors, agents: Vec::new(), admins: Vec::new() };
        run.line(&[" serving "]).await;
        for line in run.lines_with(&[" agent "]) {
            let addresses: Vec<SocketAddr> = line
                .split("http://")
                .skip(1)
                .map(|rest| rest.split([',', ' ']).next().unwrap().parse().unwrap())
                .collect();
            run.agents.push(addresses[0]);
            run.admins.push(addresses[1]);
        }
        run
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.printed.borrow().clone()
    }

    /// The lines so far that hold all of these words.
    pub(crate) fn lines_with(&self, words: &[&str]) -> Vec<String> {
        self.lines().into_iter().filter(|line| words.iter().all(|word| line.contains(word))).collect()
    }

    /// Waits for a line that holds all of these words.
    pub(crate) async fn line(&self, words: &[&str]) -> String {
        let mut printed = self.printed.clone();
        let found = |lines: &Vec<String>| {
            lines.iter().find(|line| words.iter().all(|word| line.contains(word))).cloned()
        };
        let waited = tokio::time::timeout(BOUND, printed.wait_for(|lines| found(lines).is_some())).await;
        match waited {
            Ok(Ok(lines)) => found(&lines).unwrap(),
            _ => panic!("no line with {words:?} among\n{}", self.lines().join("\n")),
        }
    }

    /// SIGTERM.
    pub(crate) async fn terminate(&self) {
        let id = self.child.id().expect("it runs").to_string();
        let status = Command::new("kill").args(["-TERM", &id]).status().await.unwrap();
        assert!(status.success());
    }

    /// Waits until it has ended, with exit status 0 and nothing to complain of. All lines that it printed.
    pub(crate) async fn ended(mut self) -> Vec<String> {
        let status = tokio::time::timeout(BOUND, self.child.wait()).await.expect("it ends").unwrap();
        self.reading.await.unwrap();
        let errors = self.errors.await.unwrap();
        assert!(status.success(), "{status}: {errors:?}");
        assert!(errors.is_empty(), "{errors:?}");
        for address in self.agents.iter().chain(&self.admins) {
            let connected = tokio::net::TcpStream::connect(address).await;
            assert!(connected.is_err(), "something still listens on {address}");
        }
        self.printed.borrow().clone()
    }

    /// SIGTERM, then [`ended`](Self::ended).
    pub(crate) async fn end(self) -> Vec<String> {
        self.terminate().await;
        self.ended().await
    }
}

fn lines<R: AsyncRead + Unpin>(from: R) -> Lines<BufReader<R>> {
    BufReader::new(from).lines()
}
