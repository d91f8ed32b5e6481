//! Projects that use the library the ways C projects do: each is built and run, with the profiler and without.

use crate::cmake::{cc, run, Build};
use crate::materialize;
use crate::upstream::{Upstream, PRIMARY};
use crate::util;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use xshell::{cmd, Shell};

fn projects() -> PathBuf {
    util::repo_root().join("xtask/consumer")
}

/// Installs a build into its prefix, which starts empty.
pub fn install(shell: &Shell, build: &Build) -> Result<PathBuf> {
    let (folder, prefix) = (&build.folder, build.prefix());
    if prefix.exists() {
        std::fs::remove_dir_all(&prefix).with_context(|| prefix.display().to_string())?;
    }
    run(cmd!(shell, "cmake --install {folder}"))?;
    Ok(prefix)
}

pub fn find_package(shell: &Shell, prefix: &Path, name: &str) -> Result<()> {
    let project = projects().join("find_package");
    let found = format!("-DCMAKE_PREFIX_PATH={}", prefix.display());
    build_and_run(shell, &project, &format!("consumer/find_package-{name}"), &[&found, "-DCMAKE_BUILD_TYPE=Release"])
}

pub fn add_subdirectory(shell: &Shell, option: &str, name: &str) -> Result<()> {
    let project = projects().join("add_subdirectory");
    build_and_run(
        shell,
        &project,
        &format!("consumer/add_subdirectory-{name}"),
        &[option, "-DCMAKE_BUILD_TYPE=Release"],
    )
}

fn build_and_run(shell: &Shell, project: &Path, name: &str, options: &[&str]) -> Result<()> {
    let build = Build::configure(shell, project, name, options)?;
    build.build(shell, &["consumer-mimalloc", "consumer-mimalloc-static"])?;
    for program in ["consumer-mimalloc", "consumer-mimalloc-static"] {
        let program = build.folder.join(program);
        run(cmd!(shell, "{program}"))?;
    }
    Ok(())
}

/// What `pkg-config` says is all that the compiler is told.
pub fn pkg_config(shell: &Shell, prefix: &Path) -> Result<()> {
    let libraries = library_folder(prefix)?;
    let _path = shell.push_env("PKG_CONFIG_PATH", libraries.join("pkgconfig"));
    let flags = run(cmd!(shell, "pkg-config --cflags --libs mimalloc"))?;
    let flags: Vec<&str> = flags.split_whitespace().collect();
    let (cc, source, program) = (cc(), projects().join("main.c"), prefix.join("consumer-pkg-config"));
    run(cmd!(shell, "{cc} -Wall -Werror {source} {flags...} -o {program}"))?;
    let _libraries = shell.push_env("LD_LIBRARY_PATH", libraries);
    run(cmd!(shell, "{program}")).map(drop)
}

fn library_folder(prefix: &Path) -> Result<PathBuf> {
    let folders = ["lib", "lib64"].map(|name| prefix.join(name));
    let found = folders.into_iter().chain(multiarch(prefix)).find(|folder| folder.join("pkgconfig").is_dir());
    found.with_context(|| format!("{}: no pkgconfig folder was installed", prefix.display()))
}

/// Debian's `lib/TRIPLET`.
fn multiarch(prefix: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(prefix.join("lib")).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect()
}

/// `src/static.c` alone, with one command.
pub fn amalgamation(shell: &Shell, define: &str, name: &str) -> Result<()> {
    let tree = materialize::tree_folder(&Upstream::Pinned(PRIMARY))?;
    let (cc, include, library, source) =
        (cc(), tree.join("include"), tree.join("src/static.c"), projects().join("main.c"));
    let program = util::target_dir().join("test").join(format!("amalgamation-{name}"));
    run(cmd!(shell, "{cc} -O2 {define} -I{include} {library} {source} -o {program} -lpthread"))?;
    run(cmd!(shell, "{program}")).map(drop)
}
