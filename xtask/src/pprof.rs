//! Dumps of programs whose memory is known, opened with the stock `go tool pprof`: it must name their functions and give
//! each what it holds, however the program was built.

mod example;
mod labels;
mod stock;
mod views;

use crate::cmake::{cc, run};
use crate::materialize;
use crate::upstream::{Upstream, PRIMARY};
use crate::util;
use anyhow::{ensure, Context, Result};
use example::Example;
use std::path::{Path, PathBuf};
use stock::Dump;
use views::{View, VIEWS};
use xshell::{cmd, Shell};

const FORMATS: [&str; 2] = ["pb.gz", "heap"];

/// A way to build a program. Its folder may have any name.
pub struct Variant {
    pub name: &'static str,
    folder: &'static str,
    source: &'static str,
    options: &'static [&'static str],
    plugin: bool,
    /// Leaves the debug information in a file of its own, which its build id names.
    stripped: bool,
    /// What calls the function that holds most, by the name that pprof finds for it.
    caller: &'static str,
    /// pprof takes the text form of a program at a fixed address for one that was moved, and finds no names.
    text_has_names: bool,
}

const C: Variant = Variant {
    name: "C, position independent",
    folder: "pie",
    source: "program.c",
    options: &["-fPIE", "-pie"],
    plugin: false,
    stripped: false,
    caller: "serve",
    text_has_names: true,
};

const STRIPPED: Variant = Variant { name: "C, stripped", folder: "stripped", stripped: true, ..C };

pub const VARIANTS: [Variant; 7] = [
    C,
    Variant {
        name: "C, fixed address",
        folder: "no-pie",
        options: &["-fno-pie", "-no-pie"],
        text_has_names: false,
        ..C
    },
    Variant { name: "C, static", folder: "static", options: &["-static"], text_has_names: false, ..C },
    Variant { name: "C, in a folder with a blank", folder: "my folder", ..C },
    Variant {
        name: "C, with a library loaded later",
        folder: "plugin",
        options: &["-DWITH_PLUGIN", "-rdynamic", "-ldl"],
        plugin: true,
        ..C
    },
    STRIPPED,
    Variant {
        name: "C++, templates and inlining",
        folder: "cxx",
        source: "program.cpp",
        options: &[],
        caller: "[program]",
        ..C
    },
];

/// Builds programs with mimalloc in them.
pub struct Bench<'a> {
    shell: &'a Shell,
    folder: PathBuf,
    include: PathBuf,
    /// All of mimalloc, in place of the C library's `malloc`.
    object: PathBuf,
}

impl Bench<'_> {
    pub fn new(shell: &Shell) -> Result<Bench<'_>> {
        let tree = materialize::tree_folder(&Upstream::Pinned(PRIMARY))?;
        let (cc, include, library) = (cc(), tree.join("include"), tree.join("src/static.c"));
        let folder = util::target_dir().join("test/pprof");
        let object = folder.join("mimalloc.o");
        shell.create_dir(&folder)?;
        let defines = ["-DMI_PPROF=1", "-DMI_MALLOC_OVERRIDE=1"];
        run(cmd!(shell, "{cc} -O2 -fPIC {defines...} -I{include} -c {library} -o {object}"))?;
        Ok(Bench { shell, folder, include, object })
    }

    fn compile(&self, source: &Path, options: &[&str], program: &Path) -> Result<()> {
        let (include, object) = (&self.include, &self.object);
        let compiler = if source.extension().is_some_and(|extension| extension == "cpp") { "g++".into() } else { cc() };
        run(cmd!(self.shell, "{compiler} -O2 -g -I{include} {source} {object} {options...} -o {program} -pthread"))
            .map(drop)
    }

    fn source(name: &str) -> PathBuf {
        util::repo_root().join("xtask/pprof").join(name)
    }

    /// Returns how many values of how many functions, and other facts, are right.
    pub fn check(&self, variant: &Variant) -> Result<usize> {
        let subject = Subject::new(self, variant)?;
        let mut checked = 0;
        for format in FORMATS {
            let expected = subject.expected(format)?;
            for (name, view) in VIEWS {
                let context = || format!("{} of {}", name, subject.path(2, format).display());
                checked += view(&subject, format, &expected).with_context(context)?;
            }
        }
        Ok(checked)
    }

    /// `examples/leak.c` with samples: each value within four standard deviations.
    pub fn estimates(&self) -> Result<usize> {
        let example = Example::run(self)?;
        FORMATS.iter().map(|format| example.compare(format)).sum()
    }

    pub fn labels(&self) -> Result<usize> {
        labels::check(self)
    }

    /// Each fault must be noticed.
    pub fn planted(&self) -> Result<usize> {
        let subject = Subject::new(self, &C)?;
        let mut noticed = labels::planted(self)?;
        for format in FORMATS {
            let all_wrong = VIEWS.map(|(name, view)| (name, view, Expected::spoil as Fault));
            for (name, view, fault) in FAULTS.into_iter().chain(all_wrong) {
                let mut expected = subject.expected(format)?;
                fault(&mut expected);
                ensure!(view(&subject, format, &expected).is_err(), "{format}: not noticed: {name}");
                noticed += 1;
            }
        }
        Ok(noticed + self.planted_dumps()?)
    }

    /// A dump without names, one without stacks, one with samples only, and half a dump must not pass.
    fn planted_dumps(&self) -> Result<usize> {
        let mut stripped = Subject::new(self, &STRIPPED)?;
        stripped.debug = None;
        let (mut nameless, example) = (Subject::new(self, &C)?, Example::run(self)?);
        nameless.run(&[("MIMALLOC_PROF_BT_MAX", "0")])?;
        for format in FORMATS {
            let top = |subject: &Subject| views::top(subject, format, &subject.expected(format)?);
            ensure!(top(&stripped).is_err(), "{format}: a stripped program passes without its debug information");
            ensure!(top(&nameless).is_err(), "{format}: functions without names were not noticed");
            let mut exact = example.clone();
            exact.rate = 1;
            ensure!(exact.compare(format).is_err(), "{format}: estimates pass as exact values");
            let path = example.path(format);
            let half = util::read(&path)?;
            self.shell.write_file(&path, &half[..half.len() / 2])?;
            ensure!(example.compare(format).is_err(), "{format}: half a dump was not noticed");
        }
        Ok(4 * FORMATS.len())
    }
}

/// What a program says of a function: `FUNCTION BYTES OBJECTS`.
#[derive(Clone)]
struct Held {
    function: String,
    bytes: f64,
    objects: f64,
}

impl Held {
    /// The lines that begin with `word`.
    fn all(output: &str, word: &str) -> Result<Vec<Held>> {
        let lines = output.lines().filter_map(|line| line.strip_prefix(word)?.strip_prefix(' '));
        lines.map(|line| Held::parse(line).with_context(|| line.to_string())).collect()
    }

    fn parse(line: &str) -> Option<Held> {
        let (rest, objects) = line.rsplit_once(' ')?;
        let (function, bytes) = rest.rsplit_once(' ')?;
        Some(Held { function: function.to_string(), bytes: bytes.parse().ok()?, objects: objects.parse().ok()? })
    }

    fn sum(all: &[Held], function: String) -> Held {
        let [bytes, objects] =
            [|held: &Held| held.bytes, |held: &Held| held.objects].map(|value| all.iter().map(value).sum());
        Held { function, bytes, objects }
    }
}

/// A program that was built, and what it wrote and said.
struct Subject<'a> {
    bench: &'a Bench<'a>,
    variant: &'a Variant,
    program: PathBuf,
    debug: Option<PathBuf>,
    output: String,
}

/// What pprof must say of its dumps.
struct Expected {
    held: Vec<Held>,
    grew: Vec<Held>,
    /// Inlined functions, and members.
    inner: Vec<Held>,
    caller: &'static str,
    rate: u64,
    program: String,
    build_id: String,
    comment: String,
}

impl<'a> Subject<'a> {
    fn new(bench: &'a Bench, variant: &'a Variant) -> Result<Subject<'a>> {
        let (shell, folder) = (bench.shell, bench.folder.join(variant.folder));
        let program = folder.join("program");
        shell.remove_path(&folder)?;
        shell.create_dir(&folder)?;
        bench.compile(&Bench::source(variant.source), variant.options, &program)?;
        if variant.plugin {
            let (cc, source, plugin) = (cc(), Bench::source("plugin.c"), folder.join("plugin.so"));
            run(cmd!(shell, "{cc} -O2 -g -fPIC -shared {source} -o {plugin}"))?;
        }
        let debug = if variant.stripped { Some(strip(shell, &program)?) } else { None };
        let mut subject = Subject { bench, variant, program, debug, output: String::new() };
        subject.run(&[])?;
        Ok(subject)
    }

    fn run(&mut self, environment: &[(&str, &str)]) -> Result<()> {
        let (program, plugin) = (&self.program, self.variant.plugin.then(|| self.program.with_file_name("plugin.so")));
        let command = cmd!(self.bench.shell, "{program} {program} {plugin...}").env("MIMALLOC_PROF_SAMPLE_RATE", "1");
        self.output = run(command.envs(environment.iter().copied()))?;
        Ok(())
    }

    fn path(&self, number: usize, format: &str) -> PathBuf {
        PathBuf::from(format!("{}.{number}.{format}", self.program.display()))
    }

    /// The text form has no build ids and ends paths at a blank: pprof is told of the program. Where there is a debug
    /// file, that is the one to be told of.
    fn dump(&self, number: usize, format: &str) -> Dump<'_> {
        let in_text = (format == "heap").then(|| self.program.clone());
        Dump { shell: self.bench.shell, path: self.path(number, format), program: self.debug.clone().or(in_text) }
    }

    fn expected(&self, format: &str) -> Result<Expected> {
        let [mut held, mut grew, inner] = ["held", "grew", "inner"].map(|word| Held::all(&self.output, word));
        let mut caller = self.variant.caller;
        if format == "heap" && !self.variant.text_has_names {
            (held, grew) =
                (Ok(vec![Held::sum(&held?, "[program]".into())]), Ok(vec![Held::sum(&grew?, "[program]".into())]));
            caller = "[program]";
        }
        let (held, grew) = (held?, grew?);
        ensure!(!held.is_empty() && !grew.is_empty(), "the program says nothing of its memory:\n{}", self.output);
        Ok(Expected {
            held,
            grew,
            inner: inner?,
            caller,
            rate: 1,
            program: self.program.display().to_string(),
            build_id: if format == "heap" { String::new() } else { stock::build_id(self.bench.shell, &self.program)? },
            // Readers of the text form skip comments.
            comment: if format == "heap" { String::new() } else { format!("mimalloc {PRIMARY}") },
        })
    }
}

/// Moves debug information to where debuggers look for it: `.build-id/ab/cdef….debug`, here below the program's folder.
fn strip(shell: &Shell, program: &Path) -> Result<PathBuf> {
    let id = stock::build_id(shell, program)?;
    let debug = program.with_file_name(".build-id").join(&id[..2]).join(format!("{}.debug", &id[2..]));
    shell.create_dir(debug.parent().context("a file has a folder")?)?;
    run(cmd!(shell, "objcopy --only-keep-debug {program} {debug}"))?;
    run(cmd!(shell, "strip {program}"))?;
    Ok(debug)
}

type Fault = fn(&mut Expected);

const FAULTS: [(&str, View, Fault); 6] = [
    ("a byte more", views::top, |expected| expected.held[0].bytes += 1.0),
    ("an object less", views::top, |expected| expected.held[1].objects -= 1.0),
    ("another name", views::svg, |expected| expected.held[2].function.push('2')),
    ("an object that came", views::base, |expected| expected.grew[0].objects += 1.0),
    ("another program", views::raw, |expected| expected.program.push('2')),
    ("another caller", views::traces, |expected| expected.caller = "main"),
];

impl Expected {
    /// All of it is wrong.
    fn spoil(&mut self) {
        for held in self.held.iter_mut().chain(&mut self.grew).chain(&mut self.inner) {
            held.bytes += 1.0;
        }
        self.rate += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_account_is_read() {
        let held = Held::all("held hold<int, 3> 120 3\ngrew x 1 1\nheldx 1 2 3\n", "held").unwrap();
        assert_eq!(held.len(), 1);
        assert_eq!((held[0].function.as_str(), held[0].bytes, held[0].objects), ("hold<int, 3>", 120.0, 3.0));
        assert!(Held::all("held serve\n", "held").is_err());
    }
}
