//! The README's own commands, run as a reader would type them.

use crate::cmake::run;
use crate::demo;
use crate::upstream::{Upstream, PRIMARY};
use crate::util;
use anyhow::{bail, ensure, Context, Result};
use clap::Parser;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};
use xshell::{cmd, Shell};

const RUN_HERE: [&str; 8] = ["doctor", "demo", "top", "materialize", "reapply", "drift", "dist", "upstream-pr"];
/// What CI starts with.
const CI: [&str; 2] = [".ci/run", ".github/workflows/ci.yml"];

/// Each `cargo xtask` command in the README exists, and runs below or is what CI starts with.
pub fn coverage() -> Result<usize> {
    let texts = CI.iter().map(|path| text(path)).collect::<Result<Vec<_>>>()?;
    ensure_covered(&text("README.md")?, &texts)
}

/// Commands that do not exist, that nothing runs, and a README without commands must not pass.
pub fn coverage_planted() -> Result<usize> {
    let ci = [text(CI[0])?];
    let readmes = ["    cargo xtask tset\n", "    cargo xtask demo --fast\n", "see `cargo xtask fuzz`", "no commands"];
    for readme in readmes {
        ensure!(ensure_covered(readme, &ci).is_err(), "not noticed: {readme}");
    }
    Ok(readmes.len())
}

fn text(path: &str) -> Result<String> {
    std::fs::read_to_string(util::repo_root().join(path)).with_context(|| path.to_string())
}

fn ensure_covered(readme: &str, ci: &[String]) -> Result<usize> {
    let started: Vec<&str> = ci.iter().flat_map(|text| commands_in(text)).filter_map(subcommand).collect();
    let commands: Vec<&str> = commands_in(readme).collect();
    for command in &commands {
        if let Err(error) = crate::Command::try_parse_from(command.split_whitespace().skip(1)) {
            bail!("README.md: {command}: {}", error.to_string().lines().next().unwrap_or_default());
        }
        let name = subcommand(command).unwrap_or_default();
        ensure!(RUN_HERE.contains(&name) || started.contains(&name), "README.md: {command}: nothing runs it");
    }
    ensure!(!commands.is_empty(), "README.md: there are no commands in it");
    Ok(commands.len())
}

/// `cargo xtask …` up to the end of the line, a comment or a quote.
fn commands_in(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices("cargo xtask ").map(|(at, _)| &text[at..]);
    starts.filter_map(|rest| rest.split(['\n', '#', '`', '\'']).next()).map(str::trim)
}

fn subcommand(command: &str) -> Option<&str> {
    command.split_whitespace().nth(2)
}

/// Runs them in their shortest form, and a service that is asked for a profile. Returns how many commands ran.
pub fn commands(shell: &Shell) -> Result<usize> {
    let scratch = util::target_dir().join("test/readme");
    shell.remove_path(&scratch)?;
    let (tree, checkout) = (scratch.join("tree"), scratch.join("checkout"));

    run(cmd!(shell, "cargo xtask doctor"))?;
    let demo = run(cmd!(shell, "cargo xtask demo"))?;
    ensure!(demo.contains("python3"), "the demo does not show python3:\n{demo}");
    let table = run(cmd!(shell, "cargo xtask top target/demo/leak.pb.gz"))?;
    ensure!(table.contains("request_parse"), "top does not name a function of the example:\n{table}");
    let asked = if cfg!(target_os = "linux") { service(shell, &scratch)? } else { 0 };

    run(cmd!(shell, "cargo xtask materialize --out {tree}"))?;
    let pristine = Upstream::parse(PRIMARY)?.folder()?;
    run(cmd!(shell, "cp -r {pristine} {checkout}"))?;
    let (series, dist) = (scratch.join("series"), scratch.join("dist"));
    run(cmd!(shell, "cargo xtask upstream-pr --no-build --upstream {checkout} --out {series}"))?;
    run(cmd!(shell, "cargo xtask reapply --upstream {checkout}"))?;
    run(cmd!(shell, "cargo xtask reapply --upstream {checkout} --check"))?;
    for file in ["src/page.c", "src/profile.c", "CMakeLists.txt"] {
        let [made, applied] = [&tree, &checkout].map(|folder| folder.join(file));
        ensure!(util::read(&made)? == util::read(&applied)?, "{}: materialize and reapply differ", applied.display());
    }
    let table = run(cmd!(shell, "cargo xtask drift --no-build --offline --upstream {checkout}"))?;
    ensure!(table.contains("present "), "drift does not see the hooks in {}:\n{table}", checkout.display());
    run(cmd!(shell, "cargo xtask dist --out {dist}"))?;
    Ok(9 + asked)
}

/// A program that only sleeps, in the background, is asked by a signal.
fn service(shell: &Shell, scratch: &Path) -> Result<usize> {
    let folder = scratch.join("service");
    shell.create_dir(&folder)?;
    let mut command = demo::preloaded("sleep");
    command.arg("60").current_dir(&folder).env("MIMALLOC_PROF_SAMPLE_RATE", "1");
    for (name, value) in [("SIGNAL", "USR2"), ("SECONDS", "3600"), ("KEEP", "10"), ("THREAD", "1")] {
        command.env(format!("MIMALLOC_PROF_DUMP_{name}"), value);
    }
    let mut service = command.spawn().context("sleep: cannot be run")?;
    let result = ask(shell, &service, &folder);
    service.kill().and_then(|()| service.wait())?;
    result
}

fn ask(shell: &Shell, service: &Child, folder: &Path) -> Result<usize> {
    let pid = service.id().to_string();
    until("a handler of the signal", || {
        util::read(Path::new(&format!("/proc/{pid}/status"))).is_ok_and(|status| catches_usr2(&status))
    })?;
    run(cmd!(shell, "kill -USR2 {pid}"))?;
    let profile = folder.join(format!("heap.{pid}.1.pb.gz"));
    until("the profile", || profile.is_file())?;
    run(cmd!(shell, "cargo xtask top {profile}"))?;
    Ok(2)
}

fn catches_usr2(status: &[u8]) -> bool {
    let status = String::from_utf8_lossy(status);
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & (1 << 11) != 0)
}

fn until(what: &str, is_there: impl Fn() -> bool) -> Result<()> {
    let start = Instant::now();
    while !is_there() {
        ensure!(start.elapsed() < Duration::from_secs(20), "{what} did not come within 20 seconds");
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_seen_in_the_status() {
        assert!(catches_usr2(b"Name:\tsleep\nSigCgt:\t0000000000000800\n"));
        assert!(!catches_usr2(b"SigIgn:\t0000000000000800\nSigCgt:\t0000000000000400\n"));
        assert!(!catches_usr2(b""));
    }
}
