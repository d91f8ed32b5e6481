//! What only those who carry the profiler to another mimalloc need, at full length.

use super::matrix::{Cell, Work};
use super::provision::{self as need, Need};
use super::report::Row;
use super::steps::timed;
use super::Context;
use crate::offproof;
use crate::upstream::{pins, Upstream};
use anyhow::Result;

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
    vec![cell("off-proof", &[&need::GCC, &need::CLANG], 200, off_proof)]
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

/// Returns how many failures were planted.
pub fn planted(context: &Context) -> Result<usize> {
    let shell = &context.shell;
    Ok(offproof::static_c_planted(shell)? + offproof::upstream_tests_planted(shell)?)
}
