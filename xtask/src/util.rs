//! Small things that several commands need.

use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

pub fn repo_root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository")
}

pub fn target_dir() -> PathBuf {
    repo_root().join("target")
}

pub fn hooks_file() -> PathBuf {
    repo_root().join("xtask/hooks.toml")
}

pub fn upstream_tests_file() -> PathBuf {
    repo_root().join("xtask/upstream-tests.toml")
}

/// Linux adds to the name of a program that was built anew while it runs.
pub fn this_program() -> Result<PathBuf> {
    let path = std::env::current_exe().context("the path of xtask itself")?;
    let name = path.to_string_lossy();
    Ok(name.strip_suffix(" (deleted)").map_or(path.clone(), PathBuf::from))
}

pub fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))
}

/// Replaces a file as a whole, so that nobody sees half of it.
pub fn write_atomic(path: &Path, bytes: &[u8], executable: bool) -> Result<()> {
    Staged::write(path, bytes, executable)?.commit()
}

/// A file's new content, on disk beside it. It goes away unless it is committed.
pub struct Staged {
    path: PathBuf,
    temporary: PathBuf,
}

impl Staged {
    pub fn write(path: &Path, bytes: &[u8], executable: bool) -> Result<Staged> {
        let folder = path.parent().expect("a file has a folder");
        std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let temporary = folder.join(format!(".{name}.{}", std::process::id()));
        let staged = Staged { path: path.to_path_buf(), temporary };
        std::fs::write(&staged.temporary, bytes)
            .and_then(|()| set_executable(&staged.temporary, executable))
            .with_context(|| format!("{}: cannot be written", path.display()))?;
        Ok(staged)
    }

    pub fn commit(self) -> Result<()> {
        std::fs::rename(&self.temporary, &self.path)
            .with_context(|| format!("{}: cannot be written", self.path.display()))
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.temporary);
    }
}

#[cfg(unix)]
fn set_executable(path: &Path, executable: bool) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mut permissions = std::fs::metadata(path)?.permissions();
    if executable {
        permissions.set_mode(permissions.mode() | 0o111);
    }
    std::fs::set_permissions(path, permissions)
}

#[cfg(not(unix))]
fn set_executable(_path: &Path, _executable: bool) -> std::io::Result<()> {
    Ok(())
}

#[cfg(unix)]
pub fn is_executable(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o100 != 0
}

#[cfg(not(unix))]
pub fn is_executable(_metadata: &std::fs::Metadata) -> bool {
    false
}
