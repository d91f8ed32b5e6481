//! git, with the same result whatever a user or a machine has configured.

use anyhow::{bail, Context, Result};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Who and when, in everything that is generated.
pub const AUTHOR: (&str, &str) = ("the mi_prof authors", "authors@mi-prof.invalid");
const DATE: &str = "2026-01-01T00:00:00Z";

const SETTINGS: [&str; 9] = [
    "core.autocrlf=false",
    "core.safecrlf=false",
    "core.fileMode=true",
    "core.quotePath=true",
    "core.abbrev=40",
    "core.hooksPath=/dev/null",
    "commit.gpgSign=false",
    "diff.algorithm=myers",
    "init.defaultBranch=main",
];

/// Standard output of `git args…` in a folder.
pub fn git(folder: &Path, args: &[impl AsRef<OsStr>]) -> Result<String> {
    let mut command = Command::new("git");
    command.arg("-C").arg(folder);
    for setting in SETTINGS {
        command.args(["-c", setting]);
    }
    for (variable, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("GIT_")) {
        command.env_remove(variable);
    }
    command.env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", null_device()).env("GIT_ATTR_NOSYSTEM", "1");
    command.env("GIT_TERMINAL_PROMPT", "0").env("LC_ALL", "C").env("TZ", "UTC");
    for role in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{role}_NAME"), AUTHOR.0).env(format!("GIT_{role}_EMAIL"), AUTHOR.1);
        command.env(format!("GIT_{role}_DATE"), DATE);
    }
    let output = command.args(args).output().context("cannot run git; install it")?;
    if !output.status.success() {
        let words: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
        let message = [output.stderr, output.stdout].map(|text| String::from_utf8_lossy(&text).trim().to_string());
        bail!("git {} in {}: {}", words.join(" "), folder.display(), message.join("\n").trim());
    }
    String::from_utf8(output.stdout).context("git printed what is not UTF-8")
}

fn null_device() -> &'static str {
    if cfg!(windows) {
        "NUL"
    } else {
        "/dev/null"
    }
}
