//! What a mimalloc that somebody names must be like before it is read, and before anything is changed in it.

use crate::git::git;
use crate::hooks::Hook;
use crate::ours;
use crate::region::{self, Syntax};
use crate::text;
use crate::tree::Tree;
use anyhow::{ensure, Context, Result};
use std::collections::BTreeSet;
use std::path::Path;

/// Its files are files, with the line ends that mimalloc has.
pub fn ensure_usable(folder: &Path, tree: &Tree, hooks: &[Hook]) -> Result<()> {
    let hooked: BTreeSet<&str> = hooks.iter().map(|hook| hook.file.as_str()).collect();
    let sources = tree.files.keys().map(String::as_str).filter(|path| ours::in_folders(path));
    for path in hooked.iter().copied().chain(sources) {
        let link = ancestors(path).find(|part| folder.join(part).is_symlink());
        let link = link.map(|part| folder.join(part).display().to_string());
        ensure!(link.is_none(), "{}: a symbolic link; name the folder that it leads to", link.unwrap_or_default());
    }
    for path in hooked {
        let eol = tree.text(path).map_or("\n", |source| text::default_eol(&text::split(&source)));
        ensure!(
            eol == "\n",
            "{}: has CRLF line ends and mimalloc's have LF; check it out as its .gitattributes says",
            folder.join(path).display()
        );
    }
    Ok(())
}

/// `a/b/c`, `a/b`, `a`
fn ancestors(path: &str) -> impl Iterator<Item = &Path> {
    Path::new(path).ancestors().filter(|part| !part.as_os_str().is_empty())
}

pub fn ensure_writable<'a>(folder: &Path, paths: impl Iterator<Item = &'a String>) -> Result<()> {
    for path in paths {
        let path = folder.join(path);
        let read_only = path.metadata().is_ok_and(|metadata| metadata.permissions().readonly());
        ensure!(!read_only, "{}: read-only; make it writable first", path.display());
    }
    Ok(())
}

/// Nothing but our own files and regions differs from what is committed.
pub fn ensure_clean(folder: &Path) -> Result<()> {
    if !folder.join(".git").exists() {
        return Ok(());
    }
    let changed = git(folder, &["diff", "--name-only", "--no-renames", "--relative", "-z", "HEAD", "--"])?;
    let mut dirty = Vec::new();
    for path in changed.split('\0').filter(|path| !path.is_empty() && !ours::is_ours(path)) {
        let committed = git(folder, &["show", &format!("HEAD:./{path}")]).ok();
        let current = std::fs::read_to_string(folder.join(path)).ok();
        if pristine(path, committed)? != pristine(path, current)? {
            dirty.push(path);
        }
    }
    ensure!(dirty.is_empty(), "{}: not committed: {}; commit or stash that first", folder.display(), dirty.join(", "));
    Ok(())
}

fn pristine(path: &str, text: Option<String>) -> Result<Option<String>> {
    let (Some(syntax), Some(source)) = (Syntax::of(path), &text) else { return Ok(text) };
    let dropped = region::drop_regions(source, syntax).with_context(|| path.to_string())?;
    Ok(Some(text::join(&dropped.lines)))
}

/// A checkout of the primary base in a folder of its own.
#[cfg(test)]
pub mod testing {
    use super::*;
    use crate::tree::write_if_changed;
    use crate::upstream::{Upstream, PRIMARY};
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    pub struct Checkout(pub PathBuf);

    impl Checkout {
        pub fn new(name: &str) -> Checkout {
            let folder = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&folder);
            for (path, file) in &Upstream::Pinned(PRIMARY).tree().unwrap().files {
                write_if_changed(&folder.join(path), file).unwrap();
            }
            Checkout(folder)
        }

        pub fn commit(&self) {
            for args in [&["init", "--quiet"][..], &["add", "--all"], &["commit", "--quiet", "--message=base"]] {
                git(&self.0, args).unwrap();
            }
        }

        pub fn content(&self) -> BTreeMap<String, Vec<u8>> {
            Tree::read(&self.0).unwrap().files.into_iter().map(|(path, file)| (path, file.bytes)).collect()
        }

        pub fn edit(&self, path: &str, change: impl Fn(&str) -> String) {
            let path = self.0.join(path);
            std::fs::write(&path, change(&std::fs::read_to_string(&path).unwrap())).unwrap();
        }
    }

    impl Drop for Checkout {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
