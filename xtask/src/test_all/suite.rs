//! Builds a mimalloc tree with CMake and runs our tests and upstream's own, on this machine or in an emulator.

use super::exec;
use super::machine::Machine;
use super::report::{Row, Test, Verdict};
use super::Context;
use crate::cmake::Build;
use crate::materialize;
use crate::profile::Profile;
use crate::symbols::{Symbolizer, Unnamed};
use crate::upstream::Upstream;
use crate::util;
use anyhow::{bail, ensure, Context as _, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Far more than any test takes, in an emulator and on a busy machine too.
const TEST_LIMIT: Duration = Duration::from_secs(1200);
const STRESS: &str = "stress";
/// Upstream's own tests.
const UPSTREAM_TESTS: [&str; 3] = ["api", "api-fill", STRESS];

/// What to build.
pub enum Source {
    /// This repository, by its top-level CMakeLists.txt.
    Project,
    /// The tree that is made of a pinned mimalloc.
    Pin(&'static str),
    /// Any folder with such a tree.
    Folder(PathBuf),
}

/// Work of upstream's stress test.
#[derive(Clone, Copy, PartialEq)]
pub enum Stress {
    Full,
    Small,
    Tiny,
}

impl Stress {
    fn args(self) -> &'static [&'static str] {
        match self {
            Stress::Full => &[],
            Stress::Small => &["8", "20", "5"],
            Stress::Tiny => &["2", "10", "2"],
        }
    }
}

pub struct Suite {
    /// The build folder.
    pub name: String,
    pub source: Source,
    pub options: Vec<String>,
    /// What the compiler must come to be told.
    pub defines: Vec<&'static str>,
    /// What CMake must call the compiler.
    pub compiler: &'static str,
    pub machine: Machine,
    /// For the tests.
    pub environment: Vec<(&'static str, String)>,
    pub stress: Stress,
    /// Whether tests that take long do less.
    pub quick: bool,
    /// Whether a shared library can take the place of `malloc` in a program.
    pub preload: bool,
    /// Tests that are not run, and why.
    pub left_out: Vec<(&'static str, &'static str)>,
}

impl Suite {
    pub fn has_option(&self, option: &str) -> bool {
        self.options.iter().any(|given| given == option)
    }

    fn has_profiler(&self) -> bool {
        !self.has_option("-DMI_PPROF=OFF")
    }

    pub fn run(&self, context: &Context, row: &mut Row) -> Result<()> {
        let start = Instant::now();
        row.built = Some(false);
        let build = self.build(context, &[])?;
        row.built = Some(true);
        row.build_seconds = start.elapsed().as_secs_f64();
        context.say(&format!("built in {:.0} s", row.build_seconds));

        let folder = self.programs(&build);
        self.run_tests(context, &folder, row)?;
        for name in self.leaf_tests(&folder)? {
            row.tests.push(self.test(context, &folder, &name, &[])?);
        }
        Ok(())
    }

    /// `test/stack/leaf.c` in the ways that CMake built it.
    fn leaf_tests(&self, folder: &Path) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(folder)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let name = name.strip_suffix(self.machine.suffix()).and_then(|name| name.strip_prefix("mimalloc-test-"));
            names.extend(name.filter(|name| name.starts_with("profile-stack-leaf-")).map(str::to_string));
        }
        names.sort();
        ensure!(names.is_empty() != self.has_profiler(), "{}: {} tests of leafs", folder.display(), names.len());
        Ok(names)
    }

    /// Runs the tests that are in a folder.
    pub fn run_tests(&self, context: &Context, folder: &Path, row: &mut Row) -> Result<()> {
        for name in test_names(self.has_profiler())? {
            let args = if name == STRESS { self.stress.args() } else { &[] };
            row.tests.push(self.test(context, folder, &name, args)?);
        }
        if self.has_profiler() {
            for format in ["pb.gz", "heap"] {
                row.tests.push(self.named(context, folder, format)?);
            }
        }
        if self.preload {
            row.tests.extend(self.preloaded(context, folder)?);
        }
        Ok(())
    }

    /// A dump's stacks, by the symbols of the program.
    fn named(&self, context: &Context, folder: &Path, format: &str) -> Result<Test> {
        let name = format!("names, {format}");
        if let Some((_, reason)) = self.left_out.iter().find(|(left_out, _)| *left_out == NAMES) {
            return Ok(Test { name, seconds: 0.0, verdict: Verdict::Skipped(reason.to_string()) });
        }
        let dump = folder.join(format!("names.{format}"));
        let environment = profiling(&dump, "1")?;
        let program = "profile-dump";
        let run = Run { name: &name, program, args: &["names"], environment: &environment, limit: TEST_LIMIT };
        let mut test = self.run_program(context, folder, run)?;
        if let Verdict::Passed(_) = &test.verdict {
            if let Err(error) = check_names(&dump, &self.program(folder, program)) {
                test.verdict = Verdict::Failed(format!("{error:#}"));
            }
        }
        Ok(test)
    }

    pub fn program(&self, folder: &Path, name: &str) -> PathBuf {
        folder.join(format!("mimalloc-test-{name}{}", self.machine.suffix()))
    }

    pub fn build(&self, context: &Context, targets: &[&str]) -> Result<Build> {
        let source = match &self.source {
            Source::Project => util::repo_root().to_path_buf(),
            Source::Pin(pin) => materialize::tree_folder(&Upstream::Pinned(pin))?,
            Source::Folder(folder) => folder.clone(),
        };
        let shell = &context.shell;
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        let build = Build::configure(shell, &source, &self.name, &options)?;
        self.defines.iter().try_for_each(|define| build.ensure_defines(define))?;
        ensure_compiler(&build, self.compiler)?;
        let jobs = format!("-j{}", context.build_jobs);
        build.build(shell, &[&[jobs.as_str()], targets].concat())?;
        Ok(build)
    }

    /// Where the tests are.
    pub fn programs(&self, build: &Build) -> PathBuf {
        match self.source {
            Source::Project => build.folder.join("mimalloc"),
            _ => build.folder.clone(),
        }
    }

    /// Runs `mimalloc-test-NAME`.
    pub fn test(&self, context: &Context, folder: &Path, name: &str, args: &[&str]) -> Result<Test> {
        if let Some((_, reason)) = self.left_out.iter().find(|(left_out, _)| *left_out == name) {
            return Ok(Test { name: name.into(), seconds: 0.0, verdict: Verdict::Skipped(reason.to_string()) });
        }
        self.run_program(context, folder, Run { name, program: name, args, environment: &[], limit: TEST_LIMIT })
    }

    pub fn run_program(&self, context: &Context, folder: &Path, run: Run) -> Result<Test> {
        let program = self.program(folder, run.program);
        let test = |seconds, verdict| Test { name: run.name.to_string(), seconds, verdict };
        if !program.is_file() {
            return Ok(test(0.0, Verdict::Failed(format!("{}: was not built", program.display()))));
        }
        let mut command = self.machine.command(&program)?;
        command.args(run.args).current_dir(folder);
        command
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .envs(run.environment.iter().map(|(name, value)| (name, value)));
        if self.quick {
            command.env("MI_TEST_QUICK", "1");
        }
        let finished = exec::run(&mut command, &folder.join("logs").join(run.name), run.limit)?;
        let verdict = match judge(run.program, &finished.output) {
            _ if !finished.success() => Verdict::Failed(finished.report()),
            Ok(verdict) => verdict,
            Err(error) => Verdict::Failed(format!("{error}\n{}", finished.report())),
        };
        if let Verdict::Failed(_) = verdict {
            context.say(&format!("FAILED {}", run.name));
        }
        Ok(test(finished.seconds, verdict))
    }

    /// A program that knows nothing of mimalloc runs with it, without the profiler and with it.
    fn preloaded(&self, context: &Context, folder: &Path) -> Result<Vec<Test>> {
        let debug = if self.has_option("-DCMAKE_BUILD_TYPE=Debug") { "-debug" } else { "" };
        let library = ["", "-secure"].map(|secure| folder.join(format!("libmimalloc{secure}{debug}.so")));
        let library = library.into_iter().find(|library| library.is_file()).context("no shared library was built")?;
        let library = library.display().to_string();
        let preload = (self.machine.preload_variable().to_string(), library);
        let run =
            |name, args, environment| Run { name, program: "stress-dynamic", args, environment, limit: TEST_LIMIT };
        let verbose = [preload.clone(), ("MIMALLOC_VERBOSE".to_string(), "1".to_string())];
        let mut plain = self.run_program(context, folder, run("stress-dynamic", self.stress.args(), &verbose))?;
        expect_in_output(&mut plain, folder, "mimalloc: ")?;
        let mut tests = vec![plain];
        if self.has_profiler() {
            let dump = folder.join("preloaded.pb.gz");
            let environment = [vec![preload], profiling(&dump, "4096")?].concat();
            let small = Stress::Tiny.args();
            let mut test = self.run_program(context, folder, run("preloaded profiler", small, &environment))?;
            if let (Verdict::Passed(_), Err(error)) = (&test.verdict, check_dump(&dump)) {
                test.verdict = Verdict::Failed(format!("{error:#}"));
            }
            tests.push(test);
        }
        Ok(tests)
    }
}

/// What a suite that cannot read its programs' symbols leaves out.
pub const NAMES: &str = "names";
/// The example of `test-profile-dump`, the leaf first.
const STACK: [&str; 5] = ["leaf_malloc", "third_caller", "second_caller", "first_caller", "allocate"];

/// The environment that profiles a whole program. An old dump goes away.
pub fn profiling(dump: &Path, rate: &str) -> Result<Vec<(String, String)>> {
    if dump.exists() {
        std::fs::remove_file(dump).with_context(|| dump.display().to_string())?;
    }
    let dump = dump.file_name().context("a dump has a name")?.to_string_lossy().into_owned();
    let set = |name: &str, value: &str| (name.to_string(), value.to_string());
    Ok(vec![
        set("MIMALLOC_PROF", "1"),
        set("MIMALLOC_PROF_SAMPLE_RATE", rate),
        set("MIMALLOC_PROF_DUMP_AT_EXIT", &dump),
    ])
}

/// The program is the first module, and the example's blocks have its stack.
pub fn check_names(dump: &Path, program: &Path) -> Result<()> {
    let profile = Profile::read(dump)?;
    let main = profile.mappings.first().context("no mappings")?;
    let file = program.file_name().context("a program has a name")?.to_string_lossy();
    ensure!(main.path.ends_with(&*file), "{}: the first mapping is {}", dump.display(), main.path);
    let symbolizer = Symbolizer::new(&profile.mappings[..1], Some(program), Unnamed::Offset)?;
    let bytes = profile.column("inuse_space").context("no inuse_space")?;
    let mut found = Vec::new();
    for sample in profile.samples.iter().filter(|sample| sample.values[bytes] == 100 * 64) {
        let locations = sample.stack.iter().map(|&location| &profile.locations[location]);
        let names: Vec<String> = locations.flat_map(|at| symbolizer.functions(at.address, at.mapping)).collect();
        if names.iter().map(String::as_str).take(STACK.len()).eq(STACK) {
            return Ok(());
        }
        found.push(names.join(", "));
    }
    bail!("{}: no stack is {}; found:\n{}", dump.display(), STACK.join(", "), found.join("\n"))
}

pub struct Run<'a> {
    pub name: &'a str,
    pub program: &'a str,
    pub args: &'a [&'a str],
    pub environment: &'a [(String, String)],
    pub limit: Duration,
}

/// What a test that succeeded says about itself. One that checked nothing did not pass.
fn judge(program: &str, output: &str) -> Result<Verdict> {
    if let Some(reason) = output.lines().find_map(|line| line.strip_prefix("skipped: ")) {
        return Ok(Verdict::Skipped(reason.to_string()));
    }
    let words = || output.lines().flat_map(|line| line.split_whitespace().zip(line.split_whitespace().skip(1)));
    let checks = match program {
        "api" | "api-fill" => words().find(|(word, _)| *word == "succeeded:").map(|(_, count)| count),
        name if name.starts_with("profile") => words().find(|(_, word)| word.starts_with("checks")).map(|(n, _)| n),
        _ => return Ok(Verdict::Passed(1)),
    };
    let checks: usize = checks.and_then(|count| count.parse().ok()).context("does not say how much it checked")?;
    ensure!(checks > 0, "checked nothing");
    Ok(Verdict::Passed(1))
}

/// Else the library was not preloaded, and the test tested libc.
pub fn expect_in_output(test: &mut Test, folder: &Path, text: &str) -> Result<()> {
    let output = std::fs::read(folder.join("logs").join(&test.name))?;
    if matches!(test.verdict, Verdict::Passed(_)) && !String::from_utf8_lossy(&output).contains(text) {
        test.verdict = Verdict::Failed(format!("'{text}' is not in its output: was mimalloc there?"));
    }
    Ok(())
}

pub fn check_dump(path: &Path) -> Result<()> {
    let profile = Profile::read(path)?;
    ensure!(profile.rate == 4096, "{}: its rate is {}", path.display(), profile.rate);
    let main = profile.mappings.first().context("no mappings")?;
    ensure!(main.path.contains("stress-dynamic"), "{}: the first mapping is {}", path.display(), main.path);
    Ok(())
}

/// Every test `test/test-NAME.c`: upstream's, and with the profiler ours.
pub fn test_names(profiler: bool) -> Result<Vec<String>> {
    let upstream = UPSTREAM_TESTS.iter().map(|name| name.to_string());
    let mut ours = Vec::new();
    if profiler {
        for entry in std::fs::read_dir(util::repo_root().join("test"))? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            let name = name.strip_prefix("test-").and_then(|name| name.strip_suffix(".c"));
            ours.extend(name.filter(|name| name.starts_with("profile")).map(str::to_string));
        }
        ensure!(ours.len() >= 5, "only {} tests of the profiler were found", ours.len());
        ours.sort();
    }
    Ok(upstream.chain(ours).collect())
}

/// A build folder keeps the compiler that it was first made with.
pub fn ensure_compiler(build: &Build, expected: &str) -> Result<()> {
    let files = build.folder.join("CMakeFiles");
    let versions = std::fs::read_dir(&files).with_context(|| files.display().to_string())?.flatten();
    let found: Vec<String> = versions
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("CMakeCCompiler.cmake")).ok())
        .filter_map(|text| Some(text.split_once("CMAKE_C_COMPILER_ID \"")?.1.split_once('"')?.0.to_string()))
        .collect();
    let folder = build.folder.display();
    ensure!(!found.is_empty(), "{folder}: CMake does not say which compiler it found");
    ensure!(found.iter().all(|id| id == expected), "{folder}: built by {found:?} instead of {expected}; delete it");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(program: &str, output: &str) -> bool {
        matches!(judge(program, output), Ok(Verdict::Passed(1)))
    }

    #[test]
    fn a_test_that_checked_nothing_does_not_pass() {
        assert!(passes("profile-x", "  begin\ntest-profile-x: 12 checks, 0 failures\n"));
        assert!(passes("profile-prim", "149 checks, 0 failed\n"));
        assert!(passes("api", "\n\n---------\nsucceeded: 36\nfailed   : 0\n"));
        assert!(!passes("profile-x", "test-profile-x: 0 checks, 0 failures\n"));
        assert!(!passes("profile-x", ""));
        assert!(!passes("api", "nothing\n"));
        assert!(passes("stress", ""));
    }

    #[test]
    fn a_test_may_skip_itself_with_a_reason() {
        let verdict = judge("profile-seed", "skipped: no seed here\n").unwrap();
        assert!(matches!(verdict, Verdict::Skipped(reason) if reason == "no seed here"));
    }
}
