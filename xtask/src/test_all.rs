//! `cargo xtask test-all`: everything that one Linux machine can build, run or emulate, for every system and toolchain.

mod cross;
mod exec;
mod machine;
mod matrix;
mod msvc;
mod planted;
mod programs;
pub mod provision;
mod report;
mod steps;
mod suite;
mod upstream;

use crate::cmake;
use crate::materialize;
use crate::upstream::{pins, Upstream};
use crate::util;
use anyhow::{bail, ensure, Context as _, Result};
use matrix::{Cell, Work};
use provision::Need;
use report::Row;
use std::fs::File;
use std::path::PathBuf;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Instant;
use xshell::Shell;

#[derive(clap::Args)]
pub struct Args {
    /// Name the targets and their configurations, run nothing
    #[arg(long)]
    list: bool,
    /// Only these targets, or TARGET/CONFIG
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// How many configurations at a time [default: the number of processors]
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// Go on after a failure
    #[arg(long)]
    keep_going: bool,
    /// A target that cannot run here is a failure
    #[arg(long)]
    strict: bool,
    /// Never install packages
    #[arg(long)]
    no_install: bool,
    /// Write the results to a file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Plant the failure that each gate is there for, and see that it is caught
    #[arg(long)]
    self_test: bool,
}

pub fn execute(args: Args) -> Result<()> {
    if args.self_test {
        let _lock = lock()?;
        return planted::self_test(!args.no_install);
    }
    let mut cells = chosen(&args.only)?;
    if args.list {
        cells.iter().for_each(|cell| println!("{}", cell.label()));
        return Ok(());
    }
    let _lock = lock()?;
    let start = Instant::now();
    let order: Vec<String> = cells.iter().map(Cell::label).collect();
    prepare(&cells, !args.no_install)?;
    cells.sort_by_key(|cell| std::cmp::Reverse(cell.weight));
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get());
    let jobs = args.jobs.unwrap_or(processors).clamp(1, cells.len());
    let mut rows = Run::new(cells, args.keep_going, start).rows(jobs, processors.div_ceil(jobs));
    rows.sort_by_key(|row| order.iter().position(|label| *label == row.label()));

    let elapsed = start.elapsed().as_secs_f64();
    report::print_failures(&rows);
    report::print_table(&rows, elapsed);
    println!("\n{}", report::summary(&rows));
    if let Some(path) = &args.json {
        report::write_json(&rows, elapsed, path)?;
    }
    verdict(&rows, order.len(), args.strict)
}

/// Two runs would build in the same folders.
fn lock() -> Result<File> {
    let path = util::target_dir().join("test/lock");
    std::fs::create_dir_all(util::target_dir().join("test"))?;
    let file = File::create(&path).with_context(|| path.display().to_string())?;
    if file.try_lock().is_err() {
        eprintln!("waiting for another run of test-all");
        file.lock()?;
    }
    Ok(file)
}

/// Whether that was all, and all was well.
fn verdict(rows: &[Row], expected: usize, strict: bool) -> Result<()> {
    let failed: Vec<String> = rows.iter().filter(|row| row.failed() > 0).map(Row::label).collect();
    let skipped: Vec<String> = rows.iter().filter(|row| row.skipped.is_some()).map(Row::label).collect();
    let passed: usize = rows.iter().map(Row::passed).sum();
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    ensure!(!strict || skipped.is_empty(), "could not run here: {}", skipped.join(", "));
    ensure!(rows.len() == expected, "only {} of {expected} ran", rows.len());
    ensure!(passed > 0 || !skipped.is_empty(), "nothing ran");
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<Cell>> {
    let is = |cell: &Cell, name: &str| cell.target == name || cell.label() == name;
    let mut cells = matrix::cells();
    if let Some(unknown) = names.iter().find(|name| !cells.iter().any(|cell| is(cell, name))) {
        bail!("--only {unknown}: no such target; see cargo xtask test-all --list");
    }
    cells.retain(|cell| names.is_empty() || names.iter().any(|name| is(cell, name)));
    Ok(cells)
}

/// Installs what is missing, and makes the trees that several cells share.
fn prepare(cells: &[Cell], install: bool) -> Result<()> {
    let needs = cells.iter().flat_map(|cell| &cell.needs).chain(provision::BUILDING);
    let needs: Vec<&Need> = needs.copied().collect();
    provision::provide(&needs, install);
    for pin in pins() {
        materialize::tree_folder(&Upstream::Pinned(pin))?;
    }
    Ok(())
}

/// What a cell needs to run.
pub struct Context {
    pub shell: Shell,
    /// Processes that a build may use.
    pub build_jobs: usize,
    label: String,
    start: Instant,
    quiet: bool,
}

impl Context {
    pub fn new(label: &str, build_jobs: usize, start: Instant) -> Result<Context> {
        Ok(Context { shell: cmake::shell()?, build_jobs, label: label.to_string(), start, quiet: false })
    }

    /// For a failure that is expected.
    pub fn quiet(&self) -> Context {
        Context { shell: self.shell.clone(), build_jobs: 1, label: self.label.clone(), start: self.start, quiet: true }
    }

    /// A line of progress.
    pub fn say(&self, text: &str) {
        if self.quiet {
            return;
        }
        let seconds = self.start.elapsed().as_secs();
        println!("[{:>3}:{:02}] {:<34} {text}", seconds / 60, seconds % 60, self.label);
    }
}

struct Run {
    state: Mutex<State>,
    changed: Condvar,
    keep_going: bool,
    start: Instant,
}

struct State {
    waiting: Vec<Cell>,
    locked: Vec<&'static str>,
    rows: Vec<Row>,
    failed: bool,
}

impl Run {
    fn new(waiting: Vec<Cell>, keep_going: bool, start: Instant) -> Run {
        let state = State { waiting, locked: Vec::new(), rows: Vec::new(), failed: false };
        Run { state: Mutex::new(state), changed: Condvar::new(), keep_going, start }
    }

    fn rows(self, workers: usize, build_jobs: usize) -> Vec<Row> {
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(|| self.work(build_jobs));
            }
        });
        self.state.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()).rows
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn work(&self, build_jobs: usize) {
        while let Some(cell) = self.take() {
            let row = run(&cell, build_jobs, self.start);
            let mut state = self.state();
            state.locked.retain(|lock| !cell.locks.contains(lock));
            state.failed |= row.failed() > 0;
            state.rows.push(row);
            self.changed.notify_all();
        }
    }

    /// The next cell whose locks are free; waits for one.
    fn take(&self) -> Option<Cell> {
        let mut state = self.state();
        loop {
            if state.waiting.is_empty() || (state.failed && !self.keep_going) {
                return None;
            }
            let locked = &state.locked;
            let free = state.waiting.iter().position(|cell| cell.locks.iter().all(|lock| !locked.contains(lock)));
            if let Some(at) = free {
                let cell = state.waiting.remove(at);
                state.locked.extend(cell.locks);
                return Some(cell);
            }
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

fn run(cell: &Cell, build_jobs: usize, start: Instant) -> Row {
    let mut row = Row::new(cell.target, cell.config);
    let began = Instant::now();
    let result = Context::new(&cell.label(), build_jobs, start).and_then(|context| {
        let missing: Vec<String> =
            cell.needs.iter().filter(|need| !need.is_present()).map(|need| need.advice()).collect();
        if missing.is_empty() {
            context.say("…");
            run_work(&cell.work, &context, &mut row)?;
        } else {
            row.skipped = Some(missing.join("; "));
        }
        Ok(context)
    });
    row.seconds = began.elapsed().as_secs_f64();
    match result {
        Ok(context) => context.say(&outcome(&row)),
        Err(error) => {
            println!("{} FAILED", cell.label());
            row.error = Some(format!("{error:#}"));
        }
    }
    row
}

fn outcome(row: &Row) -> String {
    if let Some(reason) = &row.skipped {
        return format!("skipped: {reason}");
    }
    let end = if row.failed() == 0 { "ok" } else { "FAILED" };
    format!("{end}: {} passed, {} failed, {:.0} s", row.passed(), row.failed(), row.seconds)
}

fn run_work(work: &Work, context: &Context, row: &mut Row) -> Result<()> {
    match work {
        Work::Suite(suite) => suite.run(context, row)?,
        Work::Steps(names) => steps::run(names, context, row)?,
        Work::Function(run) => run(context, row)?,
    }
    Ok(())
}
