//! Programs of others, without a change: what their profiles estimate, beside what they count themselves.

mod server;

use super::matrix::{Cell, Work};
use super::provision::{self as need, Need};
use super::report::Row;
use super::steps::timed;
use super::Context;
use crate::cmake::Build;
use crate::demo::{self, Comparison, Program};
use crate::document;
use crate::materialize;
use crate::profile::Profile;
use crate::upstream::{Upstream, PRIMARY};
use crate::util;
use anyhow::{ensure, Context as _, Result};
use std::path::PathBuf;

pub fn cells() -> Vec<Cell> {
    let cell = |config, program: &'static Need, run| Cell {
        target: "programs",
        config,
        needs: vec![&need::GCC, program],
        locks: &["programs"],
        weight: 20,
        work: Work::Function(run),
    };
    vec![
        cell("python3", &need::PYTHON, |context, row| at_exit(context, row, demo::python())),
        cell("sqlite3", &need::SQLITE, |context, row| at_exit(context, row, demo::sqlite())),
        cell("lua5.4", &need::LUA, |context, row| at_exit(context, row, demo::lua())),
        cell("redis", &need::REDIS, server::redis),
        cell("memcached", &need::MEMCACHED, server::memcached),
        cell("finding-a-leak", &need::GO, finding_a_leak),
    ]
}

fn folder() -> PathBuf {
    util::target_dir().join("test/programs")
}

/// Builds the shared library, once for all of these programs.
fn library(context: &Context) -> Result<PathBuf> {
    let tree = materialize::tree_folder(&Upstream::Pinned(PRIMARY))?;
    let options = ["-DCMAKE_BUILD_TYPE=Release", "-DMI_PPROF=ON", "-DMI_BUILD_TESTS=OFF"];
    let build = Build::configure(&context.shell, &tree, "programs/build", &options)?;
    build.build(&context.shell, &["mimalloc"])?;
    Ok(build.folder.join(crate::platform::shared_library("mimalloc")))
}

/// A program that ends with its memory held.
fn at_exit(context: &Context, row: &mut Row, program: Option<Program>) -> Result<()> {
    let program = program.context("it does not run, or lacks a module")?;
    let (exact, profile) = program.run(&library(context)?, &folder())?;
    row.tests.push(timed("estimate", context, || compare(context, exact, &profile)));
    row.tests.push(timed("planted", context, || disagree(exact / 2, &profile)));
    Ok(())
}

/// The document's commands, which find the guilty line of the example; and a document that blames another one.
fn finding_a_leak(context: &Context, row: &mut Row) -> Result<()> {
    let (library, folder) = (library(context)?, folder().join("document"));
    let text = context.shell.read_file(util::repo_root().join("docs/finding-a-leak.md"))?;
    let printed = document::run(&context.shell, &text, &folder, "/usr/local/lib/libmimalloc.so", &library)?;
    row.tests.push(timed("what it shows", context, || document::compare(&text, &printed)));
    row.tests.push(timed("planted", context, || {
        let error =
            document::compare(&text.replace(" 53:", " 54:"), &printed).err().context("another line was not noticed")?;
        ensure!(error.to_string().contains("-list"), "noticed elsewhere: {error:#}");
        Ok(1)
    }));
    Ok(())
}

/// The estimate is within four standard deviations of the truth. Returns how many profiles were compared.
fn compare(context: &Context, exact: i64, profile: &Profile) -> Result<usize> {
    let comparison = Comparison::new("", exact, total(profile)?, profile.rate);
    ensure!(comparison.agrees(), "the estimate is off: {comparison}");
    context.say(&comparison.to_string());
    Ok(1)
}

/// An account that is wrong must be noticed.
fn disagree(wrong: i64, profile: &Profile) -> Result<usize> {
    let comparison = Comparison::new("", wrong, total(profile)?, profile.rate);
    ensure!(!comparison.agrees(), "not noticed: {comparison}");
    Ok(1)
}

fn total(profile: &Profile) -> Result<i64> {
    let column = profile.column("inuse_space").context("no inuse_space")?;
    Ok(profile.samples.iter().map(|sample| sample.values[column]).sum())
}
