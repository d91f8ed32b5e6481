//! Our own files: what the repository adds to an upstream tree.

use crate::tree::{File, Tree};
use crate::util;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::Path;

const FOLDERS: [&str; 4] = ["include", "src", "test", "cmake"];

/// The files to add, by their path in both trees.
pub fn files() -> Result<BTreeMap<String, File>> {
    files_in(util::repo_root())
}

/// Files of ours that lie in a checkout, also those that an earlier version put there.
pub fn files_in_checkout(checkout: &Path) -> Result<BTreeMap<String, File>> {
    let mut files = files_in(checkout)?;
    files.retain(|path, _| is_ours(path));
    Ok(files)
}

fn files_in(root: &Path) -> Result<BTreeMap<String, File>> {
    let mut files = BTreeMap::new();
    for folder in FOLDERS {
        let path = root.join(folder);
        if path.is_dir() {
            let found = Tree::read(&path)?.files.into_iter().filter(|(name, _)| !is_scratch(name));
            files.extend(found.map(|(name, file)| (format!("{folder}/{name}"), file)));
        }
    }
    Ok(files)
}

/// Whether a path in an upstream tree is ours by its name, so also when an earlier version of ours put it there.
pub fn is_ours(path: &str) -> bool {
    let patterns = ["include/mimalloc/profile", "src/profile", "test/test-profile", "cmake/mi_prof"];
    patterns.iter().any(|prefix| path.starts_with(prefix)) || util::repo_root().join(path).is_file() && in_folders(path)
}

pub fn in_folders(path: &str) -> bool {
    path.split_once('/').is_some_and(|(folder, _)| FOLDERS.contains(&folder))
}

/// What editors leave behind.
fn is_scratch(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with('.') || name.starts_with('#') || name.ends_with('~') || name.ends_with(".orig")
}
