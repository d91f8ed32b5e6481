//! Labels, the counts of allocations and the peak, as pprof shows them.

use super::stock::{self, Dump};
use super::Bench;
use crate::cmake::run;
use anyhow::{ensure, Result};
use std::path::PathBuf;
use xshell::cmd;

/// What some options show of a dump: each function with what it allocated, and no other function of the program.
struct Case {
    dump: &'static str,
    options: &'static [&'static str],
    rows: &'static [(&'static str, f64)],
}

const OLD: (&str, f64) = ("hold_old", 12000.0);
const YOUNG: (&str, f64) = ("hold_young", 21000.0);
const IN_HEAP: (&str, f64) = ("hold_in_heap", 50000.0);
const IN_THREAD: (&str, f64) = ("hold_in_thread", 20000.0);
const NOTHING: (&str, f64) = ("hold_nothing", 150000.0);
const AT_PEAK: (&str, f64) = ("hold_at_peak", 1000000.0);
const LIVE: &[(&str, f64)] = &[OLD, YOUNG, IN_HEAP, IN_THREAD];
const ALL: &[(&str, f64)] = &[OLD, YOUNG, IN_HEAP, IN_THREAD, NOTHING, AT_PEAK];

const CASES: [Case; 15] = [
    Case { dump: "live.pb.gz", options: &[], rows: LIVE },
    Case { dump: "live.pb.gz", options: &["-sample_index=alloc_space"], rows: ALL },
    Case { dump: "live.heap", options: &["-sample_index=inuse_space"], rows: LIVE },
    Case { dump: "live.heap", options: &["-sample_index=alloc_space"], rows: ALL },
    Case { dump: "allocs.pb.gz", options: &[], rows: ALL },
    Case { dump: "peak.pb.gz", options: &[], rows: &[OLD, IN_HEAP, IN_THREAD, AT_PEAK] },
    Case { dump: "live.pb.gz", options: &["-tagfocus=worker"], rows: &[IN_THREAD] },
    Case { dump: "live.pb.gz", options: &["-tagfocus=thread=worker"], rows: &[IN_THREAD] },
    Case { dump: "live.pb.gz", options: &["-tagignore=thread=worker"], rows: &[OLD, YOUNG, IN_HEAP] },
    Case { dump: "live.pb.gz", options: &["-tagfocus=heap=cache"], rows: &[IN_HEAP] },
    Case { dump: "live.pb.gz", options: &["-tagfocus=age=2s:"], rows: &[OLD, IN_HEAP, IN_THREAD] },
    Case { dump: "live.pb.gz", options: &["-tagfocus=age=64s:"], rows: &[] },
    Case { dump: "live.pb.gz", options: &["-tagfocus=bytes=1000b:2000b"], rows: &[IN_HEAP] },
    Case { dump: "peak.pb.gz", options: &["-tagfocus=thread=worker"], rows: &[IN_THREAD] },
    Case { dump: "allocs.pb.gz", options: &["-tagfocus=heap=cache"], rows: &[IN_HEAP] },
];

pub fn check(bench: &Bench) -> Result<usize> {
    let name = run_program(bench, &[])?;
    CASES.iter().try_for_each(|case| case.check(bench, &name, 0.0))?;
    let shown = check_shown(bench, &name)?;
    Ok(CASES.iter().map(|case| case.rows.len() + 1).sum::<usize>() + shown)
}

/// A byte more in each case, and a profile without labels.
pub fn planted(bench: &Bench) -> Result<usize> {
    let name = run_program(bench, &[])?;
    let with_rows = || CASES.iter().filter(|case| !case.rows.is_empty());
    for case in with_rows() {
        ensure!(case.check(bench, &name, 1.0).is_err(), "not noticed: a byte more in {:?}", case.options);
    }
    let plain = run_program(bench, &["plain"])?;
    let labelled = || {
        CASES.iter().filter(|case| !case.rows.is_empty() && case.options.iter().any(|option| option.contains("tag")))
    };
    for case in labelled() {
        ensure!(case.check(bench, &plain, 0.0).is_err(), "not noticed: no labels for {:?}", case.options);
    }
    ensure!(check_shown(bench, &plain).is_err(), "not noticed: no labels to show");
    Ok(with_rows().count() + labelled().count() + 1)
}

/// Returns the path that its dumps begin with.
fn run_program(bench: &Bench, arguments: &[&str]) -> Result<PathBuf> {
    let folder = bench.folder.join("labels");
    let (program, name) = (folder.join("labels"), folder.join(arguments.concat() + "dump"));
    bench.shell.create_dir(&folder)?;
    bench.compile(&Bench::source("labels.c"), &[], &program)?;
    run(cmd!(bench.shell, "{program} {name} {arguments...}"))?;
    Ok(name)
}

fn open<'a>(bench: &'a Bench, name: &std::path::Path, dump: &str) -> Dump<'a> {
    Dump { shell: bench.shell, path: PathBuf::from(format!("{}.{dump}", name.display())), program: None }
}

impl Case {
    fn check(&self, bench: &Bench, name: &std::path::Path, more: f64) -> Result<()> {
        let dump = open(bench, name, self.dump);
        let table = dump.top(self.options)?;
        let of_program = table.rows.iter().filter(|row| row.flat > 0.0 && row.name.starts_with("hold_"));
        let found: Vec<(&str, f64)> = of_program.map(|row| (row.name.as_str(), row.flat)).collect();
        let missing = self.rows.iter().find(|(function, bytes)| !found.contains(&(function, bytes + more)));
        ensure!(missing.is_none(), "{} {:?}: no {missing:?} in {found:?}", dump.display(), self.options);
        ensure!(found.len() == self.rows.len(), "{} {:?}: more in {found:?}", dump.display(), self.options);
        Ok(())
    }
}

/// `-tagshow` chooses among the labels of a trace, and `-tags` sums them up.
fn check_shown(bench: &Bench, name: &std::path::Path) -> Result<usize> {
    let dump = open(bench, name, "live.pb.gz");
    let traces = stock::traces(&dump.pprof(&["-traces", "-tagshow=thread"])?)?;
    let is_shown = |trace: &stock::Trace| trace.stack[0] == IN_THREAD.0 && trace.labels == ["thread:  worker"];
    ensure!(traces.iter().any(is_shown), "no trace shows its thread, and that alone");
    let tags = dump.pprof(&["-tags"])?;
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    for label in ["age:", "bytes:", "heap: Total 50000.0B", "thread:"] {
        ensure!(tags.lines().any(|line| words(line).starts_with(label)), "no '{label}' in:\n{tags}");
    }
    Ok(5)
}
