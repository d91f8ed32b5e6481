//! Both dump formats, opened with the stock `go tool pprof`: it must name the functions of the example and give each
//! what the example itself says it holds.

use crate::cmake::run;
use crate::consumers::cc;
use crate::materialize;
use crate::upstream::{Upstream, PRIMARY};
use crate::util;
use anyhow::{ensure, Context, Result};
use std::path::{Path, PathBuf};
use xshell::{cmd, Shell};

const COARSE: u64 = 65536;
/// The formats of `mi_prof_dump` and of a dump at exit.
const DUMPS: [&str; 2] = ["leak.pb.gz", "exit.heap"];

/// Returns how many values of how many functions are right.
pub fn check(shell: &Shell) -> Result<usize> {
    let example = Example::build(shell)?;
    let every_block = example.run(shell, 1, &[])?;
    let samples = example.run(shell, COARSE, &[])?;
    let mut checked = 0;
    for dump in DUMPS {
        checked += example.compare(shell, dump, &every_block, 1)?;
        checked += example.compare(shell, dump, &samples, COARSE)?;
    }
    Ok(checked)
}

/// Dumps without stacks, dumps with fewer samples than were expected, and half a dump must not pass.
pub fn planted(shell: &Shell) -> Result<usize> {
    let example = Example::build(shell)?;
    let nameless = example.run(shell, 1, &[("MIMALLOC_PROF_BT_MAX", "0")])?;
    let samples = example.run(shell, COARSE, &[])?;
    for dump in DUMPS {
        let result = example.compare(shell, dump, &nameless, 1);
        ensure!(result.is_err(), "{dump}: functions without names were not noticed");
        let result = example.compare(shell, dump, &Run { folder: samples.folder.clone(), ..nameless.clone() }, 1);
        ensure!(result.is_err(), "{dump}: estimates pass as exact values");
        let half = util::read(&samples.folder.join(dump))?;
        shell.write_file(samples.folder.join(dump), &half[..half.len() / 2])?;
        ensure!(example.compare(shell, dump, &samples, COARSE).is_err(), "{dump}: half a dump was not noticed");
    }
    Ok(3 * DUMPS.len())
}

/// `examples/leak.c`.
struct Example {
    program: PathBuf,
}

/// What the example wrote, and what it says it held.
#[derive(Clone)]
struct Run {
    folder: PathBuf,
    held: Vec<Held>,
}

#[derive(Clone)]
struct Held {
    function: String,
    bytes: f64,
    objects: f64,
}

impl Example {
    fn build(shell: &Shell) -> Result<Example> {
        let tree = materialize::tree_folder(&Upstream::Pinned(PRIMARY))?;
        let (cc, include, library) = (cc(), tree.join("include"), tree.join("src/static.c"));
        let (source, folder) = (util::repo_root().join("examples/leak.c"), util::target_dir().join("test/pprof"));
        let program = folder.join("leak");
        shell.create_dir(&folder)?;
        run(cmd!(shell, "{cc} -O2 -g -DMI_PPROF=1 -I{include} {library} {source} -o {program} -lpthread"))?;
        Ok(Example { program })
    }

    fn run(&self, shell: &Shell, rate: u64, environment: &[(&str, &str)]) -> Result<Run> {
        let (program, folder) = (&self.program, self.program.with_file_name(format!("rate-{rate}")));
        shell.create_dir(&folder)?;
        let [dump, at_exit] = DUMPS.map(|dump| folder.join(dump));
        let (rate, no_limit) = (rate.to_string(), "0");
        let command = cmd!(shell, "{program} {dump}").env("MIMALLOC_PROF_DUMP_AT_EXIT", at_exit);
        let command = command.env("MIMALLOC_PROF_SAMPLE_RATE", rate).env("MIMALLOC_PROF_MAX_BYTES", no_limit);
        let output = run(command.envs(environment.iter().copied()))?;
        let held = output.lines().filter_map(|line| line.strip_prefix("held ")).map(Held::parse);
        Ok(Run { folder, held: held.collect::<Result<_>>()? })
    }

    /// To the byte if every block was recorded, else within four standard deviations.
    fn compare(&self, shell: &Shell, dump: &str, run: &Run, rate: u64) -> Result<usize> {
        let path = run.folder.join(dump);
        let [bytes, objects] = ["inuse_space", "inuse_objects"].map(|values| self.top(shell, &path, values));
        let (bytes, objects) = (bytes?, objects?);
        ensure!(!run.held.is_empty(), "the example says nothing of its memory");
        for held in &run.held {
            let error = |count: f64| if rate == 1 { 0.0 } else { 4.0 * count.sqrt() };
            let size = held.bytes / held.objects.max(1.0);
            let tolerance = error(held.bytes * rate as f64);
            let values = [
                ("bytes", flat(&bytes, &held.function)?, held.bytes, tolerance),
                ("objects", flat(&objects, &held.function)?, held.objects, 2.0 * tolerance / size.max(1.0)),
            ];
            for (what, found, exact, tolerance) in values {
                let function = &held.function;
                let right = (found - exact).abs() <= tolerance;
                ensure!(right, "{}: {function} holds {exact} {what}, and pprof says {found}", path.display());
            }
        }
        Ok(2 * run.held.len())
    }

    /// Go keeps its settings and its cache at home: it gets one in `target`.
    fn top(&self, shell: &Shell, dump: &Path, values: &str) -> Result<String> {
        let (program, home) = (&self.program, util::target_dir().join("go"));
        let index = format!("-sample_index={values}");
        let options = ["-top", "-unit=B", "-nodefraction=0", "-nodecount=1000", &index];
        run(cmd!(shell, "go tool pprof {options...} {program} {dump}").env("HOME", home).env_remove("XDG_CACHE_HOME"))
    }
}

impl Held {
    /// `FUNCTION BYTES OBJECTS`
    fn parse(line: &str) -> Result<Held> {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|word| word.parse().ok()).with_context(|| line.to_string());
        Ok(Held { function: words[0].to_string(), bytes: number(1)?, objects: number(2)? })
    }
}

/// What a function allocated itself, in pprof's table: `flat flat% sum% cum cum% NAME`. What holds nothing is not there.
fn flat(table: &str, function: &str) -> Result<f64> {
    let (_, lines) = table.split_once("cum%\n").with_context(|| format!("not a table of pprof's:\n{table}"))?;
    let mut rows = lines.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    match rows.find(|row| row.get(5) == Some(&function)) {
        Some(row) => row[0].trim_end_matches('B').parse().with_context(|| row.join(" ")),
        None => Ok(0.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_found_in_the_table() {
        let table = "Type: x\n      flat  flat%   sum%        cum   cum%\n 12B 34.5% 34.5% 90B 34.5%  serve\n 0 0% 100% 7B 1%  main\n";
        assert_eq!(flat(table, "serve").unwrap(), 12.0);
        assert_eq!(flat(table, "main").unwrap(), 0.0);
        assert_eq!(flat(table, "server").unwrap(), 0.0);
        assert!(flat("profile is empty", "serve").is_err());
    }

    #[test]
    fn the_examples_account_is_read() {
        let held = Held::parse("serve 120 3").unwrap();
        assert_eq!((held.function.as_str(), held.bytes, held.objects), ("serve", 120.0, 3.0));
        assert!(Held::parse("serve").is_err());
    }
}
