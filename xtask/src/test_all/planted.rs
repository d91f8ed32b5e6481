//! `cargo xtask test-all --self-test`: for each gate, the failure that it is there for is planted, and must be caught
//! by the same functions that the targets run.

use super::cross;
use super::matrix::{self, Work};
use super::provision::{self as need, Need};
use super::report::{Row, Verdict};
use super::steps::{self, own_command};
use super::suite::{self, Run, Source, Suite};
use super::{msvc, run, upstream, verdict, Context};
use crate::cmake::{self, Build};
use crate::upstream::{Upstream, PRIMARY};
use crate::{consumers, fastpath, materialize, offproof, pprof, readme, util, workflows};
use anyhow::{bail, ensure, Context as _, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use xshell::cmd;

const PROGRAM: &str = "profile-planted";
const SOURCE: &str = include_str!("../../planted/test-profile-planted.c");

struct Gate {
    name: &'static str,
    needs: &'static [&'static Need],
    /// Fails if a planted failure goes unnoticed; returns how many were planted.
    run: fn(&Context) -> Result<usize>,
}

const fn gate(name: &'static str, needs: &'static [&'static Need], run: fn(&Context) -> Result<usize>) -> Gate {
    Gate { name, needs, run }
}

const GATES: &[Gate] = &[
    gate("a test fails", &[&need::GCC], native_faults),
    gate("a build goes wrong", &[&need::GCC], builds),
    gate("a preloaded library is not there", &[&need::GCC], preload),
    gate("a stack with the wrong names", &[&need::GCC], names),
    gate("a target cannot run here", &[], missing_tools),
    gate("asan", need::SANITIZING, |context| {
        faults(context, "asan/debug-on", &[("use-after-free", "AddressSanitizer: use-after-poison")])
    }),
    gate("ubsan", need::SANITIZING, |context| {
        faults(context, "ubsan/debug-on", &[("overflow", "signed integer overflow")])
    }),
    gate("tsan", need::SANITIZING, |context| {
        faults(context, "tsan/debug-on", &[("race", "ThreadSanitizer: data race")])
    }),
    gate("valgrind", &[&need::GCC, &need::VALGRIND], |context| {
        faults(context, "valgrind/release-on", &[("use-after-free", "Invalid read"), ("leak", "definitely lost")])
    }),
    gate("linux-arm64", &[&need::ARM64, &need::QEMU], |context| faults(context, "linux-arm64/release-on", FAILURES)),
    gate("windows-mingw", &[&need::MINGW, &need::WINE], |context| {
        faults(context, "windows-mingw/release-on", FAILURES)
    }),
    gate("windows-msvc", msvc::NEEDS, msvc_faults),
    gate("macos, freebsd: a file for another system", &[&need::GCC], other_system),
    gate("off-proof", &[&need::GCC], |context| {
        let planted = offproof::source_planted()?;
        offproof::code_planted(&context.shell).map(|()| planted + 1)
    }),
    gate("fast-path", &[&need::GCC, &need::OBJDUMP], |context| fastpath::planted(&context.shell).map(|()| 1)),
    gate("upstream", &[&need::GCC, &need::CLANG, &need::PIP], upstream::planted),
    gate("rust", &[], rust),
    gate("amalgamation, consumers, commands", &[&need::GCC], other_programs),
    gate("pprof", steps::PPROF, |context| pprof::Bench::new(&context.shell)?.planted()),
    gate("workflows", &[&need::PIP], |context| workflows::planted(&context.shell)),
    gate("readme", &[], |_| readme::coverage_planted()),
    gate("fuzz", need::SANITIZING, |_| {
        own_command("fuzz-self-test", &["fuzz", "--self-test", "--seconds", "60", "--no-install"], "").map(|()| 1)
    }),
];

/// On every machine.
const FAILURES: &[(&str, &str)] = &[("check", "FAILED"), ("crash", ""), ("nothing", "checked nothing")];

pub fn self_test(install: bool) -> Result<()> {
    let start = Instant::now();
    let needs: Vec<&Need> = GATES.iter().flat_map(|gate| gate.needs).chain(need::BUILDING).copied().collect();
    need::provide(&needs, install);
    let mut failed = Vec::new();
    let mut planted = 0;
    for gate in GATES {
        let context =
            Context::new(gate.name, std::thread::available_parallelism().map_or(1, |count| count.get()), start)?;
        let result = match gate.needs.iter().find(|need| !need.is_present()) {
            Some(missing) => Err(anyhow::anyhow!("{}", missing.advice())),
            None => (gate.run)(&context),
        };
        match result {
            Ok(count) => {
                planted += count;
                context.say(&format!("caught: {count} planted"));
            }
            Err(error) => {
                context.say(&format!("NOT CAUGHT\n{error:#}"));
                failed.push(gate.name);
            }
        }
    }
    ensure!(failed.is_empty(), "{} of {} gates do not hold: {}", failed.len(), GATES.len(), failed.join(", "));
    println!("\n{} gates caught {planted} planted failures", GATES.len());
    Ok(())
}

/// The primary tree with one more test in it.
fn planted_tree() -> Result<PathBuf> {
    let mut tree = materialize::compose(&Upstream::Pinned(PRIMARY))?;
    tree.insert(&format!("test/test-{PROGRAM}.c"), SOURCE);
    let folder = util::target_dir().join("test/planted/self-test/tree");
    tree.write(&folder)?;
    Ok(folder)
}

/// What the matrix does for `label`, with the planted tree.
fn planted_suite(label: &str) -> Result<Suite> {
    let cell = matrix::cells().into_iter().find(|cell| cell.label() == label).with_context(|| label.to_string())?;
    let Work::Suite(mut suite) = cell.work else { bail!("{label}: not built with CMake") };
    suite.name = format!("planted/self-test/{label}");
    suite.source = Source::Folder(planted_tree()?);
    Ok(suite)
}

fn planted_build(context: &Context, suite: &Suite) -> Result<Build> {
    suite.build(context, &[&format!("mimalloc-test-{PROGRAM}{}", suite.machine.suffix())])
}

fn faults(context: &Context, label: &str, faults: &[(&str, &str)]) -> Result<usize> {
    let suite = planted_suite(label)?;
    let build = planted_build(context, &suite)?;
    check_faults(context, &suite, &suite.programs(&build), faults)
}

/// Each fault must be reported, by the text that belongs to it; without a fault nothing may be.
fn check_faults(context: &Context, suite: &Suite, folder: &Path, faults: &[(&str, &str)]) -> Result<usize> {
    let limit = Duration::from_secs(300);
    match planted_run(context, suite, folder, "none", limit)? {
        Verdict::Passed(1) => {}
        Verdict::Failed(report) => bail!("without a fault:\n{report}"),
        _ => bail!("without a fault it did not pass"),
    }
    for (fault, text) in faults {
        match planted_run(context, suite, folder, fault, limit)? {
            Verdict::Failed(report) if report.contains(text) => {}
            Verdict::Failed(report) => bail!("'{fault}' failed, but not with '{text}':\n{report}"),
            _ => bail!("'{fault}' was not noticed"),
        }
    }
    Ok(faults.len())
}

fn planted_run(context: &Context, suite: &Suite, folder: &Path, fault: &str, limit: Duration) -> Result<Verdict> {
    let name = format!("planted {fault}");
    let run = Run { name: &name, program: PROGRAM, args: &[fault], environment: &[], limit };
    let quiet = context.quiet();
    Ok(suite.run_program(&quiet, folder, run)?.verdict)
}

/// Any build with gcc for this machine.
const NATIVE: &str = "upstream-versions/2.5.2-release";

fn native_faults(context: &Context) -> Result<usize> {
    let suite = planted_suite(NATIVE)?;
    let build = planted_build(context, &suite)?;
    let folder = suite.programs(&build);
    let caught = check_faults(context, &suite, &folder, FAILURES)?;
    let silent = planted_run(context, &suite, &folder, "silent", Duration::from_secs(60))?;
    ensure!(matches!(silent, Verdict::Failed(_)), "a test that says nothing passed");
    let hang = planted_run(context, &suite, &folder, "hang", Duration::from_millis(500))?;
    ensure!(matches!(hang, Verdict::Failed(report) if report.contains("killed")), "a test that hangs was not killed");
    let skip = planted_run(context, &suite, &folder, "skip", Duration::from_secs(60))?;
    ensure!(matches!(skip, Verdict::Skipped(_)), "a test that skips itself counts as one that ran");
    let absent = suite.test(&context.quiet(), &folder, "no-such-test", &[])?;
    ensure!(matches!(absent.verdict, Verdict::Failed(_)), "a test that was not built passed");
    Ok(caught + 4)
}

fn builds(context: &Context) -> Result<usize> {
    let mut suite = planted_suite(NATIVE)?;
    let build = planted_build(context, &suite)?;
    ensure!(build.ensure_defines("MI_SECURE=4").is_err(), "an option without effect was not noticed");
    ensure!(suite::ensure_compiler(&build, "Clang").is_err(), "another compiler was not noticed");
    let folder = planted_tree()?.with_file_name("broken-tree");
    let mut tree = materialize::compose(&Upstream::Pinned(PRIMARY))?;
    tree.insert("src/profile-sampler.c", "#error planted\n");
    tree.write(&folder)?;
    (suite.source, suite.name) = (Source::Folder(folder), "planted/self-test/broken".to_string());
    ensure!(suite.build(context, &["mimalloc-static"]).is_err(), "a compile error was not noticed");
    Ok(3)
}

fn preload(context: &Context) -> Result<usize> {
    let suite = planted_suite(NATIVE)?;
    let build = suite.build(context, &["mimalloc-test-stress-dynamic"])?;
    let folder = suite.programs(&build);
    let args = ["1", "1", "1"];
    let limit = Duration::from_secs(60);
    let run = Run { name: "planted preload", program: "stress-dynamic", args: &args, environment: &[], limit };
    let mut test = suite.run_program(context, &folder, run)?;
    ensure!(matches!(test.verdict, Verdict::Passed(_)), "the program does not run");
    suite::expect_in_output(&mut test, &folder, "mimalloc: ")?;
    ensure!(matches!(test.verdict, Verdict::Failed(_)), "that mimalloc was not there was not noticed");
    ensure!(suite::check_dump(&folder.join("no-such.pb.gz")).is_err(), "a missing dump was not noticed");
    Ok(2)
}

/// Stacks that end before the fifth frame, and a dump of another program.
fn names(context: &Context) -> Result<usize> {
    let suite = planted_suite(NATIVE)?;
    let build = suite.build(context, &["mimalloc-test-profile-dump"])?;
    let folder = suite.programs(&build);
    let program = suite.program(&folder, "profile-dump");
    let dump = folder.join("planted.pb.gz");
    let limit = Duration::from_secs(60);
    for (depth, is_right) in [("32", true), ("4", false)] {
        let mut environment = suite::profiling(&dump, "1")?;
        environment.push(("MIMALLOC_PROF_BT_MAX".to_string(), depth.to_string()));
        let args = ["names"];
        let run = Run { name: "planted names", program: "profile-dump", args: &args, environment: &environment, limit };
        ensure!(matches!(suite.run_program(context, &folder, run)?.verdict, Verdict::Passed(_)), "it does not run");
        let result = suite::check_names(&dump, &program);
        ensure!(
            result.is_ok() == is_right,
            "{depth} frames: {}",
            result.map_or_else(|e| e.to_string(), |_| "passed".into())
        );
    }
    ensure!(suite::check_names(&dump, Path::new("another")).is_err(), "another program was not noticed");
    Ok(2)
}

fn missing_tools(context: &Context) -> Result<usize> {
    let mut cell = matrix::cells().into_iter().next().context("the matrix is empty")?;
    cell.needs.push(&need::IMPOSSIBLE);
    let row = run(&cell, 1, context.start);
    ensure!(row.skipped.as_ref().is_some_and(|reason| reason.contains("no-such-tool")), "a missing tool was not named");
    let passed = || {
        let mut row = Row::new("planted", "passed");
        row.tests.push(super::report::Test { name: "x".into(), seconds: 0.0, verdict: Verdict::Passed(1) });
        row
    };
    let mut failed = passed();
    failed.error = Some("planted".into());
    let rows = [passed(), row];
    ensure!(verdict(&rows, 2, false).is_ok(), "a target that cannot run here is a failure without --strict");
    ensure!(verdict(&rows, 2, true).is_err(), "a target that cannot run here is no failure with --strict");
    ensure!(verdict(&[passed()], 2, false).is_err(), "a target that was not reached was not noticed");
    ensure!(verdict(&[passed(), failed], 2, false).is_err(), "a target that failed was not noticed");
    ensure!(verdict(&[Row::new("planted", "empty")], 1, false).is_err(), "that nothing ran was not noticed");
    Ok(5)
}

fn msvc_faults(context: &Context) -> Result<usize> {
    let folder = util::target_dir().join("test/planted/self-test/windows-msvc");
    let flags = ["-O2", "-DNDEBUG", "-DMI_PPROF=1"];
    msvc::build(context, &planted_tree()?, &folder, &flags, &[PROGRAM.to_string()])?;
    check_faults(context, &msvc::tests(true), &folder, FAILURES)
}

fn other_system(context: &Context) -> Result<usize> {
    let suite = planted_suite(NATIVE)?;
    let build = suite.build(context, &["mimalloc"])?;
    let library = suite.programs(&build).join("libmimalloc.so");
    ensure!(library.is_file(), "{}: was not built", library.display());
    ensure!(cross::FREEBSD.check(&library).is_err(), "a library for Linux passes as one for FreeBSD");
    ensure!(cross::MACOS_ARM64.check(&library).is_err(), "a library for Linux passes as one for macOS");
    Ok(2)
}

/// A crate with a fault for each of the three commands.
fn rust(context: &Context) -> Result<usize> {
    let folder = util::target_dir().join("test/planted/self-test/rust");
    let manifest = "[package]\nname = \"planted\"\nversion = \"0.0.0\"\nedition = \"2021\"\n[workspace]\n";
    let good = "#[test]\nfn fails() {}\n";
    let bad = "pub fn f(x:bool)->bool{ x==true }\n#[test]\nfn fails() { assert!(f(false)); }\n";
    let shell = &context.shell;
    let commands = || {
        let manifest = folder.join("Cargo.toml");
        [
            cmd!(shell, "cargo fmt --check --manifest-path {manifest}"),
            cmd!(shell, "cargo clippy --quiet --offline --all-targets --manifest-path {manifest} -- -D warnings"),
            cmd!(shell, "cargo test --offline --manifest-path {manifest}"),
        ]
    };
    shell.write_file(folder.join("Cargo.toml"), manifest)?;
    for (source, passes) in [(good, true), (bad, false)] {
        shell.write_file(folder.join("src/lib.rs"), source)?;
        for command in commands() {
            let line = command.to_string();
            let result = cmake::run(command);
            ensure!(result.is_ok() == passes, "{line}: {}", result.map_or_else(|e| e.to_string(), |_| "passed".into()));
        }
    }
    Ok(3)
}

/// A program that cannot be linked, a command that fails, and one that does not do what it should.
fn other_programs(context: &Context) -> Result<usize> {
    let link = consumers::amalgamation(&context.shell, "-Dmain=planted", "planted");
    ensure!(link.is_err(), "a program without `main` was not noticed");
    ensure!(own_command("planted", &["no-such-command"], "").is_err(), "a command that fails was not noticed");
    ensure!(own_command("planted", &["--help"], "planted text").is_err(), "missing output was not noticed");
    Ok(3)
}
