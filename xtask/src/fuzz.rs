//! `cargo xtask fuzz`: a fuzzer of the allocator with the profiler in it (libFuzzer with ASan and UBSan, by clang). A
//! model of what is live checks every operation; it is in `test/fuzz`.

use crate::materialize;
use crate::test_all::provision;
use crate::tools;
use crate::tree::Tree;
use crate::upstream::{Upstream, PRIMARY};
use crate::util;
use anyhow::{bail, ensure, Context, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Args {
    /// How long to fuzz, shared among the flavours; with --self-test, how long a fault may go unnoticed
    #[arg(long, value_name = "N", default_value_t = 30)]
    seconds: u64,
    /// Commit faults that must be found
    #[arg(long)]
    self_test: bool,
    /// Never install packages
    #[arg(long)]
    no_install: bool,
    /// Start from the inputs in a folder, and keep new ones there
    #[arg(long, value_name = "DIR")]
    corpus: Option<PathBuf>,
    /// Only the flavours with these names
    #[arg(long, value_name = "NAME", num_args = 1..)]
    only: Vec<String>,
}

/// A build of the library to fuzz.
struct Flavour {
    name: &'static str,
    why: &'static str,
    defines: &'static [&'static str],
}

const FLAVOURS: [Flavour; 4] = [
    Flavour { name: "release", why: "what is shipped: resizing in place, no padding", defines: &["-DNDEBUG"] },
    Flavour { name: "track", why: "ASan knows which blocks are free", defines: &["-DNDEBUG", "-DMI_TRACK_ASAN=1"] },
    Flavour { name: "debug", why: "internal assertions, padding, guard pages", defines: &["-DMI_DEBUG=2"] },
    Flavour {
        name: "secure",
        why: "encoded lists that grow while they are not empty",
        defines: &["-DNDEBUG", "-DMI_SECURE=4"],
    },
];

const PLANTED: Flavour =
    Flavour { name: "planted", why: "faults that must be found", defines: &["-DNDEBUG", "-DMI_PROF_FUZZ_PLANT"] };

/// The faults that `test/fuzz/fuzz-profile.c` can commit, and what is found then.
const FAULTS: [(&str, &str); 4] = [
    ("resize", "records of"),
    ("free", "records of"),
    ("contents", "was overwritten at"),
    ("cut", "was not recorded at rate 1"),
];

const SOURCE: &str = "test/fuzz/fuzz-profile.c";

/// mimalloc is not the program's `malloc` here, but an allocator beside that of ASan.
const FLAGS: [&str; 10] = [
    "-g",
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=fuzzer,address,undefined",
    "-fno-sanitize-recover=undefined",
    "-Wall",
    "-Wno-unused-function",
    "-DMI_PPROF=1",
    "-DMI_STATIC_LIB",
    "-lpthread",
];

pub fn run(args: Args) -> Result<()> {
    ensure!(args.seconds > 0, "--seconds 0: nothing would run");
    let clang = clang(!args.no_install)?;
    if args.self_test {
        self_test(&clang, Duration::from_secs(args.seconds))
    } else {
        fuzz(&clang, &args)
    }
}

fn fuzz(clang: &Path, args: &Args) -> Result<()> {
    let flavours = chosen(&args.only)?;
    let programs = build(clang, &flavours)?;
    let start = Instant::now();
    let shares = shares(args.seconds, flavours.len());
    let mut runs = Vec::new();
    for ((flavour, program), seconds) in flavours.iter().zip(&programs).zip(shares) {
        eprintln!("{}: fuzzing for {seconds} s ({})", flavour.name, flavour.why);
        let corpus = match &args.corpus {
            Some(folder) => folder.clone(),
            None => fresh(&folder().join("corpus").join(flavour.name))?,
        };
        runs.push(Run::start(flavour.name, program, &corpus, seconds, None)?);
    }
    runs.iter().filter(|run| run.finding.is_some()).for_each(Run::report);
    let findings = runs.iter().filter(|run| run.finding.is_some()).count();
    println!("{}", summary(&runs, start.elapsed().as_secs()));
    ensure!(findings == 0, "{findings} of {} flavours failed", runs.len());
    Ok(())
}

fn chosen(names: &[String]) -> Result<Vec<&'static Flavour>> {
    if let Some(unknown) = names.iter().find(|name| FLAVOURS.iter().all(|flavour| flavour.name != name.as_str())) {
        bail!("--only {unknown}: not one of {}", FLAVOURS.map(|flavour| flavour.name).join(", "));
    }
    let wanted = |flavour: &&Flavour| names.is_empty() || names.iter().any(|name| name == flavour.name);
    Ok(FLAVOURS.iter().filter(wanted).collect())
}

/// Seconds for each of `count`, at least one.
fn shares(seconds: u64, count: usize) -> Vec<u64> {
    let count = count as u64;
    (0..count).map(|at| (seconds / count + u64::from(at < seconds % count)).max(1)).collect()
}

fn summary(runs: &[Run], seconds: u64) -> String {
    let executions: u64 = runs.iter().map(|run| run.stats.executions).sum();
    let findings = runs.iter().filter(|run| run.finding.is_some()).count();
    let coverage: Vec<String> = runs.iter().map(|run| format!("{} {}", run.name, run.stats.edges)).collect();
    format!("fuzz: {executions} executions in {seconds} s; edges covered: {}; {findings} findings", coverage.join(", "))
}

/// Each planted fault must be found, and nothing else.
fn self_test(clang: &Path, limit: Duration) -> Result<()> {
    let program = &build(clang, &[&PLANTED])?[0];
    let corpus = folder().join("corpus").join(PLANTED.name);
    let control = Run::start("planted-none", program, &fresh(&corpus)?, limit.as_secs().min(5), Some("none"))?;
    if let Some(finding) = &control.finding {
        bail!("without a planted fault: {}\n  log: {}", finding.cause, control.log.display());
    }
    let mut found = Vec::new();
    for (fault, expected) in FAULTS {
        let start = Instant::now();
        let name = format!("planted-{fault}");
        let run = Run::start(&name, program, &fresh(&corpus)?, limit.as_secs(), Some(fault))?;
        let finding = run.finding.as_ref();
        let finding = finding.with_context(|| format!("the planted fault '{fault}' was not found in {limit:?}"))?;
        ensure!(
            finding.cause.contains(expected),
            "the planted fault '{fault}' was found as something else: {}\n  log: {}",
            finding.cause,
            run.log.display()
        );
        found.push(format!("{fault} in {:.1} s", start.elapsed().as_secs_f64()));
    }
    println!("fuzz: {} planted faults found: {}", found.len(), found.join(", "));
    Ok(())
}

// ------------------------------------------------------------------------------------------------------------------
// One run of a fuzzer
// ------------------------------------------------------------------------------------------------------------------

struct Run {
    name: String,
    program: PathBuf,
    log: PathBuf,
    stats: Stats,
    finding: Option<Finding>,
}

#[derive(Debug, Default, PartialEq)]
struct Stats {
    executions: u64,
    edges: u64,
}

struct Finding {
    cause: String,
    input: PathBuf,
}

impl Run {
    fn start(name: &str, program: &Path, corpus: &Path, seconds: u64, fault: Option<&str>) -> Result<Run> {
        for folder in [corpus, &findings(), &logs(), &folder().join("tmp")] {
            create(folder)?;
        }
        sow(corpus)?;
        let log = logs().join(format!("{name}.log"));
        let output = File::create(&log).with_context(|| format!("{}: cannot be written", log.display()))?;
        let mut command = Command::new(program);
        command
            .arg(format!("-max_total_time={seconds}"))
            .arg(format!("-artifact_prefix={}/{name}-", findings().display()))
            .args(["-max_len=512", "-len_control=0", "-timeout=60", "-detect_leaks=0", "-print_final_stats=1"])
            .arg(corpus)
            .env("MI_PROF_FUZZ_TMP", folder().join("tmp"))
            .env("UBSAN_OPTIONS", "print_stacktrace=1")
            .env_remove("MI_PROF_FUZZ_TRACE")
            .stdout(output.try_clone()?)
            .stderr(output);
        if let Some(fault) = fault {
            command.env("MI_PROF_FUZZ_PLANT", fault).arg("-seed=1");
        }
        let status = finish(command, Duration::from_secs(seconds + 180))?;
        let text = String::from_utf8_lossy(&util::read(&log)?).into_owned();
        let finding = artifact(&text).map(|input| Finding { cause: cause(&text), input });
        ensure!(status.success() || finding.is_some(), "{name}: {status}: {}; see {}", cause(&text), log.display());
        let stats = stats(&text);
        ensure!(stats.executions > 0, "{name}: nothing ran; see {}", log.display());
        Ok(Run { name: name.to_string(), program: program.to_path_buf(), log, stats, finding })
    }

    fn report(&self) {
        let Some(finding) = &self.finding else { return };
        println!("{}: {}", self.name, finding.cause);
        println!("  input:  {}", finding.input.display());
        println!("  log:    {}", self.log.display());
        println!("  replay: MI_PROF_FUZZ_TRACE=1 {} {}", self.program.display(), finding.input.display());
    }
}

/// Waits for the program, but not for ever: libFuzzer's own limits need it to be alive.
fn finish(mut command: Command, limit: Duration) -> Result<ExitStatus> {
    let name = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().with_context(|| format!("cannot run {name}"))?;
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if start.elapsed() > limit {
            let _ = child.kill();
            let _ = child.wait();
            bail!("{name}: did not end in {} s", limit.as_secs());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The numbers that libFuzzer prints as it goes, and at its end.
fn stats(log: &str) -> Stats {
    let mut stats = Stats::default();
    for line in log.lines() {
        if let Some(number) = line.strip_prefix("stat::number_of_executed_units:") {
            stats.executions = number.trim().parse().unwrap_or(0);
        } else if line.starts_with('#') {
            let edges = line.split_once(" cov: ").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
            stats.edges = edges.unwrap_or(stats.edges);
        }
    }
    stats
}

fn artifact(log: &str) -> Option<PathBuf> {
    log.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, path)| PathBuf::from(path.trim()))
}

/// The line that says most about what went wrong.
fn cause(log: &str) -> String {
    let signs = [
        "mi_prof fuzz: FOUND",
        "assertion failed",
        "runtime error:",
        "ERROR: AddressSanitizer",
        "ERROR: ",
        "SUMMARY: ",
    ];
    let line = signs.iter().find_map(|sign| log.lines().find(|line| line.contains(sign)));
    line.or(log.lines().last()).unwrap_or("no output").trim().to_string()
}

// ------------------------------------------------------------------------------------------------------------------
// Building
// ------------------------------------------------------------------------------------------------------------------

/// Builds what is not up to date, all at once.
fn build(clang: &Path, flavours: &[&Flavour]) -> Result<Vec<PathBuf>> {
    let upstream = Upstream::Pinned(PRIMARY);
    let tree = materialize::compose(&upstream)?;
    let source = folder().join("tree");
    tree.write(&source)?;
    let compiler = tools::first_line(clang, &["--version"]).unwrap_or_default();
    let stamp = &stamp(&tree, &compiler);
    let source = source.as_path();
    std::thread::scope(|scope| {
        let builds: Vec<_> = flavours
            .iter()
            .map(|flavour| scope.spawn(move || build_flavour(clang, source, flavour, &format!("{stamp} {flavour}"))))
            .collect();
        builds.into_iter().map(|build| build.join().expect("a build does not panic")).collect()
    })
}

fn build_flavour(clang: &Path, tree: &Path, flavour: &Flavour, stamp: &str) -> Result<PathBuf> {
    let folder = folder().join("bin");
    create(&folder)?;
    let (program, stamp_file) = (folder.join(flavour.name), folder.join(format!("{}.stamp", flavour.name)));
    if program.is_file() && std::fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp) {
        return Ok(program);
    }
    eprintln!("{}: building", flavour.name);
    let output = Command::new(clang)
        .args(FLAGS)
        .args(flavour.defines)
        .arg(format!("-I{}", tree.join("include").display()))
        .arg(format!("-I{}", tree.join("src").display()))
        .arg(tree.join(SOURCE))
        .arg("-o")
        .arg(&program)
        .output()
        .with_context(|| format!("cannot run {}", clang.display()))?;
    ensure!(
        output.status.success(),
        "{}: {} failed:\n{}",
        flavour.name,
        clang.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    util::write_atomic(&stamp_file, stamp.as_bytes(), false)?;
    Ok(program)
}

impl std::fmt::Display for Flavour {
    fn fmt(&self, out: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(out, "{} {}", FLAGS.join(" "), self.defines.join(" "))
    }
}

/// Differs when a source or the compiler does.
fn stamp(tree: &Tree, compiler: &str) -> String {
    let mut hash = Sha256::new();
    hash.update(compiler);
    for (path, file) in &tree.files {
        if ["src/", "include/", "test/"].iter().any(|folder| path.starts_with(folder)) {
            hash.update(path);
            hash.update((file.bytes.len() as u64).to_le_bytes());
            hash.update(&file.bytes);
        }
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

// ------------------------------------------------------------------------------------------------------------------
// Files
// ------------------------------------------------------------------------------------------------------------------

fn folder() -> PathBuf {
    util::target_dir().join("fuzz")
}

fn findings() -> PathBuf {
    folder().join("findings")
}

fn logs() -> PathBuf {
    folder().join("log")
}

fn create(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("{}: cannot be created", folder.display()))
}

/// An empty folder of ours.
fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        std::fs::remove_dir_all(folder).with_context(|| format!("{}: cannot be emptied", folder.display()))?;
    }
    create(folder)?;
    Ok(folder.to_path_buf())
}

const SEEDS: u64 = 24;

/// A corpus that is empty gets inputs of random bytes, which the fuzzer would take long to grow.
fn sow(corpus: &Path) -> Result<()> {
    if std::fs::read_dir(corpus)?.next().is_some() {
        return Ok(());
    }
    for number in 0..SEEDS {
        util::write_atomic(&corpus.join(format!("seed-{number}")), &seed(number), false)?;
    }
    Ok(())
}

fn seed(number: u64) -> Vec<u8> {
    let mut state = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..64 + number as usize * 16).map(|_| next()).collect()
}

// ------------------------------------------------------------------------------------------------------------------
// clang with its sanitizers, which Debian has in a package of its own
// ------------------------------------------------------------------------------------------------------------------

fn clang(install: bool) -> Result<PathBuf> {
    let needs = [&provision::CLANG, &provision::SANITIZERS];
    provision::provide(&needs, install);
    if let Some(missing) = needs.iter().find(|need| !need.is_present()) {
        bail!("the fuzzer {}", missing.advice());
    }
    let clang = tools::find("clang").context("there is no clang")?;
    ensure!(makes_fuzzers(&clang), "{} lacks libFuzzer; install LLVM's clang with compiler-rt", clang.display());
    Ok(clang)
}

fn makes_fuzzers(clang: &Path) -> bool {
    let probe = || -> Result<bool> {
        let folder = folder().join("tmp");
        create(&folder)?;
        let (source, program) = (folder.join("probe.c"), folder.join("probe"));
        let text = "int LLVMFuzzerTestOneInput(const unsigned char* data, unsigned long size);\n\
                    int LLVMFuzzerTestOneInput(const unsigned char* data, unsigned long size) { return data == 0 && size; }\n";
        util::write_atomic(&source, text.as_bytes(), false)?;
        let output = Command::new(clang).args(FLAGS).arg(source).arg("-o").arg(program).output()?;
        Ok(output.status.success())
    };
    probe().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLEAN: &str = "INFO: seed corpus: files: 24\n\
        #25\tINITED cov: 1900 ft: 6000 corp: 20/6Kb exec/s: 0 rss: 40Mb\n\
        #3929\tDONE   cov: 2713 ft: 14922 corp: 1220/85Kb lim: 512 exec/s: 64 rss: 551Mb\n\
        Done 3929 runs in 61 second(s)\n\
        stat::number_of_executed_units: 3929\n\
        stat::average_exec_per_sec:     64\n";

    const CRASH: &str = "#95\tNEW    cov: 1165 ft: 2048 corp: 29/88b lim: 4\n\
        mi_prof fuzz: FOUND at operation 2: 1 records of 1 bytes instead of 0 of 0\n\
        ==8519== ERROR: libFuzzer: deadly signal\n\
        SUMMARY: libFuzzer: deadly signal\n\
        artifact_prefix='target/fuzz/findings/release-'; Test unit written to target/fuzz/findings/release-crash-32\n\
        stat::number_of_executed_units: 149\n";

    #[test]
    fn the_log_of_a_clean_run_is_read() {
        assert_eq!(stats(CLEAN), Stats { executions: 3929, edges: 2713 });
        assert_eq!(artifact(CLEAN), None);
    }

    #[test]
    fn the_log_of_a_finding_is_read() {
        assert_eq!(stats(CRASH), Stats { executions: 149, edges: 1165 });
        assert_eq!(artifact(CRASH), Some(PathBuf::from("target/fuzz/findings/release-crash-32")));
        assert_eq!(cause(CRASH), "mi_prof fuzz: FOUND at operation 2: 1 records of 1 bytes instead of 0 of 0");
    }

    #[test]
    fn a_program_that_did_not_fuzz_has_no_numbers() {
        assert_eq!(stats("cannot execute\n"), Stats::default());
        assert_eq!(cause("cannot execute\n"), "cannot execute");
        assert_eq!(cause(""), "no output");
    }

    #[test]
    fn a_sanitizer_tells_the_cause() {
        assert_eq!(cause("a.c:1:2: runtime error: shift\nSUMMARY: Undefined\n"), "a.c:1:2: runtime error: shift");
        assert_eq!(cause("x\nSUMMARY: libFuzzer: timeout\n"), "SUMMARY: libFuzzer: timeout");
    }

    #[test]
    fn the_time_is_shared_out_and_nobody_gets_none() {
        assert_eq!(shares(30, 4), [8, 8, 7, 7]);
        assert_eq!(shares(30, 1), [30]);
        assert_eq!(shares(2, 4), [1, 1, 1, 1]);
    }

    #[test]
    fn the_summary_counts_findings() {
        let run = |name: &str, log: &str| Run {
            name: name.into(),
            program: "p".into(),
            log: "l".into(),
            stats: stats(log),
            finding: artifact(log).map(|input| Finding { cause: cause(log), input }),
        };
        let line = summary(&[run("release", CLEAN), run("debug", CRASH)], 62);
        assert_eq!(line, "fuzz: 4078 executions in 62 s; edges covered: release 2713, debug 1165; 1 findings");
    }

    #[test]
    fn flavours_are_chosen_by_name() {
        assert_eq!(chosen(&[]).unwrap().len(), FLAVOURS.len());
        assert_eq!(chosen(&["debug".into()]).unwrap()[0].name, "debug");
        assert!(chosen(&["release".into(), "fast".into()]).is_err());
    }

    #[test]
    fn a_changed_source_changes_the_stamp() {
        let mut tree = Tree::default();
        tree.insert("src/a.c", "1");
        let before = stamp(&tree, "clang 14");
        assert_ne!(before, stamp(&tree, "clang 15"));
        tree.insert("readme.md", "1");
        assert_eq!(before, stamp(&tree, "clang 14"));
        tree.insert("src/a.c", "2");
        assert_ne!(before, stamp(&tree, "clang 14"));
    }

    #[test]
    fn seeds_repeat_and_differ() {
        assert_eq!(seed(3), seed(3));
        assert_ne!(seed(3)[..64], seed(4)[..64]);
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let mut command = Command::new("sleep");
        command.arg("30");
        if tools::find("sleep").is_some() {
            assert!(finish(command, Duration::from_millis(100)).is_err());
        }
    }

    #[test]
    fn the_faults_are_those_of_the_target() {
        let source = std::fs::read_to_string(util::repo_root().join(SOURCE)).unwrap();
        for (fault, _) in FAULTS {
            assert!(source.contains(&format!("\"{fault}\"")), "{fault}");
        }
    }
}
