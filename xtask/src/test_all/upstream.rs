//! What those need who carry the profiler to another mimalloc, or ship it, at full length.

use super::exec;
use super::machine::Machine;
use super::matrix::{Cell, Work};
use super::provision::{self as need, Need};
use super::report::Row;
use super::steps::{own_command, timed};
use super::Context;
use crate::upstream::{pins, Upstream, PRIMARY};
use crate::{dist, offproof, upstream_pr, util};
use anyhow::{ensure, Result};
use std::time::Duration;

/// Upstream's own builds and trees.
const LOCKS: &[&str] = &["pristine"];

pub fn cells() -> Vec<Cell> {
    let cell = |config, needs: &[&'static Need], weight, run| Cell {
        target: "upstream",
        config,
        needs: needs.to_vec(),
        locks: LOCKS,
        weight,
        work: Work::Function(run),
    };
    vec![
        cell("off-proof", &[&need::GCC, &need::CLANG], 120, off_proof),
        cell("drift", &[&need::GCC], 100, drift),
        cell("pull-request", &[&need::GCC, &need::OBJDUMP, &need::VALGRIND], 180, pull_request),
        cell("dist", &[&need::GCC, &need::MINGW, &need::WINE, &need::PIP], 90, dist),
    ]
}

/// `static.c` of every pin by both compilers, and upstream's own tests.
fn off_proof(context: &Context, row: &mut Row) -> Result<()> {
    let shell = &context.shell;
    for pin in pins() {
        let upstream = Upstream::Pinned(pin);
        row.tests.push(timed(&format!("{pin}: static.c"), context, || offproof::static_c(shell, &upstream)));
        row.tests.push(timed(&format!("{pin}: tests"), context, || offproof::upstream_tests(shell, &upstream)));
    }
    Ok(())
}

fn drift(context: &Context, row: &mut Row) -> Result<()> {
    let fits = || own_command("drift", &["drift", "--offline"], "OFF proof                  holds").map(|()| 1);
    row.tests.push(timed("every pin fits", context, fits));
    Ok(())
}

fn pull_request(context: &Context, row: &mut Row) -> Result<()> {
    let out = util::target_dir().join("test/pull-request");
    context.shell.remove_path(&out)?;
    let folder = out.display().to_string();
    let args = ["upstream-pr", "--upstream", PRIMARY, "--out", &folder];
    row.tests.push(timed("every patch builds and passes", context, || {
        own_command("upstream-pr", &args, "5 patches")?;
        ensure!(out.join("pull-request.md").is_file(), "there is no text");
        Ok(1)
    }));
    Ok(())
}

fn dist(context: &Context, row: &mut Row) -> Result<()> {
    let shell = &context.shell;
    row.tests.push(timed("archive, with CMake alone", context, || dist::check::archive(shell)));
    row.tests.push(timed("vcpkg port", context, || dist::check::vcpkg(shell)));
    row.tests.push(timed("one file, MinGW", context, || {
        let program = dist::check::single_mingw(shell)?;
        let log = program.with_extension("log");
        let finished = exec::run(&mut Machine::Wine.command(&program)?, &log, Duration::from_secs(120))?;
        ensure!(finished.success(), "{}", finished.report());
        Ok(1)
    }));
    Ok(())
}

/// Returns how many failures were planted.
pub fn planted(context: &Context) -> Result<usize> {
    let shell = &context.shell;
    let refused = own_command("planted-drift", &["drift", "--no-build", "--offline", "--upstream", "xtask"], "");
    ensure!(refused.is_err(), "a folder that is no mimalloc was not noticed");
    let proof = offproof::static_c_planted(shell)? + offproof::upstream_tests_planted(shell)?;
    Ok(1 + proof + upstream_pr::planted(shell)? + dist::check::planted(shell)?)
}
