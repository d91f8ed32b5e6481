//! What `cargo xtask test` does too, and other commands that test: each as a target.

use super::exec;
use super::matrix::{Cell, Work};
use super::provision::{self as need, Need};
use super::report::{Row, Test, Verdict};
use super::Context;
use crate::test::{Step, STEPS};
use crate::{pprof, tools, util, workflows};
use anyhow::{ensure, Context as _, Result};
use std::process::Command;
use std::time::{Duration, Instant};

/// Builds that several cells use.
pub const BUILDS: &[&[&str]] = &[&["release-on"], &["release-off"], &["debug-on"], &["debug-off"]];
const ALL_BUILDS: &[&str] = &["release-on", "release-off", "debug-on", "debug-off"];
/// Upstream's own builds and trees.
const PRISTINE: &[&str] = &["pristine"];

/// Tested by the target `linux-gcc`, with more detail.
const REPLACED: &[&str] = &["ctest:"];

/// Steps by how their names begin.
struct Group {
    target: &'static str,
    steps: &'static [&'static str],
    needs: &'static [&'static Need],
    locks: &'static [&'static str],
    weight: u32,
}

const GROUPS: &[Group] = &[
    Group { target: "rust", steps: &["fmt", "clippy", "rust tests"], needs: &[], locks: PRISTINE, weight: 150 },
    Group { target: "off-proof", steps: &["off proof"], needs: &[&need::GCC], locks: PRISTINE, weight: 150 },
    Group {
        target: "fast-path",
        steps: &["fast path"],
        needs: &[&need::GCC, &need::OBJDUMP],
        locks: PRISTINE,
        weight: 50,
    },
    Group {
        target: "sampling",
        steps: &["sampling upstream's tests"],
        needs: &[&need::GCC],
        locks: ALL_BUILDS,
        weight: 60,
    },
    Group { target: "amalgamation", steps: &["amalgamation"], needs: &[&need::GCC], locks: &[], weight: 20 },
    Group {
        target: "consumers",
        steps: &["consumer"],
        needs: &[&need::GCC, &need::PKG_CONFIG],
        locks: ALL_BUILDS,
        weight: 80,
    },
    Group { target: "readme", steps: &["readme"], needs: &[&need::GCC], locks: &[], weight: 60 },
];

pub const PPROF: &[&Need] = &[&need::GCC, &need::GO, &need::GRAPHVIZ, &need::OBJDUMP];

pub fn cells() -> Vec<Cell> {
    let group = |group: &Group| Cell {
        target: group.target,
        config: "-",
        needs: group.needs.to_vec(),
        locks: group.locks,
        weight: group.weight,
        work: Work::Steps(group.steps),
    };
    let function = |target, needs: &[&'static Need], weight, run| Cell {
        target,
        config: "-",
        needs: needs.to_vec(),
        locks: &[],
        weight,
        work: Work::Function(run),
    };
    let mut cells: Vec<Cell> = GROUPS.iter().map(group).collect();
    if other_steps().next().is_some() {
        cells.push(Cell { work: Work::Function(other), ..group(&OTHER) });
    }
    cells.push(function("pprof", PPROF, 30, pprof));
    cells.push(function("workflows", &[&need::PIP], 30, workflows));
    cells.push(function("fuzz", need::SANITIZING, 90, fuzz));
    cells
}

/// Steps that came later and belong to none of the groups.
const OTHER: Group = Group { target: "other-steps", steps: &[], needs: &[&need::GCC], locks: ALL_BUILDS, weight: 30 };

fn begins(step: &Step, names: &[&str]) -> bool {
    names.iter().any(|name| step.name.starts_with(name))
}

pub fn run(names: &[&str], context: &Context, row: &mut Row) -> Result<()> {
    let steps: Vec<&Step> = STEPS.iter().filter(|step| begins(step, names)).collect();
    ensure!(!steps.is_empty(), "`cargo xtask test` has no step {}", names.join(", "));
    run_steps(&steps, context, row);
    Ok(())
}

fn other(context: &Context, row: &mut Row) -> Result<()> {
    run_steps(&other_steps().collect::<Vec<_>>(), context, row);
    Ok(())
}

fn other_steps() -> impl Iterator<Item = &'static Step> {
    let known = |step: &&Step| begins(step, REPLACED) || GROUPS.iter().any(|group| begins(step, group.steps));
    STEPS.iter().filter(move |step| !known(step))
}

fn run_steps(steps: &[&Step], context: &Context, row: &mut Row) {
    for step in steps {
        row.tests.push(timed(step.name, context, || (step.run)(&context.shell)));
    }
}

pub fn timed(name: &str, context: &Context, run: impl FnOnce() -> Result<usize>) -> Test {
    let start = Instant::now();
    let verdict = match run() {
        Ok(passed) => Verdict::Passed(passed),
        Err(error) => {
            context.say(&format!("FAILED {name}"));
            Verdict::Failed(format!("{error:#}"))
        }
    };
    Test { name: name.to_string(), seconds: start.elapsed().as_secs_f64(), verdict }
}

fn pprof(context: &Context, row: &mut Row) -> Result<()> {
    let bench = pprof::Bench::new(&context.shell)?;
    for variant in &pprof::VARIANTS {
        row.tests.push(timed(variant.name, context, || bench.check(variant)));
    }
    row.tests.push(timed("estimates", context, || bench.estimates()));
    row.tests.push(timed("labels, allocations, the peak", context, || bench.labels()));
    row.tests.push(timed("planted", context, || bench.planted()));
    Ok(())
}

fn workflows(context: &Context, row: &mut Row) -> Result<()> {
    row.tests.push(timed("check", context, || workflows::check(&context.shell)));
    row.tests.push(timed("planted", context, || workflows::planted(&context.shell)));
    Ok(())
}

fn fuzz(context: &Context, row: &mut Row) -> Result<()> {
    let args = ["fuzz", "--seconds", "30", "--no-install"];
    row.tests.push(timed("fuzz 30 s", context, || own_command("fuzz", &args, " executions in ").map(|()| 1)));
    Ok(())
}

/// Another command of this program, in a process of its own, and what its output must tell.
pub fn own_command(name: &str, args: &[&str], tells: &str) -> Result<()> {
    let mut command = Command::new(util::this_program()?);
    command.args(args).current_dir(util::repo_root()).env("PATH", tools::path_with_tools()?);
    let log = util::target_dir().join("test/logs").join(name);
    let finished = exec::run(&mut command, &log, Duration::from_secs(1200)).context(name.to_string())?;
    ensure!(finished.success(), "{}", finished.report());
    ensure!(finished.output.contains(tells), "its output lacks '{tells}':\n{}", finished.report());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_group_has_steps() {
        for group in GROUPS {
            for name in group.steps {
                assert!(STEPS.iter().any(|step| begins(step, &[name])), "{name}");
            }
        }
        assert!(STEPS.iter().any(|step| begins(step, REPLACED)));
    }
}
