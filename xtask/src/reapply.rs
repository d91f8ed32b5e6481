//! `cargo xtask reapply`: our files and the hooks on an existing mimalloc checkout, in place, all or nothing.

use crate::checkout;
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
    /// Go on although the checkout has changes that are not committed
    #[arg(long)]
    allow_dirty: bool,
}

pub fn run(args: Args) -> Result<()> {
    ensure!(args.upstream.is_dir(), "{}: no such folder", args.upstream.display());
    let plan = plan(&args.upstream, &hooks::load(&util::hooks_file())?)?;
    plan.print(args.check);
    plan.hooks.ensure_complete(&args.upstream.display().to_string())?;
    if args.check {
        return plan.ensure_nothing_to_do(&args.upstream);
    }
    if !args.allow_dirty {
        checkout::ensure_clean(&args.upstream).context("nothing was written (--allow-dirty goes on)")?;
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

pub fn plan(folder: &Path, hooks: &[hooks::Hook]) -> Result<Plan> {
    let before = Tree::read(folder)?;
    let version = before.version().with_context(|| folder.display().to_string())?;
    checkout::ensure_usable(folder, &before, hooks).context("nothing was written")?;
    let mut after = before.clone();
    let was_hooked = drop_all_regions(&mut after)?;
    let applied = hooks::apply(hooks, version, |file| before.text(file))?;
    for (file, text) in &applied.files {
        after.insert(file, text.as_bytes());
    }

    let ours = ours::files()?;
    let stands = |path: &str| std::fs::read(folder.join(path)).ok();
    for (path, file) in &ours {
        let foreign = !was_hooked && stands(path).is_some_and(|bytes| bytes != file.bytes);
        ensure!(!foreign, "{}: upstream has a file of its own at {path}; nothing was written", folder.display());
    }
    let removals = ours::files_in_checkout(folder)?.into_keys().filter(|path| !ours.contains_key(path)).collect();
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
    pub fn carry_out(&self, folder: &Path) -> Result<()> {
        checkout::ensure_writable(folder, self.writes.keys().chain(&self.removals)).context("nothing was written")?;
        let stage = |(path, file): (&String, &File)| Staged::write(&folder.join(path), &file.bytes, file.executable);
        let staged: Vec<Staged> = self.writes.iter().map(stage).collect::<Result<_>>()?;
        let old = self.writes.keys().chain(&self.removals).map(|path| Old::read(folder.join(path)));
        let old: Vec<Old> = old.collect::<Result<_>>()?;
        let replaced = staged.into_iter().try_for_each(Staged::commit).and_then(|()| self.remove_stale(folder));
        replaced.map_err(|error| match old.iter().try_for_each(Old::restore) {
            Ok(()) => error.context("nothing was changed"),
            Err(worse) => error.context(format!("{worse:#}: the checkout is in between; repair it with git")),
        })
    }

    fn remove_stale(&self, folder: &Path) -> Result<()> {
        self.removals.iter().try_for_each(|path| {
            std::fs::remove_file(folder.join(path)).with_context(|| format!("{path}: cannot be removed"))
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
    use crate::checkout::testing::Checkout;
    use crate::upstream::{crate_tree, pins_folder, PRIMARY};

    impl Checkout {
        fn run(&self, check: bool) -> Result<()> {
            run(Args { upstream: self.0.clone(), check, allow_dirty: false })
        }

        /// It must be refused with one line that says `text`, and stay as it is.
        fn is_refused(&self, text: &str) {
            let before = self.content();
            let error = format!("{:#}", self.run(false).expect_err(text));
            assert!(error.contains(text), "{error}");
            assert!(before == self.content(), "{text}: something was written");
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
    fn a_hook_whose_target_is_missing_is_named() {
        let checkout = Checkout::new("missing");
        checkout.edit("include/mimalloc/types.h", |text| text.replace("struct mi_page_s {", "struct mi_leaf_s {"));
        checkout.is_refused("'struct mi_page_s': no such definition");
        std::fs::remove_file(checkout.0.join("src/heap.c")).unwrap();
        checkout.is_refused("src/heap.c: there is no such file");
    }

    #[test]
    fn a_hook_whose_target_is_doubled_is_named() {
        let checkout = Checkout::new("doubled");
        let line = "    const size_t req_size = size - MI_PADDING_SIZE;";
        checkout.edit("src/page.c", |text| text.replace(line, &format!("{line}\n{line}")));
        checkout.is_refused("in '_mi_malloc_generic': expected once, found 2 times");
    }

    #[test]
    fn a_hook_whose_target_is_reformatted_is_named_with_the_nearest_line() {
        let checkout = Checkout::new("reformatted");
        checkout.edit("src/page.c", |text| {
            text.replace("_mi_page_free_collect(page,false);", "_mi_page_free_collect(page, false);")
        });
        checkout.is_refused("nearest: src/page.c:904: _mi_page_free_collect(page, false);");
    }

    #[test]
    fn crlf_line_ends_are_refused() {
        let checkout = Checkout::new("crlf");
        checkout.edit("src/page.c", |text| text.replace('\n', "\r\n"));
        checkout.is_refused("src/page.c: has CRLF line ends");
    }

    #[test]
    fn a_read_only_file_is_refused() {
        let checkout = Checkout::new("read-only");
        let file = checkout.0.join("src/page.c");
        let mut permissions = file.metadata().unwrap().permissions();
        permissions.set_readonly(true);
        std::fs::set_permissions(&file, permissions).unwrap();
        checkout.is_refused("src/page.c: read-only");
    }

    #[test]
    fn changes_that_are_not_committed_are_refused_unless_they_are_ours() {
        let checkout = Checkout::new("dirty");
        checkout.commit();
        checkout.run(false).unwrap();
        checkout.run(false).unwrap();
        checkout.edit("src/os.c", |text| format!("{text}// mine\n"));
        checkout.edit("src/page.c", |text| text.replace("#if MI_PPROF", "#if MI_PPROF && 1"));
        checkout.is_refused("not committed: src/os.c;");
        run(Args { upstream: checkout.0.clone(), check: false, allow_dirty: true }).unwrap();
        assert!(checkout.content()["src/os.c"].ends_with(b"// mine\n"));
    }

    #[test]
    fn what_is_no_mimalloc_is_refused() {
        let checkout = Checkout::new("other");
        std::fs::remove_file(checkout.0.join("include/mimalloc.h")).unwrap();
        checkout.is_refused("not a mimalloc tree?");
        let error = run(Args { upstream: checkout.0.join("nowhere"), check: false, allow_dirty: false }).unwrap_err();
        assert!(error.to_string().contains("no such folder"), "{error}");
    }

    #[cfg(unix)]
    #[test]
    fn a_symbolic_link_is_refused() {
        let checkout = Checkout::new("link");
        std::fs::rename(checkout.0.join("src/page.c"), checkout.0.join("page.c")).unwrap();
        std::os::unix::fs::symlink("../page.c", checkout.0.join("src/page.c")).unwrap();
        checkout.is_refused("src/page.c: a symbolic link");
        assert!(checkout.0.join("src/page.c").is_symlink());
    }

    #[test]
    fn another_line_of_mimalloc_is_refused() {
        let checkout = Checkout::new("v3");
        std::fs::remove_dir_all(&checkout.0).unwrap();
        let v3 = crate_tree(&pins_folder().join(PRIMARY), "c_src/mimalloc3").unwrap();
        v3.write(&checkout.0).unwrap();
        checkout.is_refused("is of another line");
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
