//! `cargo xtask demo`: builds the library and shows what it finds, in a program whose memory is known and in programs
//! that were never changed for it.

use crate::materialize;
use crate::platform;
use crate::profile::Profile;
use crate::symbols::{Symbolizer, Unnamed};
use crate::tools;
use crate::top::{self, Report};
use crate::upstream::{self, Upstream};
use crate::util;
use anyhow::{bail, ensure, Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Finer than the default, so that the small programs of the demonstration are seen in detail.
const PRELOAD_RATE: &str = "65536";

pub fn run() -> Result<()> {
    let folder = demo_folder();
    std::fs::create_dir_all(&folder).with_context(|| format!("{}: cannot be created", folder.display()))?;
    let library = Library::build(&folder)?;
    leak_example(&library, &folder)?;
    unchanged_programs(&library, &folder)
}

fn demo_folder() -> PathBuf {
    util::target_dir().join("demo")
}

fn step(text: &str) {
    println!("\n== {text}");
}

/// mimalloc with the profiler, built in Release.
struct Library {
    include: PathBuf,
    static_library: PathBuf,
    shared_library: PathBuf,
}

impl Library {
    fn build(folder: &Path) -> Result<Library> {
        step(&format!("building mimalloc {} with the profiler", upstream::PRIMARY));
        let tree = materialize::tree_folder(&Upstream::parse(upstream::PRIMARY)?)?;
        let build = folder.join("build");
        println!("configuring {}", build.display());
        let cmake = tools::cmake()?;
        let options = ["-DCMAKE_BUILD_TYPE=Release", "-DMI_PPROF=ON", "-DMI_BUILD_TESTS=OFF", "-DMI_BUILD_OBJECT=OFF"];
        let mut configure = tools::command(&cmake)?;
        configure.arg("-S").arg(&tree).arg("-B").arg(&build).args(["-G", "Ninja"]).args(options);
        succeed(&mut configure)?;
        println!("compiling");
        succeed(tools::command(&cmake)?.arg("--build").arg(&build))?;
        Ok(Library {
            include: tree.join("include"),
            static_library: existing(build.join("libmimalloc.a"))?,
            shared_library: existing(build.join(platform::shared_library("mimalloc")))?,
        })
    }
}

/// A command that runs under the allocator with profiling on, and writes `profile` when it exits.
pub fn preload(mut command: Command, library: &Path, profile: &Path) -> Command {
    command
        .envs(platform::PRELOAD.map(|variable| (variable, library)))
        .env("MIMALLOC_PROF", "1")
        .env("MIMALLOC_PROF_SAMPLE_RATE", PRELOAD_RATE)
        .env("MIMALLOC_PROF_SEED", "1")
        .env("MIMALLOC_PROF_DUMP_AT_EXIT", profile);
    command
}

/// A command for a program that runs with the profiler of the last demonstration.
pub fn preloaded(program: &str) -> Command {
    let mut command = clean_command(Path::new(program));
    let library = demo_folder().join(format!("build/libmimalloc{}", std::env::consts::DLL_SUFFIX));
    command.env("LD_PRELOAD", library).env("MIMALLOC_PROF", "1");
    command
}

fn existing(path: PathBuf) -> Result<PathBuf> {
    ensure!(path.is_file(), "{}: the build did not make it", path.display());
    Ok(path)
}

/// Runs a command whose output matters only if it fails.
fn succeed(command: &mut Command) -> Result<String> {
    finish(command, 0)
}

fn finish(command: &mut Command, expected: i32) -> Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let Output { status, stdout, stderr } = command.output().with_context(|| format!("{program}: cannot be run"))?;
    if status.code() != Some(expected) {
        let log = util::target_dir().join("failed.log");
        std::fs::write(&log, [stdout, stderr].concat())
            .with_context(|| format!("{}: cannot be written", log.display()))?;
        bail!("{program}: ended with {status}; its output is in {}", log.display());
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

/// A command without the settings for mimalloc that the user's environment may hold.
pub fn clean_command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().to_uppercase().starts_with("MIMALLOC_") {
            command.env_remove(name);
        }
    }
    command
}

fn remove_old(profile: &Path) -> Result<()> {
    match std::fs::remove_file(profile) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("{}: cannot be removed", profile.display()))
        }
        _ => Ok(()),
    }
}

fn report_of(profile: &Profile) -> Result<Report> {
    Report::new(profile, &Symbolizer::new(&profile.mappings, None, Unnamed::Binary)?, "inuse_space")
}

fn say_how_to_open(exe: &Path, profile: &Path) {
    println!("\nopen it: go tool pprof -top {} {}", exe.display(), profile.display());
    println!("     or: cargo xtask top {}", profile.display());
}

// --- A program that knows what it holds ---

fn leak_example(library: &Library, folder: &Path) -> Result<()> {
    step("examples/leak.c at the default sample rate: the estimate beside the truth");
    let exe = compile_example(library, folder)?;
    let profile_file = folder.join("leak.pb.gz");
    remove_old(&profile_file)?;
    let output = succeed(clean_command(&exe).arg(&profile_file))?;

    let profile = Profile::read(&profile_file)?;
    let report = report_of(&profile)?;
    let comparisons = compare(&output, &report, profile.rate)?;
    print!("{}", comparison_table(&comparisons));
    say_how_to_open(&exe, &profile_file);
    let wrong: Vec<&str> = comparisons.iter().filter(|row| !row.agrees()).map(|row| row.name.as_str()).collect();
    ensure!(
        wrong.is_empty(),
        "{}: outside the tolerance of the estimate: {}",
        profile_file.display(),
        wrong.join(", ")
    );
    Ok(())
}

fn compile_example(library: &Library, folder: &Path) -> Result<PathBuf> {
    let compiler = std::env::var("CC").unwrap_or_default();
    let mut words = compiler.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("cc"));
    let exe = folder.join("leak");
    command.args(words).args(["-O2", "-g", "-I"]).arg(&library.include);
    command.arg(util::repo_root().join("examples/leak.c")).arg(&library.static_library);
    command.arg("-pthread").arg("-o").arg(&exe);
    succeed(&mut command)?;
    Ok(exe)
}

/// What a program or a function holds, by its own account and by the profile's.
#[derive(Debug)]
pub struct Comparison {
    name: String,
    exact: i64,
    estimate: i64,
    /// How far the estimate may be off, in bytes.
    tolerance: f64,
}

impl Comparison {
    pub fn new(name: &str, exact: i64, estimate: i64, rate: i64) -> Comparison {
        // Four standard deviations of the estimate, if all objects are small; it is better for large ones.
        let tolerance = 4.0 * (rate as f64 * exact as f64).sqrt();
        Comparison { name: name.to_string(), exact, estimate, tolerance }
    }

    pub fn agrees(&self) -> bool {
        ((self.estimate - self.exact) as f64).abs() <= self.tolerance
    }
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let [exact, estimate, tolerance] = [self.exact, self.estimate, self.tolerance as i64].map(top::bytes);
        write!(f, "{exact} held, {estimate} in the profile, tolerance {tolerance}")
    }
}

/// The lines `held FUNCTION BYTES OBJECTS` that the example prints, against the profile, and their sum.
fn compare(output: &str, report: &Report, rate: i64) -> Result<Vec<Comparison>> {
    let mut comparisons = Vec::new();
    for line in output.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["held", function, bytes, _objects] = words[..] else { bail!("examples/leak.c printed {line:?}") };
        let exact = bytes.parse().with_context(|| format!("examples/leak.c printed {line:?}"))?;
        let estimate = report.row(function).map_or(0, |row| row.flat.bytes);
        comparisons.push(Comparison::new(function, exact, estimate, rate));
    }
    ensure!(!comparisons.is_empty(), "examples/leak.c printed no account of its memory");
    let exact = comparisons.iter().map(|row| row.exact).sum();
    comparisons.push(Comparison::new("total", exact, report.total.bytes, rate));
    Ok(comparisons)
}

fn comparison_table(comparisons: &[Comparison]) -> String {
    let mut table = format!("{:<16} {:>10} {:>10} {:>8} {:>10}\n", "", "exact", "estimate", "error", "tolerance");
    for row in comparisons {
        let percent = |value: f64| if value == 0.0 { 0.0 } else { 100.0 * value / row.exact as f64 };
        let error = percent((row.estimate - row.exact) as f64);
        let (exact, estimate) = (top::bytes(row.exact), top::bytes(row.estimate));
        let verdict = if row.agrees() { "" } else { "  <- wrong" };
        let tolerance = format!("±{:.1}%", percent(row.tolerance));
        table += &format!("{:<16} {exact:>10} {estimate:>10} {error:>+7.1}% {tolerance:>10}{verdict}\n", row.name);
    }
    table
}

// --- Programs that know nothing of the profiler ---

/// A program with a workload that leaves its memory held at exit.
pub struct Program {
    name: &'static str,
    exe: PathBuf,
    workload: fn(&Path, Run) -> Command,
    exit_code: i32,
    account: Account,
    /// Callers say more than leaves where the program's own functions have no names.
    by_cum: bool,
}

pub enum Run {
    Profiled,
    /// The program counts what it holds.
    Counted,
}

/// How a program says what it holds: in bytes, after the start of a line.
pub struct Account {
    name: &'static str,
    line: &'static str,
    /// Counting takes memory: it needs a run of its own.
    separate: bool,
}

fn unchanged_programs(library: &Library, folder: &Path) -> Result<()> {
    if cfg!(windows) {
        step("programs without a change: not on Windows, which has no preload");
        return Ok(());
    }
    let programs: Vec<Program> = [python(), sqlite(), lua()].into_iter().flatten().collect();
    ensure!(!programs.is_empty(), "no python3 (with ctypes), sqlite3 or lua5.4 is on PATH; install one of them");
    programs.iter().try_for_each(|program| unchanged_program(program, library, folder))
}

fn unchanged_program(program: &Program, library: &Library, folder: &Path) -> Result<()> {
    step(&format!(
        "{} ({}) without a change, one sample per {PRELOAD_RATE} bytes",
        program.name,
        program.exe.display()
    ));
    let profile_file = program.profile_file(folder);
    let (exact, profile) = program.run(&library.shared_library, folder)?;
    let report = report_of(&profile)?;
    print!("{}", report.table(14, program.by_cum));
    let comparison = program.compare(exact, &report, profile.rate);
    println!("\nlive when it exited, by {}:", program.account.name);
    print!("{}", comparison_table(std::slice::from_ref(&comparison)));
    say_how_to_open(&program.exe, &profile_file);
    ensure!(
        comparison.agrees(),
        "{}: the estimate is not what {} counts",
        profile_file.display(),
        program.account.name
    );
    Ok(())
}

impl Program {
    fn profile_file(&self, folder: &Path) -> PathBuf {
        folder.join(format!("{}.pb.gz", self.name))
    }

    /// Returns what it says it holds, and its profile at exit.
    pub fn run(&self, library: &Path, folder: &Path) -> Result<(i64, Profile)> {
        let file = self.profile_file(folder);
        remove_old(&file)?;
        let output = finish(&mut preload((self.workload)(&self.exe, Run::Profiled), library, &file), self.exit_code)?;
        let profile = Profile::read(&file).context("the program wrote no profile at exit")?;
        Ok((self.account(&output)?, profile))
    }

    /// The bytes held, from the output of the profiled run or of a run that only counts.
    fn account(&self, profiled_output: &str) -> Result<i64> {
        let counted = match self.account.separate {
            false => profiled_output.to_string(),
            true => finish(&mut (self.workload)(&self.exe, Run::Counted), self.exit_code)?,
        };
        let after = counted.lines().find_map(|line| line.strip_prefix(self.account.line));
        let number = after.and_then(|rest| rest.split_whitespace().next()).and_then(|word| word.parse().ok());
        number.with_context(|| format!("{}: printed no line '{} BYTES'", self.exe.display(), self.account.line))
    }

    /// A program's own account misses what its libraries allocate: a twentieth more is allowed for that.
    fn compare(&self, exact: i64, report: &Report, rate: i64) -> Comparison {
        let mut comparison = Comparison::new(self.name, exact, report.total.bytes, rate);
        comparison.tolerance += exact as f64 / 20.0;
        comparison
    }
}

/// The interpreter itself: what is on PATH may be a script that starts other programs first.
pub fn python() -> Option<Program> {
    const PRINT_EXECUTABLE: &str = "import ctypes, json, os, sys, tracemalloc; print(os.path.realpath(sys.executable))";
    let exe = tools::first_line(&tools::find("python3")?, &["-c", PRINT_EXECUTABLE])?;
    let workload = |exe: &Path, run: Run| {
        let mut command = clean_command(exe);
        command.env("PYTHONMALLOC", "malloc").env("PYTHONHASHSEED", "0");
        if matches!(run, Run::Counted) {
            command.args(["-X", "tracemalloc"]);
        }
        command.arg(util::repo_root().join("examples/workload.py"));
        command
    };
    let account = Account { name: "its tracemalloc in a run of its own", line: "tracemalloc", separate: true };
    Some(Program { name: "python3", exe: exe.into(), workload, exit_code: 0, account, by_cum: false })
}

pub fn sqlite() -> Option<Program> {
    let workload = |exe: &Path, _: Run| {
        let mut command = clean_command(exe);
        command.args(["-batch", "-init"]).arg(util::repo_root().join("examples/workload.sql")).arg(":memory:");
        command.stdin(Stdio::null());
        command
    };
    let account = Account { name: "its .stats", line: "Memory Used:", separate: false };
    Some(Program { name: "sqlite3", exe: tools::find("sqlite3")?, workload, exit_code: 3, account, by_cum: true })
}

pub fn lua() -> Option<Program> {
    let workload = |exe: &Path, _: Run| {
        let mut command = clean_command(exe);
        command.arg(util::repo_root().join("examples/workload.lua"));
        command
    };
    let account = Account { name: "its collectgarbage", line: "collectgarbage", separate: false };
    Some(Program { name: "lua5.4", exe: tools::find("lua5.4")?, workload, exit_code: 0, account, by_cum: true })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::{Amount, Row};

    fn report() -> Report {
        let amount = |bytes| Amount { bytes, objects: 1 };
        let row = Row { function: "cache_load".into(), flat: amount(1_100_000), cum: amount(1_100_000) };
        Report { sample_type: "inuse_space".into(), total: amount(1_100_000), rows: vec![row] }
    }

    #[test]
    fn the_examples_account_is_compared_line_by_line() {
        let comparisons = compare("held cache_load 1000000 7\nheld request_parse 0 0\n", &report(), 10_000).unwrap();
        let rows: Vec<_> = comparisons.iter().map(|row| (row.name.as_str(), row.exact, row.estimate)).collect();
        assert_eq!(
            rows,
            [("cache_load", 1_000_000, 1_100_000), ("request_parse", 0, 0), ("total", 1_000_000, 1_100_000)]
        );
        assert_eq!(comparisons[0].tolerance, 400_000.0, "4 * sqrt(rate * exact)");
        assert!(comparisons.iter().all(Comparison::agrees));
    }

    #[test]
    fn an_estimate_outside_the_tolerance_is_seen() {
        assert!(!Comparison::new("cache_load", 1_000_000, 1_400_001, 10_000).agrees());
        assert!(!Comparison::new("cache_load", 1_000_000, 599_999, 10_000).agrees());
        assert!(
            !Comparison::new("request_parse", 0, 1, 10_000).agrees(),
            "what is not held must not be in the profile"
        );
    }

    #[test]
    fn an_account_that_is_missing_or_odd_is_an_error() {
        assert!(compare("", &report(), 1).is_err());
        assert!(compare("held cache_load many 7\n", &report(), 1).is_err());
        assert!(compare("Segmentation fault\n", &report(), 1).is_err());
    }

    #[test]
    fn the_table_marks_what_is_wrong() {
        let rows = [Comparison::new("good", 1_048_576, 1_153_434, 10_000), Comparison::new("bad", 0, 9, 10_000)];
        let table = comparison_table(&rows);
        let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["good", "1MB", "1.10MB", "+10.0%", "±39.1%"]);
        assert!(table.lines().nth(2).unwrap().ends_with("<- wrong"));
    }
}
