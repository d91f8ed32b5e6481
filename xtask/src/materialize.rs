//! `cargo xtask materialize`: pristine upstream + our files + the hooks, as a tree that builds with plain CMake.

use crate::checkout;
use crate::hooks::{self, Applied};
use crate::ours;
use crate::region::{self, Syntax};
use crate::text;
use crate::tree::{Changes, Tree};
use crate::upstream::{self, Upstream};
use crate::util;
use crate::version::Version;
use anyhow::{ensure, Context, Result};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// A pinned version, or the folder of a mimalloc checkout
    #[arg(long, value_name = "VERSION|PATH", default_value = upstream::PRIMARY)]
    upstream: String,
    /// Where to [default: target/tree/VERSION]
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<()> {
    let upstream = Upstream::parse(&args.upstream)?;
    let folder = args.out.unwrap_or_else(|| default_folder(&upstream));
    let changes = materialize(&upstream, &folder)?;
    println!("{}: {} files written, {} removed", folder.display(), changes.written, changes.removed);
    Ok(())
}

/// The tree of `upstream` in its usual place under `target/`.
pub fn tree_folder(upstream: &Upstream) -> Result<PathBuf> {
    let folder = default_folder(upstream);
    materialize(upstream, &folder)?;
    Ok(folder)
}

fn default_folder(upstream: &Upstream) -> PathBuf {
    util::target_dir().join("tree").join(upstream.label())
}

pub fn materialize(upstream: &Upstream, folder: &Path) -> Result<Changes> {
    let tree = compose(upstream)?;
    tree.write(folder)
}

/// The whole tree, in memory.
pub fn compose(upstream: &Upstream) -> Result<Tree> {
    let mut tree = pristine_with_tests(upstream)?;
    let version = tree.version()?;
    add_our_files(&mut tree)?;
    let hooks = hooks::load(&util::hooks_file())?;
    if let Upstream::Checkout(folder) = upstream {
        checkout::ensure_usable(folder, &tree, &hooks)?;
    }
    apply(&hooks, version, &mut tree)?.ensure_complete(&format!("mimalloc {version}"))?;
    Ok(tree)
}

/// Upstream's tree without anything of ours that it may carry already.
pub fn pristine(upstream: &Upstream) -> Result<Tree> {
    let mut tree = upstream.tree()?;
    if drop_all_regions(&mut tree)? {
        tree.files.retain(|path, _| !ours::is_ours(path));
    }
    Ok(tree)
}

/// The same with upstream's tests, which no crate carries.
pub fn pristine_with_tests(upstream: &Upstream) -> Result<Tree> {
    let mut tree = pristine(upstream)?;
    add_missing_tests(&mut tree).with_context(|| upstream.label())?;
    Ok(tree)
}

pub fn add_missing_tests(tree: &mut Tree) -> Result<()> {
    let version = tree.version()?;
    if !has_tests(tree) {
        add_upstream_tests(tree, version)?;
    }
    Ok(())
}

fn apply(hooks: &[hooks::Hook], version: Version, tree: &mut Tree) -> Result<Applied> {
    let applied = hooks::apply(hooks, version, |file| tree.text(file))?;
    for (file, text) in &applied.files {
        tree.insert(file, text.as_bytes());
    }
    Ok(applied)
}

/// Whether the tree carried hooks of an earlier run.
pub fn drop_all_regions(tree: &mut Tree) -> Result<bool> {
    let mut dropped_any = false;
    let files: Vec<String> = tree.files.keys().filter(|path| !ours::is_ours(path)).cloned().collect();
    for path in files {
        let (Some(syntax), Some(source)) = (Syntax::of(&path), tree.text(&path)) else { continue };
        let dropped = region::drop_regions(&source, syntax).with_context(|| path.clone())?;
        if !dropped.regions.is_empty() {
            tree.insert(&path, text::join(&dropped.lines));
            dropped_any = true;
        }
    }
    Ok(dropped_any)
}

fn has_tests(tree: &Tree) -> bool {
    tree.files.keys().any(|path| path.starts_with("test/") && !ours::is_ours(path))
}

fn add_upstream_tests(tree: &mut Tree, version: Version) -> Result<()> {
    let tests = upstream::tests()?;
    for name in ["test-api.c", "test-api-fill.c", "test-stress.c", "testhelper.h"] {
        let file = tests.files.get(name).with_context(|| format!("upstream's tests lack {name}"))?;
        tree.files.insert(format!("test/{name}"), file.clone());
    }
    let adaptations = hooks::load(&util::upstream_tests_file())?;
    apply(&adaptations, version, tree)?.ensure_complete("upstream's tests")
}

fn add_our_files(tree: &mut Tree) -> Result<()> {
    for (path, file) in ours::files()? {
        ensure!(!tree.files.contains_key(&path), "upstream has a file of its own at {path}");
        tree.files.insert(path, file);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout::testing::Checkout;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-materialize-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn the_same_input_gives_the_same_tree() {
        let primary = Upstream::Pinned(upstream::PRIMARY);
        assert!(compose(&primary).unwrap() == compose(&primary).unwrap());
    }

    #[test]
    fn a_materialized_tree_may_be_materialized_again() {
        let folder = scratch("again");
        let once = compose(&Upstream::Pinned(upstream::PRIMARY)).unwrap();
        once.write(&folder).unwrap();
        let twice = compose(&Upstream::Checkout(folder.clone())).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(once == twice);
    }

    #[test]
    fn tests_of_a_checkout_are_left_alone() {
        let folder = scratch("tests");
        let mut checkout = Upstream::Pinned(upstream::PRIMARY).tree().unwrap();
        checkout.insert("test/test-api.c", "theirs");
        checkout.write(&folder).unwrap();
        let tree = compose(&Upstream::Checkout(folder.clone())).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(tree.files["test/test-api.c"].bytes, b"theirs");
        assert!(!tree.files.contains_key("test/test-stress.c"));
    }

    #[test]
    fn of_a_checkout_that_does_not_fit_nothing_is_made() {
        let (checkout, out) = (Checkout::new("unfit"), scratch("unfit-out"));
        let refused = |text: &str| {
            let upstream = checkout.0.display().to_string();
            let error = format!("{:#}", run(Args { upstream, out: Some(out.clone()) }).unwrap_err());
            assert!(error.contains(text) && !out.exists(), "{error}");
        };
        checkout.edit("src/page.c", |text| text.replace("mi_find_free_page", "mi_find_a_page"));
        refused("'mi_find_free_page': no such definition");
        checkout.edit("src/page.c", |text| text.replace('\n', "\r\n"));
        refused("CRLF");
        std::fs::remove_file(checkout.0.join("include/mimalloc.h")).unwrap();
        refused("not a mimalloc tree?");
    }

    #[test]
    fn upstreams_tests_come_along_where_there_are_none() {
        let tree = compose(&Upstream::Pinned(upstream::PRIMARY)).unwrap();
        let stress = tree.text("test/test-stress.c").unwrap();
        assert!(stress.contains("mi_option_abandoned_reclaim_on_free") && !stress.contains("mi_arena_min_size"));
    }
}
