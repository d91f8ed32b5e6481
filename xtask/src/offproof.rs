//! The OFF proof: with `MI_PPROF=0` nothing is left of the profiler. Dropping the guarded regions of a tree gives
//! upstream's bytes back, its objects have upstream's code, and upstream's tests print what they print without us.

use crate::cmake::{run, Build};
use crate::materialize::{self, drop_all_regions};
use crate::tree::Tree;
use crate::upstream::{Upstream, PRIMARY};
use crate::{text, tools, util};
use anyhow::{bail, ensure, Context, Result};
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind};
use std::path::{Path, PathBuf};
use xshell::{cmd, Shell};

const RELEASE: [&str; 2] = ["-DCMAKE_BUILD_TYPE=Release", "-DMI_BUILD_TESTS=OFF"];

/// What the source has in common with upstream's.
pub fn source(upstream: &Upstream) -> Result<()> {
    let differing = differing_files(&materialize::pristine(upstream)?, materialize::compose(upstream)?)?;
    let label = upstream.label();
    ensure!(
        differing.is_empty(),
        "mimalloc {label}: not upstream's once the regions are dropped: {}",
        differing.join(", ")
    );
    Ok(())
}

/// The source proof must see every fault; returns how many.
pub fn source_planted() -> Result<usize> {
    let upstream = Upstream::Pinned(PRIMARY);
    let pristine = upstream.tree()?;
    for fault in FAULTS {
        match differing_files(&pristine, fault.tree()?) {
            Ok(files) => ensure!(files == [fault.file], "{} in {} was not noticed", fault.name, fault.file),
            Err(error) => ensure!(format!("{error:#}").contains(fault.file), "{}: {error:#}", fault.name),
        }
    }
    Ok(FAULTS.len())
}

/// Compares the code and data of every object of a Release build; returns how many.
pub fn code(shell: &Shell, upstream: &Upstream) -> Result<usize> {
    let label = upstream.label();
    let pristine = pristine_build(shell, upstream)?;
    let off = off_build(shell, upstream)?;
    let objects = pristine.static_objects()?;
    ensure!(objects.len() > 10, "only {} objects were built", objects.len());
    ensure!(objects.len() == off.static_objects()?.len(), "mimalloc {label}: not the same objects");
    for (name, path) in &objects {
        ensure_same(path, &off.static_object(name)?).with_context(|| format!("mimalloc {label}: {name}"))?;
    }
    Ok(objects.len())
}

/// The code proof must see a statement that is not guarded.
pub fn code_planted(shell: &Shell) -> Result<()> {
    let object = planted_object(shell, OFF_PLANT, "off", "-DMI_PPROF=OFF")?;
    let pristine = pristine_build(shell, &Upstream::Pinned(PRIMARY))?.static_object(OFF_PLANT.object)?;
    ensure!(ensure_same(&pristine, &object).is_err(), "an unguarded statement in {} was not noticed", OFF_PLANT.file);
    Ok(())
}

/// Compares `static.c`, by gcc and clang where they are there, Release and Debug; returns how many pairs.
pub fn static_c(shell: &Shell, upstream: &Upstream) -> Result<usize> {
    let (label, trees) = (upstream.label(), [pristine_folder(upstream)?, materialize::tree_folder(upstream)?]);
    let compilers = compilers()?;
    let pairs: Vec<(&str, Mode)> = compilers.iter().flat_map(|cc| MODES.map(|mode| (*cc, mode))).collect();
    let compare = |shell: Shell, (cc, mode): (&str, Mode)| {
        let [pristine, off] = &trees;
        let name = |what: &str| format!("{label}-{cc}-{}-{what}", mode.name);
        let pristine = static_object(&shell, cc, mode, pristine, &name("pristine"))?;
        let off = static_object(&shell, cc, mode, off, &name("off"))?;
        ensure_same(&pristine, &off).with_context(|| format!("mimalloc {label}: static.c, {cc} {}", mode.name))
    };
    std::thread::scope(|scope| {
        let running = pairs.iter().map(|pair| {
            let shell = shell.clone();
            scope.spawn(move || compare(shell, *pair))
        });
        let running: Vec<_> = running.collect();
        running.into_iter().try_for_each(|thread| thread.join().expect("a comparison does not panic"))
    })?;
    Ok(pairs.len())
}

/// Every fault must be seen in `static.c`, each by another compiler or mode; returns how many.
pub fn static_c_planted(shell: &Shell) -> Result<usize> {
    let upstream = Upstream::Pinned(PRIMARY);
    let (pristine, compilers) = (pristine_folder(&upstream)?, compilers()?);
    for (at, fault) in FAULTS.iter().enumerate() {
        let (cc, mode) = (compilers[at % compilers.len()], MODES[at / 2 % MODES.len()]);
        let folder = util::target_dir().join("test/planted/static").join(at.to_string());
        fault.tree()?.write(&folder)?;
        let pristine = static_object(shell, cc, mode, &pristine, &format!("planted-{at}-pristine"))?;
        let planted = static_object(shell, cc, mode, &folder, &format!("planted-{at}"))?;
        ensure!(ensure_same(&pristine, &planted).is_err(), "{} was not noticed ({cc}, {})", fault.name, mode.name);
    }
    Ok(FAULTS.len())
}

#[derive(Clone, Copy)]
struct Mode {
    name: &'static str,
    flags: &'static [&'static str],
}

/// An assertion knows its line, and a region above it moves that: in Debug every line has the number 0.
const MODES: [Mode; 2] = [
    Mode { name: "release", flags: &["-O3", "-DNDEBUG", "-DMI_BUILD_RELEASE"] },
    Mode { name: "debug", flags: &["-O0", "-g", "-DMI_DEBUG=3", "-D__LINE__=0"] },
];
/// Older versions print when they were compiled.
const NO_TIME: [&str; 3] = ["-D__DATE__=\"\"", "-D__TIME__=\"\"", "-Wno-builtin-macro-redefined"];

fn compilers() -> Result<Vec<&'static str>> {
    let found: Vec<_> = ["gcc", "clang"].into_iter().filter(|cc| tools::find(cc).is_some()).collect();
    ensure!(!found.is_empty(), "neither gcc nor clang is on PATH");
    Ok(found)
}

/// Compiled from within the tree, so that paths are the same for all trees; and only if something has changed.
fn static_object(shell: &Shell, cc: &str, mode: Mode, tree: &Path, name: &str) -> Result<PathBuf> {
    let object = util::target_dir().join("test/static").join(format!("{name}.o"));
    let (_in_tree, flags) = (shell.push_dir(tree), mode.flags);
    let made =
        cmd!(shell, "{cc} -std=gnu11 {flags...} {NO_TIME...} -DMI_PPROF=0 -Iinclude -c src/static.c -o {object}");
    let (line, command_file) = (made.to_string(), object.with_extension("command"));
    let same_command = std::fs::read_to_string(&command_file).is_ok_and(|before| before == line);
    if !same_command || !is_newer(&object, tree)? {
        shell.remove_path(&command_file)?;
        shell.create_dir(object.parent().expect("it has a folder"))?;
        run(made)?;
        shell.write_file(&command_file, line)?;
    }
    Ok(object)
}

/// Trees are written so that a file keeps its time unless it changes.
fn is_newer(object: &Path, tree: &Path) -> Result<bool> {
    let Ok(made) = object.metadata().and_then(|object| object.modified()) else { return Ok(false) };
    for path in Tree::read(tree)?.files.keys() {
        if tree.join(path).metadata()?.modified()? >= made {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Upstream's own tests say the same without us and with `MI_PPROF=OFF`; returns how many.
pub fn upstream_tests(shell: &Shell, upstream: &Upstream) -> Result<usize> {
    let pristine = pristine_tests(shell, upstream)?;
    let tree = materialize::tree_folder(upstream)?;
    let off = tests(shell, &tree, &format!("tests-off/{}", upstream.label()), "-DMI_PPROF=OFF")?;
    for (test, args) in TESTS {
        ensure_same_output(shell, test, args, &pristine, &off)
            .with_context(|| format!("mimalloc {}", upstream.label()))?;
    }
    Ok(TESTS.len())
}

/// A test that says something else must be noticed: an ON build lists more options.
pub fn upstream_tests_planted(shell: &Shell) -> Result<usize> {
    let upstream = Upstream::Pinned(PRIMARY);
    let tree = materialize::tree_folder(&upstream)?;
    let on = tests(shell, &tree, &format!("tests-on/{PRIMARY}"), "-DMI_PPROF=ON")?;
    let (test, args) = TESTS[0];
    let error = ensure_same_output(shell, test, args, &pristine_tests(shell, &upstream)?, &on).err();
    let error = error.context("the options of an ON build were not noticed")?;
    ensure!(format!("{error:#}").contains("option 'prof'"), "noticed something else:\n{error:#}");
    Ok(1)
}

/// One thread of the stress test does the same in every run, and the statistics at its end tell what the allocator did.
const TESTS: [(&str, &[&str]); 3] = [("api", &[]), ("api-fill", &[]), ("stress", &["1", "20", "20"])];

fn pristine_tests(shell: &Shell, upstream: &Upstream) -> Result<Build> {
    let name = format!("tests-pristine/{}", upstream.label());
    tests(shell, &pristine_folder(upstream)?, &name, "-DMI_BUILD_TESTS=ON")
}

fn tests(shell: &Shell, source: &Path, name: &str, option: &str) -> Result<Build> {
    let options = [RELEASE[0], "-DMI_BUILD_SHARED=OFF", "-DMI_BUILD_OBJECT=OFF", option];
    let build = Build::configure(shell, source, name, &options)?;
    let targets = TESTS.map(|(test, _)| format!("mimalloc-test-{test}"));
    build.build(shell, &targets.each_ref().map(String::as_str))?;
    Ok(build)
}

/// On a busy machine memory may be purged at another time: one equal pair of runs is enough.
fn ensure_same_output(shell: &Shell, test: &str, args: &[&str], pristine: &Build, ours: &Build) -> Result<()> {
    let output = |build: &Build| {
        let program = build.folder.join(format!("mimalloc-test-{test}"));
        let output = run(cmd!(shell, "{program} {args...}").env("MIMALLOC_VERBOSE", "1"))?;
        ensure!(!output.trim().is_empty(), "test-{test} prints nothing");
        Ok(repeatable(&output))
    };
    let mut difference = String::new();
    for _ in 0..5 {
        let (expected, found) = (output(pristine)?, output(ours)?);
        if expected == found {
            return Ok(());
        }
        difference = text::side_by_side(&expected, &found);
    }
    let different: Vec<&str> = difference.lines().filter(|line| line.trim_start().starts_with('!')).collect();
    bail!("upstream's test-{test} does not print the same:\n{}", different.join("\n"))
}

/// The lines without times and addresses.
fn repeatable(output: &str) -> Vec<String> {
    let timed = |line: &&str| ["elapsed:", "process:", "built on"].iter().any(|word| line.contains(word));
    let word = |word: &str| if word.starts_with("0x") { "0x…".to_string() } else { word.to_string() };
    let lines = output.lines().filter(|line| !timed(line));
    lines.map(|line| line.split(' ').map(word).collect::<Vec<_>>().join(" ")).collect()
}

/// Upstream's own Release objects.
pub fn pristine_build(shell: &Shell, upstream: &Upstream) -> Result<Build> {
    let name = format!("pristine/{}", upstream.label());
    build(shell, &pristine_folder(upstream)?, &name, "-DMI_BUILD_SHARED=OFF")
}

pub fn off_build(shell: &Shell, upstream: &Upstream) -> Result<Build> {
    let tree = materialize::tree_folder(upstream)?;
    build(shell, &tree, &format!("off-proof/{}", upstream.label()), "-DMI_PPROF=OFF")
}

/// Upstream's tree with its own tests and nothing of ours, as a folder.
pub fn pristine_folder(upstream: &Upstream) -> Result<PathBuf> {
    let folder = util::target_dir().join("test/pristine-tree").join(upstream.label());
    materialize::pristine_with_tests(upstream)?.write(&folder)?;
    Ok(folder)
}

pub fn build(shell: &Shell, source: &Path, name: &str, option: &str) -> Result<Build> {
    let build = Build::configure(shell, source, name, &[&RELEASE[..], &[option]].concat())?;
    let _same_time = shell.push_env("SOURCE_DATE_EPOCH", "0");
    build.build(shell, &["mimalloc-static"])?;
    Ok(build)
}

/// A fault to be planted in a tree.
#[derive(Clone, Copy)]
pub struct Plant {
    pub file: &'static str,
    /// The object that the file ends up in.
    pub object: &'static str,
    pub line_with: &'static str,
    pub insert: &'static str,
}

const OFF_PLANT: Plant = Plant {
    file: "src/free.c",
    object: "src/alloc.c.o",
    line_with: "void mi_free(void* p) mi_attr_noexcept",
    insert: "  static volatile int mi_planted; mi_planted = 1;",
};

/// A change of a source file that the OFF proof must notice.
struct Fault {
    name: &'static str,
    file: &'static str,
    instead_of: &'static str,
    code: &'static str,
}

const FAULTS: [Fault; 4] = [
    Fault {
        name: "an unguarded line",
        file: "src/free.c",
        instead_of: "  #if MI_PPROF\n",
        code: "  static volatile int mi_planted; mi_planted = 1;\n  #if MI_PPROF\n",
    },
    Fault {
        name: "a changed line of upstream's",
        file: "src/page.c",
        instead_of: "  if (head == NULL) return;\n",
        code: "  if (head != NULL) return;\n",
    },
    Fault {
        name: "a hook in the #else branch",
        file: "src/free.c",
        instead_of: "  #if MI_PPROF\n",
        code: "  #if MI_PPROF\n  #else\n  static volatile int mi_planted; mi_planted = 1;\n  #endif\n  #if MI_PPROF\n",
    },
    Fault {
        name: "a hook under #if !MI_PPROF",
        file: "src/heap.c",
        instead_of: "  #if MI_PPROF\n",
        code: "  #if !MI_PPROF\n  static volatile int mi_planted; mi_planted = 1;\n  #endif\n  #if MI_PPROF\n",
    },
];

impl Fault {
    /// The primary tree with the fault.
    fn tree(&self) -> Result<Tree> {
        let mut tree = materialize::compose(&Upstream::Pinned(PRIMARY))?;
        let text = tree.text(self.file).with_context(|| format!("no {}", self.file))?;
        ensure!(text.contains(self.instead_of), "{}: no place to plant {}", self.file, self.name);
        tree.insert(self.file, text.replacen(self.instead_of, self.code, 1));
        Ok(tree)
    }
}

/// The object that the fault is in, built with `option`.
pub fn planted_object(shell: &Shell, plant: Plant, name: &str, option: &str) -> Result<std::path::PathBuf> {
    let folder = util::target_dir().join("test/planted").join(name).join("tree");
    planted(plant)?.write(&folder)?;
    build(shell, &folder, &format!("planted/{name}/build"), option)?.static_object(plant.object)
}

/// The primary tree with the fault after the first line that is like `line_with` and opens a body.
fn planted(plant: Plant) -> Result<Tree> {
    let mut tree = materialize::compose(&Upstream::Pinned(PRIMARY))?;
    let text = tree.text(plant.file).with_context(|| format!("no {}", plant.file))?;
    let at = text.find(plant.line_with).with_context(|| format!("{}: no '{}'", plant.file, plant.line_with))?;
    let body = at + text[at..].find("{\n").context("no body")? + 2;
    tree.insert(plant.file, format!("{}{}\n{}", &text[..body], plant.insert, &text[body..]));
    Ok(tree)
}

fn differing_files(upstream: &Tree, mut tree: Tree) -> Result<Vec<String>> {
    ensure!(drop_all_regions(&mut tree)?, "the tree has no regions to drop");
    let differs = upstream.files.iter().filter(|(path, file)| tree.files.get(*path) != Some(*file));
    Ok(differs.map(|(path, _)| path.clone()).collect())
}

fn ensure_same(pristine: &Path, ours: &Path) -> Result<()> {
    let (pristine, ours) = (sections(pristine)?, sections(ours)?);
    for (expected, found) in pristine.iter().zip(&ours) {
        if expected != found {
            bail!("with MI_PPROF=0, {} is not as upstream's", expected.name);
        }
    }
    ensure!(pristine.len() == ours.len(), "with MI_PPROF=0 there are not the sections that upstream has");
    Ok(())
}

/// A section of an object that a program would load.
#[derive(PartialEq)]
struct Section {
    name: String,
    size: u64,
    bytes: Vec<u8>,
    /// Where the linker is to fill in what.
    relocations: Vec<String>,
}

fn sections(object: &Path) -> Result<Vec<Section>> {
    let bytes = util::read(object)?;
    let file = object::File::parse(&*bytes).with_context(|| object.display().to_string())?;
    let is_loaded = |section: &object::Section| {
        let kind = section.kind();
        kind.is_bss()
            || matches!(kind, SectionKind::Text | SectionKind::Data | SectionKind::Tls)
            || matches!(
                kind,
                SectionKind::ReadOnlyData | SectionKind::ReadOnlyDataWithRel | SectionKind::ReadOnlyString
            )
    };
    let sections: Vec<Section> =
        file.sections().filter(is_loaded).map(|section| read_section(&file, &section)).collect::<Result<_>>()?;
    let has_code = sections.iter().any(|section| section.name.starts_with(".text") && !section.bytes.is_empty());
    ensure!(has_code, "{}: no code in it", object.display());
    Ok(sections)
}

fn read_section(file: &object::File, section: &object::Section) -> Result<Section> {
    let target = |target| match target {
        RelocationTarget::Symbol(index) => symbol_name(file, index),
        other => format!("{other:?}"),
    };
    let relocations = section.relocations().map(|(at, to)| format!("{at:x} {} {}", target(to.target()), to.addend()));
    Ok(Section {
        name: section.name()?.to_string(),
        size: section.size(),
        bytes: section.data()?.to_vec(),
        relocations: relocations.collect(),
    })
}

fn symbol_name(file: &object::File, index: object::SymbolIndex) -> String {
    let symbol = file.symbol_by_index(index);
    let name = symbol.as_ref().ok().and_then(|symbol| symbol.name().ok()).unwrap_or("?");
    let section =
        || file.section_by_index(symbol.as_ref().ok()?.section_index()?).ok()?.name().ok().map(str::to_string);
    if name.is_empty() {
        section().unwrap_or_default()
    } else {
        name.to_string()
    }
}
