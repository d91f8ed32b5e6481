//! Where programs run: here, in an emulator, under wine or under valgrind.

use super::{exec, provision};
use crate::platform;
use crate::util;
use anyhow::{ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

/// How long wine's server waits for another program before it ends.
const SERVER_SECONDS: u32 = 120;

#[derive(Clone, Copy, PartialEq)]
pub enum Machine {
    Native,
    /// The emulator, and the folder of the C library.
    Qemu(&'static str, &'static str),
    Wine,
    Valgrind,
}

/// What the emulator, not the program, must be told to preload.
const QEMU_PRELOAD: &str = "MI_TEST_PRELOAD";

impl Machine {
    /// Of a program's name.
    pub fn suffix(self) -> &'static str {
        if self == Machine::Wine {
            ".exe"
        } else {
            ""
        }
    }

    pub fn preload_variable(self) -> &'static str {
        match self {
            Machine::Qemu(..) => QEMU_PRELOAD,
            _ => platform::PRELOAD.unwrap_or("LD_PRELOAD"),
        }
    }

    pub fn command(self, program: &Path) -> Result<Command> {
        match self {
            Machine::Native => Ok(Command::new(program)),
            Machine::Qemu(emulator, root) => {
                let mut command = Command::new(launcher(program, emulator, root)?);
                command.env("MI_TEST_EMULATED", "1");
                Ok(command)
            }
            Machine::Wine => wine(program),
            Machine::Valgrind => {
                let mut command = Command::new("valgrind");
                command.args(["--quiet", "--error-exitcode=99", "--leak-check=full"]);
                // It must leave the program's own `malloc` alone: that is mimalloc.
                command.args(["--errors-for-leak-kinds=definite", "--soname-synonyms=somalloc=nouserintercepts"]);
                let suppressions = util::repo_root().join("xtask/valgrind.supp");
                command.arg(format!("--suppressions={}", suppressions.display())).arg(program);
                Ok(command)
            }
        }
    }
}

/// A script that stands for the program. It is the program's name for itself, too: a test that starts itself as a
/// child starts the emulator again.
fn launcher(program: &Path, emulator: &str, root: &str) -> Result<PathBuf> {
    let path = program.with_extension("run");
    let program = program.display();
    let preload = format!("${{{QEMU_PRELOAD}:+-E \"LD_PRELOAD=${QEMU_PRELOAD}\"}}");
    let script = format!("#!/bin/sh\nexec {emulator} -0 \"$0\" -L {root} {preload} '{program}' \"$@\"\n");
    util::write_atomic(&path, script.as_bytes(), true)?;
    Ok(path)
}

fn wine_prefix() -> PathBuf {
    util::target_dir().join("wine")
}

fn wine(program: &Path) -> Result<Command> {
    static PREPARED: Mutex<bool> = Mutex::new(false);
    let mut prepared = PREPARED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !*prepared {
        prepare_wine()?;
        *prepared = true;
    }
    let mut command = wine_command(&provision::wine().context("there is no wine64")?);
    command.arg(program);
    Ok(command)
}

fn wine_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("WINEPREFIX", wine_prefix()).env("WINEARCH", "win64").env("WINEDEBUG", "-all");
    command.env("WINEDLLOVERRIDES", "mscoree,mshtml,winemenubuilder.exe=").env_remove("DISPLAY");
    command
}

/// Two programs must not make one prefix at the same time. And the server must outlive each program: one that starts
/// while the server shuts down is cut off.
fn prepare_wine() -> Result<()> {
    let prefix = wine_prefix();
    std::fs::create_dir_all(&prefix)?;
    let server = provision::wine_server().context("there is no wineserver")?;
    let mut stay = wine_command(&server);
    stay.arg(format!("--persistent={SERVER_SECONDS}"));
    let mut init = wine_command(&provision::wine().context("there is no wine64")?);
    init.args(["wineboot", "--init"]);
    for (name, mut command) in [("wineserver", stay), ("wineboot", init)] {
        let finished = exec::run(&mut command, &prefix.join(name).with_extension("log"), Duration::from_secs(300))?;
        ensure!(finished.success() || name == "wineserver", "wine cannot make its prefix:\n{}", finished.report());
    }
    Ok(())
}
