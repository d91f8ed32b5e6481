//! External tools: found on PATH or, for cmake and ninja, provisioned from pinned Python wheels into `target/tools`.

use crate::util;
use anyhow::{bail, ensure, Context, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Upstream's `cmake_minimum_required`.
const CMAKE_MINIMUM: (u32, u32) = (3, 18);

/// A tool that a wheel brings along. `programs` are relative to the wheel's install folder, one per platform layout.
pub struct Wheel {
    pub name: &'static str,
    pub version: &'static str,
    programs: &'static [&'static str],
}

pub const CMAKE: Wheel = Wheel {
    name: "cmake",
    version: "4.4.5",
    programs: &["cmake/data/bin/cmake", "cmake/data/bin/cmake.exe", "cmake/data/CMake.app/Contents/bin/cmake"],
};

pub const NINJA: Wheel = Wheel {
    name: "ninja",
    version: "1.13.2",
    programs: &["bin/ninja", "bin/ninja.exe", "Scripts/ninja.exe", "ninja/data/bin/ninja"],
};

/// A compiler that brings the libraries of many systems.
pub const ZIG: Wheel = Wheel { name: "ziglang", version: "0.17.1", programs: &["ziglang/zig", "ziglang/zig.exe"] };

/// Where a tool comes from, before anything is installed.
pub enum Source {
    /// On PATH and good enough.
    Path(PathBuf),
    /// Installed in `target/tools` by an earlier run.
    Provisioned(PathBuf),
    /// To be installed; the text says why the one on PATH does not do.
    Missing(String),
}

pub fn cmake() -> Result<PathBuf> {
    obtain(&CMAKE)
}

pub fn ninja() -> Result<PathBuf> {
    obtain(&NINJA)
}

/// `ctest` stands beside `cmake`, on PATH as in the wheel.
pub fn ctest() -> Result<PathBuf> {
    let ctest = cmake()?.with_file_name(format!("ctest{}", std::env::consts::EXE_SUFFIX));
    ensure!(ctest.is_file(), "{}: not found beside cmake; install the whole CMake package", ctest.display());
    Ok(ctest)
}

/// A command that finds cmake, ctest and ninja on its PATH.
pub fn command(program: impl AsRef<OsStr>) -> Result<Command> {
    let mut command = Command::new(program);
    command.env("PATH", path_with_tools()?);
    Ok(command)
}

/// PATH, preceded by the folders of the provisioned tools.
pub fn path_with_tools() -> Result<std::ffi::OsString> {
    let own = tools_dir();
    let provisioned = [cmake()?, ninja()?].into_iter().filter(|tool| tool.starts_with(&own));
    let folders = provisioned.filter_map(|tool| tool.parent().map(Path::to_path_buf));
    let path = std::env::var_os("PATH").unwrap_or_default();
    Ok(std::env::join_paths(folders.chain(std::env::split_paths(&path)))?)
}

pub fn find(name: &str) -> Option<PathBuf> {
    which::which(name).ok()
}

/// The first line that `program args…` prints, if it runs and succeeds. A shim on PATH may exist and yet not run.
pub fn first_line(program: &Path, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().next().map(|line| line.trim().to_string())
}

/// A Python 3 that has pip.
pub fn python_with_pip() -> Result<PathBuf> {
    let pythons: Vec<_> = ["python3", "python"].iter().filter_map(|name| find(name)).collect();
    ensure!(
        !pythons.is_empty(),
        "python3: not found on PATH; install Python 3 with pip (Debian: apt-get install python3-pip)"
    );
    match pythons.iter().find(|python| first_line(python, &["-m", "pip", "--version"]).is_some()) {
        Some(python) => Ok(python.clone()),
        None => bail!("{}: has no pip; install it (Debian: apt-get install python3-pip)", pythons[0].display()),
    }
}

impl Wheel {
    pub fn source(&self) -> Source {
        if let Some(program) = self.installed() {
            return Source::Provisioned(program);
        }
        let Some(program) = find(self.name) else {
            return Source::Missing("not on PATH".into());
        };
        match first_line(&program, &["--version"]).as_deref().and_then(parse_version) {
            None => Source::Missing(format!("{} does not run", program.display())),
            Some(version) if version < self.minimum() => {
                Source::Missing(format!("{} is {}.{}, too old", program.display(), version.0, version.1))
            }
            Some(_) => Source::Path(program),
        }
    }

    pub fn folder(&self) -> PathBuf {
        tools_dir().join(format!("{}-{}", self.name, self.version))
    }

    fn minimum(&self) -> (u32, u32) {
        if self.name == CMAKE.name {
            CMAKE_MINIMUM
        } else {
            (0, 0)
        }
    }

    fn installed(&self) -> Option<PathBuf> {
        self.program_in(&self.folder())
    }

    fn program_in(&self, folder: &Path) -> Option<PathBuf> {
        self.programs.iter().map(|program| folder.join(program)).find(|program| program.is_file())
    }

    /// Installs into a temporary folder and renames it, so that an interrupted run leaves no half of a tool.
    fn provision(&self, reason: &str) -> Result<PathBuf> {
        let python = python_with_pip()
            .with_context(|| format!("{} is needed ({reason}) and comes from a Python wheel", self.name))?;
        let requirement = format!("{}=={}", self.name, self.version);
        let folder = self.folder();
        eprintln!("installing {requirement} with pip into {} ({reason})", folder.display());

        let staging = folder.with_extension(format!("tmp{}", std::process::id()));
        let installed = self.pip_install(&python, &requirement, &staging).and_then(|()| publish(&staging, &folder));
        let _ = std::fs::remove_dir_all(&staging);
        installed?;
        self.installed().with_context(|| format!("{requirement}: the wheel has none of {:?}", self.programs))
    }

    fn pip_install(&self, python: &Path, requirement: &str, target: &Path) -> Result<()> {
        let output = Command::new(python)
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "--no-cache-dir",
                "--no-compile",
                "--no-deps",
            ])
            .args(["--only-binary", ":all:", "--target"])
            .arg(target)
            .arg(requirement)
            .output()
            .with_context(|| format!("cannot run {}", python.display()))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            let cause = message.lines().rev().find(|line| line.starts_with("ERROR")).unwrap_or("no message");
            bail!(
                "pip install {requirement} failed ({cause}); put {} on PATH or allow pip to reach its index",
                self.name
            );
        }
        Ok(())
    }
}

pub fn obtain(wheel: &Wheel) -> Result<PathBuf> {
    match wheel.source() {
        Source::Path(program) | Source::Provisioned(program) => Ok(program),
        Source::Missing(reason) => wheel.provision(&reason),
    }
}

/// Another run may have been faster: its result is as good.
fn publish(staging: &Path, folder: &Path) -> Result<()> {
    match std::fs::rename(staging, folder) {
        Err(_) if folder.is_dir() => Ok(()),
        result => result.with_context(|| format!("cannot rename {} to {}", staging.display(), folder.display())),
    }
}

fn tools_dir() -> PathBuf {
    util::target_dir().join("tools")
}

/// The first `MAJOR.MINOR` in a line such as `cmake version 3.25.1`.
fn parse_version(line: &str) -> Option<(u32, u32)> {
    line.split_whitespace().find_map(|word| {
        let mut parts = word.split('.');
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_what_tools_print() {
        assert_eq!(parse_version("cmake version 3.25.1"), Some((3, 25)));
        assert_eq!(parse_version("1.13.2.git.kitware.jobserver-pipe-1"), Some((1, 13)));
        assert_eq!(parse_version("cmake version 4.0.0-rc1"), Some((4, 0)));
        assert_eq!(parse_version("command not found"), None);
    }

    #[test]
    fn a_program_that_fails_has_no_version() {
        assert_eq!(first_line(Path::new("/nonexistent/tool"), &["--version"]), None);
    }

    #[test]
    fn publishing_over_a_finished_folder_keeps_it() {
        let base = std::env::temp_dir().join(format!("xtask-tools-{}", std::process::id()));
        let (staging, folder) = (base.join("new"), base.join("done"));
        std::fs::create_dir_all(&staging).unwrap();
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("mark"), "kept").unwrap();
        publish(&staging, &folder).unwrap();
        assert_eq!(std::fs::read_to_string(folder.join("mark")).unwrap(), "kept");
        std::fs::remove_dir_all(&base).unwrap();
    }
}
