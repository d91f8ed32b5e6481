//! CMake builds under `target/test`, and how a command's output is kept until it is needed.

use crate::tools;
use crate::util;
use anyhow::{bail, ensure, Context, Result};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use xshell::{cmd, Cmd, Shell};

/// A shell that finds cmake, ctest and ninja.
pub fn shell() -> Result<Shell> {
    let shell = Shell::new()?;
    shell.set_var("PATH", tools::path_with_tools()?);
    shell.change_dir(util::repo_root());
    Ok(shell)
}

/// The C compiler, where no build chooses it.
pub fn cc() -> String {
    std::env::var("CC").unwrap_or_else(|_| "cc".into())
}

/// Runs a command; its output is returned, or is part of the error.
pub fn run(command: Cmd) -> Result<String> {
    let line = command.to_string();
    let output = command.quiet().ignore_status().output().with_context(|| format!("cannot run {line}"))?;
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    if !output.status.success() {
        bail!("{line}\n{}\n{}", text.trim_end(), output.status);
    }
    Ok(text)
}

pub struct Build {
    pub folder: PathBuf,
    /// What configuring printed.
    configured: String,
}

impl Build {
    /// Configures `source` in `target/test/NAME`.
    pub fn configure(shell: &Shell, source: &Path, name: &str, options: &[&str]) -> Result<Build> {
        let mut build = Build { folder: util::target_dir().join("test").join(name), configured: String::new() };
        let (folder, prefix) = (&build.folder, build.prefix());
        let configure =
            cmd!(shell, "cmake -S {source} -B {folder} -G Ninja -DCMAKE_INSTALL_PREFIX={prefix} {options...}");
        build.configured = run(configure)?;
        Ok(build)
    }

    /// An option that CMake misunderstands is silently without effect: the resolved definitions tell.
    pub fn ensure_defines(&self, definition: &str) -> Result<()> {
        let line = self.configured.lines().find_map(|line| line.split_once("Compiler defines : "));
        let (_, defines) = line.with_context(|| format!("no definitions in:\n{}", self.configured))?;
        ensure!(defines.split(';').any(|define| define == definition), "{definition} is not among {defines}");
        Ok(())
    }

    /// Where it installs to.
    pub fn prefix(&self) -> PathBuf {
        self.folder.join("prefix")
    }

    pub fn build(&self, shell: &Shell, targets: &[&str]) -> Result<()> {
        let folder = &self.folder;
        run(cmd!(shell, "ninja -C {folder} {targets...}")).map(drop)
    }

    /// The objects of the static library, by their name within it.
    pub fn static_objects(&self) -> Result<Vec<(String, PathBuf)>> {
        let mut objects = Vec::new();
        collect_objects(&self.folder, &mut objects)?;
        objects.sort();
        Ok(objects)
    }

    pub fn static_object(&self, name: &str) -> Result<PathBuf> {
        let found = self.static_objects()?.into_iter().find(|(object, _)| object == name);
        Ok(found.with_context(|| format!("{}: there is no object {name}", self.folder.display()))?.1)
    }
}

const STATIC_OBJECTS: &str = "mimalloc-static.dir";

fn collect_objects(folder: &Path, objects: &mut Vec<(String, PathBuf)>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect_objects(&path, objects)?;
        } else if path.extension() == Some(OsStr::new("o")) {
            let text = path.to_string_lossy();
            if let Some((_, name)) = text.split_once(STATIC_OBJECTS) {
                objects.push((name.trim_start_matches('/').to_string(), path.clone()));
            }
        }
    }
    Ok(())
}
