//! Runs one program: what it prints goes to a file, and a program that does not end is killed.

use anyhow::{Context, Result};
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

pub struct Finished {
    /// None if it was killed.
    pub status: Option<ExitStatus>,
    /// Standard output and error.
    pub output: String,
    pub seconds: f64,
}

impl Finished {
    pub fn success(&self) -> bool {
        self.status.is_some_and(|status| status.success())
    }

    /// How it ended, and all that it printed.
    pub fn report(&self) -> String {
        let end = match self.status {
            Some(status) => status.to_string(),
            None => format!("killed: it did not end within {:.0} s", self.seconds),
        };
        format!("{}\n{end}", self.output.trim_end())
    }
}

pub fn run(command: &mut Command, log: &Path, limit: Duration) -> Result<Finished> {
    let line = format!("{command:?}");
    if let Some(folder) = log.parent() {
        std::fs::create_dir_all(folder)?;
    }
    let file = File::create(log).with_context(|| log.display().to_string())?;
    command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
    own_group(command);
    let start = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot run {line}"))?;
    let status = wait(&mut child, start + limit)?;
    let output = String::from_utf8_lossy(&std::fs::read(log)?).into_owned();
    Ok(Finished { status, output: format!("{line}\n{output}"), seconds: start.elapsed().as_secs_f64() })
}

fn wait(child: &mut Child, end: Instant) -> Result<Option<ExitStatus>> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            kill(child);
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// So that the children of a program which hangs go with it.
#[cfg(unix)]
fn own_group(command: &mut Command) {
    std::os::unix::process::CommandExt::process_group(command, 0);
}

#[cfg(not(unix))]
fn own_group(_command: &mut Command) {}

fn kill(child: &mut Child) {
    if cfg!(unix) {
        // The shell's own: a small system may have no program of that name.
        let _ = Command::new("sh").args(["-c", "kill -s KILL -- \"-$0\"", &child.id().to_string()]).status();
    }
    let _ = child.kill();
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Finished {
        let log = std::env::temp_dir().join(format!("xtask-exec-{}-{}", std::process::id(), script.len()));
        let finished = run(Command::new("sh").args(["-c", script]), &log, limit).unwrap();
        std::fs::remove_file(log).unwrap();
        finished
    }

    #[test]
    fn both_streams_and_the_status_are_kept() {
        let finished = sh("echo out; echo err >&2; exit 3", Duration::from_secs(60));
        assert!(!finished.success());
        assert!(finished.report().contains("out\nerr\nexit status: 3"), "{}", finished.report());
        assert!(sh("true", Duration::from_secs(60)).success());
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_its_children() {
        let late = std::env::temp_dir().join(format!("xtask-exec-late-{}", std::process::id()));
        let script = format!("(sleep 1; echo late >'{}') & wait", late.display());
        let finished = sh(&script, Duration::from_millis(100));
        assert!(finished.status.is_none() && finished.seconds < 0.9);
        std::thread::sleep(Duration::from_millis(1500));
        assert!(!late.exists());
    }
}
