//! A source tree in memory: what it holds, and how it gets to disk without touching what is there already.

use crate::util;
use crate::version::Version;
use anyhow::{ensure, Context, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Names the files that a run wrote, so that the next one can remove those that no longer belong.
const MANIFEST: &str = ".mi_prof-tree";

#[derive(Clone, PartialEq)]
pub struct File {
    pub bytes: Vec<u8>,
    pub executable: bool,
}

/// Files by their path, with `/` between folders.
#[derive(Clone, Default, PartialEq)]
pub struct Tree {
    pub files: BTreeMap<String, File>,
}

impl Tree {
    /// The files of a folder; of a git checkout only those that git tracks.
    pub fn read(folder: &Path) -> Result<Tree> {
        let mut tree = Tree::default();
        match tracked(folder) {
            Some(paths) => paths.iter().try_for_each(|path| tree.read_file(folder, path))?,
            None => tree.read_folder(folder, "")?,
        }
        Ok(tree)
    }

    fn read_folder(&mut self, root: &Path, prefix: &str) -> Result<()> {
        let folder = root.join(prefix);
        let entries = std::fs::read_dir(&folder).with_context(|| format!("{}: cannot be read", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_str().with_context(|| format!("{}: not a UTF-8 name", entry.path().display()))?;
            let path = if prefix.is_empty() { name.to_string() } else { format!("{prefix}/{name}") };
            match entry.path().is_dir() {
                _ if name == ".git" || path == MANIFEST => {}
                true => self.read_folder(root, &path)?,
                false => self.read_file(root, &path)?,
            }
        }
        Ok(())
    }

    fn read_file(&mut self, root: &Path, path: &str) -> Result<()> {
        let full = root.join(path);
        let metadata = full.metadata().with_context(|| format!("{}: cannot be read", full.display()))?;
        let executable = util::is_executable(&metadata);
        self.files.insert(path.to_string(), File { bytes: util::read(&full)?, executable });
        Ok(())
    }

    pub fn insert(&mut self, path: &str, bytes: impl Into<Vec<u8>>) {
        let executable = self.files.get(path).is_some_and(|file| file.executable);
        self.files.insert(path.to_string(), File { bytes: bytes.into(), executable });
    }

    pub fn text(&self, path: &str) -> Option<String> {
        String::from_utf8(self.files.get(path)?.bytes.clone()).ok()
    }

    pub fn version(&self) -> Result<Version> {
        let header = self.text("include/mimalloc.h").context("there is no include/mimalloc.h: not a mimalloc tree?")?;
        Version::of_header(&header)
    }

    /// Makes `folder` hold exactly this tree, writing only what differs. Only a folder that is new, empty or made by
    /// this function is touched.
    pub fn write(&self, folder: &Path) -> Result<Changes> {
        let old = manifest(folder)?;
        let new: Vec<&str> = self.files.keys().map(String::as_str).collect();
        let gone: Vec<&str> = old.iter().map(String::as_str).filter(|path| !self.files.contains_key(*path)).collect();
        let mut changes = Changes::default();
        // Files of both runs stay listed until the work is done: an interrupted run can be resumed.
        write_manifest(folder, [new.as_slice(), gone.as_slice()].concat())?;
        for (path, file) in &self.files {
            changes.written += usize::from(write_if_changed(&folder.join(path), file)?);
        }
        for path in &gone {
            changes.removed += usize::from(std::fs::remove_file(folder.join(path)).is_ok());
        }
        write_manifest(folder, new)?;
        Ok(changes)
    }
}

#[derive(Default)]
pub struct Changes {
    pub written: usize,
    pub removed: usize,
}

fn tracked(folder: &Path) -> Option<Vec<String>> {
    if !folder.join(".git").exists() {
        return None;
    }
    let output = Command::new("git").arg("-C").arg(folder).args(["ls-files", "-z"]).output().ok()?;
    let list = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(list.split('\0').filter(|path| folder.join(path).is_file()).map(str::to_string).collect())
}

fn manifest(folder: &Path) -> Result<Vec<String>> {
    if let Ok(list) = std::fs::read_to_string(folder.join(MANIFEST)) {
        return Ok(list.lines().map(str::to_string).collect());
    }
    let empty = std::fs::read_dir(folder).map_or(true, |mut entries| entries.next().is_none());
    ensure!(empty, "{}: not empty and not made by this command; name another folder", folder.display());
    Ok(Vec::new())
}

fn write_manifest(folder: &Path, mut paths: Vec<&str>) -> Result<()> {
    paths.sort_unstable();
    let list: String = paths.iter().map(|path| format!("{path}\n")).collect();
    let file = File { bytes: list.into_bytes(), executable: false };
    write_if_changed(&folder.join(MANIFEST), &file).map(drop)
}

pub fn write_if_changed(path: &Path, file: &File) -> Result<bool> {
    let same = std::fs::read(path).is_ok_and(|bytes| bytes == file.bytes);
    if !same {
        util::write_atomic(path, &file.bytes, file.executable)?;
    }
    Ok(!same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-tree-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    fn tree(files: &[(&str, &str)]) -> Tree {
        let mut tree = Tree::default();
        files.iter().for_each(|(path, text)| tree.insert(path, *text));
        tree
    }

    #[test]
    fn a_second_write_touches_only_what_changed() {
        let folder = folder("again");
        tree(&[("a", "1"), ("d/b", "2"), ("c", "3")]).write(&folder).unwrap();
        let modified = |path: &str| folder.join(path).metadata().unwrap().modified().unwrap();
        let before = modified("a");
        let changes = tree(&[("a", "1"), ("d/b", "changed")]).write(&folder).unwrap();
        assert_eq!((changes.written, changes.removed), (1, 1));
        assert_eq!(modified("a"), before);
        assert!(Tree::read(&folder).unwrap() == tree(&[("a", "1"), ("d/b", "changed")]));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_folder_of_somebody_else_is_not_touched() {
        let folder = folder("foreign");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("precious"), "1").unwrap();
        assert!(tree(&[("a", "1")]).write(&folder).is_err());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
