//! What the profiler costs, measured on the spot against the same mimalloc without it: instructions, code and structures.

use crate::cmake::{cc, run, Build};
use crate::upstream::Upstream;
use crate::{fastpath, materialize, offproof, tools, util};
use anyhow::{ensure, Context, Result};
use object::{Object, ObjectSection, SectionKind};
use std::path::{Path, PathBuf};
use xshell::{cmd, Shell};

/// The three libraries that are compared, each with the headers that belong to it.
pub struct Libraries {
    pub pristine: Library,
    pub off: Library,
    pub on: Library,
}

pub struct Library {
    build: Build,
    include: PathBuf,
    define: &'static str,
}

impl Libraries {
    pub fn build(shell: &Shell, upstream: &Upstream) -> Result<Libraries> {
        let include = materialize::tree_folder(upstream)?.join("include");
        let library = |build, include, define| Library { build, include, define };
        let pristine = offproof::pristine_folder(upstream)?.join("include");
        Ok(Libraries {
            pristine: library(offproof::pristine_build(shell, upstream)?, pristine, "-DMI_PPROF=0"),
            off: library(offproof::off_build(shell, upstream)?, include.clone(), "-DMI_PPROF=0"),
            on: library(fastpath::on_build(shell, upstream)?, include, "-DMI_PPROF=1"),
        })
    }

    fn all(&self) -> [(&'static str, &Library); 3] {
        [("pristine", &self.pristine), ("OFF", &self.off), ("ON", &self.on)]
    }
}

/// Bytes of code per library, as rows of a table.
pub fn code_sizes(libraries: &Libraries) -> Result<Vec<(&'static str, u64)>> {
    libraries.all().into_iter().map(|(name, library)| Ok((name, library.code_size()?))).collect()
}

/// Bytes per structure: its name, and its size in each library.
pub fn struct_sizes(shell: &Shell, libraries: &Libraries) -> Result<Vec<(String, [u64; 3])>> {
    let mut table: Vec<(String, [u64; 3])> = Vec::new();
    for (at, (_, library)) in libraries.all().into_iter().enumerate() {
        let program = library.compile(shell, "sizes")?;
        for (row, line) in run(cmd!(shell, "{program}"))?.lines().enumerate() {
            let (name, size) = line.split_once(' ').context("no size")?;
            if at == 0 {
                table.push((name.to_string(), [0; 3]));
            }
            table[row].1[at] = size.parse()?;
        }
    }
    ensure!(!table.is_empty(), "no structure was measured");
    Ok(table)
}

/// Instructions for a `mi_free` and a `mi_malloc`.
pub struct Workload {
    pub name: &'static str,
    pub pristine: f64,
    /// What the profiler does, and the instructions then.
    pub profiled: Vec<(&'static str, f64)>,
}

/// None where there is no valgrind.
pub fn instructions(shell: &Shell, libraries: &Libraries) -> Result<Option<Vec<Workload>>> {
    if tools::find("valgrind").is_none() {
        return Ok(None);
    }
    let [pristine, off, on] = [&libraries.pristine, &libraries.off, &libraries.on].map(|l| l.compile(shell, "pairs"));
    let (pristine, off, on) = (pristine?, off?, on?);
    let active = [("MIMALLOC_PROF", "1"), ("MIMALLOC_PROF_SEED", "1")];
    let no_stacks = [active[0], active[1], ("MIMALLOC_PROF_BT_MAX", "0")];
    let workloads = [("pairs of 16–512 B", "1"), ("random replacement among 100,000 blocks of 16–512 B", "100000")];
    let mut table = Vec::new();
    for (name, slots) in workloads {
        let count = |program: &Path, environment: &[(&str, &str)]| per_pair(shell, program, slots, environment);
        table.push(Workload {
            name,
            pristine: count(&pristine, &[])?,
            profiled: vec![
                ("OFF", count(&off, &[])?),
                ("ON, idle", count(&on, &[])?),
                ("ON, active, no stacks", count(&on, &no_stacks)?),
                ("ON, active", count(&on, &active)?),
            ],
        });
    }
    Ok(Some(table))
}

/// The difference of two runs, so that start-up cancels out.
fn per_pair(shell: &Shell, program: &Path, slots: &str, environment: &[(&str, &str)]) -> Result<f64> {
    let counted = |pairs: u32| -> Result<f64> {
        let pairs = pairs.to_string();
        let command = cmd!(shell, "valgrind --tool=callgrind --callgrind-out-file=/dev/null {program} {pairs} {slots}");
        let output = run(command.envs(environment.iter().copied()))?;
        let count = output.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok());
        count.with_context(|| format!("callgrind counted nothing:\n{output}"))
    };
    let (short, long) = (1_000_000, 3_000_000);
    Ok((counted(long)? - counted(short)?) / f64::from(long - short))
}

impl Library {
    /// A program of `xtask/measure`, linked with this library.
    fn compile(&self, shell: &Shell, name: &str) -> Result<PathBuf> {
        let (cc, define, include) = (cc(), self.define, &self.include);
        let source = util::repo_root().join("xtask/measure").join(format!("{name}.c"));
        let (library, program) = (self.build.folder.join("libmimalloc.a"), self.build.folder.join(name));
        run(cmd!(shell, "{cc} -O2 {define} -I{include} {source} {library} -o {program} -lpthread"))?;
        Ok(program)
    }

    fn code_size(&self) -> Result<u64> {
        let mut total = 0;
        for (_, object) in self.build.static_objects()? {
            let bytes = util::read(&object)?;
            let file = object::File::parse(&*bytes)?;
            let code = file.sections().filter(|section| section.kind() == SectionKind::Text);
            total += code.map(|section| section.size()).sum::<u64>();
        }
        ensure!(total > 0, "{}: no code", self.build.folder.display());
        Ok(total)
    }
}
