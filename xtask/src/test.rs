//! `cargo xtask test`: everything that must hold before a change is good, on this machine, in minutes.

use crate::cmake::{self, run, Build};
use crate::upstream::{pins, Upstream, PRIMARY};
use crate::{consumers, dist, fastpath, hooks, offproof, platform, readme, tools, util};
use anyhow::{bail, ensure, Result};
use std::io::Write as _;
use std::time::Instant;
use xshell::{cmd, Shell};

#[derive(clap::Args)]
pub struct Args {
    /// Only the steps whose name contains one of these
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
    /// Name the steps, run nothing
    #[arg(long)]
    list: bool,
}

/// How many tests a step ran; all of them passed.
type Passed = usize;

pub struct Step {
    pub name: &'static str,
    pub run: fn(&Shell) -> Result<Passed>,
}

const fn step(name: &'static str, run: fn(&Shell) -> Result<Passed>) -> Step {
    Step { name, run }
}

pub const STEPS: [Step; 28] = [
    step("fmt", |shell| once(run(cmd!(shell, "cargo fmt --all --check")))),
    step("clippy", |shell| {
        once(run(cmd!(shell, "cargo clippy --quiet --locked --workspace --all-targets -- -D warnings")))
    }),
    step("rust tests", |shell| rust_tests(&run(cmd!(shell, "cargo test --locked --workspace"))?)),
    step("docs/hooks.md", |_| once(hooks::document::check())),
    step("off proof: source", |_| each_pin(|pin| offproof::source(pin).map(|()| 1))),
    step("off proof: source, planted", |_| offproof::source_planted()),
    step("off proof: code", |shell| each_pin(|pin| offproof::code(shell, pin))),
    step("off proof: code, planted", |shell| once(offproof::code_planted(shell))),
    step("off proof: static.c", |shell| offproof::static_c(shell, &Upstream::Pinned(PRIMARY))),
    step("fast path", |shell| Ok(fastpath::prove(shell, &Upstream::Pinned(PRIMARY))?.len())),
    step("fast path, planted", |shell| once(fastpath::planted(shell))),
    step("ctest: release, on", |shell| ctest(shell, &RELEASE_ON)),
    step("ctest: release, off", |shell| ctest(shell, &RELEASE_OFF)),
    step("ctest: debug full, on", |shell| ctest(shell, &DEBUG_ON)),
    step("ctest: debug full, off", |shell| ctest(shell, &DEBUG_OFF)),
    step("sampling upstream's tests: release", |shell| sampled(shell, &RELEASE_ON)),
    step("sampling upstream's tests: debug", |shell| sampled(shell, &DEBUG_ON)),
    step("amalgamation, on", |shell| once(consumers::amalgamation(shell, "-DMI_PPROF=1", "on"))),
    step("amalgamation, off", |shell| once(consumers::amalgamation(shell, "-DMI_PPROF=0", "off"))),
    step("dist: recipes", dist::check::recipes),
    step("dist: one file", dist::check::single),
    step("consumer: installed, on", |shell| installed(shell, &RELEASE_ON)),
    step("consumer: installed, off", |shell| installed(shell, &RELEASE_OFF)),
    step("consumer: add_subdirectory, on", |shell| once(consumers::add_subdirectory(shell, "-DMI_PPROF=ON", "on"))),
    step("consumer: add_subdirectory, off", |shell| once(consumers::add_subdirectory(shell, "-DMI_PPROF=OFF", "off"))),
    step("readme commands", readme::commands),
    step("readme coverage", |_| readme::coverage()),
    step("readme coverage, planted", |_| readme::coverage_planted()),
];

/// A build of the whole project by its top-level CMakeLists.txt.
struct Config {
    name: &'static str,
    options: &'static [&'static str],
    /// What the compiler must come to be told.
    defines: &'static [&'static str],
    /// Upstream's stress test takes minutes with full checks.
    small_stress: bool,
}

const RELEASE_ON: Config = Config {
    name: "release-on",
    options: &["-DCMAKE_BUILD_TYPE=Release", "-DMI_PPROF=ON"],
    defines: &["MI_PPROF=1", "MI_BUILD_RELEASE"],
    small_stress: false,
};
const RELEASE_OFF: Config = Config {
    name: "release-off",
    options: &["-DCMAKE_BUILD_TYPE=Release", "-DMI_PPROF=OFF"],
    defines: &["MI_PPROF=0", "MI_BUILD_RELEASE"],
    small_stress: false,
};
const DEBUG_ON: Config = Config {
    name: "debug-on",
    options: &["-DCMAKE_BUILD_TYPE=Debug", "-DMI_DEBUG_FULL=ON", "-DMI_PPROF=ON"],
    defines: &["MI_PPROF=1", "MI_DEBUG=3"],
    small_stress: true,
};
const DEBUG_OFF: Config = Config {
    name: "debug-off",
    options: &["-DCMAKE_BUILD_TYPE=Debug", "-DMI_DEBUG_FULL=ON", "-DMI_PPROF=OFF"],
    defines: &["MI_PPROF=0", "MI_DEBUG=3"],
    small_stress: true,
};

pub fn execute(args: Args) -> Result<()> {
    let wanted = |step: &&Step| args.only.is_empty() || args.only.iter().any(|name| step.name.contains(name.as_str()));
    let steps: Vec<&Step> = STEPS.iter().filter(wanted).collect();
    ensure!(!steps.is_empty(), "no step has such a name; see cargo xtask test --list");
    if args.list {
        steps.iter().for_each(|step| println!("{}", step.name));
        return Ok(());
    }

    let shell = cmake::shell()?;
    let reports: Vec<Report> =
        steps.iter().enumerate().map(|(at, step)| attempt(&shell, step, at, steps.len())).collect();
    print_table(&reports);
    let failed = reports.iter().filter(|report| report.passed.is_none()).count();
    let passed: usize = reports.iter().filter_map(|report| report.passed).sum();
    println!("\n{passed} passed, {failed} failed");
    ensure!(failed == 0, "{failed} of {} steps failed", steps.len());
    Ok(())
}

struct Report {
    name: &'static str,
    passed: Option<Passed>,
    seconds: f64,
}

fn attempt(shell: &Shell, step: &Step, at: usize, of: usize) -> Report {
    print!("[{:>2}/{of}] {:<34}", at + 1, step.name);
    let _ = std::io::stdout().flush();
    let start = Instant::now();
    let result = (step.run)(shell);
    let seconds = start.elapsed().as_secs_f64();
    match &result {
        Ok(passed) => println!(" ok      {passed:>4} passed {seconds:>7.1} s"),
        Err(error) => println!(" FAILED              {seconds:>7.1} s\n\n{error:#}\n"),
    }
    Report { name: step.name, passed: result.ok(), seconds }
}

fn print_table(reports: &[Report]) {
    println!("\n{:<34} {:>7} {:>9}", "step", "passed", "seconds");
    for report in reports {
        let passed = report.passed.map_or("FAILED".to_string(), |passed| passed.to_string());
        println!("{:<34} {passed:>7} {:>9.1}", report.name, report.seconds);
    }
    let total: f64 = reports.iter().map(|report| report.seconds).sum();
    println!("{:<34} {:>7} {total:>9.1}", "total", "");
}

fn once<T>(result: Result<T>) -> Result<Passed> {
    result.map(|_| 1)
}

fn each_pin(check: impl Fn(&Upstream) -> Result<Passed>) -> Result<Passed> {
    pins().iter().map(|pin| check(&Upstream::Pinned(pin))).sum()
}

/// Reads `test result: ok. 46 passed; 0 failed; …`.
fn rust_tests(output: &str) -> Result<Passed> {
    let results = output.lines().filter_map(|line| line.trim().strip_prefix("test result: ok. ")?.split(' ').next());
    let passed = results.filter_map(|count| count.parse::<usize>().ok()).sum();
    ensure!(passed > 0, "no Rust test ran:\n{output}");
    Ok(passed)
}

fn ctest(shell: &Shell, config: &Config) -> Result<Passed> {
    let build = built(shell, config)?;
    let (ctest, folder) = (tools::ctest()?, &build.folder);
    let left_out: &[&str] = if config.small_stress { &["-E", "^test-stress"] } else { &[] };
    let jobs = std::thread::available_parallelism().map_or(1, |count| count.get()).to_string();
    let output =
        run(cmd!(shell, "{ctest} --test-dir {folder} --no-tests=error --output-on-failure -j {jobs} {left_out...}"))?;
    let stress = if config.small_stress { small_stress(shell, &build)? } else { 0 };
    Ok(ctest_passed(&output)? + stress)
}

/// Reads `100% tests passed out of 4`, or `100% tests passed, 0 tests failed out of 4`.
fn ctest_passed(output: &str) -> Result<Passed> {
    let summary = output.lines().find_map(|line| line.strip_prefix("100% tests passed"));
    let passed = summary.and_then(|rest| rest.rsplit(' ').next()?.parse().ok()).unwrap_or(0);
    if passed == 0 {
        bail!("ctest ran no test:\n{output}");
    }
    Ok(passed)
}

fn small_stress(shell: &Shell, build: &Build) -> Result<Passed> {
    let folder = build.folder.join("mimalloc");
    let [linked, dynamic] = ["stress", "stress-dynamic"].map(|name| folder.join(format!("mimalloc-test-{name}")));
    run(cmd!(shell, "{linked} 8 20 5"))?;
    let library = folder.join(platform::shared_library("mimalloc-debug"));
    ensure!(platform::PRELOAD.is_none() || library.is_file(), "{}: was not built", library.display());
    let preload = platform::PRELOAD.map(|variable| (variable, library));
    let output = run(cmd!(shell, "{dynamic} 8 20 5").envs(preload).env("MIMALLOC_VERBOSE", "1"))?;
    ensure!(output.contains("mimalloc: "), "mimalloc was not there:\n{output}");
    Ok(2)
}

/// Upstream's own tests pass while everything is sampled, most blocks are, and some are.
fn sampled(shell: &Shell, config: &Config) -> Result<Passed> {
    let folder = built(shell, config)?.folder.join("mimalloc");
    let small_stress: &[&str] = &["8", "20", "5"];
    let tests = [("api", &[][..]), ("api-fill", &[]), ("stress", small_stress)];
    let rates = ["1", "64", "4096"];
    for rate in rates {
        for (test, args) in tests {
            let program = folder.join(format!("mimalloc-test-{test}"));
            let command = cmd!(shell, "{program} {args...}");
            run(command.env("MIMALLOC_PROF", "1").env("MIMALLOC_PROF_SAMPLE_RATE", rate))?;
        }
    }
    Ok(tests.len() * rates.len())
}

fn built(shell: &Shell, config: &Config) -> Result<Build> {
    let options = [config.options, platform::host_options()].concat();
    let build = Build::configure(shell, util::repo_root(), config.name, &options)?;
    config.defines.iter().try_for_each(|define| build.ensure_defines(define))?;
    build.build(shell, &[])?;
    Ok(build)
}

fn installed(shell: &Shell, config: &Config) -> Result<Passed> {
    let prefix = consumers::install(shell, &built(shell, config)?)?;
    consumers::find_package(shell, &prefix, config.name)?;
    consumers::pkg_config(shell, &prefix)?;
    Ok(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_what_the_runners_print() {
        let output = "test result: ok. 46 passed; 0 failed; 0 ignored\ntest result: ok. 2 passed; 0 failed";
        assert_eq!(rust_tests(output).unwrap(), 48);
        assert!(rust_tests("test result: ok. 0 passed; 0 failed").is_err());
        assert_eq!(ctest_passed("1/2 Test #1: a\n100% tests passed, 0 tests failed out of 12\n").unwrap(), 12);
        assert_eq!(ctest_passed("100% tests passed out of 4").unwrap(), 4);
        assert!(ctest_passed("No tests were found!!!").is_err());
    }

    #[test]
    fn no_two_steps_have_one_name() {
        let mut names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), STEPS.len());
    }
}
