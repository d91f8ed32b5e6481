//! `cargo xtask upstream-pr`: the profiler as a git branch, a series of patches and a text for a pull request to
//! mimalloc. The same input gives the same series, byte for byte. Nothing is pushed anywhere.

mod report;
mod series;

use crate::cmake::{self, run as run_command, Build};
use crate::git::git;
use crate::tree::{write_if_changed, Tree};
use crate::upstream::{Upstream, PRIMARY};
use crate::{checkout, materialize, util};
use anyhow::{ensure, Context, Result};
use series::{Patch, Series};
use std::path::{Path, PathBuf};
use xshell::{cmd, Shell};

#[derive(clap::Args)]
pub struct Args {
    /// A pinned version, or the folder of a clean mimalloc checkout
    #[arg(long, value_name = "VERSION|PATH")]
    upstream: String,
    /// Where to: a folder that is new or empty
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Only make the branch and the patches, and see that they apply: no builds, no pull-request text
    #[arg(long)]
    no_build: bool,
    /// What `cargo xtask test-all --json FILE` wrote, for the text
    #[arg(long, value_name = "FILE")]
    tested: Option<PathBuf>,
}

const BRANCH: &str = "heap-profiler";

pub fn run(args: Args) -> Result<()> {
    let upstream = Upstream::parse(&args.upstream)?;
    let empty = std::fs::read_dir(&args.out).map_or(true, |mut entries| entries.next().is_none());
    ensure!(empty, "{}: not empty; name another folder", args.out.display());
    let tested = args.tested.as_deref().map(report::tested_elsewhere).transpose()?;
    let series = Series::of(&upstream)?;

    let staging = args.out.with_extension(format!("tmp{}", std::process::id()));
    let made = make(&upstream, &series, &staging, !args.no_build, tested).and_then(|()| {
        let _ = std::fs::remove_dir(&args.out);
        std::fs::rename(&staging, &args.out).with_context(|| format!("{}: cannot be written", args.out.display()))
    });
    let _ = std::fs::remove_dir_all(&staging);
    made?;
    println!("{}: branch {BRANCH} of mimalloc/, {} patches", args.out.display(), series.patches.len());
    Ok(())
}

fn make(upstream: &Upstream, series: &Series, out: &Path, build: bool, tested: Option<String>) -> Result<()> {
    let (repository, patches) = (out.join("mimalloc"), out.join("patches"));
    let base = write_branch(upstream, series, &repository)?;
    write_patches(&repository, &base, &patches)?;
    ensure_applies(&repository, &base, &patches, &out.join("applied"))?;
    if build {
        let shell = cmake::shell()?;
        for (at, patch) in series.patches.iter().enumerate() {
            println!("building and testing patch {} of {}: {}", at + 1, series.patches.len(), patch.subject);
            ensure_builds(&shell, upstream, at + 1, patch)
                .with_context(|| format!("patch {}, '{}'", at + 1, patch.subject))?;
        }
        let text = report::pull_request(&shell, upstream, series, tested)?;
        util::write_atomic(&out.join("pull-request.md"), text.as_bytes(), false)?;
    }
    Ok(())
}

/// A clone of a git checkout, or a new repository with upstream's files as its only commit; one commit per patch on top
/// of it. Returns the base.
fn write_branch(upstream: &Upstream, series: &Series, repository: &Path) -> Result<String> {
    std::fs::create_dir_all(repository).with_context(|| repository.display().to_string())?;
    match upstream {
        Upstream::Checkout(path) if path.join(".git").exists() => {
            checkout::ensure_clean(path)?;
            git(
                repository,
                &["clone".as_ref(), "--quiet".as_ref(), "--no-tags".as_ref(), path.as_os_str(), ".".as_ref()],
            )?;
        }
        _ => {
            git(repository, &["init", "--quiet"])?;
            let message = format!("mimalloc {}", series.base.version()?);
            commit(repository, &Tree::default(), &series.base, &message)?;
        }
    }
    let base = git(repository, &["rev-parse", "HEAD"])?.trim().to_string();
    git(repository, &["checkout", "--quiet", "-b", BRANCH])?;
    let mut before = &series.base;
    for patch in &series.patches {
        commit(repository, before, &patch.tree, &format!("{}\n\n{}", patch.subject, patch.body))?;
        before = &patch.tree;
    }
    Ok(base)
}

/// What `after` has that `before` had not.
fn commit(repository: &Path, before: &Tree, after: &Tree, message: &str) -> Result<()> {
    let changed = after.files.iter().filter(|(path, file)| before.files.get(*path) != Some(*file));
    let mut add: Vec<&str> = vec!["add", "--force", "--"];
    for (path, file) in changed {
        write_if_changed(&repository.join(path), file)?;
        add.push(path);
    }
    git(repository, &add)?;
    git(repository, &["commit", "--quiet", "--message", message]).map(drop)
}

fn write_patches(repository: &Path, base: &str, folder: &Path) -> Result<()> {
    let range = format!("{base}..{BRANCH}");
    let options = ["--quiet", "--full-index", "--no-signature", "--zero-commit", "--no-renames", "--no-color"];
    let mut args: Vec<&std::ffi::OsStr> = vec!["format-patch".as_ref()];
    args.extend(options.iter().map(std::ffi::OsStr::new));
    args.extend(["--output-directory".as_ref(), folder.as_os_str(), range.as_ref()]);
    git(repository, &args).map(drop)
}

/// Both `git am` and `git apply --3way` make of a clean checkout what the branch has.
fn ensure_applies(repository: &Path, base: &str, patches: &Path, scratch: &Path) -> Result<()> {
    let expected = git(repository, &["rev-parse", &format!("{BRANCH}^{{tree}}")])?;
    let mut files: Vec<PathBuf> = std::fs::read_dir(patches)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    files.sort();
    ensure!(!files.is_empty(), "there are no patches");
    let tools = [
        (&["am", "--quiet"][..], &["rev-parse", "HEAD^{tree}"][..]),
        (&["apply", "--3way", "--whitespace=error-all"], &["write-tree"]),
    ];
    for (apply, tree) in tools {
        std::fs::create_dir_all(scratch)?;
        git(scratch, &["clone".as_ref(), "--quiet".as_ref(), repository.as_os_str(), ".".as_ref()])?;
        git(scratch, &["checkout", "--quiet", base])?;
        let args = apply.iter().map(std::ffi::OsStr::new).chain(files.iter().map(|file| file.as_os_str()));
        git(scratch, &args.collect::<Vec<_>>())?;
        let same = git(scratch, tree)? == expected;
        ensure!(same, "git {} does not make what the branch has", apply[0]);
        std::fs::remove_dir_all(scratch)?;
    }
    Ok(())
}

/// The tree as of one patch compiles with the profiler and without, and passes upstream's tests.
fn ensure_builds(shell: &Shell, upstream: &Upstream, number: usize, patch: &Patch) -> Result<()> {
    let mut tree = patch.tree.clone();
    materialize::add_missing_tests(&mut tree)?;
    let name = format!("upstream-pr/{}/{number}", upstream.label());
    let folder = util::target_dir().join("test").join(&name).join("tree");
    tree.write(&folder)?;
    for (option, config) in [("-DMI_PPROF=ON", "on"), ("-DMI_PPROF=OFF", "off")] {
        let options = ["-DCMAKE_BUILD_TYPE=Release", option];
        let build = Build::configure(shell, &folder, &format!("{name}/{config}"), &options)?;
        build.ensure_defines(&option.replace("-D", "").replace("ON", "1").replace("OFF", "0"))?;
        build.build(shell, &[])?;
        ensure_complete(shell, &folder, &build)?;
        for (test, args) in [("api", &[][..]), ("api-fill", &[]), ("stress", &["8", "20", "5"])] {
            let program = build.folder.join(format!("mimalloc-test-{test}"));
            run_command(cmd!(shell, "{program} {args...}"))?;
        }
        let ours = build.folder.join("mimalloc-test-profile");
        if option == "-DMI_PPROF=ON" && tree.files.contains_key("test/test-profile.c") {
            run_command(cmd!(shell, "{ours}"))?;
        }
    }
    Ok(())
}

/// All of the static library can be linked: a test takes only the objects that it needs.
fn ensure_complete(shell: &Shell, tree: &Path, build: &Build) -> Result<()> {
    let (cc, include, library) = (cmake::cc(), tree.join("include"), build.folder.join("libmimalloc.a"));
    let (source, program) = (util::repo_root().join("xtask/measure/pairs.c"), build.folder.join("whole"));
    let whole = ["-Wl,--whole-archive", &*library.to_string_lossy(), "-Wl,--no-whole-archive"].map(str::to_string);
    let libraries: &[String] = if cfg!(target_os = "linux") { &whole } else { &whole[1..2] };
    run_command(cmd!(shell, "{cc} -I{include} {source} {libraries...} -lpthread -o {program}")).map(drop)
}

/// A patch that needs a line of a later one must be noticed.
pub fn planted(shell: &Shell) -> Result<usize> {
    const FILE: &str = "src/alloc-aligned.c";
    let upstream = Upstream::Pinned(PRIMARY);
    let Series { base, mut patches } = Series::of(&upstream)?;
    let engine = &mut patches[1];
    ensure!(engine.tree.files[FILE] != base.files[FILE], "the engine needs nothing in {FILE}");
    engine.tree.files.insert(FILE.to_string(), base.files[FILE].clone());
    ensure!(ensure_builds(shell, &upstream, 0, engine).is_err(), "an engine without {FILE} was not noticed");
    Ok(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkout::testing::Checkout;
    use crate::upstream::{crate_tree, pins_folder};

    fn patches(out: &Path) -> Vec<(String, Vec<u8>)> {
        let entries = std::fs::read_dir(out.join("patches")).unwrap().map(|entry| entry.unwrap().path());
        let name = |path: &Path| path.file_name().unwrap().to_string_lossy().into_owned();
        let mut patches: Vec<_> = entries.map(|path| (name(&path), std::fs::read(path).unwrap())).collect();
        patches.sort();
        patches
    }

    fn series(upstream: &str, name: &str) -> Result<Vec<(String, Vec<u8>)>> {
        let out = std::env::temp_dir().join(format!("xtask-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&out);
        run(Args { upstream: upstream.into(), out: out.clone(), no_build: true, tested: None })?;
        let patches = patches(&out);
        std::fs::remove_dir_all(out).unwrap();
        Ok(patches)
    }

    #[test]
    fn the_same_input_gives_the_same_patches() {
        let first = series(PRIMARY, "series-1").unwrap();
        assert_eq!(first.len(), 5);
        assert!(first == series(PRIMARY, "series-2").unwrap());
        let text: String = first.iter().map(|(_, patch)| String::from_utf8_lossy(patch)).collect();
        assert!(text.contains("+#include \"profile.c\"") && !text.contains("mi_prof begin"));
    }

    #[test]
    fn patches_that_make_something_else_are_noticed() {
        let out = std::env::temp_dir().join(format!("xtask-series-planted-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&out);
        let upstream = Upstream::Pinned(PRIMARY);
        let series = Series::of(&upstream).unwrap();
        make(&upstream, &series, &out, false, None).unwrap();
        let [repository, patches, scratch] = ["mimalloc", "patches", "applied"].map(|name| out.join(name));
        let base = git(&repository, &["rev-list", "--max-parents=0", "HEAD"]).unwrap();
        let mut files: Vec<_> = std::fs::read_dir(&patches).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        let last = std::fs::read_to_string(&files[4]).unwrap();
        for (fault, noticed_as) in [("Heap Profil", "what the branch has"), ("Heap Profile\n+", "git am")] {
            std::fs::write(&files[4], last.replacen("Heap Profile", fault, 1)).unwrap();
            let error = format!("{:#}", ensure_applies(&repository, base.trim(), &patches, &scratch).unwrap_err());
            assert!(error.contains(noticed_as), "{error}");
            std::fs::remove_dir_all(&scratch).unwrap();
        }
        std::fs::remove_dir_all(out).unwrap();
    }

    #[test]
    fn a_git_checkout_with_documentation_gets_its_entries() {
        let checkout = Checkout::new("series-checkout");
        let doc = crate_tree(&pins_folder().join(PRIMARY), "c_src/mimalloc3/doc").unwrap();
        util::write_atomic(&checkout.0.join("doc/mimalloc-doc.h"), &doc.files["mimalloc-doc.h"].bytes, false).unwrap();
        checkout.commit();
        let path = checkout.0.display().to_string();
        let patches = series(&path, "series-3").unwrap();
        let documentation = String::from_utf8_lossy(&patches[4].1).into_owned();
        for entry in ["+bool mi_prof_start(size_t sample_rate);", "+  mi_option_prof,", "+## Heap Profile"] {
            assert!(documentation.contains(entry), "no {entry} in\n{documentation}");
        }
        assert_eq!(git(&checkout.0, &["status", "--porcelain"]).unwrap(), "", "the checkout itself stays as it is");

        checkout.edit("src/os.c", |text| format!("{text}// mine\n"));
        assert!(format!("{:#}", series(&path, "series-4").unwrap_err()).contains("not committed: src/os.c"));
    }
}
