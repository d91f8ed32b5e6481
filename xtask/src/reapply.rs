//! `cargo xtask reapply`: our files and the hooks on an existing mimalloc checkout, in place, all or nothing.

use crate::hooks::{self, Applied, State};
use crate::materialize::drop_all_regions;
use crate::ours;
use crate::tree::{File, Tree};
use crate::util::{self, Staged};
use anyhow::{bail, ensure, Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// The folder of a mimalloc checkout
    #[arg(long, value_name = "PATH")]
    upstream: PathBuf,
    /// Only report; fail if anything is missing or drifted
    #[arg(long)]
    check: bool,
}

pub fn run(args: Args) -> Result<()> {
    ensure!(args.upstream.is_dir(), "{}: no such folder", args.upstream.display());
    let plan = plan(&args.upstream, &hooks::load(&util::hooks_file())?)?;
    plan.print(args.check);
    plan.hooks.ensure_complete(&args.upstream.display().to_string())?;
    if args.check {
        return plan.ensure_nothing_to_do(&args.upstream);
    }
    plan.carry_out(&args.upstream)
}

/// What has to be written so that a checkout carries our files and hooks.
pub struct Plan {
    pub hooks: Applied,
    /// Files to write; those that stand as they should are not among them.
    pub writes: BTreeMap<String, File>,
    /// Files of an earlier version of ours.
    pub removals: Vec<String>,
    ours: Vec<(String, bool)>,
}

pub fn plan(checkout: &Path, hooks: &[hooks::Hook]) -> Result<Plan> {
    let before = Tree::read(checkout)?;
    let version = before.version().with_context(|| checkout.display().to_string())?;
    let mut after = before.clone();
    let was_hooked = drop_all_regions(&mut after)?;
    let applied = hooks::apply(hooks, version, |file| before.text(file))?;
    for (file, text) in &applied.files {
        after.insert(file, text.as_bytes());
    }

    let ours = ours::files()?;
    let stands = |path: &str| std::fs::read(checkout.join(path)).ok();
    for (path, file) in &ours {
        let foreign = !was_hooked && stands(path).is_some_and(|bytes| bytes != file.bytes);
        ensure!(!foreign, "{}: upstream has a file of its own at {path}; nothing was written", checkout.display());
    }
    let removals = ours::files_in_checkout(checkout)?.into_keys().filter(|path| !ours.contains_key(path)).collect();
    let report = ours.iter().map(|(path, file)| (path.clone(), stands(path).as_ref() == Some(&file.bytes))).collect();
    let mut writes: BTreeMap<String, File> = after.files.into_iter().chain(ours).collect();
    writes.retain(|path, file| stands(path).as_ref() != Some(&file.bytes));
    Ok(Plan { hooks: applied, writes, removals, ours: report })
}

impl Plan {
    fn print(&self, check: bool) {
        for outcome in &self.hooks.outcomes {
            match outcome.state {
                State::Applied(line) if check => {
                    println!("  {:<34} missing        {}:{line}", outcome.hook, outcome.file)
                }
                State::Drifted(_) => println!("  {:<34} drifted        {}", outcome.hook, outcome.file),
                _ => println!("{outcome}"),
            }
        }
        for (path, present) in &self.ours {
            let state = match (present, check) {
                (true, _) => "already there",
                (false, true) => "missing",
                (false, false) => "written",
            };
            println!("  {:<34} {state:<14} {path}", "(file)");
        }
    }

    fn ensure_nothing_to_do(&self, checkout: &Path) -> Result<()> {
        let pending = self.writes.len() + self.removals.len();
        if pending > 0 {
            let files: Vec<&str> = self.writes.keys().chain(&self.removals).map(String::as_str).collect();
            let path = checkout.display();
            bail!(
                "{path}: {pending} files are not up to date ({}); run cargo xtask reapply --upstream {path}",
                files.join(", ")
            );
        }
        Ok(())
    }

    /// Every new text lies on disk before the first file is replaced. If one cannot be, the others get their old
    /// content back.
    pub fn carry_out(&self, checkout: &Path) -> Result<()> {
        let stage = |(path, file): (&String, &File)| Staged::write(&checkout.join(path), &file.bytes, file.executable);
        let staged: Vec<Staged> = self.writes.iter().map(stage).collect::<Result<_>>()?;
        let old = self.writes.keys().chain(&self.removals).map(|path| Old::read(checkout.join(path)));
        let old: Vec<Old> = old.collect::<Result<_>>()?;
        let replaced = staged.into_iter().try_for_each(Staged::commit).and_then(|()| self.remove_stale(checkout));
        replaced.map_err(|error| match old.iter().try_for_each(Old::restore) {
            Ok(()) => error.context("nothing was changed"),
            Err(worse) => error.context(format!("{worse:#}: the checkout is in between; repair it with git")),
        })
    }

    fn remove_stale(&self, checkout: &Path) -> Result<()> {
        self.removals.iter().try_for_each(|path| {
            std::fs::remove_file(checkout.join(path)).with_context(|| format!("{path}: cannot be removed"))
        })
    }
}

/// A file as it was before it was replaced, or that there was none.
struct Old {
    path: PathBuf,
    content: Option<(Vec<u8>, std::fs::Permissions)>,
}

impl Old {
    fn read(path: PathBuf) -> Result<Old> {
        if !path.exists() {
            return Ok(Old { path, content: None });
        }
        let permissions = std::fs::metadata(&path).with_context(|| path.display().to_string())?.permissions();
        let bytes = util::read(&path)?;
        Ok(Old { path, content: Some((bytes, permissions)) })
    }

    fn restore(&self) -> Result<()> {
        let path = &self.path;
        match &self.content {
            None if !path.exists() => Ok(()),
            None => std::fs::remove_file(path).with_context(|| path.display().to_string()),
            Some((bytes, _)) if std::fs::read(path).is_ok_and(|now| now == *bytes) => Ok(()),
            Some((bytes, permissions)) => {
                util::write_atomic(path, bytes, false)?;
                std::fs::set_permissions(path, permissions.clone()).with_context(|| path.display().to_string())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::write_if_changed;
    use crate::upstream::{Upstream, PRIMARY};

    /// A checkout of the primary base in a folder of its own.
    struct Checkout(PathBuf);

    impl Checkout {
        fn new(name: &str) -> Checkout {
            let folder = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&folder);
            for (path, file) in &Upstream::Pinned(PRIMARY).tree().unwrap().files {
                write_if_changed(&folder.join(path), file).unwrap();
            }
            Checkout(folder)
        }

        fn run(&self, check: bool) -> Result<()> {
            run(Args { upstream: self.0.clone(), check })
        }

        fn content(&self) -> BTreeMap<String, Vec<u8>> {
            Tree::read(&self.0).unwrap().files.into_iter().map(|(path, file)| (path, file.bytes)).collect()
        }

        fn edit(&self, path: &str, change: impl Fn(&str) -> String) {
            let path = self.0.join(path);
            std::fs::write(&path, change(&std::fs::read_to_string(&path).unwrap())).unwrap();
        }
    }

    impl Drop for Checkout {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn applying_twice_is_a_no_op() {
        let checkout = Checkout::new("twice");
        let pristine = checkout.content();
        assert!(checkout.run(true).is_err(), "a check of a pristine checkout must fail");
        assert!(checkout.content() == pristine, "a check writes nothing");
        checkout.run(false).unwrap();
        let once = checkout.content();
        checkout.run(false).unwrap();
        checkout.run(true).unwrap();
        assert!(once == checkout.content());
    }

    #[test]
    fn a_drift_leaves_every_byte_alone() {
        let checkout = Checkout::new("drift");
        checkout.edit("include/mimalloc/types.h", |text| text.replace("struct mi_page_s {", "struct mi_leaf_s {"));
        let before = checkout.content();
        let error = checkout.run(false).unwrap_err().to_string();
        assert!(error.contains("struct mi_page_s") && error.contains("nothing was written"), "{error}");
        assert!(before == checkout.content());
    }

    #[test]
    fn what_an_older_version_left_behind_goes() {
        let checkout = Checkout::new("stale");
        checkout.run(false).unwrap();
        let current = checkout.content();
        checkout.edit("src/static.c", |text| text.replace("\"profile.c\"", "\"old.c\""));
        checkout.edit("src/os.c", |text| format!("#if MI_PPROF\nold();\n#endif\n{text}"));
        std::fs::write(checkout.0.join("src/profile-old.c"), "old").unwrap();
        assert!(checkout.run(true).is_err());
        checkout.run(false).unwrap();
        assert!(current == checkout.content());
    }

    #[test]
    fn a_file_of_upstreams_own_is_not_overwritten() {
        let checkout = Checkout::new("foreign");
        std::fs::write(checkout.0.join("src/profile.c"), "theirs").unwrap();
        assert!(checkout.run(false).unwrap_err().to_string().contains("a file of its own"));
    }
}
